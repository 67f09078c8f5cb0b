//! Why nothing could be measured.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::names::shown;

/// One sentence: what, where, and what to do. Nothing is changed by what fails.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// Links are not followed.
    #[error("{} is a symbolic link, which is not followed; give what it leads to: {}", path_text(.path), path_text(.target))]
    SymbolicLink {
        /// The link.
        path: PathBuf,
        /// What it leads to.
        target: PathBuf,
    },
    /// A pipe, a socket, a character device.
    #[error("{} is neither a directory nor a file nor a block device, and has no extents", path_text(.0))]
    NoFile(PathBuf),
    /// The filesystem does not report where files lie.
    #[error("{} lies on {filesystem}, which does not report where files lie (no FIEMAP); ext4, btrfs, XFS and f2fs do", path_text(.path))]
    NoMap {
        /// What was to be measured.
        path: PathBuf,
        /// The filesystem, by its name.
        filesystem: String,
    },
    /// Blocks are another machine's.
    #[error("{} lies on {filesystem}, a filesystem of another machine, which does not report where files lie; measure it there", path_text(.path))]
    Network {
        /// What was to be measured.
        path: PathBuf,
        /// The filesystem, by its name.
        filesystem: String,
    },
    /// A mount of MobiFS has no blocks of its own.
    #[error("{} lies on the MobiFS mount {}, whose files lie in its store; measure that: mobifs frag measure {}", path_text(.path), path_text(.mountpoint), path_text(.store))]
    MobifsMount {
        /// What was to be measured.
        path: PathBuf,
        /// Where the mount is.
        mountpoint: PathBuf,
        /// Its store.
        store: PathBuf,
    },
    /// This user may not.
    #[error("{} cannot be read by this user: {error}", path_text(.path))]
    NotPermitted {
        /// What was to be read.
        path: PathBuf,
        /// What the kernel says.
        error: io::Error,
    },
    /// The file or device cannot be read.
    #[error("{}: {error}", path_text(.path))]
    Io {
        /// What was to be read or written.
        path: PathBuf,
        /// What the kernel says.
        error: io::Error,
    },
    /// Only ext4 is read without a mount.
    #[error("{} holds {filesystem}, and only ext4 can be measured without a mount; mount it and measure the mount point (or, to measure the image as a file, add --as-file)", path_text(.path))]
    OtherFilesystem {
        /// The image.
        path: PathBuf,
        /// What is in it.
        filesystem: &'static str,
    },
    /// A block device without a filesystem that is known.
    #[error("{} is a block device without an ext4 filesystem", path_text(.0))]
    NoFilesystem(PathBuf),
    /// The device or image is mounted, or served.
    #[error("{} is in use ({by}); {advice}", path_text(.path))]
    InUse {
        /// The image.
        path: PathBuf,
        /// By what.
        by: String,
        /// What to do.
        advice: String,
    },
    /// The tools of e2fsprogs cannot read it.
    #[error("the ext4 image {} is damaged or of a newer format: {said} (e2fsck -fn shows what is wrong and changes nothing)", path_text(.path))]
    Damaged {
        /// The image.
        path: PathBuf,
        /// What the tool says.
        said: String,
    },
    /// A program that does the work is not there.
    #[error("{program}, of e2fsprogs, cannot be run: {error}; install the package e2fsprogs")]
    Tool {
        /// Its name.
        program: &'static str,
        /// What the kernel says.
        error: io::Error,
    },
}

/// A path within a sentence.
pub(crate) fn path_text(path: &std::path::Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    shown(path.as_os_str().as_bytes())
}

impl MeasureError {
    /// For an error of the kernel at a path.
    pub(crate) fn at(path: &std::path::Path, error: impl Into<io::Error>) -> Self {
        let (path, error) = (path.to_owned(), error.into());
        if error.kind() == io::ErrorKind::PermissionDenied {
            Self::NotPermitted { path, error }
        } else {
            Self::Io { path, error }
        }
    }
}
