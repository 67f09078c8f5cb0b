//! Which closed transactions are committed now, and which wait because the user is using the
//! device: combines prediction, scheduling and the state of the machine, for the mount and the
//! simulator alike.

use alloc::boxed::Box;
use alloc::vec::Vec;

use mobifs_base::{MonotonicNs, TransactionId};

use crate::policy::machine::{Machine, MachineEvent};
use crate::policy::prediction::{Prediction, PredictionRules, UserActivity, UserState};
use crate::policy::schedule::{
    DeviceEstimate, Round, SchedulerName, TransactionScheduler, Waiting,
};
use crate::{Commit, Engine, Overdue};

/// A predicted interval may be as short as the gap between two operations; looking again more often
/// than this would only take CPU time, in nanoseconds.
const LOOK_AGAIN_NS: u64 = 1_000_000;

/// Which predictor and scheduler decide when commits happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacingRules {
    /// How long the user will not use the device.
    pub prediction: PredictionRules,
    /// What is committed meanwhile.
    pub scheduler: SchedulerName,
    /// In standby changes may become so old, in milliseconds; where the limit of an app is
    /// larger, or this is 0, the app's own limit holds.
    pub standby_age_max_ms: u64,
}

/// The state of the user, the machine and the device, and the decisions based on it. Until
/// the first user event, everything that is closed is committed at once, except in standby.
pub struct Pacing {
    rules: PacingRules,
    user: UserActivity,
    machine: Machine,
    scheduler: Box<dyn TransactionScheduler>,
    device: DeviceEstimate,
    /// The interval that was last scheduled.
    round: Option<u64>,
    /// Chosen in it.
    chosen: Vec<TransactionId>,
    /// The transactions that were closed when it was scheduled.
    closings_seen: u64,
}

/// The transactions that pacing decides about: those of an engine, or
/// [what is observed](crate::policy::observed) of a store that collects changes by itself.
pub trait CommitQueue {
    /// What is handed out to be committed.
    type Commit;

    /// Hands out this closed transaction, or what it needs; none: the first that can be.
    fn next_commit(&mut self, only: Option<TransactionId>) -> Option<Self::Commit>;

    /// Whether a transaction still waits for its commit.
    fn is_uncommitted(&self, transaction: TransactionId) -> bool;

    /// The closed transactions that can be handed out, in the order of closing.
    fn waiting(&self) -> Vec<Waiting>;

    /// How often a transaction was closed.
    fn closings(&self) -> u64;

    /// The closed transactions that have reached a limit. No limit of age below `age_min_ms`
    /// milliseconds counts.
    fn overdue(&self, now: MonotonicNs, age_min_ms: u64) -> Overdue;
}

impl CommitQueue for Engine {
    type Commit = Commit;

    fn next_commit(&mut self, only: Option<TransactionId>) -> Option<Commit> {
        Self::next_commit(self, only)
    }

    fn is_uncommitted(&self, transaction: TransactionId) -> bool {
        Self::is_uncommitted(self, transaction)
    }

    fn waiting(&self) -> Vec<Waiting> {
        Self::waiting(self)
    }

    fn closings(&self) -> u64 {
        Self::closings(self)
    }

    fn overdue(&self, now: MonotonicNs, age_min_ms: u64) -> Overdue {
        Self::overdue(self, now, age_min_ms)
    }
}

/// What to commit next.
#[derive(Debug)]
pub enum Next<C = Commit> {
    /// This.
    Commit(C),
    /// Nothing now.
    Nothing {
        /// When that may change without any event.
        until: Option<MonotonicNs>,
    },
}

impl core::fmt::Debug for Pacing {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Pacing")
            .field("user", &self.user)
            .field("machine", &self.machine)
            .field("chosen", &self.chosen)
            .finish_non_exhaustive()
    }
}

impl Pacing {
    /// By these rules; nothing is known of the user yet.
    pub fn new(rules: PacingRules) -> Self {
        Self {
            rules,
            user: UserActivity::new(&rules.prediction),
            machine: Machine::default(),
            scheduler: rules.scheduler.begin(),
            device: DeviceEstimate::default(),
            round: None,
            chosen: Vec::new(),
            closings_seen: 0,
        }
    }

