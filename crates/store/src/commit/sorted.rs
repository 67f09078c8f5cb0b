//! A transaction sorted by what its entries are.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use mobifs_base::{Entry, Name, ObjectId, ObjectState, PAGE_BYTES, Page, PageIndex};

use crate::Transaction;

/// A run of new pages of this length is written to its place at once.
pub(super) const RUN_PAGES_MIN: usize = 16;
/// With this much data of new files in one transaction, all of it is: they have to be
/// made in the lower tree anyway, and one sync serves them all.
pub(super) const MANY_FILES_BYTES: u64 = 1 << 20;

/// A transaction sorted by what its entries are.
pub(crate) struct Sorted {
    pub(crate) states: Vec<ObjectState>,
    pub(crate) dentries: Vec<(ObjectId, Name, Option<ObjectId>)>,
    pub(crate) pages: BTreeMap<ObjectId, BTreeMap<PageIndex, Page>>,
}

impl Sorted {
    pub(super) fn new(transaction: Transaction) -> Self {
        let mut sorted = Self {
            states: Vec::new(),
            dentries: Vec::new(),
            pages: BTreeMap::new(),
        };
        for entry in transaction.entries {
            match entry {
                Entry::Object(state) => sorted.states.push(state),
                Entry::Dentry {
                    parent,
                    name,
                    child,
                } => {
                    sorted.dentries.push((parent, name, child));
                }
                Entry::Page {
                    object,
                    index,
                    page,
                } => {
                    sorted.pages.entry(object).or_default().insert(index, page);
                }
            }
        }
        sorted
    }

    pub(super) fn mentioned(&self) -> impl Iterator<Item = ObjectId> + '_ {
        let states = self.states.iter().map(|state| state.id);
        let dentries = self
            .dentries
            .iter()
            .flat_map(|(parent, _, child)| [Some(*parent), *child]);
        states.chain(dentries.flatten())
    }

    /// Directories of which the transaction has entries, and no state.
    pub(super) fn parents_without_state(&self) -> BTreeSet<ObjectId> {
        let stated: HashSet<ObjectId> = self.states.iter().map(|state| state.id).collect();
        let parents = self.dentries.iter().map(|(parent, ..)| *parent);
        parents.filter(|parent| !stated.contains(parent)).collect()
    }

    /// What new files hold, zeros at the ends of pages not counted.
    pub(crate) fn created_bytes(&self) -> u64 {
        let created = self.states.iter().filter(|state| state.created);
        let pages = created.filter_map(|state| self.pages.get(&state.id));
        let stored = pages.flat_map(BTreeMap::values).map(Page::stored_bytes);
        stored.sum::<usize>() as u64
    }

    /// What the transaction takes in the journal at most, if no page goes elsewhere.
    pub(super) fn journal_bytes_max(&self) -> u64 {
        let states: usize = self
            .states
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
                // The state and a guard for it, and where it and its parents are.
                768 + xattrs + target + 20 * (state.zeroed.len() + state.allocated.len())
            })
            .sum();
        // An entry, and the state of a directory that comes without (`add_parents`).
        let dentries = self.dentries.len() * (640 + 256);
        let pages: usize = self
            .pages
            .values()
            .flatten()
            .map(|(_, p)| p.stored_bytes() + 64)
            .sum();
        (states + dentries + pages + 2 * PAGE_BYTES) as u64
    }

    /// Whether some of it may be written to its place at once.
    pub(crate) fn has_runs(&self) -> bool {
        let mut pages = self.pages.values();
        pages.any(|pages| pages.len() >= RUN_PAGES_MIN) || self.created_bytes() >= MANY_FILES_BYTES
    }
}
