//! A fixed interval: like the commit interval of an ordinary filesystem.

use super::{Efficiency, Transactioning};

/// Parameters of [`FixedInterval`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalParameters {
    /// A transaction closes at this age, in milliseconds since its first change.
    pub interval_ms: u64,
}

impl Default for IntervalParameters {
    /// Leaves a third of what ext4 flushes (geometric mean of the recorded programs;
    /// docs/BENCHMARKS.md).
    fn default() -> Self {
        Self {
            interval_ms: 20_000,
        }
    }
}

/// Closes at an age, whatever was written.
#[derive(Clone, Debug)]
pub struct FixedInterval(IntervalParameters);

impl FixedInterval {
    /// With these parameters.
    pub const fn new(parameters: &IntervalParameters) -> Self {
        Self(*parameters)
    }
}

impl Transactioning for FixedInterval {
    fn page_written(&mut self, _efficiency: &Efficiency) {}

    fn is_due(&self, _efficiency: &Efficiency, age_ms: u64) -> bool {
        age_ms >= self.0.interval_ms
    }

    fn due_age_ms(&self) -> Option<u64> {
        Some(self.0.interval_ms)
    }
}