    /// Sets other rules: another predictor, or one with other parameters, begins with an empty
    /// memory, another scheduler has skipped nothing.
    pub fn set_rules(&mut self, rules: PacingRules) {
        if rules.prediction != self.rules.prediction {
            self.user = UserActivity::new(&rules.prediction);
            // Its predictions are numbered anew.
            self.round = None;
        }
        if rules.scheduler != self.rules.scheduler {
            self.scheduler = rules.scheduler.begin();
            self.round = None;
        }
        self.rules = rules;
    }

    /// Its rules.
    pub const fn rules(&self) -> PacingRules {
        self.rules
    }

    /// The user did something; true if that begins an operation.
    pub fn user_event(&mut self, at: MonotonicNs) -> bool {
        self.user.event(at)
    }

    /// Something happened to the machine; true if everything is to be committed because of
    /// it, also while the user uses the device.
    #[must_use]
    pub const fn machine_event(&mut self, event: MachineEvent) -> bool {
        self.machine.happened(event)
    }

    /// What the machine is doing.
    pub const fn machine(&self) -> Machine {
        self.machine
    }

    /// What is known of the user.
    pub const fn user_mut(&mut self) -> &mut UserActivity {
        &mut self.user
    }

    /// A commit of `pages` pages took `took_ns` nanoseconds.
    pub fn learn(&mut self, pages: u64, took_ns: u64) {
        self.device.learn(pages, took_ns);
    }

    /// The transaction that should be handed out now. `is_urgent`: none may wait.
    pub fn next<Q: CommitQueue>(
        &mut self,
        queue: &mut Q,
        now: MonotonicNs,
        is_urgent: bool,
    ) -> Next<Q::Commit> {
        let state = self.user.state(now);
        let is_standby = self.machine.is_standby();
        if is_urgent || (state == UserState::Unknown && !is_standby) {
            let commit = queue.next_commit(None);
            return commit.map_or(Next::Nothing { until: None }, Next::Commit);
        }
        let age_min_ms = if is_standby {
            self.rules.standby_age_max_ms
        } else {
            0
        };
        let overdue = queue.overdue(now, age_min_ms);
        if let Some(commit) = first_of(queue, &overdue.transactions) {
            return Next::Commit(commit);
        }
        if is_standby {
            return Next::Nothing {
                until: overdue.next_at,
            };
        }
        let until = match state {
            UserState::Away(prediction) => {
                self.schedule(queue, now, &prediction);
                if let Some(commit) = first_of(queue, &self.chosen) {
                    return Next::Commit(commit);
                }
                let rest_ns = prediction.rest_ns(now).max(LOOK_AGAIN_NS);
                MonotonicNs(now.0.saturating_add(rest_ns))
            }
            UserState::Active { until } => until,
            // Handled above.
            UserState::Unknown => now,
        };
        // Only waiting transactions are a reason to wake up.
        let until = (!queue.waiting().is_empty()).then_some(until);
        Next::Nothing {
            until: [until, overdue.next_at].into_iter().flatten().min(),
        }
    }

    /// Asks the scheduler if the interval is a new one, or something was closed in it.
    fn schedule(&mut self, queue: &impl CommitQueue, now: MonotonicNs, prediction: &Prediction) {
        let closings = queue.closings();
        let is_same = self.round == Some(prediction.number);
        if is_same && self.closings_seen == closings {
            return;
        }
        if !is_same {
            self.chosen.clear();
        }
        (self.round, self.closings_seen) = (Some(prediction.number), closings);
        let waiting = queue.waiting();
        self.chosen
            .retain(|transaction| waiting.iter().any(|waiting| waiting.id == *transaction));
        let (before, new): (Vec<Waiting>, Vec<Waiting>) = waiting
            .into_iter()
            .partition(|waiting| self.chosen.contains(&waiting.id));
        let taken_ns = before
            .iter()
            .map(|waiting| self.device.commit_ns(waiting.pages))
            .fold(0, u64::saturating_add);
        let round = Round {
            number: prediction.number,
            available_ns: prediction.rest_ns(now).saturating_sub(taken_ns),
            device: self.device,
        };
        self.chosen.extend(self.scheduler.choose(&new, &round));
    }
}

/// Hands out the first of these that can be, or what it needs.
fn first_of<Q: CommitQueue>(queue: &mut Q, transactions: &[TransactionId]) -> Option<Q::Commit> {
    transactions
        .iter()
        .filter(|transaction| queue.is_uncommitted(**transaction))
        .copied()
        .collect::<Vec<_>>()
        .into_iter()
        .find_map(|transaction| queue.next_commit(Some(transaction)))
}
