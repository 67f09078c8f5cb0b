//! When the checkpointer commits what is closed: at once, or when the user leaves the
//! device alone.

use mobifs_core::Next;
use mobifs_core::policy::prediction::UserState;
use mobifs_types::MonotonicNs;

use super::live::LiveGuard;
use super::{Shared, Volume};
use crate::status::UserReport;

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
        let mut pacing = self.pacing.lock();
        let rules = pacing.rules();
        let user = pacing.user_mut();
        let state = match user.state(now) {
            UserState::Unknown => "unknown",
            UserState::Active { .. } => "active",
            UserState::Away(_) => "away",
        };
        UserReport {
            state: state.to_owned(),
            operations: user.operations(),
            predictor: rules.predictor.as_str().to_owned(),
            scheduler: rules.scheduler.as_str().to_owned(),
        }
    }

    /// A commit took from `started` until now.
    pub(super) fn learn_commit(&self, pages: u64, started: MonotonicNs) {
        let took_ns = self.moment().now.0.saturating_sub(started.0);
        self.pacing.lock().learn(pages, took_ns);
    }
}

impl Volume {
    /// The user does something: touches the screen, presses a key. From the first time
    /// on, what a policy has closed before its limits is committed when the user is
    /// expected to leave the device alone.
    pub fn user_event(&self) {
        let shared = &self.shared;
        let now = shared.moment().now;
        if shared.pacing.lock().user_event(now) {
            let mut live = shared.live();
            if live.engine.has_closed() {
                // When it may go on depends on what was just learned.
                shared.wake(&mut live);
            }
        }
    }
}
