//! How well the user's pauses are predicted (S0 §7.4).
//!
//! Counted as the paper counts: a prediction is taken to be used up by a checkpoint of its whole
//! length, and while it runs no other is made. The simple predictors predict at an operation, the
//! state machine where its figure says "checkpoint", at τ and δ. A mount may do more with a pause
//! (it predicts again when a prediction is over, and on the edge from `longer` to `long`), but
//! counting that would tile all time with predictions, and nearly every operation would fall into
//! one.

use mobifs_base::MonotonicNs;
use mobifs_engine::policy::prediction::{
    IntervalPredictor, PredictionRules, PredictorName, TouchFilter,
};
use serde::Serialize;

use super::stream::{Action, Stream};

/// How well a predictor did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PredictionReport {
    /// Its name.
    pub predictor: String,
    /// Intervals that it predicted, one after the other: while one runs, no other begins.
    pub predictions: u64,
    /// User operations inside them.
    pub conflicts: u64,
    /// User operations inside an interval, on average.
    pub conflicts_per_prediction: f64,
    /// Mean length, in seconds.
    pub length_mean_seconds: f64,
}

impl PredictionReport {
    fn new(predictor: &str, predictions: u64, conflicts: u64, length_ns: f64) -> Self {
        let count = predictions.max(1) as f64;
        Self {
            predictor: predictor.to_owned(),
            predictions,
            conflicts,
            conflicts_per_prediction: conflicts as f64 / count,
            length_mean_seconds: length_ns / 1e9 / count,
        }
    }

    /// One predictor over several users: each prediction counts the same.
    pub fn pooled(predictor: &str, reports: &[Self]) -> Self {
        let length_ns =
            |report: &Self| report.length_mean_seconds * 1e9 * report.predictions as f64;
        Self::new(
            predictor,
            reports.iter().map(|report| report.predictions).sum(),
            reports.iter().map(|report| report.conflicts).sum(),
            reports.iter().map(length_ns).sum(),
        )
    }
}

/// Moments of user operations: events closer than `touch_gap_ns` are one.
pub fn user_operations(stream: &Stream, touch_gap_ns: u64) -> Vec<u64> {
    let mut filter = TouchFilter::new(touch_gap_ns);
    let events = stream
        .steps
        .iter()
        .filter(|step| step.action == Action::User);
    let moments = events.map(|step| step.time_ns);
    moments
        .filter(|&at| filter.event(MonotonicNs(at)))
        .collect()
}

/// When S0 has a predictor predict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Occasion {
    /// At each operation.
    Operation,
    /// At the events τ and δ.
    Timer,
}

impl Occasion {
    const fn of(predictor: PredictorName) -> Self {
        match predictor {
            PredictorName::StateMachine => Self::Timer,
            PredictorName::LastMin | PredictorName::LastAverage => Self::Operation,
        }
    }
}

/// Lets a predictor watch the operations, in the order of time. What it would predict after the
/// last one does not count: whether the user came back is not known.
pub fn watch(rules: &PredictionRules, operations: &[u64]) -> PredictionReport {
    let occasion = Occasion::of(rules.predictor);
    let mut predictor = rules.begin();
    let mut tally = Tally::default();
    for (index, &at) in operations.iter().enumerate() {
        while let Some(due) = predictor.timer_at().filter(|due| due.0 <= at) {
            predictor.timer(due);
            // No checkpoint begins at the very moment of an operation.
            if occasion == Occasion::Timer && due.0 < at {
                tally.take(predictor.as_ref(), due.0);
            }
        }
        tally.operation(at);
        predictor.user_operation(MonotonicNs(at));
        if occasion == Occasion::Operation && index + 1 < operations.len() {
            tally.take(predictor.as_ref(), at);
        }
    }
    PredictionReport::new(
        rules.predictor.as_str(),
        tally.predictions,
        tally.conflicts,
        tally.length_ns as f64,
    )
}

#[derive(Default)]
struct Tally {
    predictions: u64,
    conflicts: u64,
    length_ns: u64,
    /// The interval that runs: where it ends.
    busy_until: u64,
}

impl Tally {
    /// Takes what is predicted at this occasion, unless an interval runs.
    fn take(&mut self, predictor: &dyn IntervalPredictor, now: u64) {
        if now < self.busy_until {
            return;
        }
        if let Some(prediction) = predictor.predict(MonotonicNs(now)) {
            let length_ns = prediction.rest_ns(MonotonicNs(now));
            self.predictions += 1;
            self.length_ns += length_ns;
            self.busy_until = now.saturating_add(length_ns);
        }
    }

