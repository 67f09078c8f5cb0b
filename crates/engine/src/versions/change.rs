//! What one transaction changes of an object.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use mobifs_base::{ByteRange, PageIndex, RangeSet, TransactionId};

use crate::persist::Kind;
use crate::persist::dirty_tracking::{Tracked, UnsavedKeys};

/// Marks changes outside transactions: the object has no link.
pub(crate) const ORPHAN: TransactionId = TransactionId(0);

/// What one open transaction (or none, for an orphan) changes of an object. Of its content only
/// [`super::PageVersions`] changes anything.
#[derive(Debug)]
pub(crate) struct Change {
    pub(super) transaction: TransactionId,
    /// Ranges whose earlier content is gone; pages written since lie on top.
    pub(super) zeroed: Ranges,
    pub(super) allocated: Ranges,
    /// The write log: pages in the order of their first write in this transaction.
    /// May name pages that were dropped since; the slot decides.
    pub(super) log: Vec<PageIndex>,
    xattrs: Tracked<BTreeSet<Arc<[u8]>>>,
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

    /// Whose change it is; [`ORPHAN`] if the object has no link.
    pub(crate) const fn transaction(&self) -> TransactionId {
        self.transaction
    }

    /// Ranges whose earlier content is gone.
    pub(crate) const fn zeroed(&self) -> &RangeSet {
        &self.zeroed.set
    }

    /// Ranges that it allocates.
    pub(crate) const fn allocated(&self) -> &RangeSet {
        &self.allocated.set
    }

    /// Names of the extended attributes that it sets or removes.
    pub(crate) fn xattrs(&self) -> &BTreeSet<Arc<[u8]>> {
        &self.xattrs
    }

    /// Records that the change sets or removes an extended attribute; false if it did so before.
    pub(crate) fn add_xattr(&mut self, name: Arc<[u8]>) -> bool {
        self.xattrs.insert(name)
    }

    /// Sets the names that a restart image has.
    pub(crate) fn restore_xattrs(&mut self, names: BTreeSet<Arc<[u8]>>) {
        *self.xattrs = names;
    }

    /// Puts back a range that a restart image has.
    pub(crate) fn restore_range(&mut self, kind: Kind, range: ByteRange) {
        match kind {
            Kind::Zeroed => self.zeroed.insert(range),
            _ => self.allocated.insert(range),
        }
    }

    /// Marks all ranges as unsaved.
    pub(crate) fn mark_ranges_unsaved(&mut self) {
        self.zeroed.mark_all_unsaved();
        self.allocated.mark_all_unsaved();
    }

    /// What changed of the ranges: where one starts, and its end; none if no range starts there
    /// any more.
    pub(crate) fn take_unsaved_ranges(&mut self, mut each: impl FnMut(Kind, u64, Option<u64>)) {
        let ranges = [
            (Kind::Zeroed, &mut self.zeroed),
            (Kind::Allocated, &mut self.allocated),
        ];
        for (kind, ranges) in ranges {
            ranges.take_unsaved(|start, end| each(kind, start, end));
        }
    }

    /// Whether the names of extended attributes are unsaved; from now on they count as saved.
    pub(crate) const fn take_unsaved_xattrs(&mut self) -> bool {
        self.xattrs.take_unsaved()
    }
}

/// Ranges of a file that a transaction changes as a whole. Each is stored separately, under its
/// start: an operation changes few of them, and there may be very many.
#[derive(Debug)]
pub(super) struct Ranges {
    set: RangeSet,
    unsaved: UnsavedKeys<u64>,
}

impl Ranges {
    const fn new(is_tracked: bool) -> Self {
        Self {
            set: RangeSet::new(),
            unsaved: UnsavedKeys::new(is_tracked),
        }
    }

    pub(super) fn insert(&mut self, range: ByteRange) {
        let Self { set, unsaved } = self;
        set.insert_reporting(range, |start| unsaved.mark(start));
    }

    pub(super) fn remove(&mut self, range: ByteRange) {
        let Self { set, unsaved } = self;
        set.remove_reporting(range, |start| unsaved.mark(start));
    }

    fn mark_all_unsaved(&mut self) {
        let Self { set, unsaved } = self;
        set.iter().for_each(|range| unsaved.mark(range.start));
    }

    fn take_unsaved(&mut self, mut each: impl FnMut(u64, Option<u64>)) {
        let starts = self.unsaved.take();
        for &start in &starts {
            let range = self.set.range_at(start);
            let range = range.filter(|range| range.start == start);
            each(start, range.map(|range| range.end));
        }
        self.unsaved.recycle(starts);
    }
}
