//! The predictors, event by event.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use mobifs_base::MonotonicNs;
use mobifs_engine::policy::prediction::{
    Bursts, IntervalPredictor as _, LastAverage, LastMinimum, Prediction, PredictionRules,
    PredictorName, State, StateMachine, StateMachineParameters, TOUCH_GAP_NS, TouchFilter,
    UserActivity, UserState,
};

const fn ms(ms: u64) -> MonotonicNs {
    MonotonicNs(ms * 1_000_000)
}

/// A machine with a clock that moves by hand.
struct Walk {
    machine: StateMachine,
    now_ms: u64,
}

impl Walk {
    fn new() -> Self {
        Self {
            machine: StateMachine::new(StateMachineParameters::default()),
            now_ms: 1_000,
        }
    }

    /// Time passes; timers that are due fire. Returns the state.
    fn pass(&mut self, for_ms: u64) -> State {
        self.now_ms += for_ms;
        self.machine.timer(ms(self.now_ms));
        self.machine.state()
    }

    /// Event u, `after_ms` after the event before.
    fn operate(&mut self, after_ms: u64) -> State {
        self.now_ms += after_ms;
        self.machine.user_operation(ms(self.now_ms));
        self.machine.state()
    }

    /// t_s and t_l, in milliseconds.
    fn times(&self) -> (u64, u64) {
        let (short, long) = (self.machine.short_ns(), self.machine.long_ns());
        (short / 1_000_000, long / 1_000_000)
    }

    fn predicted_ms(&self) -> Option<u64> {
        let prediction = self.machine.predict(ms(self.now_ms))?;
        Some(prediction.rest_ns(ms(self.now_ms)) / 1_000_000)
    }
}

#[test]
fn every_edge_of_the_figure_is_walked() {
    let mut walk = Walk::new();
    assert_eq!(walk.machine.timer_at(), None, "no event has happened");
    assert_eq!(walk.operate(0), State::Short);
    assert_eq!(walk.times(), (200, 3_000), "the initial values");
    // short, u: update A_s, short.
    assert_eq!(walk.operate(300), State::Short);
    assert_eq!(walk.times(), (300, 3_000));
    assert_eq!(walk.predicted_ms(), None);
    // short, τ = 3 × 300 ms: checkpoint, long.
    assert_eq!(walk.machine.timer_at(), Some(ms(walk.now_ms + 900)));
    assert_eq!(walk.pass(899), State::Short);
    assert_eq!(walk.pass(1), State::Long);
    assert_eq!(walk.predicted_ms(), Some(3_000));
    // long, u > τ: update A_l, shorter.
    assert_eq!(walk.operate(600), State::Shorter);
    assert_eq!(walk.times(), (300, 1_500));
    assert_eq!(walk.predicted_ms(), None);
    assert_eq!(walk.machine.timer_at(), None);
    assert_eq!(walk.pass(100_000), State::Shorter, "it has no timer");
    // shorter, u: update A_s, short.
    assert_eq!(walk.operate(0), State::Short);
    assert_eq!(walk.times(), (300, 1_500));
    // To long again, then δ = 1,500 ms later: checkpoint, longer.
    assert_eq!(walk.pass(900), State::Long);
    assert_eq!(walk.pass(1_499), State::Long);
    assert_eq!(walk.pass(1), State::Longer);
    assert_eq!(walk.predicted_ms(), Some(1_500));
    assert_eq!(walk.pass(10_000), State::Longer, "it waits");
    // longer, u: update A_l, long. The shortest of 1,500 and 12,400.
    assert_eq!(walk.operate(0), State::Long);
    assert_eq!(walk.times(), (300, 1_500));
    assert_eq!(walk.predicted_ms(), Some(1_500));
    // long, u ≤ τ: update A_s, short.
    assert_eq!(walk.operate(250), State::Short);
    assert_eq!(walk.times(), (250, 1_500));
}

#[test]
fn an_operation_at_the_very_timeout_ends_a_short_interval() {
    let mut walk = Walk::new();
    walk.operate(0);
    // The timer at 600 ms comes first, and the operation finds the state long: it is
    // not later than τ.
    assert_eq!(walk.operate(600), State::Short);
    assert_eq!(walk.times(), (600, 3_000));
    assert_eq!(walk.operate(1_801), State::Shorter);
    assert_eq!(walk.times(), (600, 1_801));
}

