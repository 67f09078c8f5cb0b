//! Which predictor predicts, and with which parameters.

use alloc::boxed::Box;

use super::{
    IntervalPredictor, LastAverage, LastMinimum, PredictorName, StateMachine,
    StateMachineParameters, TOUCH_GAP_NS,
};

/// Most intervals that a history may hold.
pub const HISTORY_MAX: usize = 1024;
/// Largest m: beyond, the user is never taken to begin a long interval.
pub const TIMEOUT_FACTOR_MAX: u64 = 1_000;
/// Longest interval that may be assumed before one was seen, in nanoseconds: an hour.
pub const INITIAL_INTERVAL_MAX_NS: u64 = 3_600_000_000_000;
/// Longest gap within one operation of the user, in nanoseconds: 10 s.
pub const TOUCH_GAP_MAX_NS: u64 = 10_000_000_000;

/// How the user's pauses are predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictionRules {
    /// Which predictor.
    pub predictor: PredictorName,
    /// Its parameters. [`LastMinimum`] and [`LastAverage`] have one, k, which is
    /// [`StateMachineParameters::history_long`]: the intervals that they remember.
    pub parameters: StateMachineParameters,
    /// Events closer than this belong to one operation, in nanoseconds.
    pub touch_gap_ns: u64,
}

impl Default for PredictionRules {
    fn default() -> Self {
        Self::of(PredictorName::default())
    }
}

impl PredictionRules {
    /// A predictor with the defaults of its parameters.
    pub fn of(predictor: PredictorName) -> Self {
        Self {
            predictor,
            parameters: StateMachineParameters::default(),
            touch_gap_ns: TOUCH_GAP_NS,
        }
    }

    /// The predictor, which has seen nothing yet.
    pub fn begin(&self) -> Box<dyn IntervalPredictor> {
        let remembered = self.parameters.history_long;
        match self.predictor {
            PredictorName::StateMachine => Box::new(StateMachine::new(self.parameters)),
            PredictorName::LastMin => Box::new(LastMinimum::new(remembered)),
            PredictorName::LastAverage => Box::new(LastAverage::new(remembered)),
        }
    }
}
