//! Page versions: a file's content in memory over the store's.
//!
//! Of each page the newest version is in memory as long as it is not committed: the page
//! reverse-mapping of S0 §4.2. [`PageSlot::transaction`] names the transaction of the version, and
//! with that what a write does: the open transaction's own version is overwritten in place, one of
//! a closed transaction is copied (pages are shared with what that transaction holds), and where
//! there is none, a version is appended.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;

use mobifs_base::{ByteRange, ObjectId, Page, PageIndex, RangeSet, TransactionId};

use crate::persist::dirty_tracking::{Tracked, UnsavedKeys};

/// Marks changes outside transactions: the object has no link.
pub(crate) const ORPHAN: TransactionId = TransactionId(0);

/// The newest version of a page: the page reverse-mapping (S0 §4.2).
#[derive(Debug)]
pub(crate) struct PageSlot {
    pub(crate) page: Page,
    /// The transaction that this version belongs to, open or closed, or [`ORPHAN`].
    pub(crate) transaction: TransactionId,
}

/// What one open transaction (or none, for an orphan) changes of an object.
#[derive(Debug)]
pub(crate) struct Change {
    pub(crate) transaction: TransactionId,
    /// Ranges whose earlier content is gone; pages written since lie on top.
    pub(crate) zeroed: Ranges,
    pub(crate) allocated: Ranges,
    /// The write log: pages in the order of their first write in this transaction.
    /// May name pages that were dropped since; the slot decides.
    pub(crate) log: Vec<PageIndex>,
    pub(crate) xattrs: Tracked<BTreeSet<Arc<[u8]>>>,
}

impl Change {
    pub(crate) fn new(transaction: TransactionId, is_tracked: bool) -> Self {
        Self {
            transaction,
            zeroed: Ranges::new(is_tracked),
            allocated: Ranges::new(is_tracked),
            log: Vec::new(),
            xattrs: Tracked::saved(BTreeSet::new()),
        }
    }
}

/// Ranges of a file that a transaction changes as a whole. Each is stored separately, under its
/// start: an operation changes few of them, and there may be very many.
#[derive(Debug)]
pub(crate) struct Ranges {
    set: RangeSet,
    unsaved: UnsavedKeys<u64>,
}

impl Deref for Ranges {
    type Target = RangeSet;

    fn deref(&self) -> &Self::Target {
        &self.set
    }
}

impl Ranges {
    pub(crate) const fn new(is_tracked: bool) -> Self {
        Self {
            set: RangeSet::new(),
            unsaved: UnsavedKeys::new(is_tracked),
        }
    }

    pub(crate) fn insert(&mut self, range: ByteRange) {
        let Self { set, unsaved } = self;
        set.insert_reporting(range, |start| unsaved.mark(start));
    }

    pub(crate) fn remove(&mut self, range: ByteRange) {
        let Self { set, unsaved } = self;
        set.remove_reporting(range, |start| unsaved.mark(start));
    }

    pub(crate) fn mark_all_unsaved(&mut self) {
        let Self { set, unsaved } = self;
        set.iter().for_each(|range| unsaved.mark(range.start));
    }

    /// What changed: where a range starts, and its end; none if no range starts there any more.
    pub(crate) fn take_changes(&mut self, mut each: impl FnMut(u64, Option<u64>)) {
        let starts = self.unsaved.take();
        for &start in &starts {
            let range = self.set.range_at(start);
            let range = range.filter(|range| range.start == start);
            each(start, range.map(|range| range.end));
        }
        self.unsaved.recycle(starts);
    }
}

/// The dirty pages of one file.
#[derive(Debug)]
pub(crate) struct Pages {
    slots: BTreeMap<PageIndex, PageSlot>,
    pub(crate) unsaved: UnsavedKeys<PageIndex>,
}

impl Default for Pages {
    fn default() -> Self {
        Self {
            slots: BTreeMap::new(),
            unsaved: UnsavedKeys::new(false),
        }
    }
}

impl Deref for Pages {
    type Target = BTreeMap<PageIndex, PageSlot>;

    fn deref(&self) -> &Self::Target {
        &self.slots
    }
}

impl Pages {
    pub(crate) fn get_mut(&mut self, index: &PageIndex) -> Option<&mut PageSlot> {
        let slot = self.slots.get_mut(index)?;
        self.unsaved.mark(*index);
        Some(slot)
    }

    /// Whether the page before this one is a version of the transaction.
    pub(crate) fn follows_on(&self, index: PageIndex, transaction: TransactionId) -> bool {
        let before = index.0.checked_sub(1).map(PageIndex);
        let slot = before.and_then(|before| self.slots.get(&before));
        slot.is_some_and(|slot| slot.transaction == transaction)
    }

    /// Whether the page is a version of the transaction.
    pub(crate) fn is_of(&self, index: PageIndex, transaction: TransactionId) -> bool {
        let slot = self.slots.get(&index);
        slot.is_some_and(|slot| slot.transaction == transaction)
    }

