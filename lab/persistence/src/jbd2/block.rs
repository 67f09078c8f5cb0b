//! Control blocks: descriptor, revoke and commit blocks.

use crate::bytes::{be16, be32, be64, raw_crc32c};
use crate::jbd2::superblock::{ChecksumVersion, Superblock};
use crate::jbd2::{HEADER_BYTES, MAGIC};

const ESCAPED: u32 = 1;
const SAME_UUID: u32 = 2;
const LAST: u32 = 8;
const UUID_BYTES: usize = 16;
const TAIL_BYTES: usize = 4;
const COMMIT_CHECKSUM_AT: usize = 16;
const REVOKE_HEADER_BYTES: usize = 16;

/// What a control block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockType {
    Descriptor,
    Commit,
    Revoke,
}

/// The header of a control block of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: BlockType,
    pub(crate) sequence: u32,
}

impl Header {
    /// None: the block is not a control block of a log.
    pub(crate) fn parse(block: &[u8]) -> Option<Self> {
        if block.len() < HEADER_BYTES || be32(block, 0) != MAGIC {
            return None;
        }
        let kind = match be32(block, 4) {
            1 => BlockType::Descriptor,
            2 => BlockType::Commit,
            5 => BlockType::Revoke,
            _ => return None,
        };
        Some(Self {
            kind,
            sequence: be32(block, 8),
        })
    }
}

/// One entry of a descriptor block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tag {
    /// Where the block belongs in the filesystem.
    pub(crate) place: u64,
    /// The block began with the journal's magic, which is zero in the log.
    pub(crate) is_escaped: bool,
    /// The checksum of the block in the log; 16 bits with version 2.
    checksum: u32,
}

impl Superblock {
    /// Whether the checksum of a control block is right; true where there is none.
    pub(crate) fn verifies(&self, kind: BlockType, block: &[u8]) -> bool {
        if self.features.checksum == ChecksumVersion::None {
            return true;
        }
        let at = match kind {
            BlockType::Commit => COMMIT_CHECKSUM_AT,
            BlockType::Descriptor | BlockType::Revoke => block.len() - TAIL_BYTES,
        };
        let before = raw_crc32c(self.seed, &block[..at]);
        let blank = raw_crc32c(before, &[0; TAIL_BYTES]);
        raw_crc32c(blank, &block[at + TAIL_BYTES..]) == be32(block, at)
    }

    /// Whether the checksum of a block in the log is right; true where there is none.
    pub(crate) fn verifies_tagged(&self, tag: &Tag, sequence: u32, block: &[u8]) -> bool {
        let mask = match self.features.checksum {
            ChecksumVersion::None => return true,
            ChecksumVersion::V2 => 0xffff,
            ChecksumVersion::V3 => !0,
        };
        let crc = raw_crc32c(self.seed, &sequence.to_be_bytes());
        raw_crc32c(crc, block) & mask == tag.checksum
    }

    const fn tag_bytes(&self) -> usize {
        match (self.features.checksum, self.features.bits_64) {
            (ChecksumVersion::V3, _) => 16,
            (ChecksumVersion::V2, true) => 14,
            (ChecksumVersion::V2, false) => 10,
            (ChecksumVersion::None, true) => 12,
            (ChecksumVersion::None, false) => 8,
        }
    }

    fn tail_bytes(&self) -> usize {
        match self.features.checksum {
            ChecksumVersion::None => 0,
            _ => TAIL_BYTES,
        }
    }

    /// The entries of a descriptor block, in order. One without a last entry is full.
    pub(crate) fn tags(&self, block: &[u8]) -> Vec<Tag> {
        let end = block.len() - self.tail_bytes();
        let mut tags = Vec::new();
        let mut at = HEADER_BYTES;
        while at + self.tag_bytes() <= end {
            let is_v3 = self.features.checksum == ChecksumVersion::V3;
            let (flags, high_at, checksum) = if is_v3 {
                (be32(block, at + 4), at + 8, be32(block, at + 12))
            } else {
                let checksum = match self.features.checksum {
                    ChecksumVersion::V2 => be16(block, at + 4),
                    _ => 0,
                };
                (u32::from(be16(block, at + 6)), at + 8, u32::from(checksum))
            };
            let high = if self.features.bits_64 {
                be32(block, high_at)
            } else {
                0
            };
            tags.push(Tag {
                place: u64::from(high) << 32 | u64::from(be32(block, at)),
                is_escaped: flags & ESCAPED != 0,
                checksum,
            });
            at += self.tag_bytes();
            if flags & SAME_UUID == 0 {
                at += UUID_BYTES;
            }
            if flags & LAST != 0 {
                break;
            }
        }
        tags
    }

    /// The blocks of the filesystem that a revoke block names; none if it does not say a size that fits.
    pub(crate) fn revoked(&self, block: &[u8]) -> Option<Vec<u64>> {
        let entry_bytes = if self.features.bits_64 { 8 } else { 4 };
        let used = usize::try_from(be32(block, HEADER_BYTES)).ok()?;
        if used < REVOKE_HEADER_BYTES || used > block.len() - self.tail_bytes() {
            return None;
        }
        let entries = block[REVOKE_HEADER_BYTES..used].chunks_exact(entry_bytes);
        let place = |entry: &[u8]| match entry_bytes {
            8 => be64(entry, 0),
            _ => u64::from(be32(entry, 0)),
        };
        Some(entries.map(place).collect())
    }
}

/// Seconds and nanoseconds since 1970 of a commit block.
pub(crate) fn commit_time(block: &[u8]) -> (u64, u32) {
    (be64(block, 0x30), be32(block, 0x38))
}
