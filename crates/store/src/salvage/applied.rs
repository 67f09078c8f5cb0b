//! Whether the transactions of an epoch are in the tree already.
//!
//! A superblock says which epoch is in force. Where both its copies are lost, the newest
//! transactions may be those of an epoch that was applied as a whole, and the one after it had none
//! yet; what was done to the files since then must not be undone by applying them again.

use std::collections::HashMap;

use mobifs_base::{Attributes, FileKind, ObjectId, Timestamp};

use crate::StoreError;
use crate::log::Transactions;
use crate::lower::{Lower, LowerStat};
use crate::overlay::pending::Pending;
use crate::salvage::objects::Objects;
use crate::salvage::tree::Tree;

/// Whether every name and every file is as the transactions say, or was changed after them.
pub(super) fn is_applied<L: Lower>(
    lower: &L,
    tree: &Tree,
    objects: &Objects,
    transactions: &Transactions,
) -> Result<bool, StoreError> {
    let mut pending = Pending::default();
    for record in transactions.iter().flat_map(|(_, records)| records) {
        pending.merge_record(record.clone());
    }
    let attributes = pending
        .objects()
        .values()
        .filter_map(|object| object.attributes);
    let newest = attributes.map(|attributes| attributes.ctime).max();
    let Some(newest) = newest else {
        return Ok(pending.dentries().is_empty());
    };
    let Some(found) = names_in_place(lower, tree, objects, &pending)? else {
        return Ok(false);
    };
    for (id, object) in pending.objects() {
        let Some(attributes) = object.attributes.filter(|attributes| attributes.nlink > 0) else {
            continue;
        };
        let stat = match found.get(id) {
            Some(stat) => Some(*stat),
            None => stat_of(lower, tree, objects, *id)?,
        };
        if !stat.is_some_and(|stat| is_at_least(&stat, &attributes, newest)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What is at the places that are given a name; none if a name is another object's, or is there
/// although it is taken away.
fn names_in_place<L: Lower>(
    lower: &L,
    tree: &Tree,
    objects: &Objects,
    pending: &Pending,
) -> Result<Option<HashMap<ObjectId, LowerStat>>, StoreError> {
    let mut found: HashMap<ObjectId, LowerStat> = HashMap::new();
    let mut inodes: HashMap<ObjectId, u64> = HashMap::new();
    inodes.insert(ObjectId::ROOT, tree.root());
    // New directories are found from the top; each round finds what lies in those of the one before.
    let mut left: Vec<_> = pending.dentries().iter().collect();
    loop {
        let before = left.len();
        let mut later = Vec::new();
        for ((parent, name), child) in left {
            let directory = inodes
                .get(parent)
                .copied()
                .or_else(|| objects.inode(*parent, tree));
            let Some(directory) = directory else {
                later.push(((parent, name), child));
                continue;
            };
            let there = tree.stat_at(lower, directory, name.as_bytes())?;
            match (child, there) {
                (None, None) => {}
                (Some(child), Some(stat)) => {
                    let is_other = objects
                        .inode(*child, tree)
                        .is_some_and(|inode| inode != stat.inode);
                    let kind = pending.kind_of(*child);
                    if is_other || kind.is_some_and(|kind| kind != stat.kind) {
                        return Ok(None);
                    }
                    inodes.insert(*child, stat.inode);
                    found.insert(*child, stat);
                }
                _ => return Ok(None),
            }
        }
        if later.is_empty() {
            break;
        }
        if later.len() == before {
            // What is in directories that are gone has to be gone, too.
            if later.iter().any(|(_, child)| child.is_some()) {
                return Ok(None);
            }
            break;
        }
        left = later
            .into_iter()
            .filter_map(|((parent, name), _)| {
                pending.dentries().get_key_value(&(*parent, name.clone()))
            })
            .collect();
    }
    Ok(Some(found))
}

fn stat_of<L: Lower>(
    lower: &L,
    tree: &Tree,
    objects: &Objects,
    id: ObjectId,
) -> Result<Option<LowerStat>, StoreError> {
    let Some(inode) = objects.inode(id, tree) else {
        return Ok(None);
    };
    let handle = tree.open_object(lower, inode)?;
    let stat = handle.map(|handle| lower.stat(&handle)).transpose();
    stat.map_err(StoreError::lower("looking at a file of the store"))
}

fn is_at_least(stat: &LowerStat, wanted: &Attributes, newest: Timestamp) -> bool {
    let is_file = wanted.kind == FileKind::Regular;
    let is_same = stat.mtime == wanted.mtime
        && (stat.mode, stat.uid, stat.gid) == (wanted.mode, wanted.uid, wanted.gid)
        && (!is_file || stat.size == wanted.size);
    is_same || stat.mtime > newest
}
