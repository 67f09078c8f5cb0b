//! A commit that waits for room in the lower filesystem.

use mobifs_base::{MonotonicNs, SpaceInfo};

/// A commit has failed, or was postponed, because there was no room in the lower filesystem.
pub(super) struct CommitWaitingForRoom {
    /// The room at that moment.
    pub(super) space: SpaceInfo,
    pub(super) failed_at: MonotonicNs,
    pub(super) looked_at: MonotonicNs,
}

impl CommitWaitingForRoom {
    /// Whether there is more room now.
    pub(super) fn has_more(&self, space: &SpaceInfo) -> bool {
        space.available_bytes > self.space.available_bytes
            || space.free_inodes > self.space.free_inodes
    }
}
