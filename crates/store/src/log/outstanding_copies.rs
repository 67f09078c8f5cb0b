//! Pages of which the journal has no content of its own: its records say what they are copies of.
//!
//! A record of a copy is good as long as its source is in the lower filesystem as it was when the record was
//! written. So nothing is written in place that is a source before the copies are *materialized*: one
//! transaction has the content of all these pages, and from there on the earlier records of copies are
//! not needed any more (`docs/DESIGN.md#content-that-is-elsewhere-goes-to-the-journal-as-a-copy`).

use std::collections::{BTreeSet, HashMap};

use mobifs_base::{ByteRange, ObjectId, PAGE_BYTES_U64, PageIndex, RangeSet};

use crate::log::record::{CopiedBytes, Record};

/// What one page takes in the transaction that materializes the copies, at most.
pub(crate) const MATERIALIZED_PAGE_BYTES: u64 = PAGE_BYTES_U64 + 64;
/// What that transaction takes besides, with its padding.
const MATERIALIZED_BYTES: u64 = 2 * PAGE_BYTES_U64;

/// The copies of an epoch that are not materialized.
#[derive(Debug, Default)]
pub(crate) struct OutstandingCopies {
    /// Records of copies may be written: nothing of this epoch was written over what they copy.
    may_copy: bool,
    /// The journal has records of copies that are not materialized.
    has_records: bool,
    /// The pages that were copied to.
    pages: BTreeSet<(ObjectId, PageIndex)>,
    /// Whole pages from which content was copied, and those that it was written over.
    sources: HashMap<ObjectId, RangeSet>,
}

impl OutstandingCopies {
    /// What holds of an epoch without transactions.
    pub(crate) fn of_new_epoch(may_copy: bool) -> Self {
        Self {
            may_copy,
            ..Self::default()
        }
    }

    /// Whether records of copies may be written.
    pub(crate) const fn may_copy(&self) -> bool {
        self.may_copy
    }

    /// Whether nothing has to be written before content is changed in place.
    pub(crate) const fn is_empty(&self) -> bool {
        !self.has_records
    }

    /// A record goes to the journal.
    pub(crate) fn add(&mut self, record: &Record) {
        let Record::Copied {
            object,
            index,
            copies,
            ..
        } = record
        else {
            return;
        };
        self.has_records = true;
        self.pages.insert((*object, *index));
        self.add_source(*object, index.offset(), 1);
        for CopiedBytes {
            source,
            from,
            length,
            ..
        } in copies
        {
            self.add_source(*source, *from, u64::from(*length));
        }
    }

    fn add_source(&mut self, source: ObjectId, from: u64, length: u64) {
        let end = from.saturating_add(length);
        let range = ByteRange::new(
            from - from % PAGE_BYTES_U64,
            end.checked_next_multiple_of(PAGE_BYTES_U64)
                .unwrap_or(u64::MAX),
        );
        self.sources.entry(source).or_default().insert(range);
    }

    /// Whether the page is one of those that have to be materialized.
    pub(crate) fn has_page(&self, object: ObjectId, index: PageIndex) -> bool {
        self.pages.contains(&(object, index))
    }

    /// The pages that have to be materialized, where they are still pending.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (ObjectId, PageIndex)> + '_ {
        self.pages.iter().copied()
    }

    /// Whether some of what was copied is in this range.
    pub(crate) fn is_source(&self, object: ObjectId, range: ByteRange) -> bool {
        let ranges = self.sources.get(&object);
        ranges.is_some_and(|ranges| ranges.intersects(range))
    }

    /// What the transaction takes of the journal that materializes the copies, at most.
    pub(crate) fn materialized_bytes_max(&self) -> u64 {
        if self.has_records {
            MATERIALIZED_BYTES + self.pages.len() as u64 * MATERIALIZED_PAGE_BYTES
        } else {
            0
        }
    }

    /// All is materialized; no more records of copies are written in this epoch, because content is
    /// changed in place from now on.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(object: u64, index: u64, from: u64, length: u16) -> Record {
        Record::Copied {
            object: ObjectId(object),
            index: PageIndex(index),
            fresh: true,
            copies: vec![CopiedBytes {
                offset: 0,
                length,
                source: ObjectId(9),
                from,
            }],
            runs: Vec::new(),
            crc32c: 0,
        }
    }

    #[test]
    fn whole_pages_of_sources_are_protected_until_the_copies_are_materialized() {
        let mut outstanding = OutstandingCopies::of_new_epoch(true);
        assert!(outstanding.is_empty() && outstanding.materialized_bytes_max() == 0);
        outstanding.add(&copied(5, 2, 5000, 100));
        outstanding.add(&copied(5, 2, 8100, 200));
        let is_source = |of: &OutstandingCopies, object, start, end| {
            of.is_source(ObjectId(object), ByteRange::new(start, end))
        };
        assert!(is_source(&outstanding, 9, 4096, 4097));
        assert!(is_source(&outstanding, 9, 12_287, 20_000));
        assert!(!is_source(&outstanding, 9, 0, 4096));
        assert!(!is_source(&outstanding, 9, 12_288, u64::MAX));
        assert!(
            is_source(&outstanding, 5, 8192, 8193),
            "what a page is written over"
        );
        assert_eq!(outstanding.pages().count(), 1);
        assert_eq!(
            outstanding.materialized_bytes_max(),
            MATERIALIZED_BYTES + MATERIALIZED_PAGE_BYTES
        );
        outstanding.clear();
        assert!(outstanding.is_empty() && !outstanding.may_copy());
        assert!(!is_source(&outstanding, 9, 4096, 4097));
    }

    #[test]
    fn a_source_at_the_largest_offset_does_not_overflow() {
        let mut outstanding = OutstandingCopies::of_new_epoch(true);
        outstanding.add(&copied(5, 0, u64::MAX - PAGE_BYTES_U64, 4096));
        assert!(outstanding.is_source(ObjectId(9), ByteRange::new(u64::MAX - 2, u64::MAX)));
    }
}
