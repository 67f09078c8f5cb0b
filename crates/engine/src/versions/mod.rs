//! Page versions: a file's content in memory over the store's.
//!
//! Of each page the newest version is in memory as long as it is not committed: the page
//! reverse-mapping of S0 §4.2. It has the number of its transaction, and with that what a write
//! does: the open transaction's own version is overwritten in place, one of a closed transaction
//! is copied (pages are shared with what that transaction holds), and where there is none, a
//! version is appended.
//!
//! The accounting of memory and room is not here ([`crate::accounting`]): what changes versions
//! returns what it took and freed.

mod change;
mod fetched_content;
mod pages;
mod read;

use alloc::boxed::Box;
use alloc::vec::Vec;

use mobifs_base::{ByteRange, PAGE_BYTES, PAGE_BYTES_U64, Page, PageIndex, Room, TransactionId};

pub(crate) use change::{Change, ORPHAN};
pub(crate) use fetched_content::FetchedContent;
use pages::{PageSlot, Pages};
pub use read::{ReadPlan, ReadSegment};

/// The versions of one object's pages in memory, and what hides the store's content under them.
///
/// Invariants:
/// * a page is a version of the open change, of a closed transaction, or of none ([`ORPHAN`]);
/// * the open change's log names all of its versions.
#[derive(Debug)]
pub(crate) struct PageVersions {
    pages: Pages,
    /// What an open transaction changes of the object. The versions with its number are its own.
    change: Option<Box<Change>>,
    /// Zeroed ranges of closed, uncommitted transactions, in the order of their closing.
    closed_zeroed: Vec<(TransactionId, Vec<ByteRange>)>,
    /// The store has a committed (or spilled) state of the object, so content that is not in
    /// `pages` and not zeroed comes from there.
    known_to_store: bool,
    /// Size in the store: after it the store has nothing but zeros.
    store_bytes: u64,
    /// Counts commits of this object: a page read from the store is stale after one.
    version: u64,
}

/// What [`PageVersions::edit`] did.
#[derive(Debug)]
pub(crate) struct Edited {
    /// Memory that the transaction's versions take more than before.
    pub(crate) grown_bytes: u64,
    /// Memory that they take less.
    pub(crate) shrunk_bytes: u64,
    /// Room that a version takes which the transaction did not have; none if it was overwritten
    /// in place.
    pub(crate) room: Option<Room>,
    /// The page was a hole.
    pub(crate) fills_hole: bool,
}

/// Versions of one transaction that left memory, or that belong to another transaction now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) pages: u64,
    pub(crate) bytes: u64,
}

impl Taken {
    fn add(&mut self, page: &Page) {
        self.pages += 1;
        self.bytes += page.stored_bytes() as u64;
    }
}

/// What [`PageVersions::zero`] did.
#[derive(Debug)]
pub(crate) struct Zeroed {
    /// Pages that left memory, whosever they were.
    pub(crate) pages: u64,
    /// The transaction's own among them.
    pub(crate) own: Taken,
    /// Room that these, and what the transaction had allocated, do not take any more.
    pub(crate) room: Room,
}

/// The fields that a restart image keeps in the object's record, in its order.
pub(crate) struct SavedVersions<'a> {
    pub(crate) known_to_store: bool,
    pub(crate) store_bytes: u64,
    pub(crate) version: u64,
    pub(crate) change: Option<&'a Change>,
}

/// What the store has.
impl PageVersions {
    /// None yet, over so many bytes in the store.
    pub(crate) fn of_store(store_bytes: u64) -> Self {
        Self {
            pages: Pages::default(),
            change: None,
            closed_zeroed: Vec::new(),
            known_to_store: true,
            store_bytes,
            version: 0,
        }
    }

    /// None yet, of an object that the store does not know.
    pub(crate) fn created() -> Self {
        Self {
            known_to_store: false,
            ..Self::of_store(0)
        }
    }

    /// The store has a state of the object.
    pub(crate) const fn is_known_to_store(&self) -> bool {
        self.known_to_store
    }

