//! The store's locks, and the order in which a thread takes them ([`mobifs_locks`]).

pub(crate) use mobifs_locks::{Order, Ranked};

/// The place of a lock in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rank {
    /// The journal's epoch: held by a commit, or an apply, from its beginning to its end.
    Epoch,
    /// Content in place: held by every thread that writes to files of the lower tree, except that
    /// pages of an object without a name are spilled under the epoch alone.
    Content,
    /// Names of the lower tree: read-held to find objects, write-held while names move.
    Names,
    /// What is pending and what is known of the lower tree.
    State,
    /// Handles that are kept open; no call is made while it is held.
    Handles,
    /// Which files have preallocation; no call is made while it is held.
    Preallocations,
}

impl mobifs_locks::Rank for Rank {
    fn place(self) -> u8 {
        self as u8
    }

    fn name(self) -> &'static str {
        match self {
            Self::Epoch => "epoch",
            Self::Content => "content",
            Self::Names => "names",
            Self::State => "state",
            Self::Handles => "handles",
            Self::Preallocations => "preallocations",
        }
    }
}

pub(crate) type RankedMutex<T> = mobifs_locks::RankedMutex<Rank, T>;
pub(crate) type RankedRwLock<T> = mobifs_locks::RankedRwLock<Rank, T>;
