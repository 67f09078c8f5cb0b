//! One who uses a tree.

use std::fmt;
use std::path::PathBuf;

/// A user of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum User {
    /// A process.
    Process {
        /// Its number.
        pid: u32,
        /// Its name.
        name: String,
    },
    /// A loop device.
    LoopDevice(String),
    /// Swap.
    Swap(PathBuf),
    /// A filesystem that is mounted in it, or a bind mount of it.
    Mount(PathBuf),
    /// The same in the mount namespace of another process.
    MountElsewhere {
        /// Where, as that process sees it.
        path: PathBuf,
        /// The process.
        pid: u32,
    },
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, name } => write!(f, "{name} (process {pid})"),
            Self::LoopDevice(name) => write!(f, "the loop device /dev/{name}"),
            Self::Swap(path) => write!(f, "the kernel for swap ({})", path.display()),
            Self::Mount(path) => write!(f, "the filesystem that is mounted at {}", path.display()),
            Self::MountElsewhere { path, pid } => write!(
                f,
                "the filesystem that is mounted at {} in the mount namespace of process {pid}",
                path.display()
            ),
        }
    }
}