    /// The size that the store has; 0 if it does not know the object.
    pub(crate) const fn stored_bytes(&self) -> u64 {
        if self.known_to_store {
            self.store_bytes
        } else {
            0
        }
    }

    /// Changes when what was read from the store becomes stale.
    pub(crate) const fn version(&self) -> u64 {
        self.version
    }

    /// Whether the store has the object, and nothing of it is here.
    pub(crate) fn is_all_in_store(&self) -> bool {
        self.change.is_none() && self.pages.is_empty() && self.known_to_store
    }

    /// Whether content at `offset` that is in no slot reads as zero without asking the store.
    pub(crate) fn is_zero_below(&self, offset: u64) -> bool {
        !self.known_to_store
            || offset >= self.store_bytes
            || self
                .change
                .as_ref()
                .is_some_and(|change| change.zeroed().contains(offset))
            || self
                .closed_zeroed
                .iter()
                .any(|(_, ranges)| range_at(ranges, offset).is_some())
    }

    /// Whether an uncommitted change gives back room that a part of `range` has in the lower
    /// filesystem.
    pub(crate) fn gives_back(&self, range: ByteRange) -> bool {
        let overlaps = |ranges: &[ByteRange]| {
            let next = ranges.partition_point(|zeroed| zeroed.end <= range.start);
            ranges.get(next).is_some_and(|next| next.start < range.end)
        };
        let change = self.change.as_ref();
        !range.is_empty()
            && (change.is_some_and(|change| change.zeroed().intersects(range))
                || self
                    .closed_zeroed
                    .iter()
                    .any(|(_, ranges)| overlaps(ranges)))
    }
}

/// What is here.
impl PageVersions {
    /// The newest version of a page.
    pub(crate) fn newest(&self, index: PageIndex) -> Option<&Page> {
        self.pages.get(&index).map(|slot| &slot.page)
    }

    /// The newest version of a page, if it is this transaction's.
    pub(crate) fn newest_of(&self, transaction: TransactionId, index: PageIndex) -> Option<&Page> {
        let slot = self.pages.get(&index);
        let slot = slot.filter(|slot| slot.transaction == transaction);
        slot.map(|slot| &slot.page)
    }

    /// Whether the open change has all of these pages, and they can become no larger.
    pub(crate) fn has_whole(&self, range: ByteRange) -> bool {
        let Some(change) = &self.change else {
            return false;
        };
        let is_whole = |index| {
            let page = self.newest_of(change.transaction, PageIndex(index));
            page.is_some_and(|page| page.stored_bytes() == PAGE_BYTES)
        };
        let mut pages = range.start / PAGE_BYTES_U64..range.end.div_ceil(PAGE_BYTES_U64);
        pages.all(is_whole)
    }

    /// Memory of versions that are in no transaction.
    pub(crate) fn orphan_bytes(&self) -> u64 {
        let orphans = self.of(ORPHAN);
        orphans.map(|(_, page)| page.stored_bytes() as u64).sum()
    }

    /// Up to so many versions that are in no transaction.
    pub(crate) fn spillable(&self, pages_max: usize) -> Vec<(PageIndex, Page)> {
        let orphans = self.of(ORPHAN).take(pages_max);
        orphans.map(|(index, page)| (index, page.clone())).collect()
    }

    /// The newest versions that are a transaction's, or in none ([`ORPHAN`]).
    fn of(&self, transaction: TransactionId) -> impl Iterator<Item = (PageIndex, &Page)> {
        let slots = self.pages.iter();
        let slots = slots.filter(move |(_, slot)| slot.transaction == transaction);
        slots.map(|(&index, slot)| (index, &slot.page))
    }

    /// Room that versions and allocated ranges take which no transaction carries yet.
    pub(crate) fn orphan_room(&self) -> Room {
        let Some(change) = self.orphan_change() else {
            return Room::NONE;
        };
        let pages = Room::of_pages(self.of(ORPHAN).map(|(index, _)| index));
        let allocated = change.allocated().iter().map(Room::of_range);
        allocated.fold(pages, Room::saturating_add)
    }
}

