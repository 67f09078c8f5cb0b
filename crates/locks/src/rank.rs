//! Ranks of locks.

use std::fmt::Debug;

/// The place of a lock in the order of its instance.
pub trait Rank: Copy + Debug {
    /// A thread takes a lock only if this is higher than that of all locks it holds.
    fn place(self) -> u8;

    /// The name for the message of a check that fails.
    fn name(self) -> &'static str;
}
