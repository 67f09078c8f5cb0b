//! What is known of the user at one moment.

use alloc::boxed::Box;

use mobifs_types::MonotonicNs;

use super::{IntervalPredictor, Prediction, PredictorName, TOUCH_GAP_NS, TouchFilter};

/// A user who has done nothing for so long is away, whatever is predicted, in
/// nanoseconds. (The state `shorter` waits for an operation that may never come.)
const FORGOTTEN_NS: u64 = 60_000_000_000;
/// Above the numbers of all predictions of a predictor.
const FORGOTTEN_NUMBERS: u64 = 1 << 63;

/// What the user is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserState {
    /// Nobody was ever seen: a machine without a user, or without a way to tell.
    Unknown,
    /// Is operating the device, or expected to.
    Active {
        /// When to look again, unless the user does something before.
        until: MonotonicNs,
    },
    /// Expected to leave the device alone.
    Away(Prediction),
}

/// Events of the user, filtered, and what a predictor makes of them.
pub struct UserActivity {
    filter: TouchFilter,
    predictor: Box<dyn IntervalPredictor>,
    operations: u64,
}

impl core::fmt::Debug for UserActivity {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("UserActivity")
            .field("operations", &self.operations)
            .finish_non_exhaustive()
    }
}

impl UserActivity {
    /// With this predictor and the published filter; nobody was seen yet.
    pub fn new(predictor: PredictorName) -> Self {
        Self {
            filter: TouchFilter::new(TOUCH_GAP_NS),
            predictor: predictor.begin(),
            operations: 0,
        }
    }

    /// An event came from the user; true if it begins an operation.
    pub fn event(&mut self, at: MonotonicNs) -> bool {
        let is_operation = self.filter.event(at);
        if is_operation {
            self.operations += 1;
            self.predictor.user_operation(at);
        }
        is_operation
    }

    /// Operations there were.
    pub const fn operations(&self) -> u64 {
        self.operations
    }

    /// What the user is doing.
    pub fn state(&mut self, now: MonotonicNs) -> UserState {
        let Some(ends_at) = self.filter.ends_at() else {
            return UserState::Unknown;
        };
        self.predictor.timer(now);
        if now < ends_at {
            // The operation (a drag, say) still goes on, whatever is predicted.
            return UserState::Active { until: ends_at };
        }
        if let Some(prediction) = self.predictor.predict(now) {
            return UserState::Away(prediction);
        }
        let forgotten = now.0.saturating_sub(ends_at.0) / FORGOTTEN_NS;
        if forgotten > 0 {
            return UserState::Away(Prediction {
                number: FORGOTTEN_NUMBERS + forgotten,
                from: MonotonicNs(ends_at.0 + forgotten * FORGOTTEN_NS),
                length_ns: FORGOTTEN_NS,
            });
        }
        let forgotten_at = MonotonicNs(ends_at.0.saturating_add(FORGOTTEN_NS));
        let timer_at = self.predictor.timer_at();
        UserState::Active {
            until: timer_at.map_or(forgotten_at, |at| at.min(forgotten_at)),
        }
    }
}
