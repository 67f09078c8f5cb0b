//! Why serving a mount ends.

use rustix::io::Errno;
use thiserror::Error;

/// Why serving a mount ended other than by unmounting.
#[derive(Debug, Error)]
pub enum SessionError {
    /// Reading requests failed.
    #[error("cannot read requests from the kernel: {0}")]
    Receive(Errno),
    /// A worker could not be started.
    #[error("cannot start a worker thread: {0}")]
    Spawn(#[source] std::io::Error),
    /// A worker panicked; the mount was ended so that no program waits for an answer.
    #[error("a worker thread panicked; the mount was ended")]
    Panicked,
}
