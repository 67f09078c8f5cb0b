//! Giving back what is preallocated and unused.
//!
//! Blocks beyond the end of a file are freed by setting the size that the file has, and that
//! changes the time of its last change. So the attributes of the file are committed to the journal
//! first, unless they are pending already: wherever a crash comes, they are applied again before
//! the epoch ends. Nothing is freed of a file that is not exactly as the store has left it.

use std::collections::HashSet;

use mobifs_base::{FileKind, ObjectState};

use crate::StoreError;
use crate::apply::preallocation::find::{self, FoundFile};
use crate::apply::preallocation::list::{Listed, Phase, block_end};
use crate::apply::preallocation::{Preallocations, short_bytes};
use crate::apply::work::Applier;
use crate::log::epoch::{BIND_RESERVE_BYTES, Epoch, RenameMark};
use crate::log::record::Record;
use crate::lower::{Lower, LowerStat, SetAttributes};
use crate::overlay::Overlay;
use crate::overlay::{places, read};

/// Whether anything is to be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GivenBack {
    /// What does not grow any more; the rest stays until room is short or the store is closed.
    Due,
    Everything,
}

/// Gives back what is due, or everything; returns whether blocks were freed. The caller holds no
/// lock but that of the epoch.
pub(crate) fn give_back<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    epoch: &mut Epoch<L::Handle>,
    which: GivenBack,
) -> bool {
    let preallocations = applier.preallocations();
    let chosen = choose(preallocations, which);
    if chosen.is_empty() || !may_record(epoch) {
        return false;
    }
    let mut found = Vec::new();
    for file in &chosen {
        match examine(overlay, file) {
            Ok(Some(file)) => found.push(file),
            // Another file by now, or it has nothing to give.
            Ok(None) => preallocations.files().remove(file.inode),
            Err(error) => {
                tracing::debug!(%error, inode = file.inode, "preallocated blocks stay for now");
            }
        }
    }
    if let Err(error) = record_attributes(overlay, epoch, &found) {
        tracing::warn!(%error, "preallocated blocks stay: the journal takes no attributes");
        return false;
    }
    let freed = free_all(overlay, applier, &found);
    if freed.is_empty() {
        return false;
    }
    // The blocks are free when the filesystem's own journal says so; until then the list has them.
    if let Err(error) = overlay.lower().sync_all() {
        tracing::warn!(%error, "preallocated blocks may not have been given back");
        return false;
    }
    let mut files = preallocations.files();
    freed.into_iter().for_each(|inode| files.remove(inode));
    true
}

fn choose(preallocations: &Preallocations, which: GivenBack) -> Vec<Listed> {
    let files = preallocations.files();
    let is_chosen = |file: &&Listed| {
        file.phase == Phase::Held && (which == GivenBack::Everything || file.is_due)
    };
    files.by_inode.values().filter(is_chosen).cloned().collect()
}

/// Whether the journal can protect attributes now: an apply that has begun to move names will not
/// apply them again, and what an earlier failure has left there comes first.
fn may_record<H>(epoch: &Epoch<H>) -> bool {
    let log = epoch.log();
    let is_known = !log.is_epoch_unknown() && !log.is_tail_unknown();
    is_known && epoch.rename_mark() == RenameMark::NotBegun
}

/// The file, if it has blocks that the store may free.
///
/// # Errors
/// It cannot be looked at; another attempt may.
fn examine<L: Lower>(
    overlay: &Overlay<L>,
    file: &Listed,
) -> Result<Option<FoundFile<L::Handle>>, StoreError> {
    let _names = overlay.hold_names();
    let Some(found) = find::find(overlay, file)? else {
        return Ok(None);
    };
    if found.stat.immutable || !is_as_left(overlay, file, &found) {
        return Ok(None);
    }
    let end = overlay
        .lower()
        .allocated_after(&found.handle, block_end(found.stat.size))
        .map_err(StoreError::lower("looking for preallocated blocks"))?;
    Ok(end.filter(|&end| end <= file.end).map(|_| found))
}

