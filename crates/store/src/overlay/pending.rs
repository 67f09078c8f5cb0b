//! Committed but not applied: the merged final state of the epoch's transactions.

mod ahead;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use mobifs_base::{
    Attributes, ByteRange, FileKind, Name, ObjectId, ObjectState, PAGE_BYTES, Page, PageIndex,
    RangeSet, Room,
};

use crate::log::record::Record;

/// Memory of an object without its content, of an entry with an average name, and of what
/// the maps around them need.
const OBJECT_BYTES: u64 = size_of::<PendingObject>() as u64 + 64;
const DENTRY_BYTES: u64 = size_of::<(ObjectId, Name, Option<ObjectId>)>() as u64 + 64;

/// Bytes that changed within a page: offset and content.
pub(crate) type Runs = Vec<(u16, Vec<u8>)>;

/// Committed content of one page.
#[derive(Clone, Debug)]
pub(crate) enum PendingPage {
    /// All of it.
    Whole(Page),
    /// Changes on top of what the lower file has, in order (after a recovery, where
    /// the whole pages of a journal full of small changes would not fit in memory).
    Runs {
        /// The lower filesystem's page counts as zeros.
        fresh: bool,
        runs: Runs,
    },
}

/// Committed changes of one object.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingObject {
    /// Final attributes; none if only bindings or pages are known (never for long).
    pub(crate) attributes: Option<Attributes>,
    /// The lower tree does not have it.
    pub(crate) created: bool,
    pub(crate) symlink_target: Option<Arc<[u8]>>,
    /// Ranges of the lower content that are removed.
    pub(crate) zeroed: RangeSet,
    pub(crate) allocated: RangeSet,
    pub(crate) xattrs: BTreeMap<Arc<[u8]>, Option<Arc<[u8]>>>,
    pub(crate) pages: BTreeMap<PageIndex, PendingPage>,
    /// Ranges of the lower (or stage) file that hold committed data already.
    pub(crate) direct: RangeSet,
    /// Inode of its stage file, once a journal record says so.
    pub(crate) bound: Option<u64>,
    /// Its stage file is durably in this state, so that only its name is left to be applied. Every
    /// change resets this, and it does not survive a restart.
    pub(crate) is_whole: bool,
    /// Pages that were written to the lower file before an apply (`apply/ahead.rs`). Every change
    /// of a page removes its entry, and it does not survive a restart.
    pub(crate) ahead: BTreeMap<PageIndex, PageAhead>,
}

/// How far the writing of a page ahead of an apply has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageAhead {
    /// The page may be in its place, or torn.
    Begun,
    /// The page is in its place, durably.
    Durable,
}

/// All committed changes that are not applied.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    objects: HashMap<ObjectId, Arc<PendingObject>>,
    dentries: BTreeMap<(ObjectId, Name), Option<ObjectId>>,
    /// Pending entries that name an object.
    links: HashMap<ObjectId, u32>,
    /// Which entries these are, computed at the first query after a change.
    names: OnceLock<HashMap<ObjectId, Vec<(ObjectId, Name)>>>,
    /// Memory of their content.
    page_bytes: u64,
    /// Room that applying takes, at most.
    reserved: Room,
}

impl Pending {
    /// Memory that all of it takes, roughly: files that a program has made and deleted again are
    /// still here, and may take a hundred times as much as their content did.
    pub(crate) fn held_bytes(&self) -> u64 {
        let objects = self.objects.len() as u64 * OBJECT_BYTES;
        self.page_bytes + objects + self.dentries.len() as u64 * DENTRY_BYTES
    }

    /// Room that applying takes in the lower filesystem at most: the engine had it before it
    /// acknowledged the changes ([`mobifs_base::room`]).
    pub(crate) const fn reserved(&self) -> Room {
        self.reserved
    }

