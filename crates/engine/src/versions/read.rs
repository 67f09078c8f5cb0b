//! Reading: which parts come from memory, and which from the store.

use alloc::vec::Vec;

use mobifs_base::{
    ContentLayer, ContentSearch, PAGE_BYTES_U64, Page, PageIndex, Whence, search_layer,
};

use super::{PageVersions, range_at};

/// One piece of a [`ReadPlan`]; pieces follow each other without gaps.
#[derive(Clone, Debug)]
pub enum ReadSegment {
    /// From a page in memory.
    Page {
        /// The page.
        page: Page,
        /// First byte of it.
        offset: usize,
        /// Number of bytes.
        length: usize,
    },
    /// Zeros.
    Zero {
        /// Number of bytes.
        length: usize,
    },
    /// From the store.
    Store {
        /// Offset in the file.
        offset: u64,
        /// Number of bytes.
        length: usize,
    },
}

/// Where the bytes of a read come from, at the moment the plan was made. Pages are
/// shared, so the plan can be carried out without the engine.
#[derive(Clone, Debug)]
pub struct ReadPlan {
    /// Bytes to be read: fewer than asked for only at the end of the file.
    pub length: usize,
    /// The pieces, in order.
    pub segments: Vec<ReadSegment>,
}

impl ReadPlan {
    /// Adds a piece, merging it with the one before where that is possible.
    fn push(&mut self, segment: ReadSegment) {
        match (self.segments.last_mut(), &segment) {
            (Some(ReadSegment::Zero { length }), ReadSegment::Zero { length: more })
            | (Some(ReadSegment::Store { length, .. }), ReadSegment::Store { length: more, .. }) => {
                *length += more;
            }
            _ => self.segments.push(segment),
        }
    }
}

impl PageVersions {
    /// Looks for the first data or hole from `offset` on in a file of this size.
    pub(crate) fn search(&self, size: u64, offset: u64, whence: Whence) -> ContentSearch {
        search_layer(&Layer::new(self, size), offset, whence)
    }

    /// Plans a read of a range that ends with the file at the latest.
    pub(crate) fn read_plan(&self, offset: u64, length: usize) -> ReadPlan {
        let mut plan = ReadPlan {
            length,
            segments: Vec::new(),
        };
        let hides_nothing = self.is_all_in_store() && self.closed_zeroed.is_empty();
        if length > 0 && hides_nothing {
            plan.segments.push(ReadSegment::Store { offset, length });
            return plan;
        }
        let end = offset + length as u64;
        let mut position = offset;
        while position < end {
            let index = PageIndex::of_offset(position);
            let piece = (end.min(index.offset() + PAGE_BYTES_U64) - position) as usize;
            let segment = if let Some(page) = self.newest(index) {
                let within = (position - index.offset()) as usize;
                ReadSegment::Page {
                    page: page.clone(),
                    offset: within,
                    length: piece,
                }
            } else if self.is_zero_below(index.offset()) {
                ReadSegment::Zero { length: piece }
            } else {
                ReadSegment::Store {
                    offset: position,
                    length: piece,
                }
            };
            plan.push(segment);
            position += piece as u64;
        }
        plan
    }
}

/// The content in memory of a file of this size, over the store's.
struct Layer<'a> {
    versions: &'a PageVersions,
    size: u64,
}

impl<'a> Layer<'a> {
    const fn new(versions: &'a PageVersions, size: u64) -> Self {
        Self { versions, size }
    }
}

impl ContentLayer for Layer<'_> {
    fn size(&self) -> u64 {
        self.size
    }

    fn has_data(&self, offset: u64) -> bool {
        self.versions.newest(PageIndex::of_offset(offset)).is_some()
    }

    fn data_until(&self, offset: u64) -> Option<u64> {
        let first = PageIndex::of_offset(offset);
        let run = self.versions.pages.range(first..).zip(first.0..);
        let run = run.take_while(|((index, _), expected)| index.0 == *expected);
        run.last()
            .map(|((index, _), _)| index.offset() + PAGE_BYTES_U64)
    }

    fn next_data(&self, offset: u64) -> Option<u64> {
        let after = PageIndex(PageIndex::of_offset(offset).0 + 1);
        let (index, _) = self.versions.pages.range(after..).next()?;
        Some(index.offset())
    }

    fn hidden_until(&self, offset: u64) -> Option<u64> {
        if !self.versions.known_to_store {
            return Some(u64::MAX);
        }
        let change = self.versions.change();
        let open = change.and_then(|change| change.zeroed().range_at(offset));
        let closed = self.versions.closed_zeroed.iter();
        let closed = closed.filter_map(|(_, ranges)| range_at(ranges, offset));
        closed.chain(open).map(|range| range.end).max()
    }

    fn next_hidden(&self, offset: u64) -> Option<u64> {
        let change = self.versions.change();
        let open = change.and_then(|change| change.zeroed().next_after(offset));
        let closed = self.versions.closed_zeroed.iter();
        let closed = closed.filter_map(|(_, ranges)| {
            let next = ranges.partition_point(|range| range.start <= offset);
            ranges.get(next).copied()
        });
        closed.chain(open).map(|range| range.start).min()
    }
}
