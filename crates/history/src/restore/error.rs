//! How a restore fails.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::user::User;

/// Why nothing was restored, or not all.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// There is no such directory in the snapshot.
    #[error("the snapshot has no directory {path}", path = path.display())]
    Missing {
        /// The directory, relative to the mount.
        path: PathBuf,
    },
    /// The path is a file.
    #[error(
        "{path} is a file in the snapshot, and only directories are restored: copy it from {copy}, as by \
         `cp -a`, or restore the directory that it lies in",
        path = path.display(), copy = copy.display()
    )]
    NotDirectory {
        /// The file, relative to the mount.
        path: PathBuf,
        /// The file in the snapshot.
        copy: PathBuf,
    },
    /// The path is a subvolume of its own: the snapshot ends at its border.
    #[error(
        "{path} is a subvolume of its own, which the snapshot does not have: only what is in the same \
         subvolume can be restored",
        path = path.display()
    )]
    Subvolume {
        /// The directory, relative to the mount.
        path: PathBuf,
    },
    /// The name leads elsewhere.
    #[error(
        "{path} cannot be the name of an app: it has to be the path of a directory relative to the \
         mount, without `..`",
        path = path.display()
    )]
    Name {
        /// What was named.
        path: PathBuf,
    },
    /// There is something already.
    #[error(
        "{path} is there already and not an empty directory: name a directory that is not there, or \
         is empty",
        path = path.display()
    )]
    Occupied {
        /// The target.
        path: PathBuf,
    },
    /// There is something where the copy is made.
    #[error(
        "{path} is in the way: an interrupted restore has left it, or it is another program's; remove \
         it or give it another name, and restore again",
        path = path.display()
    )]
    Leftover {
        /// What is there.
        path: PathBuf,
    },
    /// Another restore has the same target.
    #[error("another restore is making {path}: wait until it has ended", path = path.display())]
    Running {
        /// The copy.
        path: PathBuf,
    },
    /// The path is a mount point or in use.
    #[error(
        "{path} is a mount point or in use, so nothing can take its place: name a directory that is \
         not there yet, as one in it",
        path = path.display()
    )]
    Busy {
        /// The target.
        path: PathBuf,
    },
    /// A program uses what is to be replaced.
    #[error("{path} is in use, by {user}: end that first, or restore to another place (--to)", path = path.display())]
    InUse {
        /// What is to be replaced.
        path: PathBuf,
        /// Who uses it.
        user: User,
    },
    /// A file could not be copied.
    #[error("cannot {what} {path}: {source}", path = path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl RestoreError {
    pub(super) fn of(what: &'static str, path: &Path, errno: Errno) -> Self {
        Self::File {
            what,
            path: path.to_owned(),
            source: errno.into(),
        }
    }
}
