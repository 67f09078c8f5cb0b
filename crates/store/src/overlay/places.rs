//! Records of where objects of the lower tree are.

use std::collections::HashSet;

use mobifs_base::ObjectId;

use crate::log::record::Record;
use crate::lower::Lower;
use crate::overlay::Overlay;
use crate::overlay::table::Location;

/// Where objects of the lower tree are, for those that the epoch has not recorded
/// yet, parents included.
pub(crate) fn record_places<L: Lower>(
    overlay: &Overlay<L>,
    of_epoch: &HashSet<ObjectId>,
    ids: impl Iterator<Item = ObjectId>,
    recorded: &mut HashSet<ObjectId>,
    records: &mut Vec<Record>,
) {
    let state = overlay.state();
    let mut waiting: Vec<ObjectId> = ids.collect();
    while let Some(id) = waiting.pop() {
        if id == ObjectId::ROOT || of_epoch.contains(&id) || !recorded.insert(id) {
            continue;
        }
        let is_staged = |location: &&Location| location.in_stage() && location.names().is_empty();
        let location = state.table.get(id);
        let Some(location) = location.filter(|location| !is_staged(location)) else {
            // Created in this epoch: the transactions record all of it.
            continue;
        };
        let (parent, name) = match location.names().first() {
            Some((parent, name)) => (*parent, name.as_bytes().to_vec()),
            // It waits in limbo, under its inode number.
            None => (ObjectId::ROOT, Vec::new()),
        };
        waiting.push(parent);
        records.push(Record::Known {
            id,
            inode: location.inode,
            kind: location.kind,
            parent,
            name,
        });
    }
}
