//! What the threads of a session share.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::dispatcher::Dispatcher;
use crate::in_flight::RequestBuffers;
use crate::link::Link;
use crate::mount::{self, UnmountError};
use crate::options::WorkerPlacement;

/// What a session and its handles share.
pub(crate) struct Shared {
    pub(crate) link: Arc<Link>,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) placement: WorkerPlacement,
    /// Where workers are stuck, the watchdog adds others.
    pub(crate) has_watchdog: bool,
    pub(crate) buffers: RequestBuffers,
    pub(crate) mountpoint: PathBuf,
    /// The mount's own number: from the kernel itself where it shows it, else from the mount table
    /// as it was right after the mount.
    pub(crate) connection: Option<u64>,
    /// Set by [`SessionHandle::abort`]: no request is executed any more.
    pub(crate) aborted: AtomicBool,
}

impl Shared {
    pub(crate) fn abort(&self) -> Result<(), UnmountError> {
        self.aborted.store(true, Ordering::SeqCst);
        self.check_in_place()?;
        mount::abort(&self.mountpoint)
    }

    /// Fails if this mount is no longer in the tree: what is mounted at its path then is another
    /// one.
    pub(crate) fn check_in_place(&self) -> Result<(), UnmountError> {
        let there = mount::connection_at(&self.mountpoint);
        if there.is_some() && there == self.connection {
            return Ok(());
        }
        Err(UnmountError::NotMounted(self.mountpoint.clone()))
    }

    /// Ends the mount because of a failure, so that no program waits for an answer that
    /// will not come.
    pub(crate) fn abort_after_failure(&self) {
        if let Err(error) = self.abort() {
            tracing::warn!(%error, "cannot unmount after a failed start");
        }
    }
}
