//! The thread that commits when the policy says so.

use std::fs::File;
use std::io;
use std::time::Duration;

use mobifs_base::MonotonicNs;
use mobifs_engine::Next;
use mobifs_steered::VALID_S;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::commit::RETRY_NS;
use super::{State, Steering, SteeringError};
use crate::errors::ErrorWatch;

/// While something is uncommitted, what was written is looked at this often: for limits of
/// staleness, pauses, and commits of the kernel's own. In nanoseconds.
const LOOK_NS: u64 = 1_000_000_000;
/// How often to look where the kernel reports no changes, so that there always may be some.
const LOOK_BLIND_NS: u64 = 5_000_000_000;
/// The promise is renewed this often, as also a filesystem at rest is steered. In nanoseconds.
const RENEW_NS: u64 = VALID_S as u64 * 1_000_000_000 / 3;
/// The kernel reports an error of the filesystem before it acts on it. Afterwards the mount options are
/// looked at this often, and so long. In nanoseconds.
const LOOK_AFTER_ERROR_NS: u64 = 50_000_000;
const AFTER_ERROR_NS: u64 = 1_000_000_000;
/// At least so long between two looks.
const LOOK_MIN: Duration = Duration::from_millis(10);

impl Steering {
    /// Commits when the policy says so, until it [has ended](Self::end) or the mount has.
    ///
    /// # Errors
    /// The table of mounts cannot be watched.
    pub fn run(&self) -> Result<(), SteeringError> {
        let failed = |source: io::Error| SteeringError::Io {
            path: self.mount.mountpoint.clone(),
            source,
        };
        let mounts = File::open("/proc/self/mountinfo").map_err(failed)?;
        let mut looks_often_until = None;
        while !self.state.lock().has_ended {
            let now = Self::moment().now;
            if self.has_met_error(now) {
                looks_often_until = Some(MonotonicNs(now.0.saturating_add(AFTER_ERROR_NS)));
            }
            looks_often_until = looks_often_until.filter(|until| now < *until);
            let until = self.look();
            let history_at = self.look_at_history();
            let often = looks_often_until.map(|_| now.0.saturating_add(LOOK_AFTER_ERROR_NS));
            let moments = [until, history_at, often.map(MonotonicNs)];
            let until = moments.into_iter().flatten().min();
            {
                let mut state = self.state.lock();
                state.promise.look_at_registration();
                state.promise.renew();
            }
            // A program that meets the same error again and again does not wake this thread each time.
            let errors = self.errors.as_ref().filter(|_| often.is_none());
            self.wait(&mounts, errors, until)
                .map_err(|errno| failed(errno.into()))?;
            // A remount need not show in the table's changes, and while something is uncommitted
            // this thread wakes every second.
            self.look_at_options();
        }
        self.state.lock().promise.end();
        self.end_detached();
        Ok(())
    }

    /// Whether the kernel has reported an error of the filesystem. If so the promise is withdrawn until
    /// a commit succeeds: then the filesystem goes on in spite of the error.
    fn has_met_error(&self, now: MonotonicNs) -> bool {
        if !self.errors.as_ref().is_some_and(ErrorWatch::take) {
            return false;
        }
        let mut state = self.state.lock();
        if state.promise.failed.is_none() {
            tracing::error!(
                "the kernel has reported an error of the filesystem: the promise is withdrawn until a \
                 commit succeeds"
            );
            let why = "the kernel has reported an error of the filesystem (its log says which), and no \
                       commit has succeeded since then";
            state.promise.failed = Some(why.to_owned());
            state.promise.update();
        }
        let retry_at = MonotonicNs(now.0.saturating_add(RETRY_NS));
        state.retry_at.get_or_insert(retry_at);
        true
    }

    /// Commits what is due; when to look again if nothing happens.
    fn look(&self) -> Option<MonotonicNs> {
        loop {
            self.observe();
            match self.what_is_due() {
                // An error is in the log, and the retry comes later.
                Next::Commit(()) => {
                    let _logged = self.commit(false);
                }
                Next::Nothing { until } => return until,
            }
        }
    }

    /// What is due at this moment.
    fn what_is_due(&self) -> Next<()> {
        let now = Self::moment().now;
        let mut state = self.state.lock();
        let state = &mut *state;
        if let Some(retry_at) = state.retry_at {
            return if now < retry_at {
                Next::Nothing {
                    until: Some(retry_at),
                }
            } else {
                Next::Commit(())
            };
        }
        let close_at = state.observed.tick(now);
        let is_urgent = self.is_nearly_full(state);
        let until = match state.pacing.next(&mut state.observed, now, is_urgent) {
            Next::Commit(_) => return Next::Commit(()),
            Next::Nothing { until } => until,
        };
        let unseen_at = self.unseen_due_at(state);
        if unseen_at.is_some_and(|at| at <= now) {
            return Next::Commit(());
        }
        let look_ns = match self.changes {
            Some(_) => LOOK_NS,
            None => LOOK_BLIND_NS,
        };
        let is_open = state.observed.observed().is_some();
        let look_at = is_open.then(|| MonotonicNs(now.0.saturating_add(look_ns)));
        let moments = [until, close_at, look_at, unseen_at];
        Next::Nothing {
            until: moments.into_iter().flatten().min(),
        }
    }

    /// When changes of mappings, which the kernel does not report, may have reached the limit of age, on a
    /// filesystem whose own interval does not hold for them. Where there are none, a commit then
    /// writes nothing.
    fn unseen_due_at(&self, state: &State) -> Option<MonotonicNs> {
        if self.filesystem.age_before_transaction_ms() == 0 {
            return None;
        }
        let age_ns = state.observed.policy().age_max_ms.saturating_mul(1_000_000);
        let last = state.last_commit.unwrap_or(state.started);
        Some(MonotonicNs(last.now.0.saturating_add(age_ns)))
    }

    /// Whether the kernel would soon commit by itself, in the middle of what programs do, because
    /// the journal is full.
    fn is_nearly_full(&self, state: &State) -> bool {
        let Some(largest) = self.largest_transaction_bytes else {
            return false;
        };
        let observed = state.observed.observed();
        let pages = observed.map_or(0, |observed| observed.efficiency.written_pages());
        observed.is_some_and(|observed| observed.is_closed)
            && mobifs_volume::bytes(pages) > largest / 4 * 3
    }

    fn wait(
        &self,
        mounts: &File,
        errors: Option<&ErrorWatch>,
        until: Option<MonotonicNs>,
    ) -> Result<(), Errno> {
        let rest = until.map(|until| until.0.saturating_sub(Self::moment().now.0));
        let timeout = Duration::from_nanos(rest.map_or(RENEW_NS, |rest| rest.min(RENEW_NS)));
        let timeout = timeout.max(LOOK_MIN);
        let timeout = Timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let mut descriptors = vec![
            PollFd::new(&self.wake, PollFlags::IN),
            PollFd::new(mounts, PollFlags::PRI),
        ];
        let changes = self.changes.as_ref();
        descriptors.extend(changes.map(|changes| PollFd::new(changes, PollFlags::IN)));
        descriptors.extend(errors.map(|errors| PollFd::new(errors, PollFlags::IN)));
        match poll(&mut descriptors, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let _count = rustix::io::read(&self.wake, &mut [0; 8]);
        Ok(())
    }
}
