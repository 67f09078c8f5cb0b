//! What a mount does with the list of the one before, which was killed or lost its power.

use std::collections::HashSet;

use mobifs_base::Timestamp;

use crate::apply::preallocation::give_back;
use crate::apply::preallocation::list::{Listed, Phase};
use crate::apply::preallocation::{Preallocations, find};
use crate::apply::work::Applier;
use crate::lower::{Lower, LowerStat};
use crate::overlay::Overlay;

/// A change of the time so long after the list was written was none of the store.
const GIVING_BACK_SECONDS_MAX: i64 = 60;

/// Gives back what the mount before has left, and restores times of files of which it was about
/// to. Files with pending changes are left to the apply; and, where a successor goes on
/// (`is_resumed`), files that the killed process knew: they grow on.
pub(crate) fn adopt<L: Lower>(overlay: &Overlay<L>, applier: &Applier, is_resumed: bool) {
    let preallocations = applier.preallocations();
    if overlay.is_read_only() || preallocations.is_empty() {
        return;
    }
    if !overlay.lower().keeps_preallocation() {
        return;
    }
    let _content = applier.content();
    let pending: HashSet<u64> = {
        let state = overlay.state();
        // The journal has the times of these, and not of those that it only names.
        let objects = state.pending.objects.iter();
        let changed = objects.filter(|(_, object)| object.attributes.is_some());
        changed.filter_map(|(id, _)| state.inode_of(*id)).collect()
    };
    let listed: Vec<Listed> = preallocations.files().by_inode.values().cloned().collect();
    let mut ended = Vec::new();
    for file in &listed {
        if pending.contains(&file.inode) {
            continue;
        }
        match file.phase {
            // All of it has been the program's since the apply that the list was written for.
            Phase::Requested => preallocations.files().remove(file.inode),
            Phase::GivenBack => {
                restore_time(overlay, preallocations, file);
                ended.push(file.inode);
            }
            Phase::Held => {
                let is_known = overlay.state().table.id_of(file.inode).is_some();
                if !(is_resumed && is_known) {
                    ended.push(file.inode);
                }
            }
        }
    }
    give_back::give_back(overlay, applier, |file| ended.contains(&file.inode));
    search_rest(overlay, applier, &ended);
}

/// Searches the tree for files that were nowhere where they should be.
fn search_rest<L: Lower>(overlay: &Overlay<L>, applier: &Applier, ended: &[u64]) {
    let preallocations = applier.preallocations();
    let missing: Vec<u64> = {
        let files = preallocations.files();
        let listed = ended
            .iter()
            .filter(|inode| files.by_inode.contains_key(inode));
        listed.copied().collect()
    };
    if missing.is_empty() {
        return;
    }
    let searched = find::search(overlay, &missing);
    {
        let mut files = preallocations.files();
        for (inode, path) in &searched.paths {
            if let Some(file) = files.by_inode.get_mut(inode) {
                file.path.clone_from(path);
            }
        }
        let is_found = |inode: &u64| searched.paths.iter().any(|(found, _)| found == inode);
        if searched.is_complete {
            let gone = missing.iter().filter(|inode| !is_found(inode));
            gone.for_each(|&inode| files.remove(inode));
        }
    }
    give_back::give_back(overlay, applier, |file| missing.contains(&file.inode));
}

/// Sets back the time of the last change where a crash came between freeing blocks and that.
fn restore_time<L: Lower>(overlay: &Overlay<L>, preallocations: &Preallocations, file: &Listed) {
    let _names = overlay.lock_names();
    let Ok(Some(found)) = find::find(overlay, file) else {
        return;
    };
    let stat = found.stat;
    let is_due = stat.size == file.size
        && stat.mtime != file.mtime
        && preallocations
            .found_written
            .is_some_and(|written| is_from_giving_back(&stat, written));
    if !is_due || stat.immutable {
        return;
    }
    let before = LowerStat {
        mtime: file.mtime,
        ..stat
    };
    if let Err(error) = give_back::restore_times(overlay, &found.handle, &before) {
        tracing::warn!(%error, "a file keeps a time of change at which only its blocks were freed");
    }
}

/// Whether the time may be that at which blocks were freed, after the list said so: a program that
/// sets times leaves another time of change.
fn is_from_giving_back(stat: &LowerStat, written: Timestamp) -> bool {
    let seconds = stat.mtime.seconds.saturating_sub(written.seconds);
    stat.mtime == stat.ctime && stat.mtime >= written && seconds <= GIVING_BACK_SECONDS_MAX
}
