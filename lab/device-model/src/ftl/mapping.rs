//! The mapping from logical pages to slots, and the cache through which the FTL reaches it (DFTL;
//! S4 §5.3.3: whole mapping pages of 1,024 entries, least recently used is evicted).
//!
//! `entries` is the mapping as the FTL knows it. What the mapping pages *in flash* say is
//! the same, except for changed pages in the cache: each of those keeps what its changed
//! entries were before. So both states are here at the price of one.

use super::geometry::{ENTRIES_PER_MAP_PAGE, Geometry};
use super::resources::Ns;
use crate::packed::PackedArray;

const NONE: u32 = u32::MAX;

/// Entries that changed since a mapping page was last written, with what they were.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changes {
    /// (entry in the page, slot + 1 before the change), oldest first.
    pub(crate) before: Vec<(u16, u32)>,
    /// Sequence number at the first change.
    pub(crate) first_seq: u64,
}

impl Changes {
    fn note(&mut self, entry: u16, before: u32) {
        // An entry's first note is the one that counts; a hot page must not accumulate them.
        if self.before.len() >= 2 * ENTRIES_PER_MAP_PAGE as usize {
            let mut seen = [false; ENTRIES_PER_MAP_PAGE as usize];
            self.before
                .retain(|&(entry, _)| !core::mem::replace(&mut seen[usize::from(entry)], true));
        }
        self.before.push((entry, before));
    }
}

/// A mapping page in the cache.
#[derive(Clone, Copy, Debug)]
struct Link {
    newer: u32,
    older: u32,
}

pub(crate) struct MappingTable {
    /// slot + 1 for each logical page; 0 for none.
    entries: PackedArray,
    /// Where each mapping page is in flash, slot + 1; 0 for never written.
    pub(crate) places: Vec<u32>,
    /// The sequence number in the header of each mapping page in flash: it knows all
    /// programs before.
    pub(crate) written_seq: Vec<u64>,
    /// When what the entries of a mapping page point to is in the cells, and the page's
    /// last program has ended: the page must not be programmed earlier.
    pub(crate) programmable_at: Vec<Ns>,
    links: Vec<Link>,
    changes: Vec<Option<Box<Changes>>>,
    newest: u32,
    oldest: u32,
    cached: u32,
    pub(crate) capacity: u32,
}

impl MappingTable {
    pub(crate) fn new(geometry: &Geometry, cache_bytes: u64) -> Self {
        let pages = geometry.map_pages as usize;
        let capacity = cache_bytes / (u64::from(ENTRIES_PER_MAP_PAGE) * 4);
        let unlinked = Link {
            newer: NONE,
            older: NONE,
        };
        Self {
            entries: PackedArray::new(
                geometry.logical_pages as usize,
                u64::from(geometry.slots()) + 1,
            ),
            places: vec![0; pages],
            written_seq: vec![0; pages],
            programmable_at: vec![0; pages],
            links: vec![unlinked; pages],
            changes: vec![None; pages],
            newest: NONE,
            oldest: NONE,
            cached: 0,
            capacity: u32::try_from(capacity).unwrap_or(u32::MAX),
        }
    }

    /// Where a logical page is.
    pub(crate) fn slot(&self, lpn: u32) -> Option<u32> {
        self.entries.get(lpn as usize).checked_sub(1)
    }

    /// Changes an entry. Its mapping page must be in the cache.
    pub(crate) fn set(&mut self, lpn: u32, slot: Option<u32>, seq: u64) {
        let page = Geometry::map_page_of(lpn);
        debug_assert!(self.is_cached(page));
        let before = self.entries.get(lpn as usize);
        let changes = self.changes[page as usize].get_or_insert_default();
        if changes.before.is_empty() || seq < changes.first_seq {
            changes.first_seq = seq;
        }
        changes.note((lpn % ENTRIES_PER_MAP_PAGE) as u16, before);
        self.entries
            .set(lpn as usize, slot.map_or(0, |slot| slot + 1));
    }

    pub(crate) fn is_cached(&self, page: u32) -> bool {
        let link = self.links[page as usize];
        link.newer != NONE || link.older != NONE || self.newest == page
    }

    pub(crate) fn is_changed(&self, page: u32) -> bool {
        self.changes[page as usize].is_some()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.cached >= self.capacity
    }

    pub(crate) fn cached(&self) -> u32 {
        self.cached
    }

    /// The page that was used least recently.
    pub(crate) fn oldest(&self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }

