//! Why no advice can be given: one sentence with what, where, and what to do.

use std::io;
use std::path::{Path, PathBuf};

use mobifs_defragmenter::DefragError;
use mobifs_fragmentation::{MeasureError, shown};
use thiserror::Error;

/// Nothing is changed by what fails.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AdviseError {
    /// A mount of MobiFS has no blocks of its own.
    #[error("{} lies on the MobiFS mount {}, whose files lie in its store; ask for that: mobifs frag advise {}", text(.path), text(.mountpoint), text(.store))]
    MobifsMount {
        /// What was given.
        path: PathBuf,
        /// Where the mount is.
        mountpoint: PathBuf,
        /// Its store.
        store: PathBuf,
    },
    /// Its files could be measured, but not defragmented, nor do programs write to it.
    #[error("{} is a filesystem image or a block device; mount it, and ask for the mount point (mobifs frag measure {} says how its files lie)", text(.0), text(.0))]
    Image(PathBuf),
    /// The cost of an extent cannot be estimated from these files.
    #[error("{} has too few files to measure what a piece costs: {lacking}; leave --measure-cost out, or give --piece-ms and --megabyte-ms", text(.path))]
    NoCost {
        /// Where.
        path: PathBuf,
        /// What is missing.
        lacking: &'static str,
    },
    /// A path cannot be measured.
    #[error("{0}")]
    Measure(#[from] MeasureError),
    /// Moves cannot be planned.
    #[error("{0}")]
    Plan(#[from] DefragError),
    /// A file or device cannot be read.
    #[error("{}: {error}", text(.path))]
    Io {
        /// What was to be read.
        path: PathBuf,
        /// What the kernel says.
        error: io::Error,
    },
}

pub(crate) fn text(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    shown(path.as_os_str().as_bytes())
}
