//! Exponential back-off: an optimisation that has just done harm is suspended for a while.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A back-off starts again at its minimum when the one before has been over for so many times
/// its length.
const RESET_AFTER: u64 = 4;

/// A period that doubles when it is needed again soon. Any number of threads use it.
pub(crate) struct Backoff {
    length_min_ns: u64,
    length_max_ns: u64,
    started: Instant,
    /// End of the last period, in nanoseconds since `started`; 0 if there was none.
    until_ns: AtomicU64,
    /// Length of the last backoff.
    length_ns: AtomicU64,
}

impl Backoff {
    /// Not active yet.
    pub(crate) fn new(length_min: Duration, length_max: Duration) -> Self {
        Self {
            length_min_ns: nanoseconds(length_min),
            length_max_ns: nanoseconds(length_max),
            started: Instant::now(),
            until_ns: AtomicU64::new(0),
            length_ns: AtomicU64::new(0),
        }
    }

    /// Begins a period now.
    pub(crate) fn begin(&self) {
        let now_ns = nanoseconds(self.started.elapsed());
        let last_ns = self.length_ns.load(Ordering::Relaxed);
        let since_ns = now_ns.saturating_sub(self.until_ns.load(Ordering::Relaxed));
        let length_ns = if since_ns > last_ns.saturating_mul(RESET_AFTER) {
            self.length_min_ns
        } else {
            (last_ns * 2).clamp(self.length_min_ns, self.length_max_ns)
        };
        self.length_ns.store(length_ns, Ordering::Relaxed);
        self.until_ns
            .store(now_ns.saturating_add(length_ns), Ordering::Relaxed);
    }

    /// Whether a period is under way.
    pub(crate) fn is_active(&self) -> bool {
        let until_ns = self.until_ns.load(Ordering::Relaxed);
        until_ns != 0 && nanoseconds(self.started.elapsed()) < until_ns
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backoff_grows_up_to_its_maximum() {
        let backoff = Backoff::new(Duration::from_secs(1000), Duration::from_secs(3000));
        assert!(!backoff.is_active());
        for expected in [1000, 2000, 3000, 3000] {
            backoff.begin();
            assert!(backoff.is_active());
            assert_eq!(
                backoff.length_ns.load(Ordering::Relaxed),
                expected * 1_000_000_000
            );
        }
    }

    #[test]
    fn a_backoff_ends_and_starts_again_at_its_minimum() {
        let backoff = Backoff::new(Duration::from_nanos(1), Duration::from_secs(1));
        for _ in 0..3 {
            backoff.begin();
            std::thread::sleep(Duration::from_millis(1));
            assert!(!backoff.is_active());
            assert_eq!(backoff.length_ns.load(Ordering::Relaxed), 1);
        }
    }
}
