//! Where the control socket of a mount lies.

use std::path::PathBuf;

use mobifs_host::{MountEntry, runtime_directories_of};

/// Name of the socket of a mount: its device number, which no other mount of the
/// machine has at the same time.
pub(crate) fn socket_name(mount: &MountEntry) -> String {
    socket_name_of(mount.device_major, mount.device_minor)
}

/// The name of the socket by the device number.
pub(crate) fn socket_name_of(major: u32, minor: u32) -> String {
    format!("{major}-{minor}.sock")
}

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
