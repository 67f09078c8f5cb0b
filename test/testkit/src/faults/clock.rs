//! Clocks that behave as no machine's should.

use std::sync::Arc;

use mobifs_base::{MonotonicNs, Timestamp};
use mobifs_engine::Moment;
use mobifs_volume::Clock;
use parking_lot::Mutex;

use crate::random::Random;

/// Seconds of a year.
const YEAR_SECONDS: u64 = 365 * 24 * 3600;
/// Where the wall clock begins, in seconds since 1970: in 2023.
const START_SECONDS: i64 = 1_700_000_000;

/// How time passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockKind {
    /// A tenth of a second for every reading.
    Steady,
    /// The wall clock jumps back and forth by up to a century; the monotonic clock
    /// stands still, leaps by years, and at last stands at the end of its range.
    Wild,
}

impl ClockKind {
    /// A clock of this kind, the same for the same seed.
    pub fn clock(self, seed: u64) -> Arc<dyn Clock> {
        Arc::new(FaultClock::new(self, seed))
    }
}

#[derive(Debug)]
struct FaultClock {
    kind: ClockKind,
    state: Mutex<(Random, i64, u64)>,
}

impl FaultClock {
    const fn new(kind: ClockKind, seed: u64) -> Self {
        Self {
            kind,
            state: Mutex::new((Random::new(seed), START_SECONDS * 1000, 0)),
        }
    }
}

impl Clock for FaultClock {
    fn moment(&self) -> Moment {
        let (random, wall_ms, now_ns) = &mut *self.state.lock();
        *wall_ms += 100;
        let mut step_ns = 100_000_000;
        if self.kind == ClockKind::Wild {
            let jump_ms = random.below(100 * YEAR_SECONDS * 1000).cast_signed();
            match random.below(12) {
                0 => *wall_ms = wall_ms.saturating_sub(jump_ms),
                1 => *wall_ms = wall_ms.saturating_add(jump_ms),
                2..6 => step_ns = 0,
                6 => step_ns = random.below(3 * YEAR_SECONDS) * 1_000_000_000,
                _ => {}
            }
        }
        *now_ns = now_ns.saturating_add(step_ns);
        let nanoseconds = wall_ms.rem_euclid(1000) * 1_000_000;
        Moment {
            wall: Timestamp::new(
                wall_ms.div_euclid(1000),
                u32::try_from(nanoseconds).unwrap_or(0),
            ),
            now: MonotonicNs(*now_ns),
        }
    }
}
