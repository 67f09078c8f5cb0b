//! Asking the kernel to forget objects.
//!
//! Linux 6.18 (protocol 7.45) has a notification for exactly this: it drops the names of the
//! given objects from its cache if no program uses them, takes no lock that a request under way
//! may hold, and leaves everything else alone.
//!
//! Older kernels can only be told that a name is not valid any more. That takes the lock of the
//! directory, which is why no thread that answers requests sends it, and unlinks the name from
//! the cache also where a program has the file open: the file stays usable in every way, but
//! `/proc/PID/fd` shows it as deleted. For a directory that would be what `getcwd(2)` fails
//! with, and what is mounted below would go. So there directories stay, and of the others only
//! as many are named as must go.

use std::sync::Weak;

use mobifs_volume::{KernelCache, KernelHeld};

use crate::reply::{invalidate_entry, prune};
use crate::session::Shared;

/// The first minor version of the protocol with the notification.
const PRUNE_MINOR: u32 = 45;

/// The kernel's side of one session.
pub(super) struct SessionCache {
    session: Weak<Shared>,
}

impl SessionCache {
    pub(super) const fn new(session: Weak<Shared>) -> Self {
        Self { session }
    }
}

impl KernelCache for SessionCache {
    fn forget(&self, objects: &[KernelHeld]) {
        let Some(session) = self.session.upgrade() else {
            return;
        };
        if session.agreement.minor >= PRUNE_MINOR {
            let nodes: Vec<u64> = objects.iter().map(|object| object.id.0).collect();
            prune(&session.transport, &nodes);
            return;
        }
        for object in objects.iter().filter(|object| !object.is_directory) {
            if let Some(name) = &object.name {
                invalidate_entry(&session.transport, object.parent.0, name.as_bytes());
            }
        }
    }
}
