//! Where a file has data and where it has holes, layer upon layer.

use crate::ByteRange;

/// What a search looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The next byte that may be data (`SEEK_DATA`).
    Data,
    /// The next hole; the end of the file is one (`SEEK_HOLE`).
    Hole,
}

/// One layer of a file's content: where it has data itself, where it hides the layer under it, and
/// the size. Hidden ranges without data read as zero.
///
/// All queries are about one offset, so a search costs what lies between its beginning and its
/// end, however many extents the file has.
pub trait ContentLayer {
    /// The file's size.
    fn size(&self) -> u64;
    /// Whether there is data at `offset`.
    fn has_data(&self, offset: u64) -> bool;
    /// End of the data that is at `offset`, if some is.
    fn data_until(&self, offset: u64) -> Option<u64>;
    /// Where the next data after `offset` begins.
    fn next_data(&self, offset: u64) -> Option<u64>;
    /// End of what is hidden at `offset`, if it is.
    fn hidden_until(&self, offset: u64) -> Option<u64>;
    /// Where the next hidden range after `offset` begins.
    fn next_hidden(&self, offset: u64) -> Option<u64>;
}

/// How far one layer can answer a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentSearch {
    /// The answer; none if there is no such place.
    Found(Option<u64>),
    /// From `offset` up to `until` the lower layer decides.
    Below {
        /// First byte of which it decides.
        offset: u64,
        /// First byte of which it does not.
        until: u64,
    },
}

/// Looks in one layer for the first offset at or after `offset` that is what `whence` asks
/// for.
pub fn search_layer(layer: &impl ContentLayer, offset: u64, whence: Whence) -> ContentSearch {
    let size = layer.size();
    let mut at = offset;
    while at < size {
        if whence == Whence::Data && layer.has_data(at) {
            return ContentSearch::Found(Some(at));
        }
        if let Some(end) = layer.data_until(at) {
            at = end;
        } else if let Some(end) = layer.hidden_until(at) {
            if whence == Whence::Hole {
                return ContentSearch::Found(Some(at));
            }
            at = end.min(layer.next_data(at).unwrap_or(u64::MAX));
        } else {
            let ends = [layer.next_data(at), layer.next_hidden(at), Some(size)];
            let until = ends.into_iter().flatten().min().unwrap_or(size);
            return ContentSearch::Below { offset: at, until };
        }
    }
    ContentSearch::Found((whence == Whence::Hole && offset < size).then_some(size))
}

/// Searches through a layer and the one under it.
///
/// `search` looks in the upper layer, from an offset; it may find another state each time, as long
/// as data that leaves the upper layer is in the lower one before. `below` answers for the lower
/// layer, where none means that there is nothing but a hole. That it has no hole up to some place
/// is remembered: holes that come meanwhile may be overlooked, data may not.
///
/// # Errors
/// What the two fail with.
pub fn seek_content<E>(
    offset: u64,
    whence: Whence,
    mut search: impl FnMut(u64) -> Result<ContentSearch, E>,
    mut below: impl FnMut(u64) -> Result<Option<u64>, E>,
) -> Result<Option<u64>, E> {
    let mut at = offset;
    let mut known: Option<ByteRange> = None;
    loop {
        let (from, until) = match search(at)? {
            // The end counts as a hole for a search that began before it.
            ContentSearch::Found(None) if whence == Whence::Hole && at > offset => {
                return Ok(Some(at));
            }
            ContentSearch::Found(found) => return Ok(found),
            ContentSearch::Below { offset, until } => (offset, until),
        };
        let found = match known {
            Some(known) if known.start <= from && from <= known.end => known.end,
            _ => below(from)?.unwrap_or(match whence {
                Whence::Data => u64::MAX,
                Whence::Hole => from,
            }),
        };
        if found < until {
            return Ok(Some(found));
        }
        if whence == Whence::Hole {
            known = Some(ByteRange::new(from, found));
        }
        at = until;
    }
}

#[cfg(test)]
mod tests {
    use core::cell::Cell;

    use super::*;
    use crate::RangeSet;

