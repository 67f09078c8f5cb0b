//! What of a transaction decides how it is committed.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use mobifs_base::{ObjectId, PAGE_BYTES, Page, Transaction};

/// A run of new pages of this length is written to its place at once.
pub(super) const RUN_PAGES_MIN: usize = 16;
/// With this much data of new files in one transaction, all of it is: they have to be
/// made in the lower tree anyway, and one sync serves them all.
pub(super) const MANY_FILES_BYTES: u64 = 1 << 20;

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

/// What new files hold, zeros at the ends of pages not counted.
pub(crate) fn created_bytes(transaction: &Transaction) -> u64 {
    let created = transaction.objects.iter().filter(|state| state.created);
    let pages = created.filter_map(|state| transaction.pages.get(&state.id));
    let stored = pages.flat_map(BTreeMap::values).map(Page::stored_bytes);
    stored.sum::<usize>() as u64
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
            // The state and one of its empty tail, and where it and its parents are.
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

/// Whether some of it may be written to its place at once.
pub(crate) fn has_runs(transaction: &Transaction) -> bool {
    let mut pages = transaction.pages.values();
    pages.any(|pages| pages.len() >= RUN_PAGES_MIN)
        || created_bytes(transaction) >= MANY_FILES_BYTES
}

/// Whether every object with pages has a state, and each object one at most.
pub(super) fn is_complete(transaction: &Transaction) -> bool {
    let objects = transaction.objects.iter();
    let stated: HashSet<ObjectId> = objects.map(|state| state.id).collect();
    stated.len() == transaction.objects.len()
        && transaction.pages.keys().all(|id| stated.contains(id))
}
