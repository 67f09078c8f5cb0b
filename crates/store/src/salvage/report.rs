//! What a salvage finds and does, for people and tools.

use mobifs_base::Timestamp;

/// What is damaged in a store, what is certain, and what a salvage would lose.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// What is damaged, in sentences; empty: nothing, and a salvage does nothing.
    pub damage: Vec<String>,
    /// The recovery point.
    pub recovery_point: RecoveryPoint,
    /// What came after it.
    pub lost: LostChanges,
    /// What can be promised of the files after the salvage.
    pub promise: Promise,
    /// Files that are nowhere in the store, although the intact transactions concern them.
    pub missing: Vec<String>,
    /// Directories that are nowhere in the store, and that are made again, because the journal puts something into
    /// them. What else they had is gone.
    pub made_again: Vec<String>,
    /// New files whose content was in `.mobifs`, and is not there any more.
    pub without_content: Vec<String>,
    /// Files that no intact transaction names, and that the salvage keeps in `.mobifs/lost`.
    pub rescued: u64,
    /// An earlier salvage was cut short, and only has to be finished.
    pub is_finishing: bool,
    /// Bytes that the new journal takes on the disk.
    pub room_bytes: u64,
}

/// The last point in time up to which everything is certain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecoveryPoint {
    /// Committed transactions that are certain, and in the journal only.
    pub transactions: u64,
    /// Bytes of the journal that they take.
    pub bytes: u64,
    /// When the last change in them was made; none if there are none.
    pub until: Option<Timestamp>,
}

/// What was committed after the recovery point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostChanges {
    /// Transactions, at least.
    pub transactions: u64,
    /// Bytes of the journal that they take.
    pub bytes: u64,
    /// When the last change in them was made that can be read.
    pub until: Option<Timestamp>,
    /// All of them can be read, but for the damage itself: no file is missing in `files`.
    pub is_all_known: bool,
    /// The files that they change, by path.
    pub files: Vec<LostFile>,
}

/// A file of which changes are lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostFile {
    /// Its path in the mount; non-printing bytes are escaped.
    pub path: String,
    /// What was done to it.
    pub change: LostChange,
    /// Bytes of content that are lost.
    pub bytes: u64,
    /// Some of what is lost is in the file already, so that it may hold a mix of two states.
    pub may_be_mixed: bool,
}

/// What lost transactions did to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LostChange {
    /// The file was made.
    Created,
    /// Its content or its attributes were changed.
    Changed,
    /// The file was deleted.
    Deleted,
}

/// What can be promised of the files after a salvage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Promise {
    /// Nothing is lost, or nothing of it can be in the files: they are as they were at the recovery point.
    #[default]
    PointInTime,
    /// Nothing shows that something of it is, and not all of what is lost can be read.
    NothingShows,
    /// Some files hold parts of what is lost.
    Mixed,
}

/// What a salvage has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Salvaged {
    /// What was found before.
    pub survey: Survey,
    /// The name in `.mobifs` under which the damaged journal is kept; none if there was none.
    pub kept: Option<String>,
}