    /// The cached pages, the most recently used first.
    pub(crate) fn cached_pages(&self) -> impl Iterator<Item = u32> + '_ {
        let first = (self.newest != NONE).then_some(self.newest);
        core::iter::successors(first, |&page| {
            let older = self.links[page as usize].older;
            (older != NONE).then_some(older)
        })
    }

    fn link_newest(&mut self, page: u32) {
        self.links[page as usize] = Link {
            newer: NONE,
            older: self.newest,
        };
        if self.newest == NONE {
            self.oldest = page;
        } else {
            self.links[self.newest as usize].newer = page;
        }
        self.newest = page;
    }

    fn unlink(&mut self, page: u32) {
        let Link { newer, older } = self.links[page as usize];
        if newer == NONE {
            self.newest = older;
        } else {
            self.links[newer as usize].older = older;
        }
        if older == NONE {
            self.oldest = newer;
        } else {
            self.links[older as usize].newer = newer;
        }
        self.links[page as usize] = Link {
            newer: NONE,
            older: NONE,
        };
    }

    /// Notes a use of a cached page.
    pub(crate) fn promote(&mut self, page: u32) {
        if self.newest != page {
            self.unlink(page);
            self.link_newest(page);
        }
    }

    /// More pages than the cache holds, which only a recovery leaves for a moment.
    pub(crate) fn is_over_full(&self) -> bool {
        self.cached > self.capacity
    }

    /// Puts a page into the cache.
    pub(crate) fn insert(&mut self, page: u32) {
        debug_assert!(!self.is_cached(page));
        self.link_newest(page);
        self.cached += 1;
    }

    /// The notes of a changed page, for saving: entries and what they were.
    pub(crate) fn changes_of(&self, page: u32) -> Option<&Changes> {
        self.changes[page as usize].as_deref()
    }

    /// Drops an unchanged page from the cache.
    pub(crate) fn evict(&mut self, page: u32) {
        debug_assert!(!self.is_changed(page));
        self.unlink(page);
        self.cached -= 1;
    }

    /// The page is written: takes the notes of what changed since the last time.
    pub(crate) fn take_changes(&mut self, page: u32) -> Changes {
        self.changes[page as usize]
            .take()
            .map_or_else(Changes::default, |changes| *changes)
    }

    /// The sequence number before which every change is in flash.
    pub(crate) fn first_unwritten_seq(&self) -> Option<u64> {
        self.cached_pages()
            .filter_map(|page| self.changes[page as usize].as_ref())
            .map(|changes| changes.first_seq)
            .min()
    }

    /// Changed pages whose first change is before `seq`.
    pub(crate) fn changed_before(&self, seq: u64) -> Vec<u32> {
        self.cached_pages()
            .filter(|&page| {
                self.changes[page as usize]
                    .as_ref()
                    .is_some_and(|changes| changes.first_seq < seq)
            })
            .collect()
    }

    /// Sets entries back to what they were before `changes`.
    pub(crate) fn undo(&mut self, page: u32, changes: &Changes) {
        for &(entry, before) in changes.before.iter().rev() {
            let lpn = page * ENTRIES_PER_MAP_PAGE + u32::from(entry);
            self.entries.set(lpn as usize, before);
        }
    }

    /// Power is gone: the cache is empty, the entries are those of the pages in flash.
    pub(crate) fn lose_cache(&mut self) {
        while let Some(page) = self.oldest() {
            let changes = self.take_changes(page);
            self.undo(page, &changes);
            self.evict(page);
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        let changes: usize = self
            .changes
            .iter()
            .flatten()
            .map(|changes| changes.before.capacity() * size_of::<(u16, u32)>())
            .sum();
        let per_page = 4 + 8 + 8 + size_of::<Link>() + size_of::<Option<Box<Changes>>>();
        self.entries.memory_bytes() + self.places.len() * per_page + changes
    }

    pub(crate) fn entries_bytes(&self) -> &[u8] {
        self.entries.as_bytes()
    }

    /// Whether all entries name slots below `end`, or none.
    pub(crate) fn slots_are_below(&self, end: u32) -> bool {
        (0..self.entries.len()).all(|entry| self.entries.get(entry) <= end)
    }

    pub(crate) fn restore_entries(&mut self, bytes: &[u8]) -> bool {
        self.entries.restore(bytes)
    }

    pub(crate) fn len(&self) -> u32 {
        self.entries.len() as u32
    }
}
