//! What is known of the last commit of an app.

use mobifs_base::{MonotonicNs, Timestamp};

/// When an app's changes were last committed.
#[derive(Clone, Copy)]
pub(super) struct Checkpoint {
    pub(super) wall: Timestamp,
    pub(super) now: MonotonicNs,
}

/// Why an app accepts no changes.
#[derive(Clone, Debug)]
pub(super) struct FailedCommit {
    pub(super) reason: String,
    /// There was no room in the lower filesystem.
    pub(super) is_full: bool,
}