    /// Marks everything as unsaved.
    pub(crate) fn mark_all_unsaved(&mut self) {
        let Self { slots, unsaved } = self;
        slots.keys().for_each(|index| unsaved.mark(*index));
    }

    /// Marks everything as unsaved, if changes are tracked.
    pub(crate) fn track(&mut self, is_tracked: bool) {
        self.unsaved = UnsavedKeys::new(is_tracked);
        self.mark_all_unsaved();
    }

    /// For what saving does to a slot itself: where its content is kept.
    pub(crate) fn get_mut_untracked(&mut self, index: &PageIndex) -> Option<&mut PageSlot> {
        self.slots.get_mut(index)
    }

    pub(crate) fn insert(&mut self, index: PageIndex, slot: PageSlot) {
        self.unsaved.mark(index);
        self.slots.insert(index, slot);
    }

    pub(crate) fn remove(&mut self, index: &PageIndex) -> Option<PageSlot> {
        self.unsaved.mark(*index);
        self.slots.remove(index)
    }

    /// Drops all slots that `keep` does not want.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&PageSlot) -> bool) {
        let unsaved = &mut self.unsaved;
        self.slots.retain(|index, slot| {
            let stays = keep(slot);
            if !stays {
                unsaved.mark(*index);
            }
            stays
        });
    }

    /// Changes all slots of which `change` wants to.
    pub(crate) fn change_each(&mut self, mut change: impl FnMut(&mut PageSlot) -> bool) {
        for (index, slot) in &mut self.slots {
            if change(slot) {
                self.unsaved.mark(*index);
            }
        }
    }

    /// Takes out the slots from `start` up to `end` (none: all after).
    pub(crate) fn take_range(
        &mut self,
        start: PageIndex,
        end: Option<PageIndex>,
    ) -> BTreeMap<PageIndex, PageSlot> {
        let taken = match end {
            None => self.slots.split_off(&start),
            // What comes after may be much more than what goes.
            Some(end) => {
                let inside = self.slots.range(start..end.max(start));
                let inside: Vec<PageIndex> = inside.map(|(index, _)| *index).collect();
                let slots = inside.into_iter();
                slots
                    .filter_map(|index| self.slots.remove_entry(&index))
                    .collect()
            }
        };
        taken.keys().for_each(|index| self.unsaved.mark(*index));
        taken
    }
}

/// Bytes of an object, and the object's version.
type PlaceAsked = (ObjectId, ByteRange, u64);

/// Answers that wait for the retried write; more than there are waiting writers at a time.
const ARRIVALS_MAX: usize = 64;

/// Answers of the store about committed content, which the retried operation will use.
#[derive(Debug, Default)]
pub(crate) struct Arrivals {
    /// Committed pages that arrived for partial writes, with the inode's version.
    pages: Vec<(ObjectId, PageIndex, u64, Page)>,
    /// Whether bytes have their blocks in the lower filesystem, of an object's version.
    places: Vec<(PlaceAsked, bool)>,
}

impl Arrivals {
    /// A committed page arrives.
    pub(crate) fn add_page(&mut self, id: ObjectId, index: PageIndex, version: u64, page: Page) {
        if self.pages.len() >= ARRIVALS_MAX {
            self.pages.remove(0);
        }
        self.pages.push((id, index, version, page));
    }

    /// It is known whether bytes have their blocks in the lower filesystem.
    pub(crate) fn add_place(&mut self, asked: PlaceAsked, is_in_place: bool) {
        if self.places.len() >= ARRIVALS_MAX {
            self.places.remove(0);
        }
        self.places.push((asked, is_in_place));
    }

    /// The committed page, if it has arrived and is not stale.
    pub(crate) fn page(&self, id: ObjectId, index: PageIndex, version: u64) -> Option<Page> {
        let mut pages = self.pages.iter();
        let found = pages.find(|(of, at, seen, _)| (*of, *at, *seen) == (id, index, version));
        found.map(|(.., page)| page.clone())
    }

    /// Whether bytes have their blocks in the lower filesystem; none if that is not known.
    pub(crate) fn is_in_place(&self, asked: PlaceAsked) -> Option<bool> {
        let mut places = self.places.iter();
        let found = places.find(|(of, _)| *of == asked);
        found.map(|(_, is_in_place)| *is_in_place)
    }

    /// Committed pages of an object are not needed any more.
    pub(crate) fn drop_pages_of(&mut self, id: ObjectId) {
        self.pages.retain(|arrival| arrival.0 != id);
    }

    /// What is known of places of an object is not needed any more.
    pub(crate) fn drop_places_of(&mut self, id: ObjectId) {
        self.places.retain(|((of, ..), _)| *of != id);
    }

    /// Something was applied: what had no blocks may have some.
    pub(crate) fn drop_places(&mut self) {
        self.places.clear();
    }
}
