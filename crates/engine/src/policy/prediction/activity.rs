//! What is known of the user at one moment.

use alloc::boxed::Box;

use mobifs_base::MonotonicNs;

use super::{IntervalPredictor, Prediction, PredictionRules, TouchFilter};

/// A user without input for so long is away, whatever is predicted, in
/// nanoseconds. (The state `shorter` waits for an operation that may never come.)
const FORGOTTEN_NS: u64 = 60_000_000_000;
/// After each event the user waits for what it leads to, whatever is predicted, in nanoseconds:
/// as long as people go on with a task without a sign that they have to wait. (A predictor may well
/// expect a long pause from the very moment of an operation on.)
pub const RESPONSE_NS: u64 = 1_000_000_000;
/// Above the numbers of all predictions of a predictor.
const FORGOTTEN_NUMBERS: u64 = 1 << 63;
/// Above those, too.
const LEFT_NUMBERS: u64 = FORGOTTEN_NUMBERS | 1 << 62;

/// What the user is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserState {
    /// No user was ever seen: a machine without a user, or without a way to see one.
    Unknown,
    /// Is operating the device, or expected to.
    Active {
        /// When to look again, unless the user does something before.
        until: MonotonicNs,
    },
    /// Expected to leave the device alone.
    Away(Prediction),
}

/// Events of the user, filtered, and a predictor's conclusions.
pub struct UserActivity {
    filter: TouchFilter,
    predictor: Box<dyn IntervalPredictor>,
    operations: u64,
    /// The session reported the user as gone, since then.
    left_at: Option<MonotonicNs>,
}

impl core::fmt::Debug for UserActivity {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("UserActivity")
            .field("operations", &self.operations)
            .finish_non_exhaustive()
    }
}

impl UserActivity {
    /// By these rules; no user was seen yet.
    pub fn new(rules: &PredictionRules) -> Self {
        Self {
            filter: TouchFilter::new(rules.touch_gap_ns),
            predictor: rules.begin(),
            operations: 0,
            left_at: None,
        }
    }

    /// An event came from the user; true if it begins an operation.
    pub fn event(&mut self, at: MonotonicNs) -> bool {
        let is_operation = self.filter.event(at);
        self.left_at = None;
        if is_operation {
            self.operations += 1;
            self.predictor.user_operation(at);
        }
        is_operation
    }

    /// The session reports that the user has gone: from here on, until the next event,
    /// the user is away, whatever is predicted. Without effect for a user that was never seen.
    pub fn left(&mut self, at: MonotonicNs) {
        self.left_at = self.left_at.or(Some(at));
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
            // The operation (a drag, say) continues, whatever is predicted.
            return UserState::Active { until: ends_at };
        }
        if let Some(left_at) = self.left_at {
            return UserState::Away(gone(LEFT_NUMBERS, left_at.max(ends_at), now));
        }
        let answer_ns = RESPONSE_NS.saturating_sub(self.filter.gap_ns());
        let answered_at = MonotonicNs(ends_at.0.saturating_add(answer_ns));
        if now < answered_at {
            return UserState::Active { until: answered_at };
        }
        if let Some(prediction) = self.predictor.predict(now) {
            return UserState::Away(prediction);
        }
        let forgotten = now.0.saturating_sub(ends_at.0) / FORGOTTEN_NS;
        if forgotten > 0 {
            return UserState::Away(gone(FORGOTTEN_NUMBERS, ends_at, now));
        }
        let forgotten_at = MonotonicNs(ends_at.0.saturating_add(FORGOTTEN_NS));
        let timer_at = self.predictor.timer_at();
        UserState::Active {
            until: timer_at.map_or(forgotten_at, |at| at.min(forgotten_at)),
        }
    }
}

/// A user that has been gone since `from` is not expected in the next [`FORGOTTEN_NS`]: one
/// prediction after the other, numbered from `numbers` on.
const fn gone(numbers: u64, from: MonotonicNs, now: MonotonicNs) -> Prediction {
    let passed = now.0.saturating_sub(from.0) / FORGOTTEN_NS;
    Prediction {
        number: numbers + passed,
        from: MonotonicNs(from.0 + passed * FORGOTTEN_NS),
        length_ns: FORGOTTEN_NS,
    }
}