/// The open change.
impl PageVersions {
    /// What an open transaction changes of the object, or what was changed since it lost its last
    /// link.
    pub(crate) fn change(&self) -> Option<&Change> {
        self.change.as_deref()
    }

    /// That, to change what is not content.
    pub(crate) fn change_mut(&mut self) -> Option<&mut Change> {
        self.change.as_deref_mut()
    }

    /// The change of an object without a link.
    pub(crate) fn orphan_change(&self) -> Option<&Change> {
        self.change().filter(|change| change.transaction == ORPHAN)
    }

    /// The object becomes part of an open transaction, or of none ([`ORPHAN`]).
    pub(crate) fn begin_change(&mut self, change: Change) {
        debug_assert!(self.change.is_none(), "one change is open at a time");
        self.change = Some(Box::new(change));
    }

    /// The object has lost its last link: what is changed from now on is in no transaction.
    pub(crate) fn begin_orphan_change(&mut self, is_tracked: bool) -> &mut Change {
        let new = || Box::new(Change::new(ORPHAN, is_tracked));
        let change = self.change.get_or_insert_with(new);
        debug_assert_eq!(change.transaction, ORPHAN, "a deleted file is in none");
        change
    }

    /// Takes the change out. Only [`crate::namespace::Namespace`] may call it, which marks what
    /// goes as unsaved.
    pub(crate) const fn take_change(&mut self) -> Option<Box<Change>> {
        self.change.take()
    }

    /// Changes a page in the transaction: the three cases of S0 §4.2. `committed` is the store's
    /// page, of the version that is given.
    pub(crate) fn edit(
        &mut self,
        transaction: TransactionId,
        index: PageIndex,
        committed: impl FnOnce(u64) -> Option<Page>,
        edit: impl FnOnce(&mut Page),
    ) -> Edited {
        debug_assert!(
            self.change()
                .is_some_and(|it| it.transaction == transaction),
            "pages are changed in the open change"
        );
        let mut fills_hole = false;
        let grown_bytes = match self.pages.get_mut(&index) {
            // The active section has it: overwrite in place.
            Some(slot) if slot.transaction == transaction => {
                let before = slot.page.stored_bytes() as u64;
                edit(&mut slot.page);
                // A page shrinks only when its tail becomes zero.
                let after = slot.page.stored_bytes() as u64;
                return Edited {
                    grown_bytes: after.saturating_sub(before),
                    shrunk_bytes: before.saturating_sub(after),
                    room: None,
                    fills_hole,
                };
            }
            // A closed section has it: the closed transaction keeps its copy, the
            // edit makes ours.
            Some(slot) => {
                edit(&mut slot.page);
                slot.transaction = transaction;
                slot.page.stored_bytes() as u64
            }
            // The log does not have it: append.
            None => {
                fills_hole = self.is_zero_below(index.offset());
                let below = if fills_hole {
                    None
                } else {
                    committed(self.version)
                };
                let mut page = below.unwrap_or_else(Page::zero);
                edit(&mut page);
                let bytes = page.stored_bytes() as u64;
                self.pages.insert(index, PageSlot { page, transaction });
                bytes
            }
        };
        if let Some(change) = &mut self.change {
            change.log.push(index);
        }
        let follows_on = self.pages.follows_on(index, transaction);
        Edited {
            grown_bytes,
            shrunk_bytes: 0,
            room: Some(Room::of_page(follows_on)),
            fills_hole,
        }
    }

