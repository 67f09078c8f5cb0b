//! Where the control socket of a mount lies.

use std::path::PathBuf;

use mobifs_host::{MountEntry, runtime_directories_of};

/// Name of the socket of a mount: its device number, which no other mount of the
/// machine has at the same time.
pub(crate) fn socket_name(mount: &MountEntry) -> String {
    format!("{}-{}.sock", mount.device_major, mount.device_minor)
}

/// Where the socket of a mount may be.
pub(crate) fn socket_candidates(mount: &MountEntry) -> Vec<PathBuf> {
    let own = rustix::process::geteuid().as_raw();
    let directories = runtime_directories_of(mount.user_id.unwrap_or(own));
    let name = socket_name(mount);
    directories
        .iter()
        .map(|directory| directory.join(&name))
        .collect()
}
