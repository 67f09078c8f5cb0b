//! The predictors that S0 compares its machine with: by the last intervals.

use mobifs_base::MonotonicNs;

use super::history::History;
use super::{IntervalPredictor, Prediction};

/// The part of both: the last intervals, and predictions that are made at each operation
/// and, as long as they hold, again when their time is over.
#[derive(Clone, Debug)]
struct Recent {
    history: History,
    operated_at: Option<MonotonicNs>,
    /// Predictions made before the last operation.
    predictions: u64,
}

impl Recent {
    fn new(length_max: usize) -> Self {
        Self {
            history: History::new(length_max),
            operated_at: None,
            predictions: 0,
        }
    }

    /// `length_ns` is what was predicted up to now.
    fn user_operation(&mut self, at: MonotonicNs, length_ns: Option<u64>) {
        if let Some(prediction) = self.predict(at, length_ns) {
            self.predictions = prediction.number;
        }
        if let Some(before) = self.operated_at.replace(at) {
            self.history.push(at.0.saturating_sub(before.0));
        }
    }

    fn predict(&self, now: MonotonicNs, length_ns: Option<u64>) -> Option<Prediction> {
        let (operated_at, length_ns) = (self.operated_at?, length_ns?.max(1));
        let passed = now.0.saturating_sub(operated_at.0) / length_ns;
        let from = operated_at.0.saturating_add(passed * length_ns);
        Some(Prediction {
            number: self.predictions + passed + 1,
            from: MonotonicNs(from),
            length_ns,
        })
    }
}

/// The next interval is as long as the shortest of the last (LMM): cautious.
#[derive(Clone, Debug)]
pub struct LastMinimum(Recent);

impl LastMinimum {
    /// A predictor from the last `length_max` intervals.
    pub fn new(length_max: usize) -> Self {
        Self(Recent::new(length_max))
    }
}

impl IntervalPredictor for LastMinimum {
    fn user_operation(&mut self, at: MonotonicNs) {
        let length_ns = self.0.history.minimum();
        self.0.user_operation(at, length_ns);
    }

    fn timer_at(&self) -> Option<MonotonicNs> {
        None
    }

    fn timer(&mut self, _now: MonotonicNs) {}

    fn predict(&self, now: MonotonicNs) -> Option<Prediction> {
        self.0.predict(now, self.0.history.minimum())
    }
}

/// The next interval is as long as the last were on average (LAM): bold.
#[derive(Clone, Debug)]
pub struct LastAverage(Recent);

impl LastAverage {
    /// A predictor from the last `length_max` intervals.
    pub fn new(length_max: usize) -> Self {
        Self(Recent::new(length_max))
    }
}

impl IntervalPredictor for LastAverage {
    fn user_operation(&mut self, at: MonotonicNs) {
        let length_ns = self.0.history.average();
        self.0.user_operation(at, length_ns);
    }

    fn timer_at(&self) -> Option<MonotonicNs> {
        None
    }

    fn timer(&mut self, _now: MonotonicNs) {}

    fn predict(&self, now: MonotonicNs) -> Option<Prediction> {
        self.0.predict(now, self.0.history.average())
    }
}