    struct Layer {
        size: u64,
        data: RangeSet,
        hidden: RangeSet,
        questions: Cell<u64>,
    }

    impl Layer {
        fn asked<T>(&self, answer: T) -> T {
            self.questions.set(self.questions.get() + 1);
            answer
        }
    }

    impl ContentLayer for Layer {
        fn size(&self) -> u64 {
            self.size
        }

        fn has_data(&self, offset: u64) -> bool {
            self.asked(self.data.contains(offset))
        }

        fn data_until(&self, offset: u64) -> Option<u64> {
            self.asked(self.data.range_at(offset).map(|range| range.end))
        }

        fn next_data(&self, offset: u64) -> Option<u64> {
            self.asked(self.data.next_after(offset).map(|range| range.start))
        }

        fn hidden_until(&self, offset: u64) -> Option<u64> {
            self.asked(self.hidden.range_at(offset).map(|range| range.end))
        }

        fn next_hidden(&self, offset: u64) -> Option<u64> {
            self.asked(self.hidden.next_after(offset).map(|range| range.start))
        }
    }

    fn seek(
        layer: &Layer,
        offset: u64,
        whence: Whence,
        below: impl FnMut(u64) -> Result<Option<u64>, ()>,
    ) -> Option<u64> {
        let search = |at| Ok(search_layer(layer, at, whence));
        seek_content(offset, whence, search, below).unwrap()
    }

    /// Compares every search on layered random maps with a byte-wise one.
    #[test]
    fn agrees_with_a_bytewise_search() {
        let mut state = 11_u64;
        let mut next = |bound: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % bound
        };
        for _ in 0..2_000 {
            let size = next(24);
            let mut ranges = || {
                let mut set = RangeSet::new();
                for _ in 0..2 {
                    let (a, b) = (next(24), next(25));
                    set.insert(ByteRange::new(a.min(b), a.max(b)));
                }
                set
            };
            let below = ranges();
            let layer = Layer {
                size,
                data: ranges(),
                hidden: ranges(),
                questions: Cell::new(0),
            };
            let is_data = |at: u64| {
                layer.data.contains(at) || (!layer.hidden.contains(at) && below.contains(at))
            };
            for offset in 0..26 {
                for whence in [Whence::Data, Whence::Hole] {
                    let wanted = whence == Whence::Data;
                    let at_end = (!wanted && offset < size).then_some(size);
                    let expected = (offset..size).find(|&at| is_data(at) == wanted).or(at_end);
                    let found = seek(&layer, offset, whence, |at| {
                        Ok((at..30).find(|&at| below.contains(at) == wanted))
                    });
                    assert_eq!(found, expected);
                }
            }
        }
    }

    /// A scan of a file with 8,192 extents took 27 seconds: each search built a map of all.
    #[test]
    fn the_calls_of_a_scan_are_proportional_to_its_results() {
        const EXTENTS: u64 = 8192;
        let layer = Layer {
            size: EXTENTS * 8,
            data: (0..EXTENTS)
                .map(|n| ByteRange::new(n * 8, n * 8 + 4))
                .collect(),
            hidden: core::iter::once(ByteRange::from(0)).collect(),
            questions: Cell::new(0),
        };
        let (mut at, mut found) = (0, 0);
        while let Some(data) = seek(&layer, at, Whence::Data, |_| Ok(None)) {
            at = seek(&layer, data, Whence::Hole, |_| Ok(None)).unwrap();
            found += 1;
        }
        assert_eq!(found, EXTENTS);
        assert!(layer.questions.get() <= 10 * EXTENTS);
    }

    /// Pages over a file without holes: the lower layer is not queried for each of them.
    #[test]
    fn the_lower_layer_is_queried_once() {
        let layer = Layer {
            size: 8000,
            data: (0..1000)
                .map(|n| ByteRange::new(n * 8, n * 8 + 4))
                .collect(),
            hidden: RangeSet::new(),
            questions: Cell::new(0),
        };
        let mut asked = 0;
        let found = seek(&layer, 0, Whence::Hole, |_| {
            asked += 1;
            Ok(Some(8000))
        });
        assert_eq!((found, asked), (Some(8000), 1));
    }
}