    fn operation(&mut self, at: u64) {
        self.conflicts += u64::from(at < self.busy_until);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    fn report(predictor: PredictorName, operations_ms: &[u64]) -> PredictionReport {
        let operations: Vec<u64> = operations_ms.iter().map(|ms| ms * MS).collect();
        watch(&PredictionRules::of(predictor), &operations)
    }

    /// Predictions, conflicts, and the sum of the lengths in milliseconds.
    fn counts(report: &PredictionReport) -> (u64, u64, u64) {
        let length = report.length_mean_seconds * report.predictions as f64 * 1e3;
        (report.predictions, report.conflicts, length.round() as u64)
    }

    #[test]
    fn a_prediction_is_made_once_for_an_operation_and_not_again_when_it_is_over() {
        // Intervals of 2, 2, 1, 5 and 1 s.
        let operations = [0, 2_000, 4_000, 5_000, 10_000, 11_000];
        // Minimum: 2 s at 2; 2 s at 4, in which 5 falls; none at 5, one runs; 1 s at 10, which
        // ends at 11. Renewals of it would have counted 5 more up to 11.
        let cautious = report(PredictorName::LastMin, &operations);
        assert_eq!(counts(&cautious), (3, 1, 5_000));
        // Average: 2 s at 2; 2 s at 4, in which 5 falls; 2.5 s at 10, in which 11 falls.
        let bold = report(PredictorName::LastAverage, &operations);
        assert_eq!(counts(&bold), (3, 2, 6_500));
    }

    #[test]
    fn the_state_machine_predicts_at_tau_and_delta_and_nowhere_else() {
        // τ = 3 × 0.2 s after 0: long, 3 s are predicted; δ at 3.6 s: longer, 3 s more.
        // At 20 s, long again, but without a checkpoint on that edge: nothing is predicted. At
        // 20.1 s (≤ τ): short, t_s = 0.1 s; τ at 20.4 s predicts 20 s, in which 21 s falls.
        let machine = report(PredictorName::StateMachine, &[0, 20_000, 20_100, 21_000]);
        assert_eq!(counts(&machine), (3, 1, 26_000));
    }

    #[test]
    fn last_minimum_of_an_even_rhythm_never_conflicts() {
        let operations: Vec<u64> = (0..50).map(|number| number * 2_000).collect();
        let report = report(PredictorName::LastMin, &operations);
        // Not after the first, which ends no interval, nor after the last.
        assert_eq!(counts(&report), (48, 0, 96_000));
    }

    #[test]
    fn users_are_pooled_by_their_predictions() {
        let one = PredictionReport::new("x", 1, 3, 9e9);
        let other = PredictionReport::new("x", 3, 1, 3e9);
        let pooled = PredictionReport::pooled("x", &[one, other]);
        assert_eq!((pooled.predictions, pooled.conflicts), (4, 4));
        assert_eq!(pooled.conflicts_per_prediction, 1.0);
        assert_eq!(pooled.length_mean_seconds, 3.0);
    }

    /// The paper's text as directly as possible, in numbers of its own: predictions as
    /// (from, length) before any is left out because another one runs.
    struct Recount {
        /// Whether the edge from `longer` to `long` predicts, too.
        predicts_when_back: bool,
    }

    fn last_four(intervals: &[u64]) -> &[u64] {
        &intervals[intervals.len().saturating_sub(4)..]
    }

    impl Recount {
        fn offers(&self, operations: &[u64]) -> Vec<(u64, u64)> {
            let (mut short, mut long) = (Vec::new(), Vec::new());
            let least = |intervals: &[u64], initial: u64| {
                last_four(intervals)
                    .iter()
                    .copied()
                    .min()
                    .unwrap_or(initial)
            };
            let mut offers = Vec::new();
            let (mut state, mut entered) = ('s', 0);
            for pair in operations.windows(2) {
                let (before, at) = (pair[0], pair[1]);
                let tau = 3 * least(&short, 200 * MS);
                let length = least(&long, 3_000 * MS);
                if state == 's' && before + tau <= at {
                    (state, entered) = ('l', before + tau);
                    offers.extend((entered < at).then_some((entered, length)));
                }
                if state == 'l' && entered + length <= at {
                    (state, entered) = ('w', entered + length);
                    offers.extend((entered < at).then_some((entered, length)));
                }
                state = match state {
                    'w' => {
                        long.push(at - before);
                        if self.predicts_when_back {
                            offers.push((at, least(&long, 0)));
                        }
                        'l'
                    }
                    'l' if at - before > tau => {
                        long.push(at - before);
                        'h'
                    }
                    _ => {
                        short.push(at - before);
                        's'
                    }
                };
                entered = at;
            }
            offers
        }

        fn simple(operations: &[u64], of: fn(&[u64]) -> u64) -> Vec<(u64, u64)> {
            let gaps: Vec<u64> = operations
                .windows(2)
                .map(|pair| pair[1] - pair[0])
                .collect();
            let seen = 1..gaps.len().max(1);
            seen.map(|count| (operations[count], of(last_four(&gaps[..count]))))
                .collect()
        }
    }

    /// Predictions, and operations inside them, when none begins while another one runs.
    fn recounted(offers: &[(u64, u64)], operations: &[u64]) -> (u64, u64, u64) {
        let mut taken: Vec<(u64, u64)> = Vec::new();
        for &(from, length) in offers {
            if taken
                .last()
                .is_none_or(|(before, length)| before + length <= from)
            {
                taken.push((from, length));
            }
        }
        let inside = |at: &&u64| {
            taken
                .iter()
                .any(|(from, length)| (from + 1..from + length).contains(*at))
        };
        let conflicts = operations.iter().filter(inside).count() as u64;
        (
            taken.len() as u64,
            conflicts,
            taken.iter().map(|(_, length)| length).sum(),
        )
    }

    fn average(intervals: &[u64]) -> u64 {
        intervals.iter().sum::<u64>() / intervals.len() as u64
    }

    fn minimum(intervals: &[u64]) -> u64 {
        intervals.iter().copied().min().unwrap()
    }

    proptest! {
        #[test]
        fn a_recount_after_the_papers_text_finds_the_same(
            gaps_ms in proptest::collection::vec(
                prop_oneof![4 => 100_u64..1_500, 1 => 1_500_u64..30_000], 2..80),
        ) {
            let mut operations = vec![5_000 * MS];
            for gap_ms in gaps_ms {
                operations.push(operations[operations.len() - 1] + gap_ms * MS);
            }
            let recount = Recount { predicts_when_back: false };
            for (predictor, offers) in [
                (PredictorName::StateMachine, recount.offers(&operations)),
                (PredictorName::LastMin, Recount::simple(&operations, minimum)),
                (PredictorName::LastAverage, Recount::simple(&operations, average)),
            ] {
                let report = watch(&PredictionRules::of(predictor), &operations);
                let (predictions, conflicts, length_ns) = recounted(&offers, &operations);
                prop_assert_eq!(report.predictions, predictions, "{:?}", predictor);
                prop_assert_eq!(report.conflicts, conflicts, "{:?}", predictor);
                let difference = report.length_mean_seconds * 1e9 * predictions as f64 - length_ns as f64;
                prop_assert!(difference.abs() < 1e3, "{:?}: {}", predictor, difference);
            }
        }
    }

    /// `traces/desk.parquet`: what an independent recount found. Predictions that renew
    /// themselves counted 218 of its 220 operations as conflicts, with every predictor.
    #[test]
    fn the_desk_is_counted_as_in_the_paper() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../traces/desk.parquet");
        let loaded = mobifs_trace::load(path.as_ref(), &mobifs_trace::LoadOptions::default());
        let stream = Stream::new(&loaded.unwrap().trace);
        let rules = PredictionRules::default();
        let operations = user_operations(&stream, rules.touch_gap_ns);
        assert_eq!(operations.len(), 220);
        let of = |predictor| watch(&PredictionRules::of(predictor), &operations);
        let found = |report: &PredictionReport| {
            let two_digits = |value: f64| (value * 100.0).round() / 100.0;
            (
                report.predictions,
                report.conflicts,
                two_digits(report.length_mean_seconds),
            )
        };
        let minimum = of(PredictorName::LastMin);
        assert_eq!(found(&minimum), (178, 40, 0.53));
        assert!((minimum.conflicts_per_prediction - 0.225).abs() < 5e-4);
        let average = of(PredictorName::LastAverage);
        assert_eq!(found(&average), (79, 140, 2.83));
        assert!((average.conflicts_per_prediction - 1.77).abs() < 5e-3);
        let machine = of(PredictorName::StateMachine);
        assert_eq!(found(&machine), (88, 70, 1.85));
        // With a prediction on the edge from `longer` to `long`, where the figure has no
        // checkpoint, it would be 1.01 at the same length.
        let recount = Recount {
            predicts_when_back: true,
        };
        let (predictions, conflicts, _) = recounted(&recount.offers(&operations), &operations);
        assert_eq!((predictions, conflicts), (112, 113));
        // In S0's 0.01 ms no two of its events are closer than in 0.1 s: each is a click.
        assert_eq!(user_operations(&stream, 10_000), operations);
    }
}
