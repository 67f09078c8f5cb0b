//! How far the emptying of a block has come.

use super::counters::Cause;
use super::resources::Ns;

/// A block that is being emptied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Collection {
    pub(super) block: u32,
    /// Slots of the block before this one are done.
    pub(super) next: u32,
    pub(super) cause: Cause,
    /// When the last of what was moved is in its new place.
    pub(super) moved_at: Ns,
}

impl Collection {
    pub(super) const fn new(block: u32, cause: Cause) -> Self {
        Self {
            block,
            next: 0,
            cause,
            moved_at: 0,
        }
    }
}
