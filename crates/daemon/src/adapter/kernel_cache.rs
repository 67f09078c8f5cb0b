//! Asking the kernel to forget objects.
//!
//! Linux 6.18 (protocol 7.45) has a notification for exactly this: it drops the names of the
//! given objects from its cache if no program uses them, takes no lock that a request under way
//! may hold, and leaves everything else alone.
//!
//! On older kernels there is only the notification that a name is not valid any more. That takes
//! the lock of the directory, which is why no thread that answers requests sends it, and unlinks
//! the name from the cache also where a program has the file open: the file stays usable in every
//! way, but `/proc/PID/fd` shows it as deleted. For a directory that would be what `getcwd(2)`
//! fails with, and what is mounted inside would go. So there directories stay, and of the others
//! only as many are named as must go.

use mobifs_fuse::Connection;
use mobifs_volume::{KernelCache, KernelHeld};

/// The kernel's side of one session.
pub(super) struct SessionCache {
    connection: Connection,
}

impl SessionCache {
    pub(super) const fn new(connection: Connection) -> Self {
        Self { connection }
    }
}

impl KernelCache for SessionCache {
    fn forget(&self, objects: &[KernelHeld]) {
        let nodes: Vec<u64> = objects.iter().map(|object| object.id.0).collect();
        if self.connection.prune(&nodes) {
            return;
        }
        for object in objects.iter().filter(|object| !object.is_directory) {
            if let Some(name) = &object.name {
                self.connection
                    .invalidate_entry(object.parent.0, name.as_bytes());
            }
        }
    }
}
