//! The connection with the kernel, as a filesystem uses it outside the requests that it handles.

use std::sync::{Arc, Weak};

use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use crate::link::Link;
use crate::message;
use crate::waiting::WaitingWorker;

/// The first minor version of the protocol that has FUSE_NOTIFY_PRUNE (Linux 6.18).
const PRUNE_MINOR: u32 = 45;

/// A session's connection with the kernel, from any thread; it does not keep the session alive.
#[derive(Clone)]
pub struct Connection {
    link: Weak<Link>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").finish_non_exhaustive()
    }
}

impl Connection {
    pub(crate) fn new(link: &Arc<Link>) -> Self {
        Self {
            link: Arc::downgrade(link),
        }
    }

    /// Has the kernel drop the names of those of `nodes` from its cache that no program uses;
    /// false if it cannot (before Linux 6.18), or the session has ended. It takes no lock that a
    /// request under way may hold.
    pub fn prune(&self, nodes: &[u64]) -> bool {
        let Some(link) = self.link.upgrade() else {
            return false;
        };
        let can = link.negotiated.minor >= PRUNE_MINOR;
        if can {
            message::prune(&link.transport, nodes);
        }
        can
    }

    /// Has the kernel forget a name, and what it names if that is not in use. The kernel takes
    /// the lock of the directory for it, so a handler must not call this: it may answer a
    /// request that holds the lock.
    pub fn invalidate_entry(&self, parent: u64, name: &[u8]) {
        if let Some(link) = self.link.upgrade() {
            message::invalidate_entry(&link.transport, parent, name);
        }
    }

    /// The calling worker waits for something that takes as long as a device, until the value is
    /// dropped: if no other one is idle, requests that come meanwhile wake another one at once. A
    /// wait that is not declared is noticed after some milliseconds.
    pub fn waiting(&self) -> Option<WaitingWorker> {
        let workers = self.link.upgrade()?.workers.get()?.upgrade()?;
        Some(WaitingWorker::begin(workers))
    }

    /// For answering `unique` later.
    pub(crate) fn defer(&self, unique: u64) -> Option<DeferredReply> {
        let link = self.link.upgrade()?;
        (!link.requests_outlive_process).then_some(DeferredReply {
            link,
            unique,
            is_sent: false,
        })
    }
}

/// An answer that another thread sends. Sent exactly once: dropped unsent, it fails with `EIO`.
pub struct DeferredReply {
    link: Arc<Link>,
    unique: u64,
    is_sent: bool,
}

impl std::fmt::Debug for DeferredReply {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeferredReply")
            .field("unique", &self.unique)
            .finish_non_exhaustive()
    }
}

impl DeferredReply {
    /// Success with a structure.
    pub fn value<T: IntoBytes + Immutable>(self, value: &T) {
        self.bytes(value.as_bytes());
    }

    /// Success with bytes, which may be none.
    pub fn bytes(mut self, bytes: &[u8]) {
        self.send(0, bytes);
    }

    /// Failure.
    pub fn error(mut self, errno: Errno) {
        self.send(-errno.raw_os_error(), &[]);
    }

    fn send(&mut self, error: i32, payload: &[u8]) {
        debug_assert!(!self.is_sent, "request {} is answered twice", self.unique);
        self.is_sent = true;
        message::send(&self.link.transport, self.unique, error, payload);
    }
}

impl Drop for DeferredReply {
    fn drop(&mut self) {
        if !self.is_sent {
            self.send(-Errno::IO.raw_os_error(), &[]);
        }
    }
}
