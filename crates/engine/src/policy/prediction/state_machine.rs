//! The four-state machine of S0 Fig. 4.

use mobifs_base::MonotonicNs;

use super::history::History;
use super::{IntervalPredictor, Prediction};

/// Parameters of [`StateMachine`]. S0 §5.3 names them without values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateMachineParameters {
    /// Short intervals remembered, k_s.
    pub history_short: usize,
    /// Long intervals remembered, k_l.
    pub history_long: usize,
    /// t_s before the first short interval, in nanoseconds.
    pub initial_short_ns: u64,
    /// t_l before the first long interval, in nanoseconds.
    pub initial_long_ns: u64,
    /// m: after m × t_s without an operation the user is taken to begin a long interval.
    pub timeout_factor: u64,
}

impl Default for StateMachineParameters {
    fn default() -> Self {
        Self {
            history_short: 4,
            history_long: 4,
            initial_short_ns: 200_000_000,
            initial_long_ns: 3_000_000_000,
            timeout_factor: 3,
        }
    }
}

/// What the user is taken to be doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Operates with short intervals.
    Short,
    /// Operates with long intervals.
    Long,
    /// Came back sooner than predicted: long intervals become shorter.
    Shorter,
    /// Stays away longer than predicted: long intervals become longer.
    Longer,
}

/// Learns two kinds of intervals, and when the user changes from one to the other.
///
/// The edges, with τ = m × t_s and δ = t_l; t_s and t_l are the shortest of the last
/// intervals in A_s and A_l, or the initial values:
///
/// | from | event | action | to |
/// | --- | --- | --- | --- |
/// | short | u | update A_s | short |
/// | short | τ | checkpoint | long |
/// | long | u ≤ τ | update A_s | short |
/// | long | u > τ | update A_l | shorter |
/// | long | δ | checkpoint | longer |
/// | longer | u | update A_l | long |
/// | shorter | u | update A_s | short |
///
/// *Update* takes the interval since the operation before; the first one has none.
///
/// The figure leaves open from where times count. Here the interval of an operation
/// ("u ≤ τ") and the event τ count from the operation before, so that A_s only gets what
/// is short when the user is thought to be in long intervals; the event δ counts from
/// when the state `long` was entered, because the prediction is made there.
///
/// A prediction holds in `long` for t_l from its beginning, and in `longer` for t_l again
/// and again: the state waits for the user however long that takes. In `short` and
/// `shorter` the user is expected to go on. The figure predicts (*checkpoint*) at τ and δ alone;
/// the renewals in `longer`, and the prediction on the edge from `longer` to `long`, are ours: a
/// mount may use the whole of a pause.
#[derive(Clone, Debug)]
pub struct StateMachine {
    parameters: StateMachineParameters,
    state: State,
    short: History,
    long: History,
    operated_at: Option<MonotonicNs>,
    /// When the state was entered.
    entered_at: MonotonicNs,
    /// Predictions made before this state.
    predictions: u64,
}

impl StateMachine {
    /// A machine that has seen nothing, in the state `short`.
    pub fn new(parameters: StateMachineParameters) -> Self {
        Self {
            parameters,
            state: State::Short,
            short: History::new(parameters.history_short),
            long: History::new(parameters.history_long),
            operated_at: None,
            entered_at: MonotonicNs(0),
            predictions: 0,
        }
    }

    /// Where the machine is.
    pub const fn state(&self) -> State {
        self.state
    }

    /// t_s, in nanoseconds.
    pub fn short_ns(&self) -> u64 {
        let shortest = self.short.minimum();
        shortest.unwrap_or(self.parameters.initial_short_ns)
    }

    /// t_l, in nanoseconds.
    pub fn long_ns(&self) -> u64 {
        let shortest = self.long.minimum();
        shortest.unwrap_or(self.parameters.initial_long_ns)
    }

    /// τ, in nanoseconds.
    fn timeout_ns(&self) -> u64 {
        self.short_ns()
            .saturating_mul(self.parameters.timeout_factor)
    }

    /// `predictions` were made before.
    fn enter(&mut self, state: State, at: MonotonicNs, predictions: u64) {
        self.predictions = predictions;
        (self.state, self.entered_at) = (state, at);
        if matches!(state, State::Long | State::Longer) {
            self.predictions += 1;
        }
    }

    /// Number of the prediction that was made last.
    fn number(&self, now: MonotonicNs) -> u64 {
        match self.state {
            State::Longer => self.predictions + self.repetitions(now),
            _ => self.predictions,
        }
    }

    /// How often the prediction of the state has held and was made again.
    fn repetitions(&self, now: MonotonicNs) -> u64 {
        let since_ns = now.0.saturating_sub(self.entered_at.0);
        since_ns / self.long_ns().max(1)
    }
}

impl IntervalPredictor for StateMachine {
    fn user_operation(&mut self, at: MonotonicNs) {
        self.timer(at);
        // Before t_l changes, which they were counted with.
        let predictions = self.number(at);
        let interval_ns = self
            .operated_at
            .replace(at)
            .map(|before| at.0.saturating_sub(before.0));
        let is_quick = interval_ns.is_some_and(|ns| ns <= self.timeout_ns());
        let (history, next) = match self.state {
            State::Short | State::Shorter => (&mut self.short, State::Short),
            State::Long if is_quick => (&mut self.short, State::Short),
            State::Long => (&mut self.long, State::Shorter),
            State::Longer => (&mut self.long, State::Long),
        };
        if let Some(interval_ns) = interval_ns {
            history.push(interval_ns);
        }
        self.enter(next, at, predictions);
    }

    fn timer_at(&self) -> Option<MonotonicNs> {
        let after = |at: MonotonicNs, ns: u64| MonotonicNs(at.0.saturating_add(ns));
        match self.state {
            State::Short => Some(after(self.operated_at?, self.timeout_ns())),
            State::Long => Some(after(self.entered_at, self.long_ns())),
            State::Shorter | State::Longer => None,
        }
    }

    fn timer(&mut self, now: MonotonicNs) {
        while let Some(at) = self.timer_at().filter(|at| *at <= now) {
            let next = match self.state {
                State::Short => State::Long,
                _ => State::Longer,
            };
            self.enter(next, at, self.number(at));
        }
    }

    fn predict(&self, now: MonotonicNs) -> Option<Prediction> {
        let length_ns = self.long_ns();
        let from = match self.state {
            State::Short | State::Shorter => return None,
            State::Long => self.entered_at,
            State::Longer => {
                let passed_ns = self.repetitions(now).saturating_mul(length_ns);
                MonotonicNs(self.entered_at.0.saturating_add(passed_ns))
            }
        };
        let prediction = Prediction {
            number: self.number(now),
            from,
            length_ns,
        };
        (prediction.rest_ns(now) > 0).then_some(prediction)
    }
}
