//! Deleting what is left in `limbo/` and `stage/` after an apply.

use std::collections::HashSet;
use std::io;

use mobifs_base::{FileKind, ObjectId};

use crate::StoreError;
use crate::apply::reserve::Reserve;
use crate::apply::spare;
use crate::log::epoch::EmptyEpoch;
use crate::log::overflow;
use crate::lower::{Lower, found};
use crate::overlay::Overlay;
use crate::overlay::state::State;
use crate::overlay::table::Location;

/// Which objects without a known name are kept in `limbo/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unnamed {
    /// Those in use.
    Pinned,
    /// Also those that have a name in the lower filesystem that was never looked up, and through
    /// which they may be used at any time.
    PinnedOrLinked,
}

/// Deletes objects without a name that are not kept. After a failure the next call tries again.
/// Returns whether anything was deleted.
pub(crate) fn empty_limbo<L: Lower>(overlay: &Overlay<L>, _: &EmptyEpoch, keeps: Unnamed) -> bool {
    let mut has_deleted = false;
    let waiting = overlay.state().table.in_limbo();
    let (kept, gone): (Vec<ObjectId>, Vec<ObjectId>) = waiting
        .into_iter()
        .partition(|id| is_kept_in_limbo(overlay, *id, keeps));
    let kept_names: HashSet<Vec<u8>> = {
        let state = overlay.state();
        let inodes = kept.iter().filter_map(|id| state.table.get(*id));
        inodes
            .map(|location| location.inode.to_string().into_bytes())
            .collect()
    };
    match overlay.lower().list(overlay.limbo()) {
        Ok(entries) => {
            for entry in entries
                .iter()
                .filter(|entry| !kept_names.contains(&entry.name))
            {
                match delete_from_limbo(overlay, &entry.name) {
                    Ok(()) => has_deleted = true,
                    Err(error) => {
                        tracing::warn!(%error, "the store could not empty .mobifs/limbo; it tries again")
                    }
                }
            }
        }
        Err(error) => {
            tracing::warn!(%error, "the store could not list .mobifs/limbo; it tries again")
        }
    }
    forget_limbo_of(overlay, gone);
    has_deleted
}

/// Records that these have no name in `limbo/` any more. Where deleting it failed, nothing relies
/// on the record: see [`shown_attributes`](crate::overlay::read::shown_attributes).
fn forget_limbo_of<L: Lower>(overlay: &Overlay<L>, ids: Vec<ObjectId>) {
    let mut state = overlay.state_mut();
    for id in ids {
        let is_named = |location: &Location| !location.names().is_empty();
        if state.table.get(id).is_some_and(is_named) {
            state.table.set_in_limbo(id, false);
        } else {
            state.table.remove(id);
            overlay.lower().handles().remove(id);
        }
    }
}

fn is_kept_in_limbo<L: Lower>(overlay: &Overlay<L>, id: ObjectId, keeps: Unnamed) -> bool {
    let (location, is_used) = {
        let state = overlay.state();
        // An unapplied change may give it a name.
        let is_used = state.is_pinned(id) || state.pending.mentions(id);
        (state.table.get(id).cloned(), is_used)
    };
    let Some(location) = location.filter(|location| location.names().is_empty()) else {
        return false;
    };
    let name = location.inode.to_string().into_bytes();
    let is_linked = || {
        let stat = overlay.stat_at(overlay.limbo(), &name).unwrap_or_default();
        stat.is_some_and(|stat| stat.kind != FileKind::Directory && stat.nlink > 1)
    };
    is_used || (keeps == Unnamed::PinnedOrLinked && is_linked())
}

/// Deletes everything: none of it is in use.
///
/// # Errors
/// [`StoreError::Lower`]; the next call tries the rest again.
pub(crate) fn clear_limbo<L: Lower>(overlay: &Overlay<L>) -> Result<(), StoreError> {
    let entries = overlay.lower().list(overlay.limbo());
    for entry in entries.map_err(StoreError::lower("listing .mobifs/limbo"))? {
        delete_from_limbo(overlay, &entry.name)?;
    }
    Ok(())
}

