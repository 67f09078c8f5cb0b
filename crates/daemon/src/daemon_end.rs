//! Waiting until the process that serves a store has ended.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use mobifs_store::StoreScope;
use mobifs_volume::{OwnerState, StoreLock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::store_owner::own_pid_namespace;

/// An exit takes milliseconds; the memory of a large daemon some more.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// The end of a daemon, to be waited for.
///
/// A daemon that exits closes its connections among its other descriptors, so at the end of a
/// connection it may still have files of the store open, and with them the filesystem that the user
/// unmounts next.
#[derive(Debug)]
pub struct DaemonEnd {
    process: Option<OwnedFd>,
}

impl DaemonEnd {
    /// The end of the daemon that serves the store now. Where that cannot be found out (the lock file cannot
    /// be read, the daemon is in another namespace of processes), there is nothing to wait for.
    pub fn of(store: Option<&Path>) -> Self {
        Self {
            process: store.and_then(server_of),
        }
    }

    /// Waits for it, and at most 10 s.
    pub fn wait(&self) {
        let Some(process) = &self.process else {
            return;
        };
        let limit = Timespec::try_from(WAIT_MAX).ok();
        let mut ended = [PollFd::new(process, PollFlags::IN)];
        if let Err(error) = poll(&mut ended, limit.as_ref()) {
            tracing::debug!(%error, "cannot wait for the daemon's process");
        }
    }
}

fn server_of(store: &Path) -> Option<OwnedFd> {
    let owner = StoreLock::owner(store, &StoreScope::Tree).ok()?;
    match owner.state {
        Some(OwnerState::Serving(mount)) if mount.pid_namespace == own_pid_namespace() => {}
        _ => return None,
    }
    let pid = i32::try_from(owner.pid).ok().and_then(Pid::from_raw)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}