    /// Drops whole pages, and hides what the store has under them, or, if an earlier transaction
    /// has the object (`is_announced`), will have.
    pub(crate) fn zero(
        &mut self,
        transaction: TransactionId,
        range: ByteRange,
        is_announced: bool,
    ) -> Zeroed {
        let first = PageIndex::of_offset(range.start);
        let end = (range.end != u64::MAX).then(|| PageIndex::of_offset(range.end));
        let dropped = self.pages.take_range(first, end);
        let mut own = Taken::default();
        for slot in dropped.values() {
            if slot.transaction == transaction {
                own.add(&slot.page);
            }
        }
        // Where a hole makes two of a run, a block stays reserved: for the second one's extent.
        let splits = self.pages.follows_on(first, transaction)
            && end.is_some_and(|end| self.pages.is_of(end, transaction));
        let mut room = Room::of_blocks(own.pages.saturating_sub(u64::from(splits)));
        if let Some(change) = &mut self.change {
            let allocated = change.allocated();
            let before = range.start.checked_sub(1);
            let splits = before.is_some_and(|before| allocated.contains(before))
                && allocated.contains(range.end);
            let bytes = Room::of_bytes(allocated.bytes_in(range));
            let kept = Room::of_blocks(u64::from(splits));
            room = room.saturating_add(bytes.saturating_sub(kept));
            change.allocated.remove(range);
            if is_announced || self.known_to_store {
                change.zeroed.insert(range);
            }
        }
        Zeroed {
            pages: dropped.len() as u64,
            own,
            room,
        }
    }

    /// The open change allocates a range.
    pub(crate) fn allocate(&mut self, range: ByteRange) {
        if let Some(change) = &mut self.change {
            change.allocated.insert(range);
        }
    }

    /// The open change does not allocate a range any more.
    pub(crate) fn release_allocated(&mut self, range: ByteRange) {
        if let Some(change) = &mut self.change {
            change.allocated.remove(range);
        }
    }

    /// Bytes of a range that the open change allocates.
    pub(crate) fn allocated_bytes_in(&self, range: ByteRange) -> u64 {
        self.change()
            .map_or(0, |change| change.allocated().bytes_in(range))
    }

    /// After this the open change allocates nothing.
    pub(crate) fn allocated_end(&self) -> u64 {
        let ranges = self.change().map(Change::allocated);
        let last = ranges.and_then(|ranges| ranges.iter().next_back());
        last.map_or(0, |range| range.end)
    }
}

/// Versions on the way of their transactions.
impl PageVersions {
    /// The open transaction of the change, if it is `from`, becomes a part of another one.
    pub(crate) fn join(&mut self, from: TransactionId, to: TransactionId) {
        if self.change().is_some_and(|it| it.transaction == from) {
            self.relabel_change(to);
        }
    }

    /// The object loses its last link: its change does not reach the store any more, and its
    /// versions, which are returned, are in no transaction.
    pub(crate) fn orphan(&mut self, transaction: TransactionId) -> Option<Taken> {
        let change = self.change()?;
        debug_assert_eq!(
            change.transaction, transaction,
            "a dirty object's change is in its transaction"
        );
        Some(self.relabel_change(ORPHAN))
    }

    /// Lets the open change and its versions belong to another transaction.
    fn relabel_change(&mut self, to: TransactionId) -> Taken {
        let mut relabelled = Taken::default();
        if let Some(change) = &mut self.change {
            let from = core::mem::replace(&mut change.transaction, to);
            for index in &change.log {
                if let Some(slot) = self.pages.get_mut(index)
                    && slot.transaction == from
                {
                    slot.transaction = to;
                    relabelled.add(&slot.page);
                }
            }
        }
        relabelled
    }

    /// An object without a link gets one: what it holds, which is returned, belongs to the
    /// transaction from now on. None if it has no change that is in no transaction.
    pub(crate) fn adopt(&mut self, transaction: TransactionId) -> Option<Taken> {
        let change = self.change.as_mut();
        let change = change.filter(|change| change.transaction == ORPHAN)?;
        change.transaction = transaction;
        let mut adopted = Taken::default();
        self.pages.change_each(|slot| {
            let is_adopted = slot.transaction == ORPHAN;
            if is_adopted {
                slot.transaction = transaction;
                adopted.add(&slot.page);
            }
            is_adopted
        });
        Some(adopted)
    }

