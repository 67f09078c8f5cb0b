//! New objects, made complete in `stage/` before they get their names.

use std::sync::Arc;

use mobifs_base::{Attributes, FileKind, ObjectId, PAGE_BYTES_U64};
use rustix::io::Errno;

use crate::StoreError;
use crate::apply::content;
use crate::apply::limbo;
use crate::apply::refused::Refused;
use crate::apply::spare;
use crate::apply::work::{Applier, Work};
use crate::error::missing;
use crate::log::epoch::{Epoch, RenameMark};
use crate::log::record::Record;
use crate::lower::found;
use crate::lower::{Create, Lower};
use crate::overlay::Overlay;
use crate::overlay::lookup;
use crate::overlay::paths;
use crate::overlay::pending::PendingObject;

/// The room that a mark of a partial apply must leave in the journal, for the mark of the complete
/// one.
pub(super) const PART_RESERVE_BYTES: u64 = PAGE_BYTES_U64;

/// The journal's records of new objects' inodes.
pub(super) fn bind_records(bindings: &[(ObjectId, u64)]) -> Vec<Record> {
    let bindings = bindings.iter();
    bindings
        .map(|&(id, inode)| Record::Bind { id, inode })
        .collect()
}

/// Makes all new objects that have a name (or are in use without one); returns the inodes of those
/// that get a name and that the journal has not recorded yet.
pub(super) fn stage_new_objects<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    work: &Work,
    refused: &mut Refused,
) -> Result<Vec<(ObjectId, u64)>, StoreError> {
    let mut bindings = Vec::new();
    let mut created: Vec<(ObjectId, &Arc<PendingObject>)> = work
        .objects
        .iter()
        .filter(|(_, object)| object.created)
        .map(|(&id, object)| (id, object))
        .collect();
    created.sort_unstable_by_key(|(id, _)| *id);
    for (id, object) in created {
        let attributes = object.attributes.ok_or_else(|| missing(id))?;
        let (is_linked, is_pinned) = {
            let state = overlay.state();
            (state.pending.is_linked(id), state.is_pinned(id))
        };
        if !is_linked && !is_pinned {
            // Created and removed again: it never needs to exist in the lower filesystem.
            continue;
        }
        let staged = stage_object(overlay, applier, id, object, &attributes);
        match staged.map_err(paths::failed_for(overlay, id)) {
            Ok(()) => {}
            // The journal has its inode: it stays, and keeps or gets its names.
            Err(error) if object.bound.is_some() => refused.record_incomplete(id, error)?,
            Err(error) => {
                refused.record_absent(id, error)?;
                // Its incomplete file takes room that others may need.
                if can_be_unstaged(overlay, id, object) {
                    unstage(overlay, id)?;
                }
                continue;
            }
        }
        if object.bound.is_none() {
            let inode = stage_inode(overlay, id)?;
            let mut state = overlay.state_mut();
            state.table.insert(id, inode, attributes.kind);
            state.table.set_in_stage(id, true);
            drop(state);
            if is_linked {
                bindings.push((id, inode));
            }
        }
    }
    Ok(bindings)
}

/// Records in the journal that renames begin, and the inodes by which new objects can be recognised
/// then. Everything applied before is made durable first; the journal also records whether that is
/// everything else.
pub(super) fn write_rename_mark<L: Lower>(
    overlay: &Overlay<L>,
    epoch: &mut Epoch<L::Handle>,
    bindings: Vec<(ObjectId, u64)>,
    is_everything: bool,
) -> Result<(), StoreError> {
    let mut records = bind_records(&bindings);
    if epoch.rename_mark() != RenameMark::NotBegun && records.is_empty() {
        return Ok(());
    }
    let is_complete = epoch.log().has_rename_mark() && is_everything;
    if is_complete {
        records.push(Record::RenameMark);
    } else if epoch.rename_mark() == RenameMark::NotBegun && epoch.log().may_carry() {
        records.push(Record::RenameMarkInPart);
    }
    let reserve_bytes = if is_everything { 0 } else { PART_RESERVE_BYTES };
    if !records.is_empty() && epoch.log().free_bytes() < PAGE_BYTES_U64 + reserve_bytes {
        let action = "finding room in the journal for what an apply has made";
        return Err(StoreError::lower(action)(Errno::NOSPC.into()));
    }
    overlay
        .lower()
        .sync_all()
        .map_err(StoreError::lower("making new objects and content durable"))?;
    if !records.is_empty() {
        spare::take_for(overlay, epoch, &records, reserve_bytes);
        epoch.append(overlay.lower(), overlay.stage(), &records, reserve_bytes)?;
    }
    epoch.set_rename_mark(is_complete);
    let mut state = overlay.state_mut();
    for (id, inode) in bindings {
        state.pending.bind(id, inode);
    }
    Ok(())
}

