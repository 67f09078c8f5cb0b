//! Why ageing ended early.

use std::io;
use std::path::{Path, PathBuf};

use mobifs_fragmentation::{MeasureError, shown};
use thiserror::Error;

/// One sentence: what, where, and what to do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AgeError {
    /// A system call failed.
    #[error("cannot {doing} {}: {error}", text(.path))]
    Io {
        /// What was to be done.
        doing: &'static str,
        /// With what.
        path: PathBuf,
        /// What the kernel says.
        error: io::Error,
    },
    /// Only root sets up loop devices.
    #[error("{} would be mounted by a loop device, which takes root; become root, or age a directory", text(.0))]
    NotRoot(PathBuf),
    /// Something else is in the directory.
    #[error("{} is not empty (it has {}), and ageing would mix with what is there; give an empty directory", text(.path), text(.found))]
    NotEmpty {
        /// The directory.
        path: PathBuf,
        /// The name of something in it.
        found: PathBuf,
    },
    /// Not a directory at all.
    #[error("{} is no directory; give an empty directory on the filesystem that is to age", text(.0))]
    NoDirectory(PathBuf),
    /// The plan needs more room than there is.
    #[error("{} has {free_bytes} bytes of room, and {needed_bytes} are needed at least; {advice}", text(.path))]
    NoRoom {
        /// Where.
        path: PathBuf,
        /// What there is.
        free_bytes: u64,
        /// What is needed.
        needed_bytes: u64,
        /// What to do.
        advice: &'static str,
    },
    /// The apps do not fit.
    #[error(
        "the filesystem is too small: to {what}, {needed_bytes} bytes are needed and {free_bytes} left, and there are no pictures to delete; take a larger --capacity, a smaller --scale or a lower --start-full"
    )]
    TooSmall {
        /// What is to be done.
        what: String,
        /// What is left.
        free_bytes: u64,
        /// What is needed.
        needed_bytes: u64,
    },
    /// The filesystem became full where it should not.
    #[error("the filesystem of {} is full, although by the plan it is not yet; {advice}", text(.path))]
    Full {
        /// What could not be written.
        path: PathBuf,
        /// What to do.
        advice: &'static str,
    },
    /// The filesystem that an image lies on is full.
    #[error("the filesystem below the image {} has only {free_bytes} bytes free, and about {needed_bytes} are needed to go on; make room there", text(.path))]
    HostFull {
        /// The image.
        path: PathBuf,
        /// What is free below it.
        free_bytes: u64,
        /// What the next session needs.
        needed_bytes: u64,
    },
    /// No inodes are left.
    #[error("the filesystem of {} can hold no more files although it has room; make it with more inodes (mkfs.ext4 -i 4096), or choose larger small files", text(.0))]
    NoInodes(PathBuf),
    /// There are not enough small files to delete.
    #[error("deleting all small files below {} leaves {used_permille} of 1000 parts used, and {target_permille} were asked for; raise the share of small files or lower the mark", text(.path))]
    FewSmall {
        /// Where.
        path: PathBuf,
        /// What would stay used.
        used_permille: u32,
        /// What was asked for.
        target_permille: u32,
    },
    /// The result is not what was asked for.
    #[error("{} is used to {used_permille} of 1000 parts, and that is not {asked}; its metadata takes more than the plan knows: change the mark or the target", text(.path))]
    Missed {
        /// Where.
        path: PathBuf,
        /// What it is.
        used_permille: u32,
        /// What was asked for.
        asked: &'static str,
    },
    /// A number is out of its range.
    #[error("{name} is {value}, and must be {range}")]
    OutOfRange {
        /// The option.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        range: &'static str,
    },
    /// The caller asked to stop.
    #[error("stopped; what is there can be continued")]
    Cancelled,
    /// A profile of an app is wrong.
    #[error("the profile {source_name}: {message}")]
    Profile {
        /// The file, or which built-in one.
        source_name: String,
        /// What is wrong with it.
        message: String,
    },
    /// Another run ages it.
    #[error("{} is being aged by another run; wait for its end, or end that", text(.0))]
    InUse(PathBuf),
    /// The state of an earlier run is damaged.
    #[error("{}: this state of a run {what}; age again from the beginning, in another place", text(.path))]
    Damaged {
        /// The state file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// There is no run, or already one.
    #[error("{}: {message}", text(.path))]
    State {
        /// The state file.
        path: PathBuf,
        /// What is wrong, and what to do.
        message: String,
    },
    /// SQLite refused.
    #[error("SQLite on {}: {message}", text(.path))]
    Sqlite {
        /// The database.
        path: PathBuf,
        /// What it says.
        message: String,
    },
    /// A program that is needed failed.
    #[error("{program} failed: {said}")]
    Tool {
        /// The program and what it was to do.
        program: String,
        /// Its last words.
        said: String,
    },
    /// The result could not be measured.
    #[error(transparent)]
    Measure(#[from] MeasureError),
}

fn text(path: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    shown(path.as_os_str().as_bytes())
}

impl AgeError {
    /// Whether a filesystem had no room.
    pub(crate) fn is_no_room(&self) -> bool {
        let Self::Io { error, .. } = self else {
            return false;
        };
        let kinds = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        kinds.contains(&error.kind())
    }
}

/// Says of a failed system call what was to be done, with what.
pub(crate) trait OnPath<T> {
    fn at(self, doing: &'static str, path: &Path) -> Result<T, AgeError>;
}

impl<T, E: Into<io::Error>> OnPath<T> for Result<T, E> {
    fn at(self, doing: &'static str, path: &Path) -> Result<T, AgeError> {
        self.map_err(|error| AgeError::Io {
            doing,
            path: path.to_owned(),
            error: error.into(),
        })
    }
}
