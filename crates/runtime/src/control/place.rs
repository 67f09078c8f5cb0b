//! Where the control socket of a mount lies.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::MountEntry;

/// Directory for sockets and logs of the mounts of this process's user: made if it is
/// missing, private to the user.
///
/// # Errors
/// If it cannot be made, or if something at its place belongs to somebody else.
pub fn runtime_directory() -> io::Result<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    let directory = directories_of(uid, true).swap_remove(0);
    match DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => {
            check_private(&directory, uid)?;
            Ok(directory)
        }
    }
}

/// Fails unless only `uid` can change what lies in `directory`.
fn check_private(directory: &Path, uid: u32) -> io::Result<()> {
    let found = std::fs::symlink_metadata(directory)?;
    if found.is_dir() && found.uid() == uid && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "{} is not a private directory of user {uid}; remove it",
        directory.display()
    )))
}

/// Directories in which mounts of a user may have their sockets, the preferred first.
fn directories_of(uid: u32, own: bool) -> Vec<PathBuf> {
    if uid == 0 {
        return vec![PathBuf::from("/run/mobifs")];
    }
    let mut directories = Vec::new();
    let environment = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    if let Some(base) = environment.filter(|base| own && base.is_absolute()) {
        directories.push(base.join("mobifs"));
    }
    if !own {
        directories.push(PathBuf::from(format!("/run/user/{uid}/mobifs")));
    }
    directories.push(PathBuf::from(format!("/tmp/mobifs-{uid}")));
    directories
}

/// Name of the socket of a mount: its device number, which no other mount of the
/// machine has at the same time.
pub(crate) fn socket_name(mount: &MountEntry) -> String {
    format!("{}-{}.sock", mount.device_major, mount.device_minor)
}

/// Where the socket of a mount may be.
pub(crate) fn socket_candidates(mount: &MountEntry) -> Vec<PathBuf> {
    let own = rustix::process::geteuid().as_raw();
    let owner = mount.user_id.unwrap_or(own);
    let mut directories = directories_of(owner, owner == own);
    if owner == own && own != 0 {
        directories.extend(directories_of(owner, false));
    }
    let name = socket_name(mount);
    directories
        .iter()
        .map(|directory| directory.join(&name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_others_may_change_is_refused() {
        use std::os::unix::fs::PermissionsExt as _;
        let uid = rustix::process::geteuid().as_raw();
        let directory = tempfile::tempdir().unwrap();
        check_private(directory.path(), uid).unwrap();
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(directory.path(), open).unwrap();
        assert!(check_private(directory.path(), uid).is_err());
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/", &link).unwrap();
        assert!(check_private(&link, uid).is_err());
    }
}
