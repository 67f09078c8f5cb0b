//! The properties of a transaction that decide how it is committed.

use std::collections::{BTreeSet, HashSet};

use mobifs_base::{ObjectId, PAGE_BYTES, Transaction};

pub(super) fn mentioned(transaction: &Transaction) -> impl Iterator<Item = ObjectId> + '_ {
    let states = transaction.objects.iter().map(|state| state.id);
    let dentries = transaction
        .dentries
        .iter()
        .flat_map(|(parent, _, child)| [Some(*parent), *child]);
    states.chain(dentries.flatten())
}

/// Directories of which the transaction has entries, and no state.
pub(super) fn parents_without_state(transaction: &Transaction) -> BTreeSet<ObjectId> {
    let stated: HashSet<ObjectId> = transaction.objects.iter().map(|state| state.id).collect();
    let parents = transaction.dentries.iter().map(|(parent, ..)| *parent);
    parents.filter(|parent| !stated.contains(parent)).collect()
}

/// What the transaction takes in the journal at most, if no page goes elsewhere.
pub(super) fn journal_bytes_max(transaction: &Transaction) -> u64 {
    let states: usize = transaction
        .objects
        .iter()
        .map(|state| {
            let xattrs: usize = state
                .xattrs
                .iter()
                .map(|(name, value)| name.len() + value.as_ref().map_or(0, |v| v.len()) + 16)
                .sum();
            let target = state
                .symlink_target
                .as_ref()
                .map_or(0, |target| target.len());
            // The state and one for its empty tail, and the records of its place and its parents'
            // places.
            768 + xattrs + target + 20 * (state.zeroed.len() + state.allocated.len())
        })
        .sum();
    // An entry, and the state of a directory that comes without (`add_parents`).
    let dentries = transaction.dentries.len() * (640 + 256);
    let pages: usize = transaction
        .pages
        .values()
        .flatten()
        .map(|(_, p)| p.stored_bytes() + 64)
        .sum();
    (states + dentries + pages + 2 * PAGE_BYTES) as u64
}

/// Whether every object with pages has a state, and each object one at most.
pub(super) fn is_complete(transaction: &Transaction) -> bool {
    let objects = transaction.objects.iter();
    let stated: HashSet<ObjectId> = objects.map(|state| state.id).collect();
    stated.len() == transaction.objects.len()
        && transaction.pages.keys().all(|id| stated.contains(id))
}
