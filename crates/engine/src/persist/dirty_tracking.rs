//! Dirty tracking for the restart image ([`crate::persist`]): which records of it are not up to
//! date.
//!
//! The containers here let nothing be changed without marking its key as unsaved, so that no
//! operation can forget to. Where no restart image is kept they mark nothing.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::ops::Deref;

use foldhash::fast::FixedState;
use mobifs_base::{ByteRange, Name, ObjectId, PageIndex, RangeSet, TransactionId};

use crate::HashMap;
use crate::directory::{Directory, Listing};
use crate::inode::{Body, Change, Inode, PageSlot};
use crate::persist::Kind;
use crate::transaction::{ClosedTransaction, DentryChange, OpenTransaction};

/// Room for so many keys stays allocated.
const KEPT_KEYS: usize = 64;

/// Keys of what changed since the last save, each perhaps more than once.
#[derive(Debug)]
pub(crate) struct UnsavedKeys<K> {
    is_on: bool,
    keys: Vec<K>,
}

impl<K> UnsavedKeys<K> {
    pub(crate) const fn new(is_on: bool) -> Self {
        Self {
            is_on,
            keys: Vec::new(),
        }
    }

    pub(crate) fn mark(&mut self, key: K) {
        if self.is_on {
            self.keys.push(key);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

impl<K: Ord> UnsavedKeys<K> {
    /// All keys, each once and in order. They are to be given to [`UnsavedKeys::recycle`].
    pub(crate) fn take(&mut self) -> Vec<K> {
        let mut keys = core::mem::take(&mut self.keys);
        if keys.len() > 1 {
            keys.sort_unstable();
            keys.dedup();
        }
        keys
    }

    /// The taken keys are saved: their memory is used again, if it is not much.
    pub(crate) fn recycle(&mut self, mut keys: Vec<K>) {
        if self.keys.is_empty() && keys.capacity() <= KEPT_KEYS {
            keys.clear();
            self.keys = keys;
        }
    }
}

/// Ranges of a file that a transaction changes as a whole. Each is kept by itself, under its
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

    fn mark_all_unsaved(&mut self) {
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

    /// Takes out the slots from `start` up to `end` (none: all behind).
    pub(crate) fn take_range(
        &mut self,
        start: PageIndex,
        end: Option<PageIndex>,
    ) -> BTreeMap<PageIndex, PageSlot> {
        let taken = match end {
            None => self.slots.split_off(&start),
            // What is behind may be much more than what goes.
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

/// A table with room for more objects than this gives room back when most of it is unused.
const KEPT_OBJECTS: usize = 4096;

/// The objects in memory.
pub(crate) struct Inodes {
    /// Boxed: the table has up to twice as many places as objects.
    map: HashMap<ObjectId, Box<Inode>>,
    /// Objects, with the stamps that they got, in the order of their turns. Those that are
    /// not in memory any more, or again, are passed over.
    turns: VecDeque<(ObjectId, u64)>,
    next_stamp: u64,
    /// Entries of all listings that are loaded.
    listed_entries: usize,
    is_tracked: bool,
    pub(crate) unsaved: UnsavedKeys<ObjectId>,
    /// Entries (by cookie) of directories that left memory, or whose listing did.
    pub(crate) gone_dentries: Vec<(ObjectId, u64)>,
    /// Pages of files that left memory.
    pub(crate) gone_pages: Vec<(ObjectId, PageIndex)>,
    /// Ranges of changes that ended: their kind, their file, and where they start.
    pub(crate) gone_ranges: Vec<(Kind, ObjectId, u64)>,
}

impl Inodes {
    pub(crate) fn new(hasher: FixedState, is_tracked: bool) -> Self {
        Self {
            map: HashMap::with_hasher(hasher),
            turns: VecDeque::new(),
            next_stamp: 0,
            listed_entries: 0,
            is_tracked,
            unsaved: UnsavedKeys::new(is_tracked),
            gone_dentries: Vec::new(),
            gone_pages: Vec::new(),
            gone_ranges: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn contains_key(&self, id: &ObjectId) -> bool {
        self.map.contains_key(id)
    }

    pub(crate) fn get(&self, id: &ObjectId) -> Option<&Inode> {
        self.map.get(id).map(|inode| &**inode)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ObjectId, &Inode)> {
        self.map.iter().map(|(id, inode)| (id, &**inode))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Inode> {
        self.map.values().map(|inode| &**inode)
    }

    pub(crate) fn is_tracked(&self) -> bool {
        self.is_tracked
    }

    /// UnsavedKeys everything.
    pub(crate) fn mark_all_unsaved(&mut self) {
        for (id, inode) in &mut self.map {
            self.unsaved.mark(*id);
            let pages = &mut inode.pages;
            pages
                .slots
                .keys()
                .for_each(|index| pages.unsaved.mark(*index));
            if let Some(change) = &mut inode.change {
                change.zeroed.mark_all_unsaved();
                change.allocated.mark_all_unsaved();
            }
            if let Some(directory) = inode.directory_mut() {
                directory.mark_all_unsaved();
            }
        }
    }

    pub(crate) fn get_mut(&mut self, id: &ObjectId) -> Option<&mut Inode> {
        let inode = self.map.get_mut(id)?;
        self.unsaved.mark(*id);
        Some(inode)
    }

    /// For what saving does itself, and for what the restart image does not hold.
    pub(crate) fn get_mut_untracked(&mut self, id: &ObjectId) -> Option<&mut Inode> {
        self.map.get_mut(id).map(|inode| &mut **inode)
    }

    pub(crate) fn insert(&mut self, id: ObjectId, mut inode: Inode) {
        inode.pages.unsaved = UnsavedKeys::new(self.is_tracked);
        let indexes: Vec<PageIndex> = inode.pages.keys().copied().collect();
        indexes
            .into_iter()
            .for_each(|index| inode.pages.unsaved.mark(index));
        self.unsaved.mark(id);
        inode.stamp = self.next_stamp;
        self.turns.push_back((id, inode.stamp));
        self.next_stamp += 1;
        self.listed_entries += inode.directory().map_or(0, Directory::len);
        self.map.insert(id, Box::new(inode));
    }

    /// The object whose turn it is to be looked at; it goes to the end of the queue.
    pub(crate) fn next_in_turn(&mut self) -> Option<ObjectId> {
        while let Some((id, stamp)) = self.turns.pop_front() {
            if self.get(&id).is_some_and(|inode| inode.stamp == stamp) {
                self.turns.push_back((id, stamp));
                return Some(id);
            }
        }
        None
    }

    /// Entries of all listings that are loaded.
    pub(crate) const fn listed_entries(&self) -> usize {
        self.listed_entries
    }

    /// Changes the entries of a directory; none if its listing is not loaded.
    pub(crate) fn edit_entries(
        &mut self,
        id: ObjectId,
        edit: impl FnOnce(&mut Directory),
    ) -> Option<()> {
        self.unsaved.mark(id);
        let directory = self.map.get_mut(&id)?.directory_mut()?;
        let before = directory.len();
        edit(directory);
        self.listed_entries = self.listed_entries + directory.len() - before;
        Some(())
    }

    /// Loads the listing of a directory that is in memory.
    pub(crate) fn load_entries(&mut self, id: ObjectId, directory: Directory) {
        if let Some(inode) = self.get_mut(&id)
            && let Body::Directory(listing) = &mut inode.body
        {
            let entries = directory.len();
            *listing = Listing::Loaded(Box::new(directory));
            self.listed_entries += entries;
        }
    }

    /// The change that an open transaction had of an object ends.
    pub(crate) fn take_change(&mut self, id: ObjectId) -> Option<Box<Change>> {
        let mut change = self.get_mut(&id)?.change.take()?;
        if self.is_tracked {
            let ranges = [
                (Kind::Zeroed, &mut change.zeroed),
                (Kind::Allocated, &mut change.allocated),
            ];
            for (kind, ranges) in ranges {
                ranges.mark_all_unsaved();
                let gone = &mut self.gone_ranges;
                ranges.take_changes(|start, _| gone.push((kind, id, start)));
            }
        }
        Some(change)
    }

    pub(crate) fn remove(&mut self, id: &ObjectId) -> Option<Box<Inode>> {
        self.unload(*id);
        self.take_change(*id);
        self.unsaved.mark(*id);
        let mut inode = self.map.remove(id)?;
        let mut pages = core::mem::take(&mut inode.pages);
        if self.is_tracked {
            let marked = pages.unsaved.take();
            let all = pages.keys().copied().chain(marked);
            self.gone_pages.extend(all.map(|index| (*id, index)));
        }
        self.shrink();
        Some(inode)
    }

    /// Gives the table's memory back when little of it is used: after many objects were in
    /// memory it would stay for good. Moving what is there is paid for by the many removals
    /// since it grew.
    fn shrink(&mut self) {
        let turns = self.turns.len();
        if turns > KEPT_OBJECTS && turns > self.map.len() * 2 {
            let map = &self.map;
            self.turns
                .retain(|(id, stamp)| map.get(id).is_some_and(|inode| inode.stamp == *stamp));
            self.turns.shrink_to(self.map.len() * 2);
        }
        let capacity = self.map.capacity();
        if capacity > KEPT_OBJECTS && self.map.len() < capacity / 8 {
            self.map.shrink_to(capacity / 4);
        }
    }

    /// Lets go of a directory's listing; false if it was not loaded.
    pub(crate) fn unload(&mut self, id: ObjectId) -> bool {
        let Some(inode) = self.map.get_mut(&id) else {
            return false;
        };
        let Some(mut directory) = inode.take_directory() else {
            return false;
        };
        self.unsaved.mark(id);
        self.listed_entries -= directory.len();
        if self.is_tracked {
            let cookies = directory.after(0).map(|(cookie, ..)| (id, cookie));
            self.gone_dentries.extend(cookies);
            let marked = directory.unsaved.take().into_iter();
            self.gone_dentries.extend(marked.map(|cookie| (id, cookie)));
        }
        true
    }
}

/// Objects that an open transaction mentions in some way.
#[derive(Debug)]
pub(crate) struct Members {
    set: BTreeSet<ObjectId>,
    pub(crate) unsaved: UnsavedKeys<ObjectId>,
}

impl Deref for Members {
    type Target = BTreeSet<ObjectId>;

    fn deref(&self) -> &Self::Target {
        &self.set
    }
}

impl Members {
    pub(crate) const fn new(is_tracked: bool) -> Self {
        Self {
            set: BTreeSet::new(),
            unsaved: UnsavedKeys::new(is_tracked),
        }
    }

    pub(crate) fn insert(&mut self, id: ObjectId) -> bool {
        let is_new = self.set.insert(id);
        if is_new {
            self.unsaved.mark(id);
        }
        is_new
    }

    pub(crate) fn remove(&mut self, id: &ObjectId) -> bool {
        let was_there = self.set.remove(id);
        if was_there {
            self.unsaved.mark(*id);
        }
        was_there
    }

    pub(crate) fn extend(&mut self, ids: impl IntoIterator<Item = ObjectId>) {
        for id in ids {
            self.insert(id);
        }
    }

    pub(crate) fn into_set(self) -> BTreeSet<ObjectId> {
        self.set
    }
}

/// Net effects of an open transaction on directory entries.
#[derive(Debug)]
pub(crate) struct Dentries {
    map: BTreeMap<(ObjectId, Name), DentryChange>,
    next_serial: u64,
    pub(crate) unsaved: UnsavedKeys<(ObjectId, Name)>,
}

impl Deref for Dentries {
    type Target = BTreeMap<(ObjectId, Name), DentryChange>;

    fn deref(&self) -> &Self::Target {
        &self.map
    }
}

impl Dentries {
    pub(crate) const fn new(is_tracked: bool) -> Self {
        Self {
            map: BTreeMap::new(),
            next_serial: 1,
            unsaved: UnsavedKeys::new(is_tracked),
        }
    }

    /// An entry names `now`; `before`, if this is its first change here. Whether it
    /// was changed here before.
    pub(crate) fn record(
        &mut self,
        key: (ObjectId, Name),
        before: Option<ObjectId>,
        now: Option<ObjectId>,
    ) -> bool {
        if self.unsaved.is_on {
            self.unsaved.mark(key.clone());
        }
        if let Some(change) = self.map.get_mut(&key) {
            change.now = now;
            return true;
        }
        let serial = self.next_serial;
        self.next_serial += 1;
        let change = DentryChange {
            before,
            now,
            serial,
        };
        self.map.insert(key, change);
        false
    }

    /// Whether all entries are there: their numbers leave nothing out.
    pub(crate) fn is_whole(&self) -> bool {
        self.map.len() as u64 + 1 == self.next_serial
    }

    /// Puts back what was saved.
    pub(crate) fn restore(&mut self, key: (ObjectId, Name), change: DentryChange) {
        self.next_serial = self.next_serial.max(change.serial + 1);
        if self.unsaved.is_on {
            self.unsaved.mark(key.clone());
        }
        self.map.insert(key, change);
    }

    /// Takes over what another transaction changed, over what is here.
    pub(crate) fn absorb(&mut self, other: Self) {
        for (key, change) in other.map {
            let serial = self
                .map
                .get(&key)
                .map_or(self.next_serial, |change| change.serial);
            self.next_serial = self.next_serial.max(serial + 1);
            if self.unsaved.is_on {
                self.unsaved.mark(key.clone());
            }
            self.map.insert(key, DentryChange { serial, ..change });
        }
    }
}

/// The open transactions.
#[derive(Debug)]
pub(crate) struct Open {
    map: BTreeMap<TransactionId, OpenTransaction>,
    is_tracked: bool,
    pub(crate) unsaved: UnsavedKeys<TransactionId>,
    pub(crate) gone_members: Vec<(TransactionId, ObjectId)>,
    /// Entries, by their serial numbers.
    pub(crate) gone_dentries: Vec<(TransactionId, u64)>,
}

impl Deref for Open {
    type Target = BTreeMap<TransactionId, OpenTransaction>;

    fn deref(&self) -> &Self::Target {
        &self.map
    }
}

impl Open {
    pub(crate) const fn new(is_tracked: bool) -> Self {
        Self {
            map: BTreeMap::new(),
            is_tracked,
            unsaved: UnsavedKeys::new(is_tracked),
            gone_members: Vec::new(),
            gone_dentries: Vec::new(),
        }
    }

    pub(crate) const fn is_tracked(&self) -> bool {
        self.is_tracked
    }

    /// UnsavedKeys everything.
    pub(crate) fn mark_all_unsaved(&mut self) {
        for (transaction, open) in &mut self.map {
            self.unsaved.mark(*transaction);
            for members in [&mut open.dirty, &mut open.orphaned, &mut open.held] {
                members.set.iter().for_each(|id| members.unsaved.mark(*id));
            }
            let dentries = &mut open.dentries;
            for entry in dentries.map.keys() {
                dentries.unsaved.mark(entry.clone());
            }
        }
    }

    pub(crate) fn get_mut(&mut self, transaction: &TransactionId) -> Option<&mut OpenTransaction> {
        let open = self.map.get_mut(transaction)?;
        self.unsaved.mark(*transaction);
        Some(open)
    }

    pub(crate) fn get_mut_untracked(
        &mut self,
        transaction: &TransactionId,
    ) -> Option<&mut OpenTransaction> {
        self.map.get_mut(transaction)
    }

    pub(crate) fn insert(&mut self, transaction: TransactionId, open: OpenTransaction) {
        self.unsaved.mark(transaction);
        self.map.insert(transaction, open);
    }

    pub(crate) fn remove(&mut self, transaction: &TransactionId) -> Option<OpenTransaction> {
        let mut open = self.map.remove(transaction)?;
        self.unsaved.mark(*transaction);
        if self.is_tracked {
            for members in [&mut open.dirty, &mut open.orphaned, &mut open.held] {
                let marked = members.unsaved.take();
                let all = members.iter().copied().chain(marked);
                self.gone_members.extend(all.map(|id| (*transaction, id)));
            }
            let serials = 1..open.dentries.next_serial;
            self.gone_dentries
                .extend(serials.map(|serial| (*transaction, serial)));
        }
        Some(open)
    }
}

/// The closed transactions. What they hold never changes; whether they are being committed
/// does, and is not tracked.
#[derive(Debug)]
pub(crate) struct Closed {
    map: BTreeMap<TransactionId, ClosedTransaction>,
    pub(crate) unsaved: UnsavedKeys<TransactionId>,
}

impl Deref for Closed {
    type Target = BTreeMap<TransactionId, ClosedTransaction>;

    fn deref(&self) -> &Self::Target {
        &self.map
    }
}

impl Closed {
    pub(crate) const fn new(is_tracked: bool) -> Self {
        Self {
            map: BTreeMap::new(),
            unsaved: UnsavedKeys::new(is_tracked),
        }
    }

    /// UnsavedKeys everything.
    pub(crate) fn mark_all_unsaved(&mut self) {
        self.map
            .keys()
            .for_each(|transaction| self.unsaved.mark(*transaction));
    }

    /// For its state, not for its content.
    pub(crate) fn get_mut(
        &mut self,
        transaction: &TransactionId,
    ) -> Option<&mut ClosedTransaction> {
        self.map.get_mut(transaction)
    }

    /// As [`Closed::get_mut`].
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut ClosedTransaction> {
        self.map.values_mut()
    }

    pub(crate) fn insert(&mut self, transaction: TransactionId, closed: ClosedTransaction) {
        self.unsaved.mark(transaction);
        self.map.insert(transaction, closed);
    }

    pub(crate) fn remove(&mut self, transaction: &TransactionId) -> Option<ClosedTransaction> {
        self.unsaved.mark(*transaction);
        self.map.remove(transaction)
    }
}
