//! The header in front of every transaction.

use crate::log::superblock::{u32_at, u64_at};
use crate::lower::JOURNAL_BLOCK_BYTES;

/// Bytes of a header; records follow directly.
pub(crate) const HEADER_BYTES: usize = 40;
/// The only kind of transaction so far.
pub(crate) const KIND_RECORDS: u16 = 1;

const MAGIC: [u8; 4] = *b"MFtx";
const CRC_AT: usize = 36;

/// The fields of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) version: u16,
    pub(crate) kind: u16,
    pub(crate) epoch: u64,
    pub(crate) sequence: u64,
    pub(crate) payload_bytes: u32,
    pub(crate) record_count: u32,
    pub(crate) payload_crc: u32,
}

impl Header {
    /// Writes the header to the start of `block`.
    pub(crate) fn encode(&self, seed: u32, block: &mut [u8]) {
        block[..4].copy_from_slice(&MAGIC);
        block[4..6].copy_from_slice(&self.version.to_le_bytes());
        block[6..8].copy_from_slice(&self.kind.to_le_bytes());
        block[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        block[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        block[24..28].copy_from_slice(&self.payload_bytes.to_le_bytes());
        block[28..32].copy_from_slice(&self.record_count.to_le_bytes());
        block[32..36].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32c::crc32c_append(seed, &block[..CRC_AT]);
        block[CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    }

    /// Reads a header; none if the bytes are not one of this store.
    pub(crate) fn parse(seed: u32, block: &[u8]) -> Option<Self> {
        if !has_magic(block)
            || u32_at(block, CRC_AT) != crc32c::crc32c_append(seed, &block[..CRC_AT])
        {
            return None;
        }
        let u16_at = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
        Some(Self {
            version: u16_at(4),
            kind: u16_at(6),
            epoch: u64_at(block, 8),
            sequence: u64_at(block, 16),
            payload_bytes: u32_at(block, 24),
            record_count: u32_at(block, 28),
            payload_crc: u32_at(block, 32),
        })
    }

    /// The size of the transaction in the journal: whole blocks.
    pub(crate) fn transaction_bytes(&self) -> u64 {
        transaction_bytes(u64::from(self.payload_bytes))
    }
}

/// The size of a payload and its header in the journal.
pub(crate) fn transaction_bytes(payload_bytes: u64) -> u64 {
    (payload_bytes + HEADER_BYTES as u64).next_multiple_of(JOURNAL_BLOCK_BYTES as u64)
}

/// Whether the block starts like a header of `epoch`, be it whole or not.
pub(crate) fn resembles(block: &[u8], epoch: u64) -> bool {
    has_magic(block) && u64_at(block, 8) == epoch
}

fn has_magic(block: &[u8]) -> bool {
    block.len() >= HEADER_BYTES && block[..4] == MAGIC
}