/// Whether its last change is known: that of the apply before, or one that the journal has.
fn is_as_left<L: Lower>(overlay: &Overlay<L>, file: &Listed, found: &FoundFile<L::Handle>) -> bool {
    let stat = &found.stat;
    // Some filesystems keep whole seconds.
    let is_same_time = stat.mtime == file.mtime
        || (stat.mtime.nanoseconds == 0 && stat.mtime.seconds == file.mtime.seconds);
    has_pending_attributes(overlay, found) || (stat.size == file.size && is_same_time)
}

fn has_pending_attributes<L: Lower>(overlay: &Overlay<L>, found: &FoundFile<L::Handle>) -> bool {
    let state = overlay.state();
    let object = state.pending.object(found.id);
    object.is_some_and(|object| object.attributes.is_some())
}

/// Commits the attributes of the files of which none are pending.
fn record_attributes<L: Lower>(
    overlay: &Overlay<L>,
    epoch: &mut Epoch<L::Handle>,
    files: &[FoundFile<L::Handle>],
) -> Result<(), StoreError> {
    let mut states = Vec::new();
    for file in files {
        if has_pending_attributes(overlay, file) {
            continue;
        }
        // Of the file itself: at its name another program may have mounted another one meanwhile.
        let attributes = read::shown_attributes(overlay, file.id, &file.stat)?;
        assert_eq!(attributes.kind, FileKind::Regular, "only files are listed");
        states.push(ObjectState::of_attributes(file.id, attributes));
    }
    if states.is_empty() {
        return Ok(());
    }
    epoch.sync_renames(overlay.lower())?;
    let _names = overlay.hold_names();
    let mut recorded = HashSet::new();
    let mut records = Vec::new();
    let ids = states.iter().map(|state| state.id);
    places::record_places(overlay, epoch.recorded(), ids, &mut recorded, &mut records);
    records.extend(states.iter().cloned().map(Record::Object));
    if !epoch.fits(&records, BIND_RESERVE_BYTES) {
        // An overflow file would take the room that is short.
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        return Err(StoreError::lower("recording attributes")(full));
    }
    let files = (overlay.lower(), overlay.stage().as_ref());
    // No change of a program: it has no tags.
    epoch.commit(files, overlay.sink(), &[], &records, recorded)?;
    let mut state = overlay.state_mut();
    states
        .iter()
        .for_each(|object| state.pending.merge_state(object));
    Ok(())
}

/// Frees what these files have beyond their ends; returns the inodes of those that have nothing
/// any more.
fn free_all<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    files: &[FoundFile<L::Handle>],
) -> Vec<u64> {
    let _content = applier.content();
    let _names = overlay.hold_names();
    let mut freed = Vec::new();
    for file in files {
        assert!(
            has_pending_attributes(overlay, file),
            "the journal has the attributes of a file whose blocks are freed"
        );
        match free(overlay, file) {
            Ok(()) => freed.push(file.stat.inode),
            Err(error) => {
                tracing::debug!(%error, inode = file.stat.inode, "preallocated blocks stay for now");
            }
        }
    }
    freed
}

fn free<L: Lower>(overlay: &Overlay<L>, file: &FoundFile<L::Handle>) -> std::io::Result<()> {
    let stat: &LowerStat = &file.stat;
    overlay.lower().truncate(&file.handle, stat.size)?;
    // The apply does so again; programs that look into the store see no other time until then.
    let attributes = SetAttributes {
        mode: stat.mode,
        uid: stat.uid,
        gid: stat.gid,
        atime: stat.atime,
        mtime: stat.mtime,
    };
    overlay.lower().set_attributes(&file.handle, &attributes)
}

/// Before something takes so much room: gives everything back if there might be too little.
/// The caller holds no lock but that of the epoch.
pub(crate) fn make_way<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    epoch: &mut Epoch<L::Handle>,
    needed_bytes: u64,
) {
    if is_short(overlay, applier, needed_bytes) {
        give_back(overlay, applier, epoch, GivenBack::Everything);
    }
}

/// Whether so much may not find room beside what is preallocated.
pub(crate) fn is_short<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    needed_bytes: u64,
) -> bool {
    if applier.preallocations().unused_bytes() == 0 {
        return false;
    }
    let Ok(space) = overlay.lower().space() else {
        return false;
    };
    let reserved_bytes = overlay.state().pending.reserved().bytes();
    let wanted_bytes = reserved_bytes.saturating_add(needed_bytes);
    space.available_bytes < wanted_bytes.saturating_add(short_bytes(&space) / 2)
}
