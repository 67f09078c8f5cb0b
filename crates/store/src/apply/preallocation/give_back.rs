//! Giving back what is preallocated and unused.
//!
//! Blocks beyond the end of a file are freed by setting the size that the file has, which changes
//! the time of its last change; that is set back. The list says before, durably, that this is going
//! on, and which time it was: where a crash comes in between, the next mount sets it back. Nothing
//! is freed of a file that is not exactly as the store has left it.

use crate::StoreError;
use crate::apply::preallocation::find::{self, FoundFile};
use crate::apply::preallocation::list::{self, Listed, Phase};
use crate::apply::preallocation::{Preallocations, block_end, short_bytes};
use crate::apply::work::Applier;
use crate::lower::{Lower, LowerStat, SetAttributes};
use crate::overlay::Overlay;

/// What became of a listed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// What it had is free.
    GivenBack,
    /// It has no blocks beyond its end.
    Nothing,
    /// It is not as the store has left it, or has room that a program requested: not touched.
    NotOurs,
    /// It was not found, or could not be changed; another attempt may.
    Kept,
}

/// Gives back what the chosen files have. The caller holds the lock of content; returns whether
/// anything was freed.
pub(crate) fn give_back<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    is_chosen: impl Fn(&Listed) -> bool,
) -> bool {
    let preallocations = applier.preallocations();
    let chosen = mark(preallocations, is_chosen);
    if chosen.is_empty() {
        return false;
    }
    if let Err(error) = list::write(overlay, preallocations) {
        tracing::warn!(%error, "preallocated blocks stay: the list of them cannot be written");
        unmark(preallocations, &chosen);
        return false;
    }
    let mut has_freed = false;
    let mut outcomes = Vec::new();
    for file in &chosen {
        let outcome = give_back_one(overlay, file).unwrap_or_else(|error| {
            tracing::debug!(%error, inode = file.inode, "preallocated blocks stay for now");
            Outcome::Kept
        });
        has_freed |= outcome == Outcome::GivenBack;
        outcomes.push((file.inode, outcome));
    }
    // The blocks are free when the filesystem's own journal says so; until then the list has them.
    if let Err(error) = overlay.lower().sync_all() {
        tracing::warn!(%error, "preallocated blocks may not have been given back");
        return false;
    }
    conclude(preallocations, &outcomes);
    if let Err(error) = list::write(overlay, preallocations) {
        tracing::debug!(%error, "the list of preallocated files is outdated");
    }
    has_freed
}

fn mark(preallocations: &Preallocations, is_chosen: impl Fn(&Listed) -> bool) -> Vec<Listed> {
    let mut files = preallocations.files();
    let mut chosen = Vec::new();
    for file in files.by_inode.values_mut() {
        if file.phase != Phase::Requested && is_chosen(file) {
            file.phase = Phase::GivenBack;
            chosen.push(file.clone());
        }
    }
    files.is_dirty |= !chosen.is_empty();
    chosen
}

fn unmark(preallocations: &Preallocations, chosen: &[Listed]) {
    let mut files = preallocations.files();
    for file in chosen {
        if let Some(file) = files.by_inode.get_mut(&file.inode) {
            file.phase = Phase::Held;
        }
    }
}

fn conclude(preallocations: &Preallocations, outcomes: &[(u64, Outcome)]) {
    let mut files = preallocations.files();
    for &(inode, outcome) in outcomes {
        if outcome != Outcome::Kept {
            files.remove(inode);
        } else if let Some(file) = files.by_inode.get_mut(&inode) {
            file.phase = Phase::Held;
            files.is_dirty = true;
        }
    }
}

fn give_back_one<L: Lower>(overlay: &Overlay<L>, file: &Listed) -> Result<Outcome, StoreError> {
    // Nothing reads the time of the last change while it is the wrong one.
    let _names = overlay.lock_names();
    let Some(found) = find::find(overlay, file)? else {
        return Ok(Outcome::Kept);
    };
    free_after_end(overlay, file, &found)
}

/// Whether its last change is known: that of the apply before, or one that the journal has.
fn is_as_left<L: Lower>(overlay: &Overlay<L>, file: &Listed, stat: &LowerStat) -> bool {
    let is_pending = {
        let state = overlay.state();
        let id = state.table.id_of(file.inode);
        let object = id.and_then(|id| state.pending.object(id));
        object.is_some_and(|object| object.attributes.is_some())
    };
    // Some filesystems keep whole seconds.
    let is_same_time = stat.mtime == file.mtime
        || (stat.mtime.nanoseconds == 0 && stat.mtime.seconds == file.mtime.seconds);
    is_pending || (stat.size == file.size && is_same_time)
}

fn free_after_end<L: Lower>(
    overlay: &Overlay<L>,
    file: &Listed,
    found: &FoundFile<L::Handle>,
) -> Result<Outcome, StoreError> {
    let failed = || StoreError::lower("giving back preallocated blocks");
    let (lower, stat) = (overlay.lower(), &found.stat);
    if stat.immutable || !is_as_left(overlay, file, stat) {
        return Ok(Outcome::NotOurs);
    }
    let end = lower
        .allocated_after(&found.handle, block_end(stat.size))
        .map_err(failed())?;
    match end {
        None => return Ok(Outcome::Nothing),
        Some(end) if end > file.end => return Ok(Outcome::NotOurs),
        Some(_) => {}
    }
    lower.truncate(&found.handle, stat.size).map_err(failed())?;
    restore_times(overlay, &found.handle, stat).map_err(failed())?;
    Ok(Outcome::GivenBack)
}

pub(super) fn restore_times<L: Lower>(
    overlay: &Overlay<L>,
    handle: &L::Handle,
    stat: &LowerStat,
) -> std::io::Result<()> {
    let attributes = SetAttributes {
        mode: stat.mode,
        uid: stat.uid,
        gid: stat.gid,
        atime: stat.atime,
        mtime: stat.mtime,
    };
    overlay.lower().set_attributes(handle, &attributes)
}

/// Before something takes so much room: gives everything back if there might be too little.
/// The caller holds no lock but that of the epoch.
pub(crate) fn make_way<L: Lower>(overlay: &Overlay<L>, applier: &Applier, needed_bytes: u64) {
    if applier.preallocations().unused_bytes() == 0 {
        return;
    }
    let Ok(space) = overlay.lower().space() else {
        return;
    };
    let reserved_bytes = overlay.state().pending.reserved().bytes();
    let wanted_bytes = reserved_bytes.saturating_add(needed_bytes);
    if space.available_bytes < wanted_bytes.saturating_add(short_bytes(&space) / 2) {
        let _content = applier.content();
        give_back(overlay, applier, |_| true);
    }
}
