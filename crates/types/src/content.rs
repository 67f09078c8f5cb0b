//! Where a file has data and where it has holes, layer upon layer.

use crate::RangeSet;

/// What a search looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The next byte that may be data (`SEEK_DATA`).
    Data,
    /// The next hole; the end of the file is one (`SEEK_HOLE`).
    Hole,
}

/// What one layer knows of a file's content at one moment: where it has data itself,
/// where it hides the layer below, and the size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContentMap {
    size: u64,
    data: RangeSet,
    zeroed: RangeSet,
}

impl ContentMap {
    /// A file of `size` bytes with own data in `data`; what of `zeroed` is not data
    /// reads as zero; the rest is as in the layer below.
    pub const fn new(size: u64, data: RangeSet, zeroed: RangeSet) -> Self {
        Self { size, data, zeroed }
    }

    /// First offset at or behind `offset` that is what `whence` asks for. None behind
    /// the end, or if there is no more data.
    ///
    /// `below` answers the same question for the layer below, where none means that
    /// there is nothing but a hole.
    ///
    /// # Errors
    /// What `below` fails with.
    pub fn seek<E>(
        &self,
        offset: u64,
        whence: Whence,
        mut below: impl FnMut(u64, Whence) -> Result<Option<u64>, E>,
    ) -> Result<Option<u64>, E> {
        let at_end = (whence == Whence::Hole && offset < self.size).then_some(self.size);
        let mut position = offset;
        while position < self.size {
            let next_data = self
                .data
                .next_after(position)
                .map_or(u64::MAX, |range| range.start);
            if let Some(range) = self.data.range_at(position) {
                if whence == Whence::Data {
                    return Ok(Some(position));
                }
                position = range.end;
            } else if let Some(range) = self.zeroed.range_at(position) {
                if whence == Whence::Hole {
                    return Ok(Some(position));
                }
                position = range.end.min(next_data);
            } else {
                let next_zeroed = self
                    .zeroed
                    .next_after(position)
                    .map_or(u64::MAX, |range| range.start);
                let nothing = if whence == Whence::Data {
                    u64::MAX
                } else {
                    position
                };
                let found = below(position, whence)?.unwrap_or(nothing);
                let boundary = next_data.min(next_zeroed);
                if found < boundary {
                    return Ok(Some(found).filter(|&found| found < self.size).or(at_end));
                }
                position = boundary;
            }
        }
        Ok(at_end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ByteRange;

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
            let mut range = |set: &mut RangeSet| {
                let (a, b) = (next(24), next(25));
                set.insert(ByteRange::new(a.min(b), a.max(b)));
            };
            let (mut data, mut zeroed, mut below) =
                (RangeSet::new(), RangeSet::new(), RangeSet::new());
            for set in [&mut data, &mut zeroed, &mut below] {
                range(set);
                range(set);
            }
            let is_data =
                |at: u64| data.contains(at) || (!zeroed.contains(at) && below.contains(at));
            let map = ContentMap::new(size, data.clone(), zeroed.clone());
            let ask_below = |at: u64, whence| {
                let wanted = whence == Whence::Data;
                Ok::<_, ()>((at..30).find(|&at| below.contains(at) == wanted))
            };
            for offset in 0..26 {
                for whence in [Whence::Data, Whence::Hole] {
                    let wanted = whence == Whence::Data;
                    let at_end = (!wanted && offset < size).then_some(size);
                    let expected = (offset..size).find(|&at| is_data(at) == wanted).or(at_end);
                    assert_eq!(map.seek(offset, whence, ask_below), Ok(expected));
                }
            }
        }
    }
}
