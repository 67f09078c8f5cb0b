//! Many events, one operation (S0 §6.1): a drag is thousands of events.

use mobifs_types::MonotonicNs;

/// Events closer than this belong to one operation, in nanoseconds (published: 0.1 s).
pub const TOUCH_GAP_NS: u64 = 100_000_000;

/// Combines events that follow one another closely.
#[derive(Clone, Debug)]
pub struct TouchFilter {
    gap_ns: u64,
    last_at: Option<MonotonicNs>,
}

impl TouchFilter {
    /// Combines events that are less than `gap_ns` nanoseconds apart.
    pub const fn new(gap_ns: u64) -> Self {
        Self {
            gap_ns,
            last_at: None,
        }
    }

    /// An event came; true if it begins an operation.
    pub fn event(&mut self, at: MonotonicNs) -> bool {
        let before = self.last_at.replace(at);
        before.is_none_or(|before| at.0.saturating_sub(before.0) >= self.gap_ns)
    }

    /// When the operation under way is over, if no event follows; none before the first.
    pub fn ends_at(&self) -> Option<MonotonicNs> {
        let last_at = self.last_at?;
        Some(MonotonicNs(last_at.0.saturating_add(self.gap_ns)))
    }
}
