//! Many events, one operation (S0 §6.1): a drag is thousands of events.

use mobifs_base::MonotonicNs;

/// Events closer than this belong to one operation unless the configuration says otherwise, in
/// nanoseconds.
///
/// S0 combines what comes within 0.01 ms: the several events of which one report of a touch screen
/// consists. A report is not an operation, though. A finger that is drawn over the screen is
/// reported 60 to 240 times a second, every 4 to 17 ms, and a key that is held down 25 to 33 times,
/// every 30 to 40 ms; with 0.01 ms each of these would be an operation, the last four short
/// intervals would be those of the hardware, and a pause would be predicted three reports after the
/// last one. 0.1 s is longer than those periods and shorter than the time between two taps of a
/// person (150 ms and more).
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

    /// What it combines, in nanoseconds.
    pub const fn gap_ns(&self) -> u64 {
        self.gap_ns
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
