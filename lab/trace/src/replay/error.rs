//! Why a trace cannot be replayed.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// Why a trace cannot be replayed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The trace is of block devices.
    #[error("the trace has commands to block devices; `mobifs flash replay` replays those")]
    Block,
    /// The directory holds something already, which the replay could hurt.
    #[error("{}: the directory is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// The directory cannot be used.
    #[error("{}: {source}", path.display())]
    Directory {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file that was there before the trace began cannot be made.
    #[error("{} cannot be prepared: {source}", path.display())]
    Prepare {
        /// Which one, in the directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A thread cannot be started.
    #[error("no thread could be started for one of the trace: {0}")]
    Thread(io::Error),
}
