//! Where the time of a live engine comes from.

use mobifs_core::Moment;
use mobifs_types::{MonotonicNs, Timestamp};

/// A source of time. The engine has none of its own; tests put a virtual one here.
pub trait Clock: Send + Sync {
    /// The current moment.
    fn moment(&self) -> Moment;
}

/// The machine's clocks: wall time for files, monotonic time for ages.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn moment(&self) -> Moment {
        use rustix::time::{ClockId, clock_gettime};
        let wall = clock_gettime(ClockId::Realtime);
        let now = clock_gettime(ClockId::Monotonic);
        Moment {
            // The kernel keeps both in range: nanoseconds below a second, monotonic
            // time not negative.
            wall: Timestamp::new(wall.tv_sec, u32::try_from(wall.tv_nsec).unwrap_or(0)),
            now: MonotonicNs(
                u64::try_from(now.tv_sec)
                    .unwrap_or(0)
                    .saturating_mul(1_000_000_000)
                    .saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0)),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_forward() {
        let first = SystemClock.moment();
        let second = SystemClock.moment();
        assert!(second.now >= first.now);
        assert!(
            first.wall.seconds > 1_600_000_000,
            "the wall clock counts from 1970"
        );
    }
}