fn stage_inode<L: Lower>(overlay: &Overlay<L>, id: ObjectId) -> Result<u64, StoreError> {
    let name = id.0.to_string();
    let stat = overlay
        .stat_at(overlay.stage(), name.as_bytes())?
        .ok_or_else(|| missing(id))?;
    Ok(stat.inode)
}

fn stage_object<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    id: ObjectId,
    object: &PendingObject,
    attributes: &Attributes,
) -> Result<(), StoreError> {
    if object.bound.is_none() {
        create_staged(overlay, id, object, attributes)?;
    }
    if object.is_whole {
        return Ok(());
    }
    let handle = lookup::require_handle(overlay, id)?;
    if attributes.kind == FileKind::Regular {
        write_staged(overlay, applier, id, object, attributes.size, &handle)?;
    }
    content::apply_xattrs(overlay, id, object, &handle)?;
    if attributes.kind != FileKind::Directory {
        content::apply_attributes(overlay, id, attributes, &handle)?;
    }
    Ok(())
}

fn create_staged<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
    object: &PendingObject,
    attributes: &Attributes,
) -> Result<(), StoreError> {
    let name = id.0.to_string();
    let what = match attributes.kind {
        FileKind::Regular => Create::Regular,
        FileKind::Directory => Create::Directory,
        FileKind::Symlink => Create::Symlink(
            object
                .symlink_target
                .as_deref()
                .ok_or_else(|| missing(id))?,
        ),
        FileKind::Fifo => Create::Fifo,
        FileKind::Socket => Create::Socket,
        FileKind::CharDevice => Create::CharDevice(attributes.rdev),
        FileKind::BlockDevice => Create::BlockDevice(attributes.rdev),
    };
    let failed = || StoreError::lower(format!("making new object {id}"));
    let there = found(overlay.lower().stat_at(overlay.stage(), name.as_bytes()));
    if let Some(stat) = there.map_err(failed())? {
        // An earlier attempt made it, or direct data is in it. Anything but a
        // file may be torn (a symlink without its target): make it anew.
        if stat.kind == FileKind::Regular && attributes.kind == FileKind::Regular {
            return Ok(());
        }
        // The new file has another inode number than that of the first attempt.
        overlay.state_mut().table.remove(id);
        overlay.lower().handles().remove(id);
        limbo::delete_from_stage(overlay, name.as_bytes(), stat.kind).map_err(failed())?;
    } else if !object.direct.is_empty() {
        // Data that was durable before the transaction that mentions it is gone.
        return Err(missing(id));
    }
    overlay
        .lower()
        .create(overlay.stage(), name.as_bytes(), what)
        .map_err(failed())?;
    // A handle on one that was there before may be open.
    overlay.lower().handles().remove(id);
    Ok(())
}

/// Content of a new file: everything but direct data, and pages written ahead of this apply, is
/// zeroed, then the pages are written.
fn write_staged<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    id: ObjectId,
    object: &PendingObject,
    size: u64,
    handle: &L::Handle,
) -> Result<(), StoreError> {
    let mut gaps: mobifs_base::RangeSet =
        core::iter::once(mobifs_base::ByteRange::from(0)).collect();
    object.direct.iter().for_each(|range| gaps.remove(range));
    object.ranges_ahead().for_each(|range| gaps.remove(range));
    content::zero_ranges(overlay, applier, id, &gaps, (object, size), handle)?;
    content::write_pages(overlay, applier, id, object, size, handle)
}

/// The stage file of a new object, made if it is not there.
pub(crate) fn stage_file<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
) -> Result<Arc<L::Handle>, StoreError> {
    if let Some(handle) = overlay.cached_handle(id) {
        return Ok(handle);
    }
    let name = id.0.to_string();
    match overlay
        .lower()
        .create(overlay.stage(), name.as_bytes(), Create::Regular)
    {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(StoreError::lower(format!("making stage file {name}"))(
                error,
            ));
        }
        _ => {}
    }
    lookup::require_handle(overlay, id)
}

/// Whether the journal has all of a new object, but not its inode, and none of its content is only
/// in the lower filesystem.
pub(super) fn can_be_unstaged<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
    object: &PendingObject,
) -> bool {
    let is_in_journal = object.bound.is_none() && object.direct.is_empty() && !object.is_whole;
    is_in_journal && overlay.state().spilled(id).is_none()
}

/// Deletes a new object, or an incomplete one, from `stage/`.
pub(super) fn unstage<L: Lower>(overlay: &Overlay<L>, id: ObjectId) -> Result<(), StoreError> {
    let name = id.0.to_string();
    if let Some(stat) = overlay.stat_at(overlay.stage(), name.as_bytes())? {
        limbo::delete_from_stage(overlay, name.as_bytes(), stat.kind)
            .map_err(StoreError::lower(format!("releasing the blocks of {id}")))?;
    }
    let mut state = overlay.state_mut();
    state.table.remove(id);
    state.pending.forget_ahead(id);
    drop(state);
    overlay.lower().handles().remove(id);
    Ok(())
}