/// Deletes one entry of `limbo/`. A directory that is not empty has files that another program
/// created there meanwhile: it is kept in `lost/`.
pub(crate) fn delete_from_limbo<L: Lower>(
    overlay: &Overlay<L>,
    name: &[u8],
) -> Result<(), StoreError> {
    let shown = name.escape_ascii();
    let failed = || StoreError::lower(format!("deleting .mobifs/limbo/{shown}"));
    let Some(stat) = overlay.stat_at(overlay.limbo(), name)? else {
        return Ok(());
    };
    if stat.kind != FileKind::Directory {
        return overlay
            .lower()
            .unlink(overlay.limbo(), name)
            .map_err(failed());
    }
    let directory = overlay
        .lower()
        .open(overlay.limbo(), name, true)
        .map_err(failed())?;
    if overlay
        .lower()
        .list(&directory)
        .map_err(failed())?
        .is_empty()
    {
        return overlay
            .lower()
            .remove_directory(overlay.limbo(), name)
            .map_err(failed());
    }
    keep_in_lost(overlay, name).map_err(failed())
}

/// Moves a directory from `limbo/` to a name in `lost/` that is free there: a store that was restored from a
/// copy may have this inode number there already.
fn keep_in_lost<L: Lower>(overlay: &Overlay<L>, name: &[u8]) -> io::Result<()> {
    let (lower, limbo, lost) = (overlay.lower(), overlay.limbo(), overlay.lost());
    let mut kept = name.to_vec();
    let mut number = 0_u64;
    while found(lower.stat_at(lost, &kept))?.is_some() {
        number += 1;
        kept = [name, format!("-{number}").as_bytes()].concat();
    }
    lower.rename(limbo, name, lost, &kept)?;
    tracing::warn!(
        "a deleted directory was not empty; it is kept as .mobifs/lost/{}",
        kept.escape_ascii()
    );
    Ok(())
}

/// Deletes one entry of `stage/`, which is of this kind.
pub(crate) fn delete_from_stage<L: Lower>(
    overlay: &Overlay<L>,
    name: &[u8],
    kind: FileKind,
) -> io::Result<()> {
    match kind {
        // It is always empty: entries are made once it is in the tree.
        FileKind::Directory => overlay.lower().remove_directory(overlay.stage(), name),
        _ => overlay.lower().unlink(overlay.stage(), name),
    }
}

/// Before the journal that was found is applied: deletes files in `stage/` that are not `ours`.
/// Their deletion by the mount before may not have become durable, and that mount numbered its
/// objects from the same start, so they would be taken for new objects of this journal. Overflow
/// files numbered from `next_overflow` on, which no transaction mentions, are deleted, too.
pub(crate) fn sweep_foreign_stage<L: Lower>(
    overlay: &Overlay<L>,
    reserve: &Reserve,
    next_overflow: u64,
    is_ours: impl Fn(&State, ObjectId) -> bool,
) -> Result<(), StoreError> {
    let failed = || StoreError::lower("removing what an earlier mount left in stage");
    spare::recycle(overlay, reserve, |number| number < next_overflow);
    for entry in overlay.lower().list(overlay.stage()).map_err(failed())? {
        let name = std::str::from_utf8(&entry.name).unwrap_or_default();
        let number = name.strip_prefix('t').unwrap_or(name).parse();
        let Ok(number) = number else { continue };
        let is_needed = if name.starts_with('t') {
            number < next_overflow
        } else {
            is_ours(&overlay.state(), ObjectId(number))
        };
        if is_needed {
            continue;
        }
        let Some(stat) = overlay.stat_at(overlay.stage(), &entry.name)? else {
            continue;
        };
        delete_from_stage(overlay, &entry.name, stat.kind).map_err(failed())?;
    }
    Ok(())
}

