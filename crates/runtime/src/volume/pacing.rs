//! Which closed transactions the checkpointer commits now, and which wait because
//! somebody is using the device.

use mobifs_core::policy::prediction::{Prediction, PredictorName, UserActivity, UserState};
use mobifs_core::policy::schedule::{
    DeviceEstimate, Round, SchedulerName, TransactionScheduler, Waiting,
};
use mobifs_core::{Commit, Engine};
use mobifs_types::{MonotonicNs, VctId};

use super::live::LiveGuard;
use super::{Shared, Volume};
use crate::status::UserReport;

/// What is known of the user and the device, and what was made of it.
pub(super) struct Pacing {
    user: UserActivity,
    scheduler: Box<dyn TransactionScheduler>,
    device: DeviceEstimate,
    /// The interval that was last scheduled.
    round: Option<u64>,
    /// Chosen in it.
    chosen: Vec<VctId>,
    /// The transactions that were closed when it was scheduled.
    closings_seen: u64,
}

/// What to commit next.
pub(super) enum Next {
    /// This.
    Commit(Commit),
    /// Nothing now.
    Nothing {
        /// When that may change although nobody does anything.
        until: Option<MonotonicNs>,
    },
}

impl Pacing {
    pub(super) fn new() -> Self {
        Self {
            user: UserActivity::new(PredictorName::default()),
            scheduler: SchedulerName::default().begin(),
            device: DeviceEstimate::default(),
            round: None,
            chosen: Vec::new(),
            closings_seen: 0,
        }
    }

    /// What the engine should hand out now. `is_urgent`: nothing may wait.
    fn next(&mut self, engine: &mut Engine, now: MonotonicNs, is_urgent: bool) -> Next {
        let state = self.user.state(now);
        if is_urgent || state == UserState::Unknown {
            let commit = engine.next_commit(None);
            return commit.map_or(Next::Nothing { until: None }, Next::Commit);
        }
        let overdue = engine.overdue(now);
        if let Some(commit) = first_of(engine, &overdue.vcts) {
            return Next::Commit(commit);
        }
        let until = match state {
            UserState::Away(prediction) => {
                self.schedule(engine, now, &prediction);
                if let Some(commit) = first_of(engine, &self.chosen) {
                    return Next::Commit(commit);
                }
                MonotonicNs(now.0.saturating_add(prediction.rest_ns(now)))
            }
            UserState::Active { until } => until,
            // Handled above.
            UserState::Unknown => now,
        };
        // Only what waits is a reason to wake up.
        let until = (!engine.waiting().is_empty()).then_some(until);
        Next::Nothing {
            until: [until, overdue.next_at].into_iter().flatten().min(),
        }
    }

    /// Asks the scheduler if the interval is a new one, or something was closed in it.
    fn schedule(&mut self, engine: &Engine, now: MonotonicNs, prediction: &Prediction) {
        let closings = engine.closings();
        let is_same = self.round == Some(prediction.number);
        if is_same && self.closings_seen == closings {
            return;
        }
        if !is_same {
            self.chosen.clear();
        }
        (self.round, self.closings_seen) = (Some(prediction.number), closings);
        let waiting = engine.waiting();
        self.chosen
            .retain(|vct| waiting.iter().any(|waiting| waiting.vct == *vct));
        let (before, new): (Vec<Waiting>, Vec<Waiting>) = waiting
            .into_iter()
            .partition(|waiting| self.chosen.contains(&waiting.vct));
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
fn first_of(engine: &mut Engine, vcts: &[VctId]) -> Option<Commit> {
    vcts.iter()
        .filter(|vct| engine.is_uncommitted(**vct))
        .copied()
        .collect::<Vec<_>>()
        .into_iter()
        .find_map(|vct| engine.next_commit(Some(vct)))
}

impl Shared {
    /// What the checkpointer commits next, if anything. Who needs a commit at once does
    /// not ask here.
    pub(super) fn next_paced(&self, live: &mut LiveGuard<'_>) -> Next {
        let is_urgent = live.engine.dirty_bytes() > self.memory_high_bytes();
        let now = self.moment().now;
        let mut pacing = self.pacing.lock();
        pacing.next(&mut live.engine, now, is_urgent)
    }

    pub(super) fn user_report(&self, now: MonotonicNs) -> UserReport {
        let user = &mut self.pacing.lock().user;
        let state = match user.state(now) {
            UserState::Unknown => "unknown",
            UserState::Active { .. } => "active",
            UserState::Away(_) => "away",
        };
        UserReport {
            state: state.to_owned(),
            operations: user.operations(),
        }
    }

    /// A commit took from `started` until now.
    pub(super) fn learn_commit(&self, pages: u64, started: MonotonicNs) {
        let took_ns = self.moment().now.0.saturating_sub(started.0);
        self.pacing.lock().device.learn(pages, took_ns);
    }
}

impl Volume {
    /// The user does something: touches the screen, presses a key. From the first time
    /// on, what a policy has closed before its limits is committed when the user is
    /// expected to leave the device alone.
    pub fn user_event(&self) {
        let shared = &self.shared;
        let now = shared.moment().now;
        if shared.pacing.lock().user.event(now) {
            let mut live = shared.live();
            if live.engine.has_closed() {
                // When it may go on depends on what was just learned.
                shared.wake(&mut live);
            }
        }
    }
}
