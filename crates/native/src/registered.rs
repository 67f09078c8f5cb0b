//! Which filesystems daemons steer at this moment.

use mobifs_host::MountEntry;
use mobifs_steered::{Device, Directory, Scope, Steered};

/// Whether a daemon steers the filesystem, and if so, whether calls for durability return at once.
pub fn is_steered(mount: &MountEntry) -> Option<bool> {
    registration(mount).map(|steered| steered.is_in_force())
}

/// What the daemon has registered that steers the filesystem.
pub(crate) fn registration(mount: &MountEntry) -> Option<Steered> {
    let device = Device {
        major: mount.device_major,
        minor: mount.device_minor,
    };
    Directory::from_environment().find(device)
}

/// Whether a daemon steers some of its directories alone.
pub(crate) fn is_steered_in_part(mount: &MountEntry) -> bool {
    registration(mount).is_some_and(|steered| steered.record().scope() == Scope::JournalledFiles)
}
