//! The record that a registration is.

use std::mem::size_of;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::clock::monotonic_s;

const MAGIC: [u8; 8] = *b"MOBISTR1";
/// A promise for the whole filesystem.
const VERSION: u32 = 1;
/// A promise that is limited in a way that version 1 does not know.
const VERSION_SCOPED: u32 = 2;
const IN_FORCE: u32 = 1;
const WITHDRAWN: u32 = 0;

/// What of a filesystem a promise holds for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All of it.
    Whole,
    /// Files and directories with the flag `FS_JOURNAL_DATA_FL` (`chattr +j`), each by itself.
    JournalledFiles,
}

impl Scope {
    const fn number(self) -> u32 {
        match self {
            Self::Whole => 0,
            Self::JournalledFiles => 1,
        }
    }

    const fn version(self) -> u32 {
        match self {
            Self::Whole => VERSION,
            Self::JournalledFiles => VERSION_SCOPED,
        }
    }
}

/// Size of a record.
pub const RECORD_BYTES: usize = 64;

/// A record as it lies in the file; its state may change while it is looked at.
#[derive(Debug)]
#[repr(C)]
pub struct Record {
    magic: [u8; 8],
    version: u32,
    state: AtomicU32,
    pid: u32,
    valid_until_s: AtomicU32,
    generation: u64,
    scope: u32,
    padding: [u8; 28],
}

const _: () = assert!(size_of::<Record>() == RECORD_BYTES);

impl Record {
    /// The bytes of a record that promises nothing yet.
    pub(crate) fn bytes(pid: u32, generation: u64, scope: Scope) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&MAGIC);
        put(&scope.version().to_ne_bytes());
        put(&WITHDRAWN.to_ne_bytes());
        put(&pid.to_ne_bytes());
        put(&0_u32.to_ne_bytes());
        put(&generation.to_ne_bytes());
        put(&scope.number().to_ne_bytes());
        bytes
    }

    /// What is to be written where, in this order, for a promise that holds for so long.
    ///
    /// A reader that sees a time of which some bytes are written sees one that is over or later than
    /// the new one, for as long as the write takes.
    pub(crate) fn promise(valid_s: u32) -> [(u64, [u8; 4]); 2] {
        let valid_until_s = monotonic_s().saturating_add(valid_s);
        [
            (20, valid_until_s.to_ne_bytes()),
            (12, IN_FORCE.to_ne_bytes()),
        ]
    }

    /// The bytes and their place for a record that does not hold any more.
    pub(crate) const fn withdrawal() -> (u64, [u8; 4]) {
        (12, WITHDRAWN.to_ne_bytes())
    }

    /// Whether this version understands the record.
    pub(crate) fn is_understood(&self) -> bool {
        self.magic == MAGIC
            && [Scope::Whole, Scope::JournalledFiles]
                .iter()
                .any(|scope| (self.version, self.scope) == (scope.version(), scope.number()))
    }

    /// What it holds for; of a record that is understood.
    pub fn scope(&self) -> Scope {
        if self.scope == Scope::Whole.number() {
            Scope::Whole
        } else {
            Scope::JournalledFiles
        }
    }

    /// Whether the promise holds now.
    pub fn is_in_force(&self) -> bool {
        self.state.load(Ordering::Acquire) == IN_FORCE && monotonic_s() < self.valid_until_s()
    }

    /// Until when the state holds, in seconds of `CLOCK_MONOTONIC`.
    pub fn valid_until_s(&self) -> u32 {
        self.valid_until_s.load(Ordering::Acquire)
    }

    /// The daemon's process number, as the daemon sees it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Another number for each registration.
    pub fn generation(&self) -> u64 {
        self.generation
    }
}