    /// Whether everything is applied.
    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.dentries.is_empty()
    }

    pub(crate) fn object(&self, id: ObjectId) -> Option<&PendingObject> {
        self.objects.get(&id).map(Arc::as_ref)
    }

    /// All objects with changes, in no order.
    pub(crate) const fn objects(&self) -> &HashMap<ObjectId, Arc<PendingObject>> {
        &self.objects
    }

    /// All entries that are set or removed.
    pub(crate) const fn dentries(&self) -> &BTreeMap<(ObjectId, Name), Option<ObjectId>> {
        &self.dentries
    }

    /// The object, to be changed.
    fn object_mut(&mut self, id: ObjectId) -> &mut PendingObject {
        let object = Arc::make_mut(self.objects.entry(id).or_default());
        object.is_whole = false;
        object
    }

    /// The object's stage file is durably all that is pending of it.
    pub(crate) fn mark_whole(&mut self, id: ObjectId) {
        self.object_mut(id).is_whole = true;
    }

    /// The journal has recorded which inode a new object has.
    pub(crate) fn bind(&mut self, id: ObjectId, inode: u64) {
        self.object_mut(id).bound = Some(inode);
    }

    /// Kind of an object with pending attributes.
    pub(crate) fn kind_of(&self, id: ObjectId) -> Option<FileKind> {
        let attributes = self.object(id)?.attributes?;
        Some(attributes.kind)
    }

    /// Whether an object has pending attributes, and they are not those of this kind.
    pub(crate) fn has_other_kind(&self, id: ObjectId, kind: FileKind) -> bool {
        self.kind_of(id).is_some_and(|pending| pending != kind)
    }

    /// Whether some pending entry names the object.
    pub(crate) fn is_linked(&self, id: ObjectId) -> bool {
        self.links.contains_key(&id)
    }

    /// Whether an object has pending changes, a pending name, or pending entries.
    pub(crate) fn mentions(&self, id: ObjectId) -> bool {
        self.object(id).is_some() || self.is_linked(id) || self.dentries_of(id).next().is_some()
    }

    /// How many pending entries name an object.
    pub(crate) fn links_of(&self, id: ObjectId) -> u32 {
        self.links.get(&id).copied().unwrap_or(0)
    }

    /// Entries of one directory.
    pub(crate) fn dentries_of(
        &self,
        parent: ObjectId,
    ) -> impl Iterator<Item = (&Name, Option<ObjectId>)> {
        self.dentries
            .range((parent, Name::first())..)
            .take_while(move |((of, _), _)| *of == parent)
            .map(|((_, name), child)| (name, *child))
    }

    /// All objects that something pending mentions; some more than once.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ObjectId> {
        let entries = self.dentries.iter();
        let named = entries.flat_map(|((parent, _), child)| [Some(*parent), *child]);
        self.objects.keys().copied().chain(named.flatten())
    }

    /// All pending entries that name an object. The first query after a change walks all entries.
    /// Used by recovery, and after an apply that failed.
    pub(crate) fn names_of(&self, id: ObjectId) -> &[(ObjectId, Name)] {
        if !self.is_linked(id) {
            return &[];
        }
        let names = self.names.get_or_init(|| {
            let mut names: HashMap<ObjectId, Vec<(ObjectId, Name)>> = HashMap::new();
            for (place, child) in &self.dentries {
                if let Some(child) = child {
                    names.entry(*child).or_default().push(place.clone());
                }
            }
            names
        });
        names.get(&id).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn merge_state(&mut self, state: &ObjectState) {
        let mut freed_bytes = 0;
        let before = self.object(state.id);
        let is_pending = before.is_some_and(|object| object.attributes.is_some());
        let is_new = state.created && before.is_none_or(|object| !object.created);
        let object = self.object_mut(state.id);
        object.attributes = Some(state.attributes);
        object.created |= state.created;
        if state.symlink_target.is_some() {
            object.symlink_target.clone_from(&state.symlink_target);
        }
        for &range in &state.zeroed {
            freed_bytes += object.drop_pages(range);
            object.direct.remove(range);
            object.zeroed.insert(range);
            object.allocated.remove(range);
        }
        state
            .allocated
            .iter()
            .for_each(|&range| object.allocated.insert(range));
        for (name, value) in &state.xattrs {
            object.xattrs.insert(Arc::clone(name), value.clone());
        }
        self.give_back(freed_bytes);
        // What is pending is applied once.
        let inode = Room::new(0, u64::from(state.created && !is_new));
        let object = Room::of_objects(u64::from(is_pending));
        let reserved = inode.saturating_add(object);
        self.reserve(Room::of_state(state).saturating_sub(reserved));
    }

    /// The object has lost all its names, which its last recorded attributes may not say: a
    /// transaction that deletes an object records only that its names go.
    pub(crate) fn mark_deleted(&mut self, id: ObjectId) {
        if self.object(id).is_some()
            && let Some(attributes) = &mut self.object_mut(id).attributes
        {
            attributes.nlink = 0;
        }
    }

    /// Saturating: a forged journal may ask for any room.
    fn reserve(&mut self, more: Room) {
        self.reserved = self.reserved.saturating_add(more);
    }

    pub(crate) fn merge_dentry(&mut self, parent: ObjectId, name: Name, child: Option<ObjectId>) {
        self.names.take();
        self.reserve(Room::of_dentry(child));
        let before = self.dentries.insert((parent, name), child).flatten();
        if let Some(child) = child {
            *self.links.entry(child).or_default() += 1;
        }
        if let Some(before) = before {
            debug_assert!(
                self.links.contains_key(&before),
                "an entry that named {before} was counted"
            );
            match self.links.get_mut(&before) {
                Some(count) if *count > 1 => *count -= 1,
                _ => {
                    self.links.remove(&before);
                }
            }
        }
    }

    pub(crate) fn merge_page(&mut self, id: ObjectId, index: PageIndex, page: PendingPage) {
        let gained = page.held_bytes();
        let object = self.object_mut(id);
        object.ahead.remove(&index);
        let pages = &mut object.pages;
        let follows_on = index
            .0
            .checked_sub(1)
            .is_some_and(|before| pages.contains_key(&PageIndex(before)));
        match pages.insert(index, page) {
            Some(before) => self.give_back(before.held_bytes()),
            None => self.reserve(Room::of_page(follows_on)),
        }
        self.page_bytes += gained;
    }

    /// Changed bytes on top of what is committed.
    pub(crate) fn merge_runs(&mut self, id: ObjectId, index: PageIndex, fresh: bool, runs: Runs) {
        let object = self.object_mut(id);
        object.ahead.remove(&index);
        let page = match object.pages.remove(&index) {
            Some(before) if !fresh => {
                self.give_back(before.held_bytes());
                before.with(runs)
            }
            before => {
                self.give_back(before.map_or(0, |before| before.held_bytes()));
                PendingPage::Runs { fresh, runs }
            }
        };
        self.merge_page(id, index, page);
    }

    pub(crate) fn merge_direct(&mut self, id: ObjectId, range: ByteRange) {
        let object = self.object_mut(id);
        let freed = object.drop_pages(range);
        object.zeroed.remove(range);
        object.direct.insert(range);
        self.give_back(freed);
    }

    /// Merges a record as recovery finds it; it ignores `Known` and `Found`.
    pub(crate) fn merge_record(&mut self, record: Record) {
        match record {
            Record::Known { .. }
            | Record::Found { .. }
            | Record::RenameMark
            | Record::RenameMarkInPart => {}
            Record::Object(state) => self.merge_state(&state),
            Record::Dentry {
                parent,
                name,
                child,
            } => self.merge_dentry(parent, name, child),
            Record::Bytes {
                object,
                index,
                fresh,
                runs,
            } => {
                self.merge_runs(object, index, fresh, runs);
            }
            Record::Direct { object, range } => self.merge_direct(object, range),
            // Replaced before anything is merged.
            Record::External { .. } | Record::Copied { .. } | Record::Materialized => {}
            Record::Bind { id, inode } => self.bind(id, inode),
        }
    }

    /// Memory of content that is not pending any more.
    fn give_back(&mut self, bytes: u64) {
        debug_assert!(bytes <= self.page_bytes, "{bytes} of {}", self.page_bytes);
        self.page_bytes = self.page_bytes.saturating_sub(bytes);
    }

    /// Asserts that the counters agree with the content. Called before an apply, which relies on
    /// it.
    #[cfg(debug_assertions)]
    pub(crate) fn assert_consistent(&self) {
        let objects = self.objects.values();
        let pages = objects.clone().flat_map(|object| object.pages.values());
        let page_bytes: u64 = pages.map(PendingPage::held_bytes).sum();
        assert_eq!(self.page_bytes, page_bytes, "memory of pending pages");
        let mut links: HashMap<ObjectId, u32> = HashMap::new();
        for child in self.dentries.values().flatten() {
            *links.entry(*child).or_default() += 1;
        }
        assert_eq!(self.links, links, "pending names of objects");
        for (id, object) in &self.objects {
            assert!(
                object
                    .ahead
                    .keys()
                    .all(|index| object.pages.contains_key(index)),
                "only pending pages of {id} are written ahead"
            );
            assert!(
                object
                    .direct
                    .iter()
                    .all(|range| object.zeroed.overlap(range).is_empty()),
                "what is written to its place in {id} is not hidden by zeros"
            );
        }
    }

    /// Forgets everything: it is applied.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

impl PendingObject {
    /// Drops pages inside a range (page aligned); returns the memory they held.
    fn drop_pages(&mut self, range: ByteRange) -> u64 {
        // `split_off` would also take time for the pages that stay.
        let from = PageIndex::of_offset(range.start);
        let end = (range.end != u64::MAX).then(|| PageIndex::of_offset(range.end));
        let mut dropped_bytes = 0;
        while let Some((&index, _)) = self.pages.range(from..).next()
            && end.is_none_or(|end| index < end)
            && let Some(page) = self.pages.remove(&index)
        {
            self.ahead.remove(&index);
            dropped_bytes += page.held_bytes();
        }
        dropped_bytes
    }

    /// Whether the pending content begins so, as that of a new file or of one that is written anew.
    pub(crate) fn begins_with(&self, magic: &[u8]) -> bool {
        match self.pages.get(&PageIndex(0)) {
            Some(PendingPage::Whole(page)) => page.stored().starts_with(magic),
            _ => false,
        }
    }

    /// Whether the lower content of a page counts as zeros.
    pub(crate) fn hides_lower(&self, index: PageIndex) -> bool {
        let offset = index.offset();
        if self.created {
            !self.direct.contains(offset)
        } else {
            self.zeroed.contains(offset)
        }
    }
}

impl PendingPage {
    fn held_bytes(&self) -> u64 {
        match self {
            Self::Whole(page) => page.stored_bytes() as u64,
            Self::Runs { runs, .. } => runs.iter().map(|(_, bytes)| bytes.len() as u64 + 32).sum(),
        }
    }

    /// The page with further changes on top.
    fn with(self, more: Runs) -> Self {
        match self {
            Self::Whole(mut page) => {
                write_runs(&mut page, &more);
                Self::Whole(page)
            }
            Self::Runs { fresh, mut runs } => {
                runs.extend(more);
                Self::Runs { fresh, runs }
            }
        }
    }
}

/// Writes changed bytes into a page.
pub(crate) fn write_runs(page: &mut Page, runs: &[(u16, Vec<u8>)]) {
    for (offset, bytes) in runs {
        let offset = usize::from(*offset).min(PAGE_BYTES);
        let length = bytes.len().min(PAGE_BYTES - offset);
        page.write(offset, &bytes[..length]);
    }
}

#[cfg(test)]
mod tests {
    use mobifs_base::{Entry, Transaction};
    use proptest::collection::{btree_set, vec};
    use proptest::{option, prelude::*};

    use super::*;
    use crate::fixtures::file_state;

    /// A program that made and deleted millions of small files filled memory that was not accounted
    /// for, until the journal was full.
    #[test]
    fn what_was_made_and_deleted_again_is_held_until_it_is_applied() {
        let mut pending = Pending::default();
        let before = pending.held_bytes();
        for id in 0..1000 {
            let name = Name::new(id.to_string().as_bytes()).unwrap();
            pending.object_mut(ObjectId(id)).created = true;
            pending.merge_dentry(ObjectId::ROOT, name.clone(), Some(ObjectId(id)));
            pending.merge_dentry(ObjectId::ROOT, name, None);
        }
        assert_eq!(before, 0);
        assert!(pending.held_bytes() >= 1000 * size_of::<PendingObject>() as u64);
        pending.clear();
        assert_eq!(pending.held_bytes(), 0);
    }

    #[test]
    fn impossible_ranges_of_a_forged_journal_do_not_overflow_what_is_reserved() {
        // Found by the fuzzer of forged journals.
        let state = ObjectState {
            allocated: vec![ByteRange::from(0), ByteRange::from(1), ByteRange::new(9, 3)],
            ..file_state(ObjectId(7), true, u64::MAX)
        };
        let mut pending = Pending::default();
        pending.merge_state(&state);
        pending.merge_runs(ObjectId(7), PageIndex(0), true, vec![(0, vec![1])]);
        assert_eq!(pending.reserved().bytes(), u64::MAX);
    }

    fn pages_range(first: u64, pages: u64) -> ByteRange {
        let start = PageIndex(first).offset();
        ByteRange::new(start, start + PageIndex(pages).offset())
    }

    /// A transaction of one object, and how many of its first pages go to their place directly.
    fn any_transaction() -> impl Strategy<Value = (Transaction, usize)> {
        let ranges = || vec((0_u64..20, 0_u64..6), 0..3);
        let state = (1_u64..4, any::<bool>(), ranges(), ranges());
        let values = vec((0_u8..3, option::of(0_usize..9000)), 0..3);
        let entries = vec((1_u64..4, 0_u8..4, option::of(1_u64..4)), 0..4);
        let pages = btree_set(0_u64..20, 0..12);
        let parts = (state, values, entries, pages, 0_usize..12);
        parts.prop_map(
            |((id, created, zeroed, allocated), values, entries, pages, direct)| {
                let ranges = |of: Vec<(u64, u64)>| {
                    let ranges = of
                        .into_iter()
                        .map(|(first, pages)| pages_range(first, pages));
                    ranges.collect::<RangeSet>().iter().collect::<Vec<_>>()
                };
                let values = values.into_iter();
                let values = values.map(|(name, bytes)| {
                    let value = bytes.map(|bytes| Arc::from(vec![1; bytes]));
                    (Arc::from([name].as_slice()), value)
                });
                let state = ObjectState {
                    zeroed: ranges(zeroed),
                    allocated: ranges(allocated),
                    xattrs: values.collect(),
                    ..file_state(ObjectId(id), created, 1 << 20)
                };
                let mut transaction = Transaction::default();
                transaction.push(Entry::Object(state));
                for (parent, name, child) in entries {
                    transaction.push(Entry::Dentry {
                        parent: ObjectId(parent),
                        name: Name::new(&[b'a' + name]).unwrap(),
                        child: child.map(ObjectId),
                    });
                }
                for index in pages {
                    transaction.push(Entry::Page {
                        object: ObjectId(id),
                        index: PageIndex(index),
                        page: Page::new(b"content"),
                    });
                }
                (transaction, direct)
            },
        )
    }

    proptest! {
        /// The store's side of the contract of [`mobifs_base::room`], in the order of a commit.
        #[test]
        fn a_transaction_reserves_no_more_than_it_may_take(
            transactions in vec(any_transaction(), 1..8),
        ) {
            let mut pending = Pending::default();
            for (transaction, direct) in transactions {
                let (before, most) = (pending.reserved(), Room::of_transaction(&transaction));
                transaction.objects.iter().for_each(|state| pending.merge_state(state));
                for (parent, name, child) in transaction.dentries {
                    pending.merge_dentry(parent, name, child);
                }
                for (id, pages) in transaction.pages {
                    for (number, (index, page)) in pages.into_iter().enumerate() {
                        if number < direct {
                            pending.merge_direct(id, pages_range(index.0, 1));
                        } else {
                            pending.merge_page(id, index, PendingPage::Whole(page));
                        }
                    }
                }
                let reserved = pending.reserved().saturating_sub(before);
                prop_assert!(most.covers(reserved), "{:?} of {:?}", reserved, most);
            }
        }
    }
}
