//! The restart image: the engine's state as records that outlive the process.
//!
//! After every operation [`crate::Engine::save`] hands out the final state of all that
//! the operation touched: records to keep, each under a [`Key`], and keys to drop. The
//! [`RestartImage`] applies all of one call or nothing, so that it always holds the state
//! between two operations. [`crate::Engine::restore`] makes an engine of them.
//!
//! The bytes are for the same build of this program only; they are not a format. A change
//! of them raises the version of the arena that keeps them (`crates/volume/src/arena/layout.rs`).

pub(crate) mod dirty_tracking;
pub(crate) mod inode;
pub(crate) mod restore;
pub(crate) mod save;
pub(crate) mod transaction;
mod uncommitted;

use mobifs_base::codec::{CodecError, Reader};
use mobifs_base::{ObjectId, Page};
use thiserror::Error;

pub use transaction::PageAt;
pub use uncommitted::{SavedRecords, Uncommitted, Unreadable, last_known_path, read, uncommitted};

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The engine's counters; the only one.
    Engine = 1,
    /// An app, by its number.
    App = 2,
    /// An object, by its id.
    Object = 3,
    /// An entry of a loaded directory, by the directory's id and the entry's cookie.
    Dentry = 4,
    /// A dirty page, by the file's id and the page's index: where its content is kept.
    Page = 5,
    /// An open transaction.
    Open = 6,
    /// An object that an open transaction mentions, by both numbers.
    Member = 7,
    /// An entry that an open transaction changes, by the transaction and its own number.
    DentryChange = 8,
    /// A closed transaction.
    Closed = 9,
    /// A range whose earlier content is gone by the open change of a file: by the file's id and
    /// where the range starts.
    Zeroed = 10,
    /// A range that the open change of a file allocates, by the same.
    Allocated = 11,
    /// The extended attributes of an object, and which of them its open change carries; there is
    /// none where there are none.
    Xattrs = 12,
}

impl Kind {
    /// The kind with this number.
    pub const fn of(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Engine,
            2 => Self::App,
            3 => Self::Object,
            4 => Self::Dentry,
            5 => Self::Page,
            6 => Self::Open,
            7 => Self::Member,
            8 => Self::DentryChange,
            9 => Self::Closed,
            10 => Self::Zeroed,
            11 => Self::Allocated,
            12 => Self::Xattrs,
            _ => return None,
        })
    }
}

/// Names one record. What `first` and `second` are depends on the kind; 0 where there is
/// nothing to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// What the record is about.
    pub kind: Kind,
    /// Which one.
    pub first: u64,
    /// Which one of `first`'s.
    pub second: u64,
}

impl Key {
    pub(crate) const fn new(kind: Kind, first: u64, second: u64) -> Self {
        Self {
            kind,
            first,
            second,
        }
    }
}

/// The highest object id that a record names as one in use.
pub fn named_in(key: Key, value: &[u8]) -> Option<ObjectId> {
    match key.kind {
        Kind::Object => Some(ObjectId(key.first)),
        Kind::Dentry => Reader::new(value).id().ok(),
        _ => None,
    }
}

/// Keeps the records where they outlive the process.
pub trait RestartImage {
    /// From now on this is the record of `key`.
    fn put(&mut self, key: Key, value: &[u8]);
    /// There is no record of `key`.
    fn remove(&mut self, key: Key);
    /// Stores the page's content where it outlives the process, if it is not there yet
    /// ([`Page::place`]), and as long as a record names the place.
    fn keep(&mut self, page: &mut Page);
}

/// Why records are not an engine's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the saved state of the mount does not make sense: {0}")]
pub struct RestartImageError(pub &'static str);

impl From<CodecError> for RestartImageError {
    fn from(error: CodecError) -> Self {
        Self(error.as_str())
    }
}

/// The engine's own counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counters {
    pub(crate) next_transaction: u64,
    pub(crate) next_object: u64,
    pub(crate) app_epoch: u64,
    pub(crate) hash_seed: u64,
}
