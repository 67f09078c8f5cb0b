//! Carrying records that could not be applied over to the next epoch.
//!
//! Everything else is applied, durably, so the lower tree with the carried records is the committed
//! state. These are written to an overflow file, which the superblock of the next epoch refers to:
//! before it is in force the present epoch is applied again, and after that the records of the old
//! epoch are invalid.

use std::collections::{BTreeSet, HashSet};

use mobifs_base::{ByteRange, FileKind, ObjectId, ObjectState, PageIndex, RangeSet};
use rustix::io::Errno;

use crate::StoreError;
use crate::apply::refused::Refused;
use crate::apply::rename_steps::RenameSteps;
use crate::apply::spare;
use crate::apply::stage;
use crate::apply::stage::{PART_RESERVE_BYTES, bind_records};
use crate::apply::work::{Applier, Work};
use crate::log::codec;
use crate::log::epoch::{Carried, Epoch};
use crate::log::record::{Record, diff};
use crate::lower::Lower;
use crate::overlay::Overlay;
use crate::overlay::paths;
use crate::overlay::pending::{PendingObject, PendingPage};
use crate::overlay::places;

/// Kept for names whose renaming is refused.
const NAMES_BYTES: u64 = 64 << 10;

/// What directories may take for the names that an apply moves.
const DIRECTORIES_BYTES: u64 = 64 << 10;

/// Overflow files that one apply writes at most: the inodes of new objects, and what is carried
/// over.
const FILES_MAX: u64 = 2;

/// New objects of which no name could be attached are kept in `limbo/`, like others without a name.
/// In `stage/` they would be made again, although directories have entries already.
pub(super) fn park_nameless<L: Lower>(
    overlay: &Overlay<L>,
    refused: &Refused,
    renames: &mut RenameSteps<'_>,
) -> Result<(), StoreError> {
    let children: BTreeSet<ObjectId> = refused
        .entries()
        .iter()
        .filter_map(|(_, child)| *child)
        .filter(|child| !refused.is_absent(*child))
        .collect();
    for id in children {
        let staged = {
            let state = overlay.state();
            let location = state.table.get(id);
            let staged = location.filter(|at| at.in_stage() && at.names().is_empty());
            staged.map(|at| at.inode)
        };
        let Some(inode) = staged else { continue };
        let (from, to) = (id.0.to_string(), inode.to_string());
        let failed = || StoreError::lower(format!("keeping {id}, which has no name"));
        // A name that an earlier attempt gave it may have been detached since.
        let is_there = overlay.is_there(overlay.limbo(), to.as_bytes(), Some(inode))?;
        let kept = if is_there {
            overlay.lower().unlink(overlay.stage(), from.as_bytes())
        } else {
            let (from, to) = (from.as_bytes(), to.as_bytes());
            overlay
                .lower()
                .rename(overlay.stage(), from, overlay.limbo(), to)
        };
        kept.map_err(failed())?;
        {
            let mut state = overlay.state_mut();
            state.table.set_in_stage(id, false);
            state.table.set_in_limbo(id, true);
        }
        renames.end_step();
    }
    Ok(())
}

/// Reserves room for the records that were refused so far, before any rename: without room the
/// apply fails before it has changed a name. Before that, new objects are removed from `stage/` and
/// carried over as well: they may hold the last room, or the last inode. Returns the new objects
/// that stay.
pub(super) fn keep_room_to_carry<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    epoch: &Epoch<L::Handle>,
    work: &Work,
    refused: &mut Refused,
    mut staged: Vec<(ObjectId, u64)>,
) -> Result<Vec<(ObjectId, u64)>, StoreError> {
    loop {
        let records = left_over(overlay, epoch, work, refused, &mut HashSet::new())?;
        let bytes = codec::encoded_bytes(&records).saturating_add(NAMES_BYTES);
        let kept = keep_room_for_files(overlay, applier, epoch, &staged, bytes);
        let is_short = match &kept {
            Ok(()) => !has_room_for_directories(overlay, applier, epoch),
            Err(error) => error.has_no_room(),
        };
        // Directories may have room for the names as they are, so an apply goes on without room
        // for them, but not without room for the records.
        if !is_short || !give_some_back(overlay, work, refused, &mut staged)? {
            return kept.map(|()| staged);
        }
    }
}

/// Reserves room for the records of new objects' inodes, where the journal has none, and then for
/// so many bytes of carried records.
fn keep_room_for_files<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    epoch: &Epoch<L::Handle>,
    staged: &[(ObjectId, u64)],
    bytes: u64,
) -> Result<(), StoreError> {
    let keep = |file, bytes| spare::keep_room(overlay, applier.reserve(), file, bytes);
    let first = epoch.next_overflow();
    let mut records = bind_records(staged);
    records.push(Record::RenameMarkInPart);
    if epoch.fits(&records, PART_RESERVE_BYTES) {
        // With more new objects, the attempt before needed two files.
        spare::give_up(overlay, applier.reserve(), first + 1);
        return keep(first, bytes);
    }
    keep(first, codec::encoded_bytes(&records))?;
    let kept = keep(first + 1, bytes);
    if kept.is_err() {
        spare::give_up(overlay, applier.reserve(), first);
    }
    kept
}

