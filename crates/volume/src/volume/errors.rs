//! Errors of file operations for what has failed in the store.

use mobifs_engine::FsError;
use mobifs_store::StoreError;

/// The error of a file operation for a failed call of the store.
pub(super) fn store_failed(error: &StoreError) -> FsError {
    match error {
        StoreError::Unknown(_) => FsError::Stale,
        error if error.is_full() => FsError::NoSpace,
        error => {
            tracing::error!(%error, "a file operation failed in the store");
            FsError::Io
        }
    }
}

/// The error for a thread that waits for a commit.
pub(super) const fn not_committed(is_full: bool) -> FsError {
    if is_full {
        FsError::NoSpace
    } else {
        FsError::Io
    }
}
