//! What a [`crate::Volume`] is made with, and how its own requests fail.

use mobifs_core::FsError;
use mobifs_store::StoreError;

/// Why a request about the volume as a whole (not one file operation) failed.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// No app of that name exists in this mount.
    #[error("there is no app named \"{name}\" in this mount")]
    UnknownApp {
        /// The name asked for.
        name: String,
    },
    /// Changes of an app could not be committed; they stay in memory.
    #[error("{app} could not be committed and is read-only: {reason}")]
    NotCommitted {
        /// The first such app.
        app: String,
        /// What the store said.
        reason: String,
    },
    /// The power was cut by a drill.
    #[error("the power was cut by a drill: nothing is written to the store any more")]
    PowerCut,
    /// A setting cannot be changed while mounted.
    #[error("{0}")]
    Setting(String),
    /// A file operation failed.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// A thread of the volume could not be started.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
}