/// Whether directories can grow when names move next, `limbo/` among others: a directory of XFS
/// needs a block when it outgrows its inode, with some 20 entries. A file apart tries that: the
/// room of those that hold the records must not be given up, on a full filesystem it would be lost.
fn has_room_for_directories<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    epoch: &Epoch<L::Handle>,
) -> bool {
    let file = epoch.next_overflow() + FILES_MAX;
    let kept = spare::keep_room(overlay, applier.reserve(), file, DIRECTORIES_BYTES);
    if kept.is_ok() {
        spare::give_up(overlay, applier.reserve(), file);
    }
    kept.is_ok()
}

/// Reserves as much again, if there is room, for the next apply, which writes its carried records
/// while the file of this epoch is still valid.
pub(super) fn keep_room_to_carry_again<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    epoch: &Epoch<L::Handle>,
) {
    if let Some(carried) = epoch.log().carried() {
        let bytes = carried.bytes.saturating_add(NAMES_BYTES);
        let file = epoch.next_overflow();
        if let Err(error) = spare::keep_room(overlay, applier.reserve(), file, bytes) {
            tracing::info!(%error, "cannot keep room for carrying the journal over again");
        }
    }
}

/// Removes half of the new objects in `stage/` that can be made again from the journal; false if
/// there are none.
fn give_some_back<L: Lower>(
    overlay: &Overlay<L>,
    work: &Work,
    refused: &mut Refused,
    staged: &mut Vec<(ObjectId, u64)>,
) -> Result<bool, StoreError> {
    let can_be_made_again = |(id, _): &(ObjectId, u64)| {
        let object = work.objects.get(id);
        object.is_some_and(|object| stage::can_be_unstaged(overlay, *id, object))
    };
    let (mut again, kept): (Vec<_>, Vec<_>) = std::mem::take(staged)
        .into_iter()
        .partition(can_be_made_again);
    // The newest are removed first.
    let gone = again.split_off(again.len() / 2);
    *staged = again;
    staged.extend(kept);
    for (id, _) in &gone {
        stage::unstage(overlay, *id)?;
        let full = StoreError::lower(format!("making new object {id}"))(Errno::NOSPC.into());
        refused.record_absent(*id, paths::failed_for(overlay, *id)(full))?;
    }
    if !gone.is_empty() {
        // Their blocks are free when the filesystem's own journal says so.
        overlay
            .lower()
            .sync_all()
            .map_err(StoreError::lower("releasing the blocks of new objects"))?;
    }
    Ok(!gone.is_empty())
}

/// Writes the refused records, durably, for the next epoch.
pub(super) fn carry_over<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    epoch: &mut Epoch<L::Handle>,
    work: &Work,
    refused: &Refused,
) -> Result<(), StoreError> {
    let mut recorded = HashSet::new();
    let records = {
        let _tree = overlay.hold_names();
        left_over(overlay, epoch, work, refused, &mut recorded)?
    };
    // All refused records are of objects that this epoch deletes.
    if records
        .iter()
        .all(|record| matches!(record, Record::Known { .. }))
    {
        return Ok(());
    }
    let number = epoch.take_overflow();
    let (file, bytes) = spare::write(overlay, applier.reserve(), number, &records)?;
    applier.counters().add_written(bytes);
    epoch.carry(Carried {
        file,
        records,
        recorded,
        error: refused.error(),
    });
    Ok(())
}

