//! When the checkpointer commits what is closed: at once, or when the user does not use the device.

use mobifs_base::MonotonicNs;
use mobifs_engine::policy::prediction::UserState;
use mobifs_engine::{MachineEvent, Next};

use super::locked_engine::LockedEngine;
use super::{Shared, Volume, VolumeError};
use crate::status::UserReport;

impl Shared {
    /// What the checkpointer commits next, if anything. A thread that needs a commit at once does
    /// not call this.
    pub(super) fn next_paced(&self, locked: &mut LockedEngine<'_>) -> Next {
        let is_urgent = locked.engine.dirty_bytes() > self.memory_high_bytes();
        let now = self.moment().now;
        let mut pacing = self.pacing.lock();
        pacing.next(&mut locked.engine, now, is_urgent)
    }

    /// Whether what is not urgent is postponed because the device is in standby.
    pub(super) fn is_standby(&self) -> bool {
        self.pacing.lock().machine().is_standby()
    }

    /// Waiting commits may be due now: wakes the checkpointer.
    fn look_again(&self) {
        self.wake(&mut self.lock_engine());
    }

    fn user_event(&self, now: MonotonicNs) {
        if self.pacing.lock().user_event(now) {
            let mut locked = self.lock_engine();
            if locked.engine.has_closed() {
                // The next commit's time depends on what was just learned.
                self.wake(&mut locked);
            }
        }
    }

    /// A program waits for an answer. Where users are detected by bursts of requests, this may be a
    /// sign of one.
    pub(super) fn requested(&self) {
        let Some(bursts) = &self.bursts else { return };
        let now = self.moment().now;
        let is_burst = bursts.lock().request(now);
        if is_burst {
            self.user_event(now);
        }
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
            predictor: rules.prediction.predictor.as_str().to_owned(),
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
    /// A source that is more reliable than the pauses between operations reports that the user has
    /// gone, until the next [`Volume::user_event`].
    pub fn user_left(&self) {
        let shared = &self.shared;
        let now = shared.moment().now;
        shared.pacing.lock().user_mut().left(now);
        shared.look_again();
    }

    /// The screen was switched on or off. When it goes off, standby begins: everything is
    /// committed before this returns, and what changes then is committed when it reaches a
    /// limit, or when standby ends.
    ///
    /// # Errors
    /// What could not be committed, as [`Volume::sync_app`]. Standby begins all the same.
    pub fn set_screen(&self, is_on: bool) -> Result<(), VolumeError> {
        let shared = &self.shared;
        let event = if is_on {
            MachineEvent::ScreenOn
        } else {
            MachineEvent::ScreenOff
        };
        let must_commit = shared.pacing.lock().machine_event(event);
        tracing::debug!(is_on, "the state of the screen changed");
        if must_commit {
            self.sync_app(None, false)?;
        }
        shared.look_again();
        Ok(())
    }

    /// The machine is about to sleep or to be switched off: everything is committed when
    /// this returns.
    ///
    /// # Errors
    /// What could not be committed, as [`Volume::sync_app`].
    pub fn power_goes(&self) -> Result<(), VolumeError> {
        let must_commit = self
            .shared
            .pacing
            .lock()
            .machine_event(MachineEvent::PowerGoes);
        if must_commit {
            self.sync_app(None, false)?;
        }
        Ok(())
    }

    /// The user does something: touches the screen, presses a key. From the first time on, what a
    /// policy has closed before its limits is committed when the user is expected not to use the
    /// device.
    pub fn user_event(&self) {
        self.shared.user_event(self.shared.moment().now);
    }
}
