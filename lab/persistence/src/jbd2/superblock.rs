//! The superblock of a JBD2 journal.

use crate::bytes::{be32, raw_crc32c};
use crate::error::PersistError;
use crate::jbd2::MAGIC;

/// Bytes of a superblock.
pub(crate) const SUPERBLOCK_BYTES: usize = 1024;
const TYPE_V1: u32 = 3;
const TYPE_V2: u32 = 4;
const CHECKSUM_AT: usize = 0xfc;
const CRC32C: u8 = 4;
const FAST_COMMIT_BLOCKS: u32 = 256;
/// ext4 makes journals of up to 400 MiB and takes larger ones; this is 16 TiB in blocks of 4 KiB.
const BLOCKS_MAX: u32 = u32::MAX;

const COMPAT_CHECKSUM: u32 = 1;
const REVOKE: u32 = 1;
const BITS_64: u32 = 2;
const ASYNC_COMMIT: u32 = 4;
const CSUM_V2: u32 = 8;
const CSUM_V3: u32 = 0x10;
const FAST_COMMIT: u32 = 0x20;
const KNOWN: u32 = REVOKE | BITS_64 | ASYNC_COMMIT | CSUM_V2 | CSUM_V3 | FAST_COMMIT;

/// How blocks are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChecksumVersion {
    /// Not at all, or the commit block has a checksum of the whole transaction (version 1), which is not read.
    None,
    /// CRC32C in control blocks; 16 bits of it for each block.
    V2,
    /// CRC32C in control blocks; 32 bits of it for each block.
    V3,
}

/// What a journal's format has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Features {
    /// The version of the checksums of blocks.
    pub checksum: ChecksumVersion,
    /// Blocks beyond 2³² of the filesystem.
    pub bits_64: bool,
    /// There may be revoke blocks.
    pub revoke: bool,
    /// The commit block does not wait for the blocks before it.
    pub async_commit: bool,
    /// The journal's end is an area of fast commits.
    pub fast_commit: bool,
}

/// The superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// 1 or 2.
    pub version: u8,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Blocks of the journal, with its superblock.
    pub blocks: u32,
    /// The first block of the log.
    pub first: u32,
    /// The first block after the log: the fast-commit area, or the journal's end.
    pub end: u32,
    /// The first sequence that a mount expects in the log.
    pub sequence: u32,
    /// Where that is; 0: the log has nothing that a mount would replay.
    pub start: u32,
    /// What the format has.
    pub features: Features,
    /// The seed of the checksums.
    pub(crate) seed: u32,
}

impl Superblock {
    /// Reads it from the journal's first block. `is_external`: only an external journal may have users.
    ///
    /// # Errors
    /// [`PersistError::NotAJournal`], [`PersistError::Damaged`], [`PersistError::NewerFormat`].
    pub fn parse(block: &[u8]) -> Result<Self, PersistError> {
        let damaged =
            |what: String| Err(PersistError::Damaged(format!("journal superblock: {what}")));
        if block.len() < SUPERBLOCK_BYTES || be32(block, 0) != MAGIC {
            return Err(PersistError::NotAJournal);
        }
        let version = match be32(block, 4) {
            TYPE_V1 => 1,
            TYPE_V2 => 2,
            other => return damaged(format!("it has block type {other}")),
        };
        // Version 1 has no features, and what is in their place means nothing.
        let (compat, incompat) = match version {
            1 => (0, 0),
            _ => (be32(block, 0x24), be32(block, 0x28)),
        };
        if incompat & !KNOWN != 0 {
            return Err(PersistError::NewerFormat(incompat & !KNOWN));
        }
        let checksum = match (incompat & CSUM_V2 != 0, incompat & CSUM_V3 != 0) {
            (true, true) => {
                return damaged("it has checksums of versions 2 and 3 at once".to_owned());
            }
            (_, true) => ChecksumVersion::V3,
            (true, _) => ChecksumVersion::V2,
            _ => ChecksumVersion::None,
        };
        if checksum != ChecksumVersion::None {
            if compat & COMPAT_CHECKSUM != 0 {
                return damaged(
                    "it has checksums of version 1 and of a later one at once".to_owned(),
                );
            }
            if block[0x50] != CRC32C {
                return damaged(format!(
                    "its checksums are of the unknown kind {}",
                    block[0x50]
                ));
            }
            let mut blank = block[..SUPERBLOCK_BYTES].to_vec();
            blank[CHECKSUM_AT..CHECKSUM_AT + 4].fill(0);
            if raw_crc32c(!0, &blank) != be32(block, CHECKSUM_AT) {
                return damaged("its checksum is wrong".to_owned());
            }
        }
        let fast_commit = incompat & FAST_COMMIT != 0;
        let fast_blocks = match be32(block, 0x54) {
            _ if !fast_commit => 0,
            0 => FAST_COMMIT_BLOCKS,
            some => some,
        };
        let found = Self {
            version,
            block_bytes: be32(block, 0x0c),
            blocks: be32(block, 0x10),
            first: be32(block, 0x14),
            end: be32(block, 0x10).saturating_sub(fast_blocks),
            sequence: be32(block, 0x18),
            start: be32(block, 0x1c),
            features: Features {
                checksum,
                bits_64: incompat & BITS_64 != 0,
                revoke: incompat & REVOKE != 0,
                async_commit: incompat & ASYNC_COMMIT != 0,
                fast_commit,
            },
            seed: raw_crc32c(!0, &block[0x30..0x40]),
        };
        found.check()
    }

    fn check(self) -> Result<Self, PersistError> {
        let damaged =
            |what: String| Err(PersistError::Damaged(format!("journal superblock: {what}")));
        let size = self.block_bytes;
        if !(1024..=65536).contains(&size) || !size.is_power_of_two() {
            return damaged(format!("it has blocks of {size} bytes"));
        }
        if self.first == 0 || self.first >= self.end || self.blocks == BLOCKS_MAX {
            return damaged(format!(
                "its log is from block {} to {}",
                self.first, self.end
            ));
        }
        if self.start != 0 && !(self.first..self.end).contains(&self.start) {
            return damaged(format!(
                "its log begins at block {}, outside of it",
                self.start
            ));
        }
        Ok(self)
    }

    /// Blocks of the log: the ring.
    #[must_use]
    pub const fn ring_blocks(&self) -> u32 {
        self.end - self.first
    }

    /// The block of the ring `steps` after `block`.
    pub(crate) fn after(&self, block: u32, steps: u32) -> u32 {
        let offset = u64::from(block - self.first) + u64::from(steps);
        // Less than `end`, which is 32 bits.
        self.first + (offset % u64::from(self.ring_blocks())) as u32
    }

    /// The block of the ring before `block`.
    pub(crate) fn before(&self, block: u32) -> u32 {
        if block == self.first {
            self.end - 1
        } else {
            block - 1
        }
    }
}