/// Records of everything that is not applied: with the lower tree they make the committed state.
fn left_over<L: Lower>(
    overlay: &Overlay<L>,
    epoch: &Epoch<L::Handle>,
    work: &Work,
    refused: &Refused,
    recorded: &mut HashSet<ObjectId>,
) -> Result<Vec<Record>, StoreError> {
    let mut incomplete = BTreeSet::new();
    for &id in refused.incomplete() {
        if !is_deleted(overlay, id)? {
            incomplete.insert(id);
        }
    }
    // Directories change again with their entries, and objects that get a name must be recorded.
    let of_entries = refused.entries().iter();
    let of_entries = of_entries.flat_map(|((parent, _), child)| [Some(*parent), *child]);
    let ids: BTreeSet<ObjectId> = of_entries
        .flatten()
        .chain(incomplete.iter().copied())
        .chain(refused.absent().iter().copied())
        .chain(still_named(overlay, work, refused))
        .collect();
    let mut records = Vec::new();
    places::record_places(
        overlay,
        epoch.recorded(),
        ids.iter().copied(),
        recorded,
        &mut records,
    );
    let mut content = Vec::new();
    for id in ids {
        let Some(object) = work.objects.get(&id) else {
            continue;
        };
        let is_new = refused.is_absent(id);
        let is_whole = !is_new && !incomplete.contains(&id);
        let mut state = state_of(id, object, is_new, is_whole);
        if let Some(Record::Object(state)) = &mut state
            && !is_new
            && is_nameless(overlay, id)
        {
            // What is recorded may be of the time when it had a name. Nothing is lost if the next
            // mount does not find it.
            state.attributes.nlink = 0;
        }
        records.extend(state);
        if is_new {
            let direct = object.direct.iter();
            content.extend(direct.map(|range| Record::Direct { object: id, range }));
        }
        if !is_whole {
            let pages = object.pages.iter();
            content.extend(pages.map(|(&index, page)| page_record(id, index, page)));
        }
    }
    let entries = refused.entries().iter();
    records.extend(entries.map(|((parent, name), child)| Record::Dentry {
        parent: *parent,
        name: name.clone(),
        child: *child,
    }));
    records.extend(content);
    Ok(records)
}

/// Changed objects with a lower name that they should not have: the filesystem counts it as a link.
fn still_named<L: Lower>(overlay: &Overlay<L>, work: &Work, refused: &Refused) -> Vec<ObjectId> {
    let entries: HashSet<_> = refused.entries().iter().map(|(place, _)| place).collect();
    let state = overlay.state();
    let is_still_named = |id: &ObjectId| {
        let names = state.table.get(*id).map(|location| location.names());
        names.is_some_and(|names| names.iter().any(|place| entries.contains(place)))
    };
    let changed = work.objects.keys().copied();
    changed.filter(is_still_named).collect()
}

/// Whether a new object is in `stage/` because it is in use, and has lost its names: the power cut
/// that ends its use removes it.
fn is_nameless<L: Lower>(overlay: &Overlay<L>, id: ObjectId) -> bool {
    let state = overlay.state();
    let location = state.table.get(id);
    let is_staged = location.is_some_and(|at| at.in_stage() && at.names().is_empty());
    is_staged && !state.pending.is_linked(id)
}

/// Whether a lower object is not in use and has no name, neither a known one nor one in a directory
/// that is not read yet: this epoch deletes it.
fn is_deleted<L: Lower>(overlay: &Overlay<L>, id: ObjectId) -> Result<bool, StoreError> {
    let location = {
        let state = overlay.state();
        let is_in_use =
            state.pending.is_linked(id) || state.is_pinned(id) || state.spilled(id).is_some();
        let location = state.table.get(id).filter(|_| !is_in_use);
        location.filter(|at| at.names().is_empty()).cloned()
    };
    let Some(location) = location.filter(|_| id != ObjectId::ROOT) else {
        return Ok(false);
    };
    let name = location.inode.to_string();
    let waiting = overlay.stat_at(overlay.limbo(), name.as_bytes())?;
    let has_other_names = waiting.is_some_and(|stat| {
        stat.kind != FileKind::Directory && stat.inode == location.inode && stat.nlink > 1
    });
    Ok(!has_other_names)
}

/// The state of an object; of one that is complete in the lower tree only the attributes that
/// change with its names.
fn state_of(id: ObjectId, object: &PendingObject, is_new: bool, is_whole: bool) -> Option<Record> {
    let mut state = ObjectState {
        id,
        created: is_new,
        attributes: object.attributes?,
        symlink_target: None,
        zeroed: Vec::new(),
        allocated: Vec::new(),
        xattrs: Vec::new(),
    };
    if !is_whole {
        state.symlink_target.clone_from(&object.symlink_target);
        state.zeroed = zeroed(object, is_new).iter().collect();
        state.allocated = object.allocated.iter().collect();
        let xattrs = object.xattrs.iter();
        state.xattrs = xattrs
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
    }
    Some(Record::Object(state))
}

/// The ranges of an object that read as zeros where it has no pages. An object that this epoch has
/// made and that is in the lower tree by now has only direct data.
fn zeroed(object: &PendingObject, is_new: bool) -> RangeSet {
    if !object.created || is_new {
        return object.zeroed.clone();
    }
    let mut gaps = RangeSet::from_iter([ByteRange::from(0)]);
    object.direct.iter().for_each(|range| gaps.remove(range));
    gaps
}

fn page_record(object: ObjectId, index: PageIndex, page: &PendingPage) -> Record {
    let (fresh, runs) = match page {
        PendingPage::Whole(page) => (true, diff(None, page)),
        PendingPage::Runs { fresh, runs } => (*fresh, runs.clone()),
    };
    Record::Bytes {
        object,
        index,
        fresh,
        runs,
    }
}
