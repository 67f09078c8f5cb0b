//! How long the user will not use the device (S0 §5.3): the time in which a
//! checkpoint delays no request of the user.
//!
//! [`IntervalPredictor`] is the interface. Nothing here has a clock: the caller says when
//! the user did something, and calls when [`IntervalPredictor::timer_at`] is reached.

mod activity;
mod bursts;
mod history;
mod name;
mod recent;
mod rules;
mod state_machine;
mod touch_filter;

use mobifs_base::MonotonicNs;

pub use activity::{RESPONSE_NS, UserActivity, UserState};
pub use bursts::{BURST_NS, BURST_PAUSE_NS, BURST_REQUESTS, Bursts};
pub use name::PredictorName;
pub use recent::{LastAverage, LastMinimum};
pub use rules::{
    HISTORY_MAX, INITIAL_INTERVAL_MAX_NS, PredictionRules, TIMEOUT_FACTOR_MAX, TOUCH_GAP_MAX_NS,
};
pub use state_machine::{State, StateMachine, StateMachineParameters};
pub use touch_filter::{TOUCH_GAP_NS, TouchFilter};

/// An interval in which the user is expected to do nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prediction {
    /// Counts the predictions that were made; the same as long as one holds.
    pub number: u64,
    /// When it was made.
    pub from: MonotonicNs,
    /// Its length, in nanoseconds.
    pub length_ns: u64,
}

impl Prediction {
    /// What is left of it, in nanoseconds.
    pub const fn rest_ns(&self, now: MonotonicNs) -> u64 {
        let end = self.from.0.saturating_add(self.length_ns);
        end.saturating_sub(now.0)
    }
}

/// Predicts intervals without user operations from those there were.
///
/// Moments given to one predictor never go back.
pub trait IntervalPredictor: Send {
    /// The user does something: event u.
    fn user_operation(&mut self, at: MonotonicNs);

    /// When [`IntervalPredictor::timer`] is to be called, unless the user does something
    /// before; none: only a user operation matters.
    fn timer_at(&self) -> Option<MonotonicNs>;

    /// The timer's moment has come. Does nothing before that.
    fn timer(&mut self, now: MonotonicNs);

    /// The interval that is predicted at the moment; none while the user is expected to
    /// go on, or when it has passed.
    fn predict(&self, now: MonotonicNs) -> Option<Prediction>;
}
