//! Which pages of a transaction go to their place at once: the decision alone, without I/O.
//!
//! [`JournalStore`](crate::JournalStore) asks for each of its commits, the simulator for those that
//! a mount would have made. Data may be in its place before the transaction that refers to it only
//! where the journal says, durably, that the range is empty: then a crash in between leaves no
//! trace.

use std::collections::BTreeMap;

use mobifs_base::{ByteRange, PAGE_BYTES_U64, Page, PageIndex, RangeSet, Transaction};

/// A run of new pages of this length is written to its place at once.
pub const RUN_PAGES_MIN: u64 = 16;
/// With this much data of new files in one transaction, all of it is: they have to be made in the
/// lower filesystem anyway, and one sync serves them all.
pub const MANY_FILES_BYTES: u64 = 1 << 20;

/// What the journal says of a file before the transaction.
#[derive(Clone, Copy, Debug)]
pub enum Known<'k> {
    /// Made by the transaction or in this epoch: nothing is in its stage file but these ranges.
    Created {
        /// Ranges that hold committed data; none of a file that the transaction makes.
        in_place: Option<&'k RangeSet>,
    },
    /// Made in this epoch, and an apply has begun with it: what is in its file is unknown.
    Bound,
    /// In the lower tree; the journal says of these ranges that they are empty.
    Lower {
        /// Empty ranges; none of a file that the epoch has not changed.
        zeroed: Option<&'k RangeSet>,
    },
}

/// Where a file of the lower tree ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileEnd {
    /// First page after the committed size and after what the lower file has, as an offset.
    pub offset: u64,
    /// The journal holds pages from there on.
    pub has_pages_after: bool,
    /// A program has asked for room from there on. A record that the file is empty there would free
    /// that room, and a full disk has no other.
    pub is_allocated: bool,
}

/// What of a file's pages goes to its place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Whole pages, in ascending order.
    pub in_place: Vec<ByteRange>,
    /// Before that, the journal has to say durably that the file is empty from here on.
    pub empty_from: Option<u64>,
}

/// What new files of a transaction hold, zeros at the ends of pages not counted.
pub fn created_bytes(transaction: &Transaction) -> u64 {
    let created = transaction.objects.iter().filter(|state| state.created);
    let pages = created.filter_map(|state| transaction.pages.get(&state.id));
    let stored = pages.flat_map(BTreeMap::values).map(Page::stored_bytes);
    stored.sum::<usize>() as u64
}

/// Whether some pages of a transaction may go to their place: false where [`place`] has none for
/// any of its files.
pub fn may_place(transaction: &Transaction) -> bool {
    let mut pages = transaction.pages.values();
    pages.any(|pages| pages.len() as u64 >= RUN_PAGES_MIN)
        || created_bytes(transaction) >= MANY_FILES_BYTES
}

/// Decides about the pages that a transaction has of one file. `created_bytes` is that of the
/// transaction ([`created_bytes`]); `end` is asked once, and only where the answer depends on it.
///
/// # Errors
/// What `end` returns.
pub fn place<E>(
    known: Known<'_>,
    created_bytes: u64,
    pages: impl IntoIterator<Item = PageIndex>,
    end: impl FnOnce() -> Result<FileEnd, E>,
) -> Result<Placement, E> {
    let is_created = !matches!(known, Known::Lower { .. });
    let pages_min = if is_created && created_bytes >= MANY_FILES_BYTES {
        1
    } else {
        RUN_PAGES_MIN
    };
    let is_run = |range: &ByteRange| range.len() >= pages_min * PAGE_BYTES_U64;
    let page = |index: PageIndex| ByteRange::new(index.offset(), index.offset() + PAGE_BYTES_U64);
    let pages: RangeSet = pages.into_iter().map(page).collect();
    let mut ask_end = Some(end);
    let mut end = None;
    let mut placement = Placement::default();
    for range in pages.iter().filter(is_run) {
        let mut empty = known.empty_parts(range);
        if !is_created && !empty.covers(range) {
            if let Some(ask) = ask_end.take() {
                end = Some(ask()?);
            }
            if let Some(end) = &end
                && let Some(part) = end.empty_part(range, &empty)
            {
                empty.insert(part);
                placement.empty_from = Some(end.offset);
            }
        }
        let parts = empty.iter().map(whole_pages);
        placement.in_place.extend(parts.filter(is_run));
    }
    debug_assert!(
        placement.in_place.iter().all(|part| pages.covers(*part)),
        "only pages of the transaction go to their place"
    );
    Ok(placement)
}

