//! Where the control socket of a mount lies.

use std::path::PathBuf;

use mobifs_host::{MountEntry, runtime_directories_of};

/// Name of the socket of a mount: its device number, which no other mount in the tree has at the
/// same time.
///
/// A daemon whose mount has left the tree may live on, and its device number be given to another
/// filesystem. So a steered filesystem, which is one of the kernel's own, has another name than a
/// mount: no command for the one reaches the daemon of the other. A mount that gets the number of
/// such a daemon's mount displaces its socket ([`mobifs_host::LineServer`]).
pub(crate) fn socket_name(mount: &MountEntry) -> String {
    let (major, minor) = (mount.device_major, mount.device_minor);
    if mount.is_fuse() {
        format!("{major}-{minor}.sock")
    } else {
        steered_socket_name(major, minor)
    }
}

/// The name of the socket of a steered filesystem.
pub(crate) fn steered_socket_name(major: u32, minor: u32) -> String {
    format!("{STEERED}{major}-{minor}.sock")
}

/// What the name of the socket of a steered filesystem begins with.
pub(super) const STEERED: &str = "steered-";

/// Where the socket of a mount may be.
pub(crate) fn socket_candidates(mount: &MountEntry) -> Vec<PathBuf> {
    let own = rustix::process::geteuid().as_raw();
    let mut directories = runtime_directories_of(mount.user_id.unwrap_or(own));
    // A filesystem of the kernel is steered by root, who may let others read the status.
    if mount.user_id.is_none() && own != 0 {
        directories.extend(runtime_directories_of(0));
    }
    let name = socket_name(mount);
    directories
        .iter()
        .map(|directory| directory.join(&name))
        .collect()
}
