//! Why nothing could be defragmented: one sentence with what, where, and what to do.

use std::io;
use std::path::{Path, PathBuf};

use mobifs_fragmentation::shown;
use thiserror::Error;

/// Files are as they were before, or better.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DefragError {
    /// Not a file or directory of a mounted filesystem.
    #[error("{} is neither a directory nor a file of a mounted filesystem; an image is mounted first (mount -o loop), or served (mobifs flash serve)", text(.0))]
    NoTree(PathBuf),
    /// An image that is mounted or served.
    #[error("{} is a filesystem image, which is not defragmented as a file; mount it, or, if it is mounted, give the directory", text(.0))]
    Image(PathBuf),
    /// Blocks are another machine's.
    #[error("{} lies on {filesystem}, a filesystem of another machine; defragment it there", text(.path))]
    Network {
        /// What was given.
        path: PathBuf,
        /// The filesystem, by its name.
        filesystem: String,
    },
    /// A mount of MobiFS has no blocks of its own.
    #[error("{} lies on the MobiFS mount {}, whose files lie in its store; unmount it (mobifs umount {}), and defragment that: {}", text(.path), text(.mountpoint), text(.mountpoint), text(.store))]
    MobifsMount {
        /// What was given.
        path: PathBuf,
        /// Where the mount is.
        mountpoint: PathBuf,
        /// Its store.
        store: PathBuf,
    },
    /// The filesystem cannot.
    #[error("{} lies on {filesystem}, {why}", text(.path))]
    Unsupported {
        /// What was given.
        path: PathBuf,
        /// The filesystem, by its name.
        filesystem: String,
        /// Why, and what to do.
        why: &'static str,
    },
    /// Several filesystems at a time.
    #[error("{} and {} lie on different filesystems; defragment one after the other", text(.0), text(.1))]
    Several(PathBuf, PathBuf),
    /// The filesystem is mounted read-only, at this mount point.
    #[error("{} is mounted read-only; remount it first (mount -o remount,rw {})", text(.0), text(.0))]
    ReadOnly(PathBuf),
    /// This user may not.
    #[error("{} may not be written by this user: {error}; root may", text(.path))]
    NotPermitted {
        /// What was to be written.
        path: PathBuf,
        /// What the kernel says.
        error: io::Error,
    },
    /// Nothing is free.
    #[error("{} has {free_bytes} bytes free, which is too little to move anything; delete something first", text(.path))]
    NoRoom {
        /// Where.
        path: PathBuf,
        /// What is free.
        free_bytes: u64,
    },
    /// What is to be left to others leaves nothing to work with.
    #[error("{} has {free_bytes} bytes free, and --leave {leave_bytes} leaves hardly any of them to work with; leave less to others", text(.path))]
    LeavesTooMuch {
        /// Where.
        path: PathBuf,
        /// What is free.
        free_bytes: u64,
        /// What is to be left.
        leave_bytes: u64,
    },
    /// A rate of nothing.
    #[error("--rate 0 would move nothing ever; without --rate there is no limit")]
    NoRate,
    /// There is no device that could remap.
    #[error("{0}; without a served device use --copy")]
    NoDevice(String),
    /// The device failed meanwhile.
    #[error("{}: {error}; what had moved is where the filesystem says, nothing is lost; look at the device (for a served one: mobifs flash power-on), mount it again, and start anew", text(.path))]
    Device {
        /// Where.
        path: PathBuf,
        /// What the kernel says.
        error: io::Error,
    },
    /// Anything else.
    #[error("{}: {error}", text(.path))]
    Io {
        /// Where.
        path: PathBuf,
        /// What the kernel says.
        error: io::Error,
    },
}

fn text(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    shown(path.as_os_str().as_bytes())
}

impl DefragError {
    /// For an error of the kernel at a path.
    pub(crate) fn at(path: &Path, error: impl Into<io::Error>) -> Self {
        let (path, error) = (path.to_owned(), error.into());
        let is = |errno: rustix::io::Errno| error.raw_os_error() == Some(errno.raw_os_error());
        if error.kind() == io::ErrorKind::PermissionDenied {
            Self::NotPermitted { path, error }
        } else if error.kind() == io::ErrorKind::ReadOnlyFilesystem {
            Self::ReadOnly(path)
        } else if is(rustix::io::Errno::IO)
            || is(rustix::io::Errno::NODEV)
            || is(rustix::io::Errno::NXIO)
        {
            Self::Device { path, error }
        } else if is(rustix::io::Errno::NOSPC) {
            let room = rustix::fs::statvfs(&path);
            let free_bytes = room.map_or(0, |room| room.f_bavail.saturating_mul(room.f_frsize));
            Self::NoRoom { path, free_bytes }
        } else {
            Self::Io { path, error }
        }
    }
}
