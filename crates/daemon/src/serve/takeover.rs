//! Going on with the mount of a daemon that has died.

use std::os::fd::{AsRawFd as _, IntoRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mobifs_fuse::is_mounted;
use mobifs_store::StoreError;
use mobifs_volume::{Arena, ArenaError, OpenedStore, Volume, arm_fault_points, fault_point};

use super::final_commit;
use super::plan::{Plan, RETRY_INTERVAL, mount_options, open_options, volume_options};
use super::serving::{Serving, record_serving};
use crate::adapter::{TakeoverError, VolumeSession, begin_takeover, postpone_takeover};
use crate::config_text::ConfigText;
use crate::failure::{Code, Failure};
use crate::handover::{Inherited, SupervisorLink, is_last, predecessor_was_killed, supervisor_pid};
use crate::recording::Recording;

/// After so many daemons in a row died while they took over, the next process does not serve
/// any more: it commits what the arena holds and ends the mount ([`final_commit`]).
const ATTEMPTS_MAX: u32 = 5;

/// What a takeover starts from.
#[derive(Debug)]
pub struct TakeoverState {
    device: OwnedFd,
    arena: OwnedFd,
    lock: Option<OwnedFd>,
    /// The store's directory.
    store: Option<OwnedFd>,
    /// The control socket.
    pub(super) control: Option<OwnedFd>,
    /// The text of the configuration in force.
    config: Option<OwnedFd>,
}

impl TakeoverState {
    /// What a predecessor handed over; none if it had not made its mount yet, or there was
    /// none. Then what it handed over is dropped.
    pub fn find(
        inherited: Inherited,
        supervisor: &SupervisorLink,
        mountpoint: &Path,
    ) -> Option<Self> {
        let is_empty = inherited.is_empty();
        let Inherited {
            device,
            arena,
            lock,
            store,
            control,
            config,
        } = inherited;
        if let (Some(device), Some(arena)) = (device, arena) {
            return Some(Self {
                device,
                arena,
                lock,
                store,
                control,
                config,
            });
        }
        if !is_empty {
            tracing::warn!(
                "the previous daemon died before its mount was usable; this one starts afresh"
            );
            // While the lock is held the store cannot be opened.
            drop((lock, control));
            supervisor.withdraw("starting afresh");
            if is_mounted(mountpoint, "mobifs")
                && let Err(error) = mobifs_fuse::unmount(mountpoint, true)
            {
                tracing::warn!(%error, "cannot unmount the mount of the previous daemon");
            }
        }
        None
    }

    /// A path of the store's directory in this process, which stays valid: where the directory is now, or, if no path
    /// leads there any more (it was deleted, hidden by a mount, or its filesystem taken out of the tree), that of the
    /// descriptor. None if it was not handed over.
    pub fn store(&mut self) -> Option<PathBuf> {
        let directory = self.store.take()?;
        let link = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()));
        let identity = |path: &Path| path.metadata().map(|about| (about.dev(), about.ino())).ok();
        let now = link.read_link().ok();
        let is_there =
            |path: &PathBuf| identity(path).is_some_and(|found| Some(found) == identity(&link));
        now.filter(is_there).or_else(|| {
            // The path is that of this descriptor for the life of the process.
            let _kept = directory.into_raw_fd();
            Some(link)
        })
    }

    /// The configuration that was in force; none if it was not handed over.
    pub fn config(&mut self) -> Option<ConfigText> {
        let inherited = self.config.take().map(ConfigText::inherit)?;
        inherited
            .inspect_err(|error| {
                tracing::error!(
                    %error,
                    "the configuration that was handed over cannot be used; the daemon reads its \
                     file"
                )
            })
            .ok()
    }

    /// Restores the volume and the session.
    ///
    /// # Errors
    /// If that is not possible; where no other process can do it either, what was handed over is
    /// committed first, and the mount has ended.
    pub(super) fn take_over(
        self,
        plan: &Plan,
        supervisor: &SupervisorLink,
    ) -> Result<Serving, Failure> {
        if is_last() {
            return Err(self.commit_and_end(plan, supervisor));
        }
        arm_fault_points();
        let entered = mobifs_volume::enter(&self.arena);
        let entered = entered.map_err(|error| hopeless(supervisor, &error))?;
        fault_point("enter");
        // Our own supervisor counts deaths itself, and knows their causes.
        let is_counted = supervisor_pid().is_none();
        if entered.has_last || (is_counted && entered.in_a_row > u64::from(ATTEMPTS_MAX)) {
            return Err(self.commit_and_end(plan, supervisor));
        }
        let copy = self.arena.try_clone();
        let copy = copy.map_err(|error| try_again(&error))?;
        let arena = match Arena::attach(copy) {
            Ok(arena) => arena,
            Err(error @ ArenaError::Damaged(_)) => {
                tracing::error!(%error, "the daemon cannot take the mount over");
                return Err(self.commit_and_end(plan, supervisor));
            }
            Err(error) => return Err(hopeless(supervisor, &error)),
        };
        fault_point("attach");
        let attempt = begin_attempt(&arena).map_err(|error| hopeless(supervisor, &error))?;
        arena.is_entered();
        if attempt > ATTEMPTS_MAX {
            drop(arena);
            return Err(self.commit_and_end(plan, supervisor));
        }
        self.go_on(plan, supervisor, arena)
    }

    fn go_on(
        self,
        plan: &Plan,
        supervisor: &SupervisorLink,
        arena: Arena,
    ) -> Result<Serving, Failure> {
        let store = &plan.paths.store;
        let is_noted = self.lock.is_some();
        let opened = OpenedStore::resume(store, &open_options(plan), &arena, self.lock).map_err(
            |error| {
                if matches!(
                    error,
                    StoreError::Lower { .. } | StoreError::Immutable { .. }
                ) {
                    postpone(&arena);
                }
                try_again(&Failure::of_store(store, &error))
            },
        )?;
        supervisor.alive();
        fault_point("store");
        let options = volume_options(plan, Some(&arena));
        let volume = match opened.resumption() {
            Some(resumption) => Volume::resume(opened.store(), options, resumption),
            None => Volume::start(opened.store(), options),
        }
        .map_err(|error| try_again(&error))?;
        supervisor.alive();
        fault_point("engine");
        let recording = resume_recording(plan, &volume);
        let options = mount_options(plan);
        let mountpoint = &plan.paths.mountpoint;
        let session = VolumeSession::resume(
            Arc::clone(&volume),
            self.device,
            mountpoint,
            &options,
            &arena,
            recording.as_ref().map(Recording::operations),
        )
        .map_err(|error| try_again(&error))?;
        fault_point("session");
        if !is_noted {
            record_serving(&opened, mountpoint);
        }
        tracing::info!(
            mountpoint = %mountpoint.display(),
            restarts = session.takeovers(),
            "the daemon took the mount over from the one that died"
        );
        Ok(Serving {
            opened,
            volume,
            session,
            arena: Some(arena),
            recording,
        })
    }

    /// No daemon can go on: commits what the arena holds, and ends the mount.
    fn commit_and_end(self, plan: &Plan, supervisor: &SupervisorLink) -> Failure {
        // After that only the supervisor holds the connection, and it does not answer either.
        drop((self.device, self.control, self.config, self.store));
        final_commit::commit_and_end(plan, supervisor, self.arena, self.lock)
    }
}

