//! What a mount does with the list of the one before, which was killed or lost its power.

use std::collections::HashSet;

use crate::apply::preallocation::list::Phase;
use crate::apply::work::Applier;
use crate::lower::Lower;
use crate::overlay::Overlay;

/// Marks what the mount before has left to be given back at the next apply; but a successor goes
/// on (`is_resumed`) with files that the killed process knew: they grow on.
pub(crate) fn adopt<L: Lower>(overlay: &Overlay<L>, applier: &Applier, is_resumed: bool) {
    let preallocations = applier.preallocations();
    if overlay.is_read_only() || preallocations.is_empty() {
        return;
    }
    if !overlay.lower().keeps_preallocation() {
        return;
    }
    let state = overlay.state();
    let objects = state.pending.objects().iter();
    let changed = objects.filter(|(_, object)| object.attributes.is_some());
    let pending: HashSet<u64> = changed.filter_map(|(id, _)| state.inode_of(*id)).collect();
    let mut files = preallocations.files();
    // All of it has been the program's since the apply that the list was written for, unless that
    // apply is still to be finished.
    files.retain(|file| file.phase == Phase::Held || pending.contains(&file.inode));
    files.mark_due(|inode| !(is_resumed && state.table.id_of(inode).is_some()));
}