    /// The transaction of the change, which was taken out, is closed: calls `each` with its
    /// versions, each page once. What it zeroed stays hidden until the commit.
    pub(crate) fn close(&mut self, mut change: Change, mut each: impl FnMut(PageIndex, &Page)) {
        // A page may be named twice: dropped, then written again.
        change.log.sort_unstable();
        change.log.dedup();
        debug_assert_eq!(
            self.of(change.transaction).count(),
            change
                .log
                .iter()
                .filter(|index| self.pages.is_of(**index, change.transaction))
                .count(),
            "the log names all versions of its transaction"
        );
        for &index in &change.log {
            if let Some(page) = self.newest_of(change.transaction, index) {
                each(index, page);
            }
        }
        let zeroed: Vec<_> = change.zeroed().iter().collect();
        if !zeroed.is_empty() {
            self.hide_closed(change.transaction, zeroed);
        }
    }

    /// Hides ranges that a closed transaction zeroes until its commit.
    pub(crate) fn hide_closed(&mut self, transaction: TransactionId, zeroed: Vec<ByteRange>) {
        self.closed_zeroed.push((transaction, zeroed));
    }

    /// The store has a transaction's version of a page, which leaves memory unless it was written
    /// again.
    pub(crate) fn page_committed(&mut self, transaction: TransactionId, index: PageIndex) {
        if self.pages.is_of(index, transaction) {
            self.pages.remove(&index);
        }
    }

    /// The store has what a transaction changed of the object, which is so large there.
    pub(crate) fn committed(&mut self, transaction: TransactionId, store_bytes: u64) {
        self.known_to_store = true;
        self.store_bytes = store_bytes;
        self.version += 1;
        self.closed_zeroed.retain(|(of, _)| *of != transaction);
        debug_assert_eq!(
            self.of(transaction).count(),
            0,
            "no version of a committed transaction is in memory"
        );
    }

    /// Lets versions of closed transactions belong to the one into which theirs was merged.
    pub(crate) fn merge(&mut self, group: &[TransactionId], to: TransactionId) {
        self.pages.change_each(|slot| {
            let is_merged = slot.transaction != to && group.contains(&slot.transaction);
            if is_merged {
                slot.transaction = to;
            }
            is_merged
        });
        for (of, _) in &mut self.closed_zeroed {
            if group.contains(of) {
                *of = to;
            }
        }
    }

    /// Ranges that the transaction zeroed in a file that it deletes are never zeroed in the store,
    /// whose content would show as long as a program has the file open: they stay hidden here.
    pub(crate) fn keep_zeroed(&mut self, transaction: TransactionId, is_tracked: bool) {
        let (zeroed, others): (Vec<_>, Vec<_>) = core::mem::take(&mut self.closed_zeroed)
            .into_iter()
            .partition(|(of, _)| *of == transaction);
        self.closed_zeroed = others;
        let mut ranges = zeroed.into_iter().flat_map(|(_, ranges)| ranges).peekable();
        if ranges.peek().is_none() {
            return;
        }
        let change = self.begin_orphan_change(is_tracked);
        ranges.for_each(|range| change.zeroed.insert(range));
    }

    /// A transaction does not write its version of a page any more. False if another version is
    /// the newest one.
    pub(crate) fn orphan_page(
        &mut self,
        transaction: TransactionId,
        index: PageIndex,
        page: &Page,
    ) -> bool {
        let slot = self.pages.get_mut(&index);
        let slot = slot.filter(|slot| slot.transaction == transaction && slot.page == *page);
        let is_newest = slot.is_some();
        if let Some(slot) = slot {
            slot.transaction = ORPHAN;
        }
        is_newest
    }

    /// Versions that are in no transaction leave memory; returns how much they took.
    pub(crate) fn drop_orphans(&mut self) -> u64 {
        let mut dropped = Taken::default();
        self.pages.retain(|slot| {
            let keep = slot.transaction != ORPHAN;
            if !keep {
                dropped.add(&slot.page);
            }
            keep
        });
        dropped.bytes
    }

