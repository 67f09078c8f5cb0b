//! The interface between the engine's driver and a checkpoint store.

use std::collections::BTreeSet;

use mobifs_base::{
    ByteRange, DirectoryEntry, FullDisk, ObjectId, ObjectInfo, Page, PageIndex, Room, SpaceInfo,
    Transaction, Xattr,
};

use crate::lower::Capabilities;
use crate::{Calibration, StoreError};

/// What commits have written to the journal since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JournalWrites {
    /// Blocks of 4 KiB, those of overflow files included.
    pub blocks: u64,
    /// Changed pages.
    pub pages: u64,
    /// Those of them that were written whole, because what they were before was not in memory.
    pub whole_pages: u64,
    /// Those of which most is a copy of what is elsewhere, and only the place of that was written.
    pub copied_pages: u64,
    /// Bytes of the pages that were written: those that changed, and some between them.
    pub changed_bytes: u64,
    /// Everything else but the zeros up to the end of the last block: headers, names, attributes,
    /// which bytes of which page.
    pub control_bytes: u64,
    /// Transactions that were made durable by a flush after their write.
    pub flushes: u64,
}

/// Committed work that has not reached its final place yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PendingWork {
    /// Bytes of journal in use.
    pub journal_used_bytes: u64,
    /// Bytes of journal there are.
    pub journal_total_bytes: u64,
    /// Memory that committed work takes, roughly.
    pub held_bytes: u64,
    /// Room that applying will take in the lower filesystem at most.
    pub reserved: Room,
    /// Bytes written to the device for commits since the store was opened (journal
    /// and data written in place, without what applying writes).
    pub commit_written_bytes: u64,
    /// Bytes written by applying since the store was opened.
    pub apply_written_bytes: u64,
    /// Objects with committed changes that another program had moved or removed in the store's
    /// directory when the changes were applied; again for an apply that is repeated.
    pub externally_modified: u64,
    /// Commits since the store was opened.
    pub commits: u64,
    /// Room of the lower filesystem that is preallocated for growing files and not used; it is
    /// given back where there is no other.
    pub preallocated_bytes: u64,
    /// Bytes of growing files that applies have moved to where there is room to grow, since the store was opened; they
    /// are part of `apply_written_bytes`.
    pub moved_bytes: u64,
    /// What they wrote to the journal.
    pub journal: JournalWrites,
    /// The largest transaction that is written by one durable write; larger ones by a write and a
    /// flush.
    pub durable_write_max_bytes: u64,
    /// What may be reserved although the lower filesystem has no room.
    pub on_full_disk: FullDisk,
}

/// What [`Store::seek`] looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// The next byte that may hold data.
    Data,
    /// The next hole (the end of the file is one).
    Hole,
}

/// A place that keeps committed state.
///
/// The read calls show the state after the last accepted transaction, whether its
/// effects lie in a journal or in the lower tree. All calls may be used from several
/// threads; one transaction is committed at a time.
pub trait Store: Send + Sync {
    /// Limits to respect.
    fn capabilities(&self) -> Capabilities;

    /// Room in the lower filesystem, not reduced by pending changes.
    ///
    /// # Errors
    /// [`StoreError::Lower`].
    fn space(&self) -> Result<SpaceInfo, StoreError>;

    /// Committed attributes of an object that [`Store::list_directory`] named, that a
    /// transaction created, or of the root.
    ///
    /// # Errors
    /// [`StoreError::Unknown`] if it is gone, [`StoreError::Lower`].
    fn object(&self, id: ObjectId) -> Result<ObjectInfo, StoreError>;

    /// All entries of a directory, without `.`, `..` and the store's own directory.
    ///
    /// # Errors
    /// As [`Store::object`].
    fn list_directory(&self, id: ObjectId) -> Result<Vec<DirectoryEntry>, StoreError>;

    /// All extended attributes of an object.
    ///
    /// # Errors
    /// As [`Store::object`].
    fn xattrs(&self, id: ObjectId) -> Result<Vec<Xattr>, StoreError>;

    /// Target of a symlink.
    ///
    /// # Errors
    /// As [`Store::object`].
    fn read_link(&self, id: ObjectId) -> Result<Vec<u8>, StoreError>;

    /// Reads content at `offset`; holes and bytes after the end read as zero, so
    /// `out` is always filled.
    ///
    /// # Errors
    /// As [`Store::object`].
    fn read(&self, id: ObjectId, offset: u64, out: &mut [u8]) -> Result<(), StoreError>;

    /// First offset at or after `offset` that is data (or a hole), below the
    /// committed size; none if there is no more.
    ///
    /// # Errors
    /// As [`Store::object`].
    fn seek(&self, id: ObjectId, offset: u64, what: Seek) -> Result<Option<u64>, StoreError>;

    /// Whether an object has blocks of its own for all of this range, in which it is
    /// overwritten, and nothing committed gives some of them back: then writing there takes no
    /// room. False where that is not known.
    ///
    /// # Errors
    /// As [`Store::object`].
    fn is_in_place(&self, id: ObjectId, range: ByteRange) -> Result<bool, StoreError>;

    /// Commits the transaction as a whole: when this returns it is durable, the read calls show it,
    /// and every later transaction comes after it.
    ///
    /// # Errors
    /// [`StoreError::Lower`]; the transaction then left no trace and may be committed again.
    fn commit(&self, transaction: Transaction) -> Result<(), StoreError>;

    /// Brings everything committed to its final place and empties the journal.
    ///
    /// # Errors
    /// [`StoreError::Lower`]; what is committed stays committed and the call may be
    /// repeated.
    fn apply(&self) -> Result<(), StoreError>;

    /// What was measured of the device below the store; none if it was not.
    fn calibration(&self) -> Option<Calibration>;

    /// Applies everything, and measures the device again: the largest transaction that is one
    /// durable write may be another one afterwards.
    ///
    /// # Errors
    /// [`StoreError::Unsuitable`] where nothing is to be measured (the store is read-only or has no
    /// journal, or the size is configured), and as [`Store::apply`].
    fn calibrate(&self) -> Result<Calibration, StoreError>;

    /// What is committed but not applied, and counters.
    fn pending(&self) -> PendingWork;

    /// The first id for an object that a transaction creates: ids that the store held when it was
    /// opened are lower. Ids at even offsets from it are the caller's, those at odd ones the
    /// store's.
    fn first_new_object(&self) -> ObjectId;

    /// Keeps an object's content readable without links, while it is open.
    fn pin(&self, id: ObjectId);

    /// Ends [`Store::pin`]: if the object has no link any more it may be deleted.
    fn unpin(&self, id: ObjectId);

    /// Spills pages of an object that has no link in any committed state (deleted while open, or
    /// `O_TMPFILE`): writes them outside memory, without making them durable.
    /// Later [`Store::read`] calls show them. A `created` object that the store has
    /// not seen yet becomes known by this.
    ///
    /// # Errors
    /// [`StoreError::Lower`].
    fn spill(&self, id: ObjectId, pages: &[(PageIndex, Page)]) -> Result<(), StoreError>;

    /// The engine no longer holds the listings of these directories, or these deleted objects, in
    /// memory. The store may drop its state of them, and of objects that it named only as entries
    /// of these directories; not of those `in_use`.
    fn forget(&self, ids: &[ObjectId], in_use: &BTreeSet<ObjectId>);

    /// From this instant on nothing more is written: what a power cut does.
    fn cut_power(&self);
}
