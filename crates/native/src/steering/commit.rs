//! Committing the filesystem.

use mobifs_engine::MachineEvent;
use mobifs_volume::BatterySource;
use rustix::io::Errno;

use super::{Steering, SteeringError};
use crate::filesystem::Committer;
use crate::only::Only;
use crate::takeover::Difference;

/// After a commit that failed, the next one is tried so much later, in nanoseconds.
pub(super) const RETRY_NS: u64 = 5_000_000_000;
/// Committing less than this does not help against memory pressure.
const PRESSURE_FLUSH_PAGES_MIN: u64 = 256;

impl Steering {
    /// Commits everything that was written before. `writes_back`: content goes to its place, too.
    ///
    /// # Errors
    /// The filesystem's.
    pub fn commit(&self, writes_back: bool) -> Result<(), SteeringError> {
        let committer = self.committer.lock();
        let Some(committer) = &*committer else {
            return Err(SteeringError::Ended {
                path: self.mount.mountpoint.clone(),
            });
        };
        self.look_at_options();
        let is_read_only = self.state.lock().promise.changed == Some(Difference::ReadOnly);
        let started = Self::moment().now;
        // What was reported by now is in the commit; what is reported from now on may not be.
        if self.take_change() {
            self.state.lock().wrote(started, 0, true);
        }
        self.expect_change(started);
        let done = if is_read_only {
            // A filesystem that has failed would take `syncfs` for done.
            Err(Errno::ROFS)
        } else if writes_back {
            committer.commit_and_write_back()
        } else {
            committer.commit()
        };
        let ended = Self::moment();
        let (dirtied, commits) = (self.dirtied.read(), self.filesystem.commits());
        {
            let mut state = self.state.lock();
            let pages = state.counts.take_dirtied(dirtied);
            state.counts.written_pages += pages;
            if state.observed.observed().is_some() {
                state.observed.changed(ended.now, pages, 0);
            }
            let commits = state.counts.take_commits(commits);
            if let Err(errno) = done {
                let error = SteeringError::Commit {
                    path: self.mount.mountpoint.clone(),
                    errno,
                };
                // Each retry fails in the same way.
                let why = error.to_string();
                if state.promise.failed.as_ref() != Some(&why) {
                    tracing::error!(%error, "the promise is withdrawn until a commit succeeds");
                }
                state.promise.failed = Some(why);
                state.promise.update();
                let retry_at = ended.now.0.saturating_add(RETRY_NS);
                state.retry_at = Some(mobifs_base::MonotonicNs(retry_at));
                return Err(error);
            }
            // Where nothing has changed, there may have been none.
            state.counts.own_commits += commits.unwrap_or(1).min(1);
            state.counts.other_commits += commits.unwrap_or(0).saturating_sub(1);
            let committed = state.observed.committed();
            state.counts.committed(committed);
            let pages = committed.map_or(0, |committed| committed.efficiency.written_pages());
            let took_ns = ended.now.0.saturating_sub(started.0);
            state.pacing.learn(pages, took_ns);
            state.last_commit = Some(ended);
            state.retry_at = None;
            if state.promise.failed.take().is_some() {
                tracing::info!("the filesystem commits again: the promise holds");
                state.promise.update();
            }
        }
        self.keep_history(ended.now);
        if self.changes.is_none() || self.take_change() {
            self.state.lock().wrote(started, 0, true);
            // It is not reported to the thread that runs it.
            self.wake();
        }
        Ok(())
    }

    /// Nothing is promised any more, everything is committed, and the mount options are as they
    /// were.
    ///
    /// # Errors
    /// The options could not be restored, or the last commit failed; it has ended all the same.
    pub fn end(&self) -> Result<(), SteeringError> {
        {
            let mut state = self.state.lock();
            if state.has_ended {
                return Ok(());
            }
            state.promise.end();
        }
        // Programs that have seen no withdrawal yet have written before this.
        let committed = self.commit(true);
        // So that it can be unmounted.
        *self.committer.lock() = None;
        self.close_history();
        let restored = {
            let mut state = self.state.lock();
            state.has_ended = true;
            let unmarked = state.only.as_ref().map_or(Ok(()), Only::restore);
            let restored = state.takeover.restore().map_err(SteeringError::from);
            restored.and(unmarked.map_err(SteeringError::from))
        };
        self.wake();
        restored?;
        committed
    }

    /// Where the mount has ended: what programs have written to what they still have open is committed, and the
    /// options are as they were, also for mounts that this process does not see.
    pub(super) fn end_detached(&self) {
        if !std::mem::take(&mut self.state.lock().is_detached) {
            return;
        }
        let committer = self.committer.lock().take();
        if let Some(Err(error)) = committer.as_ref().map(Committer::commit_and_write_back) {
            tracing::error!(%error, "the filesystem could not commit when its mount ended");
        }
        drop(committer);
        self.close_history();
        if let Err(error) = self.state.lock().takeover.restore() {
            tracing::error!(%error, "the mount has ended, and its options are not as they were");
        }
    }

    /// As [`Self::commit`], for events: an error is in the log and in the status.
    fn commit_for_event(&self) {
        let _logged = self.commit(false);
        self.wake();
    }

    /// The user does something.
    pub fn user_acted(&self) {
        let now = Self::moment().now;
        if self.state.lock().pacing.user_event(now) {
            self.wake();
        }
    }

    /// The user has gone.
    pub fn user_has_left(&self) {
        let now = Self::moment().now;
        self.state.lock().pacing.user_mut().left(now);
        self.wake();
    }

    /// The screen was switched on or off: with the last one off standby begins, and everything is
    /// committed before this returns.
    ///
    /// # Errors
    /// The filesystem's. Standby begins all the same.
    pub fn screen_switched(&self, is_on: bool) -> Result<(), SteeringError> {
        let event = if is_on {
            MachineEvent::ScreenOn
        } else {
            MachineEvent::ScreenOff
        };
        let must_commit = self.state.lock().pacing.machine_event(event);
        if must_commit {
            self.commit(false)?;
        }
        self.wake();
        Ok(())
    }

    /// A source says that the battery is low, or no longer: while it is, calls for durability wait.
    pub fn battery_changed(&self, source: BatterySource, is_low: bool) {
        let must_commit = {
            let mut state = self.state.lock();
            if is_low {
                state.low_batteries.insert(source);
            } else {
                state.low_batteries.remove(&source);
            }
            let is_low = !state.low_batteries.is_empty();
            state.promise.set_battery_low(is_low);
            state.promise.update();
            state.pacing.machine_event(if is_low {
                MachineEvent::BatteryLow
            } else {
                MachineEvent::BatteryOk
            })
        };
        tracing::info!(?source, is_low, "the state of the battery changed");
        if must_commit {
            self.commit_for_event();
        }
    }

    /// The machine is about to sleep or to be switched off: everything is committed when this
    /// returns.
    pub fn power_is_going(&self) {
        let must_commit = self
            .state
            .lock()
            .pacing
            .machine_event(MachineEvent::PowerGoes);
        if must_commit {
            self.commit_for_event();
        }
    }

    /// Memory is short: what is dirty is committed and written to its place, so that the kernel can
    /// drop it.
    pub fn memory_is_short(&self) {
        let observed = self.state.lock().observed.observed();
        let pages = observed.map_or(0, |observed| observed.efficiency.written_pages());
        if pages >= PRESSURE_FLUSH_PAGES_MIN {
            let _logged = self.commit(true);
            self.wake();
        }
    }
}
