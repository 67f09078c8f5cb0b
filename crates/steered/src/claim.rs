//! That a filesystem is steered, for processes that do not see its registration: in a container, and wherever
//! else `/run` is another one.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, fstat, open};

use crate::ofd_lock;

/// The directory of an ext4 that only root may open. In another one, any user could make the filesystem look
/// steered.
const DIRECTORY: &str = "lost+found";
/// The byte of it that is locked. Nothing else locks bytes of directories.
const BYTE: i64 = i64::from_be_bytes(*b"\0\0MobiFS");

/// A mark in the filesystem itself, as long as this process lives.
#[derive(Debug)]
pub struct Claim {
    _directory: OwnedFd,
}

impl Claim {
    /// Marks the filesystem that is mounted there; none where there is no place for a mark.
    pub fn take(mountpoint: &Path) -> Option<Self> {
        let directory = marked_directory(mountpoint)?;
        ofd_lock::share_byte(&directory, BYTE).ok()?;
        Some(Self {
            _directory: directory,
        })
    }

    /// Whether a process has marked the filesystem, wherever that runs. Only root may look.
    pub fn is_taken(mountpoint: &Path) -> bool {
        let directory = marked_directory(mountpoint);
        directory.is_some_and(|directory| ofd_lock::is_byte_locked(directory, BYTE))
    }
}

fn marked_directory(mountpoint: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = open(mountpoint.join(DIRECTORY), flags, Mode::empty()).ok()?;
    let about = fstat(&directory).ok()?;
    let is_of_root = about.st_uid == 0 && about.st_mode & 0o077 == 0;
    let is_directory = FileType::from_raw_mode(about.st_mode) == FileType::Directory;
    (is_of_root && is_directory).then_some(directory)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_mark_is_seen_by_others_until_it_is_dropped() {
        let base = tempfile::tempdir().unwrap();
        assert!(Claim::take(base.path()).is_none());
        let directory = base.path().join(DIRECTORY);
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
        assert!(Claim::take(base.path()).is_none(), "others may open it");
        fs::set_permissions(&directory, Permissions::from_mode(0o700)).unwrap();
        if !rustix::process::geteuid().is_root() {
            assert!(Claim::take(base.path()).is_none());
            return;
        }
        assert!(!Claim::is_taken(base.path()));
        let claim = Claim::take(base.path()).unwrap();
        assert!(Claim::is_taken(base.path()));
        drop(claim);
        assert!(!Claim::is_taken(base.path()));
    }
}