#[test]
fn histories_hold_the_last_four_and_the_shortest_counts() {
    let mut walk = Walk::new();
    walk.operate(0);
    for (interval_ms, shortest_ms) in [
        (150, 150),
        (180, 150),
        (190, 150),
        (170, 150),
        (195, 170),
        (199, 170),
        (250, 170),
        (260, 195),
    ] {
        assert_eq!(walk.operate(interval_ms), State::Short);
        assert_eq!(walk.times().0, shortest_ms);
    }
}

#[test]
fn timers_that_are_called_late_fire_one_after_the_other() {
    let mut late = Walk::new();
    late.operate(0);
    let mut punctual = late.machine.clone();
    assert_eq!(late.pass(60_000), State::Longer);
    while let Some(at) = punctual.timer_at() {
        punctual.timer(at);
    }
    let now = ms(late.now_ms);
    assert_eq!(punctual.predict(now), late.machine.predict(now));
}

#[test]
fn as_long_as_the_user_stays_away_a_prediction_follows_the_other() {
    let mut walk = Walk::new();
    walk.operate(0);
    let mut numbers = Vec::new();
    // Long from 0.6 s, longer from 3.6 s, each prediction 3 s.
    for _ in 0..96 {
        walk.pass(100);
        let now = ms(walk.now_ms);
        numbers.extend(walk.machine.predict(now).map(|p| (p.number, p.from)));
    }
    numbers.dedup();
    let expected = [
        (1, ms(1_600)),
        (2, ms(4_600)),
        (3, ms(7_600)),
        (4, ms(10_600)),
    ];
    assert_eq!(numbers, expected);
    // A number is never used again.
    walk.operate(0);
    walk.pass(1);
    assert_eq!(walk.machine.predict(ms(walk.now_ms)).unwrap().number, 5);
}

#[test]
fn the_simple_predictors_take_the_last_intervals_as_they_were() {
    let (mut cautious, mut bold) = (LastMinimum::new(3), LastAverage::new(3));
    let mut at = 0;
    for interval_ms in [0, 100, 900, 400, 1_100] {
        at += interval_ms;
        assert_eq!(cautious.predict(ms(at)).is_some(), at > 100);
        cautious.user_operation(ms(at));
        bold.user_operation(ms(at));
    }
    // Of 900, 400, 1,100.
    let prediction = cautious.predict(ms(at)).unwrap();
    assert_eq!(
        (prediction.from, prediction.length_ns),
        (ms(at), 400_000_000)
    );
    let (first, of_bold) = (prediction.number, bold.predict(ms(at)).unwrap());
    assert_eq!(of_bold.length_ns, 800_000_000);
    // Its time is over: the same again.
    let again = Prediction {
        number: first + 2,
        from: ms(at + 800),
        length_ns: 400_000_000,
    };
    assert_eq!(cautious.predict(ms(at + 801)), Some(again));
    cautious.user_operation(ms(at + 850));
    let next = cautious.predict(ms(at + 850)).unwrap();
    assert_eq!((next.number, next.length_ns), (first + 3, 400_000_000));
}

#[test]
fn a_drag_is_one_operation() {
    let mut filter = TouchFilter::new(TOUCH_GAP_NS);
    let begins: Vec<u64> = [0, 10, 99, 150, 249, 349, 350, 450]
        .into_iter()
        .filter(|&at| filter.event(ms(1_000 + at)))
        .collect();
    assert_eq!(begins, [0, 349, 450]);
}

/// A finger drawn over a screen that reports 60 times a second, each report three events within
/// 4 µs: S0's 0.01 ms makes one of each report, and only a longer gap one of the drag.
#[test]
fn a_gap_of_ten_microseconds_takes_every_report_of_a_drag_for_an_operation() {
    let events = (0..60_u64).flat_map(|report| {
        let at_ns = 1_000_000_000 + report * 16_666_667;
        [0, 2_000, 4_000].map(|later_ns| MonotonicNs(at_ns + later_ns))
    });
    let operations = |gap_ns: u64| {
        let rules = PredictionRules {
            touch_gap_ns: gap_ns,
            ..PredictionRules::default()
        };
        let mut user = UserActivity::new(&rules);
        events.clone().filter(|&at| user.event(at)).count()
    };
    assert_eq!(operations(10_000), 60);
    assert_eq!(operations(TOUCH_GAP_NS), 1);
}