impl Known<'_> {
    /// The parts of a range that the journal says already are empty. An append mostly begins in the
    /// middle of a page with content.
    fn empty_parts(self, range: ByteRange) -> RangeSet {
        match self {
            Self::Created { in_place } => {
                let mut parts = RangeSet::from_iter([range]);
                let taken = in_place.map(|in_place| in_place.overlap(range));
                let taken = taken.iter().flat_map(|taken| taken.iter());
                taken.for_each(|taken| parts.remove(taken));
                parts
            }
            Self::Bound => RangeSet::new(),
            Self::Lower { zeroed } => {
                zeroed.map_or_else(RangeSet::new, |zeroed| zeroed.overlap(range))
            }
        }
    }
}

impl FileEnd {
    /// The part of a range after the end, where an "empty" record pays and there is none yet.
    fn empty_part(&self, range: ByteRange, empty: &RangeSet) -> Option<ByteRange> {
        let part = ByteRange::new(range.start.max(self.offset), range.end.max(self.offset));
        let is_worth_it = part.len() >= RUN_PAGES_MIN * PAGE_BYTES_U64 && !empty.covers(part);
        (is_worth_it && !self.has_pages_after && !self.is_allocated).then_some(part)
    }
}

/// The whole pages of a range.
fn whole_pages(range: ByteRange) -> ByteRange {
    ByteRange::new(
        range.start.next_multiple_of(PAGE_BYTES_U64),
        range.end - range.end % PAGE_BYTES_U64,
    )
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const UNTOUCHED: Known<'_> = Known::Lower { zeroed: None };
    const NEW: Known<'_> = Known::Created { in_place: None };

    fn bytes(first: u64, end: u64) -> ByteRange {
        ByteRange::new(first * PAGE_BYTES_U64, end * PAGE_BYTES_U64)
    }

    /// Pages `first` to `end` of a file that ends before page `end_page`.
    fn placed(
        known: Known<'_>,
        created_bytes: u64,
        (first, end): (u64, u64),
        end_page: u64,
    ) -> Placement {
        let file_end = FileEnd {
            offset: end_page * PAGE_BYTES_U64,
            has_pages_after: false,
            is_allocated: false,
        };
        let pages = (first..end).map(PageIndex);
        let Ok(placement) = place(known, created_bytes, pages, || {
            Ok::<_, Infallible>(file_end)
        });
        placement
    }

    #[test]
    fn overwritten_pages_go_to_the_journal() {
        assert_eq!(placed(UNTOUCHED, 0, (0, 64), 64), Placement::default());
    }

    #[test]
    fn a_long_run_after_the_end_is_announced_and_placed() {
        let placement = placed(UNTOUCHED, 0, (8, 40), 10);
        assert_eq!(placement.in_place, [bytes(10, 40)]);
        assert_eq!(placement.empty_from, Some(10 * PAGE_BYTES_U64));
        assert_eq!(placed(UNTOUCHED, 0, (8, 25), 10), Placement::default());
    }

    #[test]
    fn short_runs_of_new_files_are_placed_only_where_there_is_much_of_them() {
        assert!(
            placed(NEW, MANY_FILES_BYTES - 1, (0, 15), 0)
                .in_place
                .is_empty()
        );
        assert_eq!(
            placed(NEW, MANY_FILES_BYTES, (0, 15), 0).in_place,
            [bytes(0, 15)]
        );
        assert_eq!(placed(NEW, 0, (0, 16), 0).in_place, [bytes(0, 16)]);
    }

    #[test]
    fn what_is_in_place_is_not_written_over() {
        let taken = RangeSet::from_iter([bytes(0, 20)]);
        let known = Known::Created {
            in_place: Some(&taken),
        };
        assert_eq!(placed(known, 0, (0, 40), 0).in_place, [bytes(20, 40)]);
        assert!(placed(Known::Bound, 0, (0, 40), 0).in_place.is_empty());
    }

    #[test]
    fn what_the_journal_calls_empty_needs_no_further_record() {
        let zeroed = RangeSet::from_iter([bytes(0, 64)]);
        let known = Known::Lower {
            zeroed: Some(&zeroed),
        };
        let placement = placed(known, 0, (0, 32), 64);
        assert_eq!(
            (placement.in_place, placement.empty_from),
            (vec![bytes(0, 32)], None)
        );
    }
}
