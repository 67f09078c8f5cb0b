//! Commands of eMMC and UFS as the model takes them, and what comes back.

use mobifs_base::VirtualNs;
use thiserror::Error;

use crate::address::{SECTORS_PER_PAGE, Sector};

/// What a write promises when it has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WriteKind {
    /// The device has the data; a power cut before the next flush may lose it, or tear
    /// it between sectors.
    Plain,
    /// The data is in the cells (eMMC reliable write, to which Linux turns FUA; UFS FUA).
    /// A power cut before the end leaves old or new, whole in each reliable-write unit.
    Reliable,
}

/// One part of a packed write: a write of its own, with its own promise. Packed is not
/// all-or-nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedPart {
    /// First sector.
    pub start: Sector,
    /// Number of sectors.
    pub sectors: u32,
    /// What it promises; reads ignore it.
    pub kind: WriteKind,
}

/// A command to the device. Lengths are in sectors of 512 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command<'a> {
    /// Reads.
    Read {
        /// First sector.
        start: Sector,
        /// Number of sectors.
        sectors: u32,
    },
    /// Writes.
    Write {
        /// First sector.
        start: Sector,
        /// Number of sectors.
        sectors: u32,
        /// What it promises.
        kind: WriteKind,
    },
    /// Several writes with one command (eMMC 4.5 packed command).
    PackedWrite(&'a [PackedPart]),
    /// Several reads with one command.
    PackedRead(&'a [PackedPart]),
    /// Everything that was written before is in the cells when it ends.
    Flush,
    /// What is written later does not survive a power cut unless what was written before
    /// does (eMMC 5.1 cache barrier).
    Barrier,
    /// Forgets the content of the pages wholly inside the range; they read as zeros.
    /// Sectors outside those pages keep their content. Durable when it ends.
    Discard {
        /// First sector.
        start: Sector,
        /// Number of sectors.
        sectors: u32,
    },
    /// Gives whole pages the content of others, which keep it, without moving it. Promises what a
    /// plain write of that content promises: nothing before the next flush. Both have it until one
    /// is written or discarded. Nothing of it may be in the write cache.
    Share {
        /// First sector of the content, the first of a page.
        from: Sector,
        /// First sector of what gets it, the first of a page.
        to: Sector,
        /// Number of sectors, whole pages.
        sectors: u32,
    },
    /// Secure remap (S4 §6.2.2): puts the content of whole pages under other addresses
    /// without moving it. `from` then reads as discarded. Durable when it ends; a power
    /// cut before finds all of it or none. Implies a flush.
    Remap {
        /// First sector of the content, the first of a page.
        from: Sector,
        /// First sector of its new place, the first of a page.
        to: Sector,
        /// Number of sectors, whole pages.
        sectors: u32,
    },
}

impl Command<'static> {
    /// A read of `pages` whole pages from `page` on.
    pub fn read_pages(page: u64, pages: u64) -> Self {
        Self::Read {
            start: first_sector(page),
            sectors: sectors_of(pages),
        }
    }

    /// A write of `pages` whole pages from `page` on.
    pub fn write_pages(page: u64, pages: u64, kind: WriteKind) -> Self {
        Self::Write {
            start: first_sector(page),
            sectors: sectors_of(pages),
            kind,
        }
    }
}

/// What is too many for a command is so for any device, which then refuses it.
fn sectors_of(pages: u64) -> u32 {
    u32::try_from(pages.saturating_mul(u64::from(SECTORS_PER_PAGE))).unwrap_or(u32::MAX)
}

const fn first_sector(page: u64) -> Sector {
    Sector(page.saturating_mul(SECTORS_PER_PAGE as u64))
}

/// Kinds of commands in statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CommandKind {
    /// [`Command::Read`] and [`Command::PackedRead`].
    Read = 0,
    /// [`Command::Write`] that is plain.
    Write = 1,
    /// [`Command::Write`] that is reliable.
    ReliableWrite = 2,
    /// [`Command::PackedWrite`].
    PackedWrite = 3,
    /// [`Command::Flush`].
    Flush = 4,
    /// [`Command::Barrier`].
    Barrier = 5,
    /// [`Command::Discard`].
    Discard = 6,
    /// [`Command::Remap`].
    Remap = 7,
    /// [`Command::Share`].
    Share = 8,
}

impl CommandKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 9] = [
        Self::Read,
        Self::Write,
        Self::ReliableWrite,
        Self::PackedWrite,
        Self::Flush,
        Self::Barrier,
        Self::Discard,
        Self::Remap,
        Self::Share,
    ];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::ReliableWrite => "reliable_write",
            Self::PackedWrite => "packed_write",
            Self::Flush => "flush",
            Self::Barrier => "barrier",
            Self::Discard => "discard",
            Self::Remap => "remap",
            Self::Share => "share",
        }
    }
}

impl Command<'_> {
    /// The kind under which it is accounted.
    pub const fn kind(&self) -> CommandKind {
        match self {
            Self::Read { .. } | Self::PackedRead(_) => CommandKind::Read,
            Self::Write {
                kind: WriteKind::Plain,
                ..
            } => CommandKind::Write,
            Self::Write { .. } => CommandKind::ReliableWrite,
            Self::PackedWrite(_) => CommandKind::PackedWrite,
            Self::Flush => CommandKind::Flush,
            Self::Barrier => CommandKind::Barrier,
            Self::Discard { .. } => CommandKind::Discard,
            Self::Remap { .. } => CommandKind::Remap,
            Self::Share { .. } => CommandKind::Share,
        }
    }
}

/// When a command was taken and when it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// When the device took it: later than submitted if its queue was full, or after a
    /// flush, discard or remap, which it executes alone.
    pub accepted_at: VirtualNs,
    /// When it ended, and the host gets the completion.
    pub done_at: VirtualNs,
}

impl Completion {
    /// Nanoseconds from submission at `at` to the end.
    pub const fn latency_ns(&self, at: VirtualNs) -> u64 {
        self.done_at.ns_since(at)
    }
}

/// Why a command is refused. A refused command changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The range does not lie in the device.
    #[error("sectors {start} to {end} do not lie in a device of {device_sectors} sectors")]
    OutOfRange {
        /// First sector.
        start: u64,
        /// First sector after the range.
        end: u64,
        /// What the device has.
        device_sectors: u64,
    },
    /// A length of zero sectors, or no parts.
    #[error("a command must name at least one sector")]
    Empty,
    /// A remap or share that is not of whole pages.
    #[error("a remap or share is of whole pages of 8 sectors")]
    NotWholePages,
    /// A remap or share whose ranges overlap.
    #[error("the ranges of a remap or share must not overlap")]
    RemapOverlaps,
    /// A remap or share of more pages than the configuration allows.
    #[error("a remap or share is of at most {pages_max} pages")]
    RemapTooLarge {
        /// What is allowed.
        pages_max: u32,
    },
    /// A share of what is not in the cells alone.
    #[error("only content that is in the cells, and not newer in the cache, can be shared")]
    NotShareable,
    /// The device has no power.
    #[error("the device has no power")]
    NoPower,
}
