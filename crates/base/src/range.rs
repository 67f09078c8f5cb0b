//! Byte ranges and sets of them.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// A half-open range of byte offsets; `end == u64::MAX` stands for "without end".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// First byte after the range.
    pub end: u64,
}

impl ByteRange {
    /// The range `start..end`; empty if `end <= start`.
    pub const fn new(start: u64, end: u64) -> Self {
        Self { start, end }
    }

    /// From `start` without end.
    pub const fn from(start: u64) -> Self {
        Self {
            start,
            end: u64::MAX,
        }
    }

    /// Whether no byte lies in the range.
    pub const fn is_empty(&self) -> bool {
        self.end <= self.start
    }

    /// Number of bytes.
    pub const fn len(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// A set of byte offsets, held as disjoint, non-adjacent ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// start → end
    ranges: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self {
            ranges: BTreeMap::new(),
        }
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether the set holds no byte.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Adds a range.
    pub fn insert(&mut self, range: ByteRange) {
        self.insert_reporting(range, |_| {});
    }

    /// Adds a range, and reports where ranges start that come, go or change by it.
    pub fn insert_reporting(&mut self, range: ByteRange, mut report: impl FnMut(u64)) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        if let Some((&s, &e)) = self.ranges.range(..=start).next_back()
            && e >= start
        {
            start = s;
            end = end.max(e);
        }
        let swallowed: Vec<(u64, u64)> = self
            .ranges
            .range(start..=end)
            .map(|(&s, &e)| (s, e))
            .collect();
        for (s, e) in swallowed {
            self.ranges.remove(&s);
            report(s);
            end = end.max(e);
        }
        self.ranges.insert(start, end);
        report(start);
    }

    /// Takes a range out.
    pub fn remove(&mut self, range: ByteRange) {
        self.remove_reporting(range, |_| {});
    }

    /// Takes a range out, and reports where ranges start that come, go or change by it.
    pub fn remove_reporting(&mut self, range: ByteRange, mut report: impl FnMut(u64)) {
        if range.is_empty() {
            return;
        }
        if let Some((&s, &e)) = self.ranges.range(..range.start).next_back()
            && e > range.start
        {
            self.ranges.insert(s, range.start);
            report(s);
            if e > range.end {
                self.ranges.insert(range.end, e);
                report(range.end);
                return;
            }
        }
        let inside: Vec<(u64, u64)> = self
            .ranges
            .range(range.start..range.end)
            .map(|(&s, &e)| (s, e))
            .collect();
        for (s, e) in inside {
            self.ranges.remove(&s);
            report(s);
            if e > range.end {
                self.ranges.insert(range.end, e);
                report(range.end);
            }
        }
    }

    /// Number of bytes in the set, of those in `range`.
    pub fn bytes_in(&self, range: ByteRange) -> u64 {
        self.overlap(range).iter().map(|found| found.len()).sum()
    }

    /// Whether the byte at `offset` is in the set.
    pub fn contains(&self, offset: u64) -> bool {
        self.ranges
            .range(..=offset)
            .next_back()
            .is_some_and(|(_, &e)| e > offset)
    }

    /// Whether every byte of `range` is in the set.
    pub fn covers(&self, range: ByteRange) -> bool {
        range.is_empty()
            || self
                .ranges
                .range(..=range.start)
                .next_back()
                .is_some_and(|(_, &e)| e >= range.end)
    }

    /// Whether some byte of `range` is in the set.
    pub fn intersects(&self, range: ByteRange) -> bool {
        !range.is_empty()
            && (self.contains(range.start)
                || self.ranges.range(range.start..range.end).next().is_some())
    }

    /// What of `range` is in the set.
    pub fn overlap(&self, range: ByteRange) -> Self {
        let before = self.range_at(range.start);
        let inside = self.ranges.range(range.start..range.end.max(range.start));
        before
            .into_iter()
            .chain(inside.map(|(&start, &end)| ByteRange { start, end }))
            .map(|found| ByteRange::new(found.start.max(range.start), found.end.min(range.end)))
            .collect()
    }

    /// The range that holds the byte at `offset`.
    pub fn range_at(&self, offset: u64) -> Option<ByteRange> {
        let (&start, &end) = self.ranges.range(..=offset).next_back()?;
        (end > offset).then_some(ByteRange { start, end })
    }

    /// The first range that starts after `offset`.
    pub fn next_after(&self, offset: u64) -> Option<ByteRange> {
        let (&start, &end) = self.ranges.range(offset.checked_add(1)?..).next()?;
        Some(ByteRange { start, end })
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = ByteRange> + '_ {
        self.ranges
            .iter()
            .map(|(&start, &end)| ByteRange { start, end })
    }
}

impl FromIterator<ByteRange> for RangeSet {
    fn from_iter<I: IntoIterator<Item = ByteRange>>(ranges: I) -> Self {
        let mut set = Self::new();
        ranges.into_iter().for_each(|range| set.insert(range));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every short sequence of inserts and removes agrees with a bitmap.
    #[test]
    fn agrees_with_a_bitmap() {
        let mut state = 7_u64;
        let mut next = |bound: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % bound
        };
        for _ in 0..500 {
            let mut set = RangeSet::new();
            let mut bitmap = [false; 32];
            for _ in 0..12 {
                let (a, b) = (next(32), next(33));
                let range = ByteRange::new(a.min(b), a.max(b));
                let add = next(2) == 0;
                let before: BTreeMap<u64, u64> = set.ranges.clone();
                let mut reported = Vec::new();
                if add {
                    set.insert_reporting(range, |start| reported.push(start));
                } else {
                    set.remove_reporting(range, |start| reported.push(start));
                }
                for start in 0..33 {
                    let is_changed = before.get(&start) != set.ranges.get(&start);
                    assert!(
                        !is_changed || reported.contains(&start),
                        "{range:?} at {start}"
                    );
                }
                for bit in &mut bitmap[range.start as usize..range.end as usize] {
                    *bit = add;
                }
                for (offset, &bit) in bitmap.iter().enumerate() {
                    assert_eq!(set.contains(offset as u64), bit);
                }
                let probe = ByteRange::new(next(16), 16 + next(17));
                let bits = &bitmap[probe.start as usize..probe.end as usize];
                assert_eq!(set.covers(probe), bits.iter().all(|&b| b));
                assert_eq!(set.intersects(probe), bits.iter().any(|&b| b));
                let overlap = set.overlap(probe);
                let bytes = bits.iter().filter(|&&bit| bit).count();
                assert_eq!(set.bytes_in(probe), bytes as u64);
                for (offset, &bit) in bitmap.iter().enumerate() {
                    let within = (probe.start..probe.end).contains(&(offset as u64));
                    assert_eq!(overlap.contains(offset as u64), bit && within);
                }
                let ranges: Vec<_> = set.iter().collect();
                assert!(ranges.windows(2).all(|w| w[0].end < w[1].start));
            }
        }
    }
}