/// Deletes what an apply has left in `stage/`: new objects that were removed again, and overflow
/// files except the one that the epoch begins with (0: none) and those that become spare files.
/// After a failure the next call tries again; returns whether there was none.
pub(crate) fn sweep_stage<L: Lower>(
    overlay: &Overlay<L>,
    empty: &EmptyEpoch,
    reserve: &Reserve,
) -> bool {
    let carried_file = empty.carried_file;
    spare::recycle(overlay, reserve, |number| number == carried_file);
    let carried_name = overflow::file_name(carried_file).into_bytes();
    let entries = match overlay.lower().list(overlay.stage()) {
        Ok(entries) => entries,
        Err(error) => {
            tracing::warn!(%error, "the store could not list stage; it tries again");
            return false;
        }
    };
    let mut is_swept = true;
    for entry in entries {
        let id = std::str::from_utf8(&entry.name)
            .ok()
            .and_then(|name| name.parse().ok());
        let id = id.map(ObjectId);
        let is_new = |state: &State, id| state.pending.object(id).is_some_and(|new| new.created);
        let in_use = id.is_some_and(|id| {
            let state = overlay.state();
            state.is_pinned(id) || state.spilled(id).is_some() || is_new(&state, id)
        });
        let in_use = in_use || entry.name == carried_name;
        if in_use {
            continue;
        }
        let Ok(Some(stat)) = overlay.stat_at(overlay.stage(), &entry.name) else {
            is_swept = false;
            continue;
        };
        let deleted = delete_from_stage(overlay, &entry.name, stat.kind);
        if let Err(error) = &deleted {
            tracing::warn!(%error, "the store could not empty stage; it tries again");
            is_swept = false;
        }
        if let Some(id) = id {
            forget_stage_of(overlay, id, deleted.is_ok());
        }
    }
    is_swept
}

/// Deletes new objects in `stage/` that an earlier attempt has made and that have lost their names
/// since, for an apply without room. Those whose inodes the journal has stay until the next epoch.
/// Returns whether there were any.
pub(crate) fn free_staged<L: Lower>(overlay: &Overlay<L>) -> Result<bool, StoreError> {
    let failed = || StoreError::lower("deleting objects that are not needed any more");
    let mut has_freed = false;
    for entry in overlay.lower().list(overlay.stage()).map_err(failed())? {
        let name = std::str::from_utf8(&entry.name).unwrap_or_default();
        let Some(id) = name.parse().ok().map(ObjectId) else {
            continue;
        };
        if !is_obsolete_staged(overlay, id) {
            continue;
        }
        let Some(stat) = overlay.stat_at(overlay.stage(), &entry.name)? else {
            continue;
        };
        delete_from_stage(overlay, &entry.name, stat.kind).map_err(failed())?;
        forget_stage_of(overlay, id, true);
        has_freed = true;
    }
    if has_freed {
        // Its blocks are free when the filesystem's own journal says so.
        overlay.lower().sync_all().map_err(failed())?;
    }
    Ok(has_freed)
}

/// Whether a new object has no name, is not in use, and is not in the journal by its inode.
fn is_obsolete_staged<L: Lower>(overlay: &Overlay<L>, id: ObjectId) -> bool {
    let state = overlay.state();
    let is_in_use =
        state.pending.is_linked(id) || state.is_pinned(id) || state.spilled(id).is_some();
    let object = state.pending.object(id);
    !is_in_use && object.is_some_and(|object| object.created && object.bound.is_none())
}

/// Records that an object is not in `stage/` any more, or should not be.
fn forget_stage_of<L: Lower>(overlay: &Overlay<L>, id: ObjectId, is_deleted: bool) {
    let mut state = overlay.state_mut();
    state.pending.forget_ahead(id);
    let is_unnamed = |location: &Location| location.names().is_empty();
    if state.table.get(id).is_some_and(is_unnamed) {
        state.table.remove(id);
        overlay.lower().handles().remove(id);
        state.set_left_in_stage(id, false);
    } else if state.table.get(id).is_some() {
        // Another link took its place in the tree.
        state.table.set_in_stage(id, false);
        state.set_left_in_stage(id, !is_deleted);
    } else {
        // Direct data of a transaction that failed. The next attempt must not write to the deleted
        // file through the open handle.
        overlay.lower().handles().remove(id);
    }
}
