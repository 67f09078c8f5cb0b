//! How well the user's pauses are predicted (S0 §7.4).

use mobifs_core::policy::prediction::{
    IntervalPredictor, PredictorName, TOUCH_GAP_NS, TouchFilter,
};
use mobifs_types::MonotonicNs;
use serde::Serialize;

use super::stream::{Action, Stream};

/// How a predictor fared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PredictionReport {
    /// Its name.
    pub predictor: String,
    /// Intervals that it predicted, one after the other: while one runs, no other begins.
    pub predictions: u64,
    /// User operations inside them, for each prediction.
    pub conflicts_per_prediction: f64,
    /// Mean length, in seconds.
    pub length_mean_seconds: f64,
}

/// Moments of user operations: events that belong together are one.
pub fn user_operations(stream: &Stream) -> Vec<u64> {
    let mut filter = TouchFilter::new(TOUCH_GAP_NS);
    let events = stream
        .steps
        .iter()
        .filter(|step| step.action == Action::User);
    let moments = events.map(|step| step.time_ns);
    moments
        .filter(|&at| filter.event(MonotonicNs(at)))
        .collect()
}

/// Lets a predictor watch the operations. A checkpoint is taken to use the whole of each
/// interval that is predicted, as in the paper.
pub fn watch(name: PredictorName, operations: &[u64]) -> PredictionReport {
    let mut predictor = name.begin();
    let mut tally = Tally::default();
    for (index, &at) in operations.iter().enumerate() {
        pass_time(predictor.as_mut(), &mut tally, at);
        tally.operation(at);
        predictor.user_operation(MonotonicNs(at));
        if index + 1 < operations.len() {
            tally.look(predictor.as_ref(), at);
        }
    }
    let count = tally.predictions.max(1) as f64;
    PredictionReport {
        predictor: name.as_str().to_owned(),
        predictions: tally.predictions,
        conflicts_per_prediction: tally.conflicts as f64 / count,
        length_mean_seconds: tally.length_ns as f64 / 1e9 / count,
    }
}

#[derive(Default)]
struct Tally {
    predictions: u64,
    conflicts: u64,
    length_ns: u64,
    /// The interval that runs: where it ends.
    busy_until: u64,
    last_number: Option<u64>,
}

impl Tally {
    /// Takes a prediction that was made now or before, unless an interval runs.
    fn look(&mut self, predictor: &dyn IntervalPredictor, now: u64) {
        if now < self.busy_until {
            return;
        }
        let Some(prediction) = predictor.predict(MonotonicNs(now)) else {
            return;
        };
        if self.last_number.replace(prediction.number) == Some(prediction.number) {
            return;
        }
        let length_ns = prediction.rest_ns(MonotonicNs(now));
        self.predictions += 1;
        self.length_ns += length_ns;
        self.busy_until = now.saturating_add(length_ns);
    }

    fn operation(&mut self, at: u64) {
        self.conflicts += u64::from(at < self.busy_until);
    }
}

/// Timers and ends of intervals before `until`.
fn pass_time(predictor: &mut dyn IntervalPredictor, tally: &mut Tally, until: u64) {
    let mut now = 0;
    loop {
        let timer_at = predictor.timer_at().map(|at| at.0);
        let ends_at = Some(tally.busy_until).filter(|&at| at > now);
        let next = [timer_at, ends_at]
            .into_iter()
            .flatten()
            .filter(|&at| at > now)
            .min();
        let Some(next) = next.filter(|&at| at < until) else {
            return;
        };
        now = next;
        predictor.timer(MonotonicNs(now));
        tally.look(predictor, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn last_minimum_of_an_even_rhythm_never_conflicts() {
        let operations: Vec<u64> = (0..50).map(|number| number * 2 * SECOND).collect();
        let report = watch(PredictorName::LastMin, &operations);
        assert!(report.predictions > 30, "{report:?}");
        assert_eq!(report.conflicts_per_prediction, 0.0);
        assert!((report.length_mean_seconds - 2.0).abs() < 0.3, "{report:?}");
    }

    #[test]
    fn an_average_of_unlike_intervals_conflicts() {
        let mut operations = vec![0];
        for number in 0..200_u64 {
            let pause = if number.is_multiple_of(5) {
                10 * SECOND
            } else {
                SECOND / 2
            };
            operations.push(operations[operations.len() - 1] + pause);
        }
        let average = watch(PredictorName::LastAverage, &operations);
        let minimum = watch(PredictorName::LastMin, &operations);
        assert!(average.conflicts_per_prediction > minimum.conflicts_per_prediction);
        assert!(average.length_mean_seconds > minimum.length_mean_seconds);
    }
}
