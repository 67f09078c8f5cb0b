//! Room by address.

use std::collections::BTreeMap;

/// Ranges that do not touch each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Start → end.
    ranges: BTreeMap<u64, u64>,
}

impl Space {
    /// Adds a range; what it touches becomes one with it.
    pub fn add(&mut self, start: u64, length: u64) {
        if length == 0 {
            return;
        }
        let (mut start, mut end) = (start, start.saturating_add(length));
        let touched: Vec<u64> = self
            .ranges
            .range(..=end)
            .rev()
            .take_while(|&(_, &other_end)| other_end >= start)
            .map(|(&other, _)| other)
            .collect();
        for other in touched {
            if let Some(other_end) = self.ranges.remove(&other) {
                start = start.min(other);
                end = end.max(other_end);
            }
        }
        self.ranges.insert(start, end);
    }

    /// Takes a range out, where it is here.
    pub fn take(&mut self, start: u64, length: u64) {
        let end = start.saturating_add(length);
        let hit: Vec<(u64, u64)> = self
            .ranges
            .range(..end)
            .rev()
            .take_while(|&(_, &other_end)| other_end > start)
            .map(|(&s, &e)| (s, e))
            .collect();
        for (other, other_end) in hit {
            self.ranges.remove(&other);
            if other < start {
                self.ranges.insert(other, start);
            }
            if other_end > end {
                self.ranges.insert(end, other_end);
            }
        }
    }

    /// Whether all of a range is here.
    #[must_use]
    pub fn has(&self, start: u64, length: u64) -> bool {
        let around = self.ranges.range(..=start).next_back();
        around.is_some_and(|(_, &end)| end >= start.saturating_add(length))
    }

    /// Where the smallest range begins that has this length.
    #[must_use]
    pub fn best_fit(&self, length: u64) -> Option<u64> {
        let fits = self.iter().filter(|&(start, end)| end - start >= length);
        fits.min_by_key(|&(start, end)| (end - start, start))
            .map(|(start, _)| start)
    }

    /// The length of the largest range.
    #[must_use]
    pub fn largest(&self) -> u64 {
        self.iter().map(|(s, e)| e - s).max().unwrap_or(0)
    }

    /// Start and end of each range, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&start, &end)| (start, end))
    }

    /// All of it.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.iter().map(|(s, e)| e - s).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(ranges: &[(u64, u64)]) -> Space {
        let mut space = Space::default();
        ranges
            .iter()
            .for_each(|&(start, end)| space.add(start, end - start));
        space
    }

    #[test]
    fn ranges_join_and_part() {
        let mut room = space(&[(10, 20), (30, 40), (20, 30)]);
        assert_eq!(room, space(&[(10, 40)]));
        room.take(15, 10);
        assert_eq!(room, space(&[(10, 15), (25, 40)]));
        assert!(room.has(25, 15) && !room.has(14, 2) && !room.has(24, 2));
        room.add(12, 20);
        assert_eq!(room, space(&[(10, 40)]));
        room.take(0, 100);
        assert!(room.is_empty());
    }

    #[test]
    fn the_smallest_range_that_fits_is_found() {
        let room = space(&[(0, 100), (200, 210), (300, 320)]);
        assert_eq!(room.best_fit(5), Some(200));
        assert_eq!(room.best_fit(11), Some(300));
        assert_eq!(room.best_fit(21), Some(0));
        assert_eq!(room.best_fit(101), None);
        assert_eq!((room.largest(), room.bytes()), (100, 130));
    }
}
