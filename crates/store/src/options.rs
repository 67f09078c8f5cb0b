//! How to open a journal store.

use crate::calibration::shared::Measuring;

/// How to open a [`JournalStore`](crate::JournalStore).
#[derive(Clone, Copy, Debug)]
pub struct JournalOptions {
    /// Size of the journal, if it has to be made.
    pub journal_bytes: u64,
    /// Largest transaction that is written with one durable write instead of write
    /// and flush; none: measured, and remembered.
    pub direct_bytes_max: Option<u64>,
    /// When that is measured.
    pub measuring: Measuring,
    /// Identity of the store, if it has to be made.
    pub uuid_if_new: [u8; 16],
    /// Write nothing; what a journal holds is shown but not applied.
    pub read_only: bool,
    /// Memory that committed, unapplied pages may hold before a commit applies them.
    pub held_bytes_max: u64,
    /// Room that is kept in the lower filesystem, also on a full disk, for directories and lists of extents that
    /// grow; 0: none.
    pub reserve_bytes: u64,
    /// [`Store::apply`](crate::Store::apply) writes so many pages of existing files or more before it keeps commits
    /// waiting.
    pub ahead_pages_min: usize,
    /// What is allocated beyond the end of growing files.
    pub preallocation: Preallocation,
}

/// In which steps an apply allocates blocks for growing files (S4 §6.1.1), on filesystems that keep
/// such blocks where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preallocation {
    /// The smallest step for SQLite databases and their logs; 0: none.
    pub database_bytes: u64,
    /// The largest step for other files, and for databases that are larger than one step: as much
    /// as the file has, up to this, and beyond 1 MiB up to a 64th of what is free; 0: none, and databases grow in
    /// steps of `database_bytes`.
    pub large_bytes: u64,
}

impl Preallocation {
    /// Nothing is preallocated.
    pub const OFF: Self = Self {
        database_bytes: 0,
        large_bytes: 0,
    };
    /// Twice the 128 KiB with which S4 prevents most of the fragments, as many databases of phones grow
    /// beyond that (`docs/AGEING.md`), and as much as larger files have up to 16 MiB.
    pub const IN_STEPS: Self = Self {
        database_bytes: 256 << 10,
        large_bytes: 16 << 20,
    };
}

impl Default for Preallocation {
    fn default() -> Self {
        Self::IN_STEPS
    }
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            journal_bytes: 64 << 20,
            direct_bytes_max: None,
            measuring: Measuring::AtOpening,
            uuid_if_new: [0; 16],
            read_only: false,
            held_bytes_max: 256 << 20,
            reserve_bytes: 0,
            ahead_pages_min: 256,
            preallocation: Preallocation::default(),
        }
    }
}