    /// The store now holds these versions of an orphan. Those that are the newest still leave
    /// memory; returns how much they took.
    pub(crate) fn spilled(&mut self, pages: &[(PageIndex, Page)]) -> u64 {
        self.known_to_store = true;
        self.version += 1;
        let mut dropped = Taken::default();
        for (index, page) in pages {
            let end = index.offset() + PAGE_BYTES_U64;
            self.store_bytes = self.store_bytes.max(end);
            let is_unchanged = self.newest_of(ORPHAN, *index) == Some(page);
            if is_unchanged && let Some(slot) = self.pages.remove(index) {
                dropped.add(&slot.page);
                if let Some(change) = &mut self.change {
                    change.zeroed.remove(ByteRange::new(index.offset(), end));
                }
            }
        }
        dropped.bytes
    }
}

/// The restart image.
impl PageVersions {
    /// What the object's record keeps. All fields are named, so that a new one cannot be forgotten
    /// here. Pages have their own records; what is hidden is that of closed transactions.
    pub(crate) fn saved(&self) -> SavedVersions<'_> {
        let Self {
            pages: _,
            change,
            closed_zeroed: _,
            known_to_store,
            store_bytes,
            version,
        } = self;
        SavedVersions {
            known_to_store: *known_to_store,
            store_bytes: *store_bytes,
            version: *version,
            change: change.as_deref(),
        }
    }

    /// What a record has; pages, ranges and what is hidden follow.
    pub(crate) fn restore(
        known_to_store: bool,
        store_bytes: u64,
        version: u64,
        change: Option<Change>,
    ) -> Self {
        Self {
            change: change.map(Box::new),
            known_to_store,
            version,
            ..Self::of_store(store_bytes)
        }
    }

    /// Puts back the newest version of a page.
    pub(crate) fn restore_page(
        &mut self,
        transaction: TransactionId,
        index: PageIndex,
        page: Page,
    ) {
        self.pages.insert(index, PageSlot { page, transaction });
        if let Some(change) = &mut self.change
            && change.transaction == transaction
        {
            change.log.push(index);
        }
    }

    /// The store has versions of an orphan that are all here still: its copies count as zeroed.
    /// False if it is known that the store has some.
    pub(crate) fn reclaim_spilled(&mut self, is_tracked: bool) -> bool {
        if self.known_to_store {
            return false;
        }
        self.known_to_store = true;
        let new = || Box::new(Change::new(ORPHAN, is_tracked));
        let change = self.change.get_or_insert_with(new);
        change.zeroed.insert(ByteRange::from(0));
        true
    }

    /// Marks everything as unsaved, if changes are tracked.
    pub(crate) fn track(&mut self, is_tracked: bool) {
        self.pages.track(is_tracked);
    }

    /// Marks everything as unsaved.
    pub(crate) fn mark_all_unsaved(&mut self) {
        self.pages.mark_all_unsaved();
        if let Some(change) = &mut self.change {
            change.mark_ranges_unsaved();
        }
    }

    /// What changed of the pages: the newest version, and whose it is; none if it left memory.
    pub(crate) fn take_unsaved_pages(
        &mut self,
        mut each: impl FnMut(PageIndex, Option<(&mut Page, TransactionId)>),
    ) {
        let indexes = self.pages.unsaved.take();
        for &index in &indexes {
            let slot = self.pages.get_mut_untracked(&index);
            each(index, slot.map(|slot| (&mut slot.page, slot.transaction)));
        }
        self.pages.unsaved.recycle(indexes);
    }

    /// Takes out all pages, and what changed of them: which records there may be.
    pub(crate) fn take_page_records(&mut self) -> impl Iterator<Item = PageIndex> {
        let mut pages = core::mem::take(&mut self.pages);
        let marked = pages.unsaved.take();
        pages.into_indexes().chain(marked)
    }
}

/// The range that holds the byte at `offset`, of ranges in order.
fn range_at(ranges: &[ByteRange], offset: u64) -> Option<ByteRange> {
    let next = ranges.partition_point(|range| range.end <= offset);
    ranges
        .get(next)
        .copied()
        .filter(|range| range.start <= offset)
}