#[test]
fn parameters_decide_what_a_predictor_remembers_and_expects() {
    let mut rules = PredictionRules::of(PredictorName::LastMin);
    rules.parameters.history_long = 2;
    let mut cautious = rules.begin();
    for at in [0, 100, 1_000, 1_900] {
        cautious.user_operation(ms(at));
    }
    let prediction = cautious.predict(ms(1_900)).unwrap();
    assert_eq!(prediction.length_ns, 900_000_000, "100 ms are forgotten");
    let mut rules = PredictionRules::default();
    rules.parameters.timeout_factor = 5;
    rules.parameters.initial_short_ns = 300_000_000;
    rules.parameters.initial_long_ns = 7_000_000_000;
    let mut machine = rules.begin();
    machine.user_operation(ms(1_000));
    // τ = 5 × 300 ms.
    assert_eq!(machine.timer_at(), Some(ms(2_500)));
    machine.timer(ms(2_500));
    let prediction = machine.predict(ms(2_500)).unwrap();
    assert_eq!(prediction.length_ns, 7_000_000_000);
}

#[test]
fn many_requests_after_a_pause_are_a_user() {
    let mut bursts = Bursts::default();
    let mut requests = |from_ms: u64, step_ms: u64, count: u64| {
        let moments = (0..count).map(|number| from_ms + number * step_ms);
        let found: Vec<u64> = moments.filter(|&at| bursts.request(ms(at))).collect();
        found
    };
    // The sixteenth within 0.1 s.
    assert_eq!(requests(10_000, 2, 200), [10_030]);
    // Without a pause it is work that goes on: a build, a backup.
    assert_eq!(requests(11_000, 2, 200), []);
    assert_eq!(requests(12_398, 2, 200), [12_428], "1 s after the last");
    assert_eq!(
        requests(14_000, 7, 15),
        [],
        "a program that looks after a file"
    );
    assert_eq!(requests(16_000, 7, 16), [], "too slow by 5 ms");
    assert_eq!(requests(17_105, 2, 100), [17_135]);
    assert_eq!(requests(20_000, 600, 100), []);
}

#[test]
fn the_user_is_unknown_then_active_then_away() {
    let mut user = UserActivity::new(&PredictionRules::default());
    assert_eq!(user.state(ms(5_000)), UserState::Unknown);
    assert!(user.event(ms(5_000)));
    let until = |at| UserState::Active { until: ms(at) };
    assert_eq!(user.state(ms(5_000)), until(5_100));
    assert_eq!(user.state(ms(5_100)), until(6_000));
    assert!(matches!(user.state(ms(6_000)), UserState::Away(p) if p.length_ns == 3_000_000_000));
    // A drag that goes on for long: whatever is predicted, the user is there.
    (6_100..8_100).step_by(50).for_each(|at| {
        user.event(ms(at));
    });
    assert_eq!(user.state(ms(8_100)), until(8_150));
    assert_eq!(user.operations(), 2);
    assert_eq!(user.state(ms(8_150)), until(9_050));
    // The machine is in `shorter`, where it would wait for ever.
    assert_eq!(user.state(ms(9_050)), until(68_150));
    assert!(matches!(user.state(ms(68_150)), UserState::Away(_)));
}

#[test]
fn a_user_who_has_just_done_something_is_not_away() {
    let mut user = UserActivity::new(&PredictionRules::default());
    user.event(ms(5_000));
    assert!(matches!(user.state(ms(9_000)), UserState::Away(_)));
    // The machine is in `longer`; from the very operation on it expects a long interval.
    user.event(ms(10_000));
    let waits = UserState::Active { until: ms(11_000) };
    assert_eq!(user.state(ms(10_999)), waits);
    assert!(matches!(user.state(ms(11_000)), UserState::Away(_)));
    // Unless the session reports it.
    user.event(ms(12_000));
    user.left(ms(12_050));
    assert!(matches!(user.state(ms(12_100)), UserState::Away(_)));
}

#[test]
fn names_are_found_again() {
    for name in PredictorName::ALL {
        assert_eq!(PredictorName::from_name(name.as_str()), Some(name));
    }
    assert_eq!(PredictorName::from_name("oracle"), None);
}
