//! The last intervals of one kind.

use alloc::collections::VecDeque;

/// A[1 ..= k]: the last k intervals, in nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct History {
    length_max: usize,
    intervals: VecDeque<u64>,
}

impl History {
    /// Room for `length_max` intervals, at least one.
    pub(super) fn new(length_max: usize) -> Self {
        Self {
            length_max: length_max.max(1),
            intervals: VecDeque::new(),
        }
    }

    pub(super) fn push(&mut self, interval_ns: u64) {
        if self.intervals.len() == self.length_max {
            self.intervals.pop_front();
        }
        self.intervals.push_back(interval_ns);
    }

    /// The shortest; none before the first.
    pub(super) fn minimum(&self) -> Option<u64> {
        self.intervals.iter().copied().min()
    }

    /// The mean; none before the first.
    pub(super) fn average(&self) -> Option<u64> {
        let sum: u128 = self.intervals.iter().map(|&ns| u128::from(ns)).sum();
        let count = self.intervals.len() as u128;
        sum.checked_div(count).map(|mean| mean as u64)
    }
}
