//! Where the time of a running engine comes from.

use std::time::{SystemTime, UNIX_EPOCH};

use mobifs_base::{MonotonicNs, Timestamp};
use mobifs_engine::Moment;

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
        Moment {
            wall: wall_time(),
            now: monotonic_time(),
        }
    }
}

fn wall_time() -> Timestamp {
    let (seconds, nanoseconds) = match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => (since.as_secs().cast_signed(), since.subsec_nanos()),
        // A machine without a battery may begin before 1970.
        Err(before) => {
            let before = before.duration();
            match before.subsec_nanos() {
                0 => (-before.as_secs().cast_signed(), 0),
                part => (-before.as_secs().cast_signed() - 1, 1_000_000_000 - part),
            }
        }
    };
    Timestamp::new(seconds, nanoseconds)
}

/// The time since the machine was started, which other processes see as well: an
/// [`Instant`](std::time::Instant) does not give it. Read through the C library and not directly
/// from the vDSO, as rustix does: valgrind hides the vDSO, and the lookup of its functions ends a
/// program that runs under valgrind.
#[expect(unsafe_code, reason = "no safe call asks the C library for this")]
fn monotonic_time() -> MonotonicNs {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer is to a live value that takes the answer.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    assert_eq!(code, 0, "every Linux has this clock");
    let (seconds, nanoseconds) = (now.tv_sec as u64, now.tv_nsec as u64);
    MonotonicNs(
        seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(nanoseconds),
    )
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
