//! The directory in which a user's daemons have their sockets and logs.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Directory for sockets and logs of the mounts of this process's user: made if it is
/// missing, private to the user. Of the places where it may be the first that can be used.
///
/// # Errors
/// If it can be made nowhere, or what is there belongs to another user: why the preferred
/// place cannot be used.
pub fn runtime_directory() -> io::Result<PathBuf> {
    let uid = rustix::process::geteuid().as_raw();
    first_usable(&own_directories(uid), uid)
}

fn first_usable(directories: &[PathBuf], uid: u32) -> io::Result<PathBuf> {
    let mut failed = None;
    for directory in directories {
        match make_private(directory, uid) {
            Ok(()) => return Ok(directory.clone()),
            Err(error) => {
                // It is usually missing where the user has no login session.
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!("cannot use a directory for the control socket: {error}");
                }
                failed.get_or_insert(error);
            }
        }
    }
    Err(failed.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

fn make_private(directory: &Path, uid: u32) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            let shown = directory.display();
            Err(io::Error::new(error.kind(), format!("{shown}: {error}")))
        }
        _ => check_private(directory, uid),
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
fn directories_of(uid: u32) -> Vec<PathBuf> {
    let preferred = if uid == 0 {
        PathBuf::from("/run/mobifs")
    } else {
        PathBuf::from(format!("/run/user/{uid}/mobifs"))
    };
    // Images without /run, and Android, which has no /tmp either.
    let others = ["/tmp", "/data/local/tmp"].map(|base| format!("{base}/mobifs-{uid}").into());
    [preferred].into_iter().chain(others).collect()
}

/// The directories for this process's user, whose environment may name another.
fn own_directories(uid: u32) -> Vec<PathBuf> {
    let mut directories = directories_of(uid);
    let environment = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    if let Some(base) = environment.filter(|base| uid != 0 && base.is_absolute()) {
        directories.insert(0, base.join("mobifs"));
        directories.dedup();
    }
    directories
}

/// Where daemons of this user may have their runtime directory, the preferred place first.
pub fn runtime_directories_of(user: u32) -> Vec<PathBuf> {
    let own = rustix::process::geteuid().as_raw();
    if user == own {
        own_directories(own)
    } else {
        directories_of(user)
    }
}

/// Keeps other processes that follow the same rule from changing what lies in the runtime
/// directory, until it is dropped.
#[derive(Debug)]
pub struct DirectoryLock {
    locked: File,
}

impl DirectoryLock {
    /// Waits for the lock.
    ///
    /// # Errors
    /// If the directory cannot be opened or locked.
    pub fn acquire(directory: &Path) -> io::Result<Self> {
        let directory = File::open(directory)?;
        flock(&directory, FlockOperation::LockExclusive)?;
        Ok(Self { locked: directory })
    }

    /// Whether the directory at this path is the one that is locked: another process may have removed
    /// that, and made another.
    pub fn is_of(&self, directory: &Path) -> bool {
        let identity = |about: &std::fs::Metadata| (about.dev(), about.ino());
        let locked = self.locked.metadata();
        let there = std::fs::symlink_metadata(directory);
        matches!((locked, there), (Ok(locked), Ok(there)) if identity(&locked) == identity(&there))
    }

    /// The lock, if it is free.
    ///
    /// # Errors
    /// If the directory cannot be opened or locked.
    pub fn try_acquire(directory: &Path) -> io::Result<Option<Self>> {
        let directory = File::open(directory)?;
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self { locked: directory })),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }
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

    /// Android has neither /run nor /tmp.
    #[test]
    fn root_has_other_places_where_there_is_no_run() {
        let places = directories_of(0);
        assert_eq!(places.first().unwrap(), Path::new("/run/mobifs"));
        assert!(places.contains(&"/tmp/mobifs-0".into()));
        assert!(places.contains(&"/data/local/tmp/mobifs-0".into()));
    }

    /// Found by hand: another user's directory under the name of the last place left a
    /// user without a socket.
    #[test]
    fn what_cannot_be_used_is_passed_over() {
        let uid = rustix::process::geteuid().as_raw();
        let directory = tempfile::tempdir().unwrap();
        let taken = directory.path().join("taken");
        std::fs::write(&taken, "").unwrap();
        let missing = directory.path().join("missing/mobifs");
        let good = directory.path().join("good");
        let places = [taken.clone(), missing, good.clone()];
        assert_eq!(first_usable(&places, uid).unwrap(), good);
        let error = first_usable(&places[..2], uid).unwrap_err().to_string();
        assert!(error.contains("taken"), "{error}");
    }
}