/// The number of this attempt, without the one before it if that was killed from outside: the cause
/// was not what it did, and the killer (the kernel, when memory is short) may stop. How many are
/// killed before none tries again is the supervisor's to decide.
fn begin_attempt(arena: &Arena) -> Result<u32, TakeoverError> {
    let attempt = begin_takeover(arena)?;
    if attempt > 1 && predecessor_was_killed() {
        postpone_takeover(arena)?;
        return Ok(attempt - 1);
    }
    Ok(attempt)
}

/// Goes on with the predecessor's recording, if there was one and that is possible.
fn resume_recording(plan: &Plan, volume: &Volume) -> Option<Recording> {
    let file = plan.record.as_deref()?;
    Recording::resume(file, &plan.config.config.rules, volume)
        .inspect_err(|failure| {
            tracing::warn!(
                %failure,
                "cannot resume the recording: the mount is not recorded any more"
            )
        })
        .ok()
}

/// Another process may be able to take over.
fn try_again(error: &dyn std::fmt::Display) -> Failure {
    let message = format!("cannot go on with the mount of the daemon that died: {error}");
    Failure::new(Code::TryAgain, message)
}

/// This process has the mount and cannot start the threads that it takes to serve it, which may pass. It ends as if it
/// were killed, since what is destroyed in order ends the mount with what was not committed.
pub(super) fn leave_to_another(arena: &Arena, error: &dyn std::fmt::Display) -> ! {
    let failure = try_again(error);
    tracing::error!(%failure, "the daemon leaves the mount to another process");
    postpone(arena);
    std::process::exit(i32::from(failure.code.number()))
}

/// The lower filesystem has failed, or no thread can be started, which may pass: nothing is lost as
/// long as there is another attempt.
fn postpone(arena: &Arena) {
    if let Err(error) = postpone_takeover(arena) {
        tracing::warn!(
            %error,
            "cannot record in the arena that the cause may pass: this attempt counts as a crash"
        );
    }
    std::thread::sleep(RETRY_INTERVAL);
}

/// Nothing more can be tried: the supervisor is to start no other process.
fn hopeless(supervisor: &SupervisorLink, reason: &dyn std::fmt::Display) -> Failure {
    supervisor.withdraw("giving up");
    let message = format!(
        "the daemon died, and its mount cannot be taken over: {reason}; what was committed is in \
         the store, everything else is lost"
    );
    Failure::new(Code::Failed, message)
}
