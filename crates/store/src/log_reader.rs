//! Reading the transactions of a journal without its store, for tools that examine journals: nothing is
//! written, and no lower filesystem is needed.

use crate::StoreError;
use crate::log::codec;
use crate::log::header::{HEADER_BYTES, Header};
use crate::log::scan::check_not_later;
use crate::log::superblock::{SLOTS, Superblock, choose, parse};
use crate::lower::JOURNAL_BLOCK_BYTES;

pub use crate::log::record::{CopiedBytes, Record};

/// Reads transactions of one journal.
#[derive(Clone, Copy, Debug)]
pub struct LogReader {
    superblock: Superblock,
}

/// A whole transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct LoggedTransaction {
    /// Its epoch.
    pub epoch: u64,
    /// Its sequence within the epoch.
    pub sequence: u64,
    /// What it takes in the journal: whole blocks.
    pub journal_bytes: u64,
    /// Its records.
    pub records: Vec<Record>,
}

/// What begins at a place in a journal.
#[derive(Clone, Debug, PartialEq)]
pub enum AtBlock {
    /// No transaction of this store.
    Nothing,
    /// The first block of a transaction that takes so many bytes, of which not all are there, or not whole.
    Incomplete {
        /// In whole blocks.
        journal_bytes: u64,
    },
    /// A transaction.
    Whole(LoggedTransaction),
}

impl LogReader {
    /// Bytes of a block of the journal.
    pub const BLOCK_BYTES: usize = JOURNAL_BLOCK_BYTES;

    /// Reads the superblocks: the first two blocks of a journal, or one of them.
    ///
    /// # Errors
    /// Neither of them is whole, or they are of a newer format.
    pub fn new(superblocks: &[u8]) -> Result<Self, StoreError> {
        let mut blocks = superblocks.chunks(JOURNAL_BLOCK_BYTES);
        let slots = [(); SLOTS].map(|()| parse(blocks.next().unwrap_or_default()));
        let (superblock, _) = choose(slots)?;
        Ok(Self { superblock })
    }

    /// Identity of the store.
    #[must_use]
    pub const fn uuid(&self) -> [u8; 16] {
        self.superblock.uuid
    }

    /// The epoch in force.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.superblock.epoch
    }

    /// Size of the journal, in bytes.
    #[must_use]
    pub const fn journal_bytes(&self) -> u64 {
        self.superblock.journal_bytes
    }

    /// Where the search for transactions ends.
    #[must_use]
    pub fn reach(&self) -> u64 {
        self.superblock.reach.min(self.superblock.journal_bytes)
    }

    /// Checks that the block at `offset` begins no transaction after the one that is `missing`, with
    /// this sequence and at this offset: a transaction is written only after the one before it is
    /// durable.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`]: the missing one is damaged. [`StoreError::NewerFormat`].
    pub fn check_not_later(
        &self,
        block: &[u8],
        offset: u64,
        missing: (u64, u64),
    ) -> Result<(), StoreError> {
        match Header::parse(self.superblock.crc_seed(), block) {
            Some(header) => check_not_later(&self.superblock, &header, offset, missing),
            None => Ok(()),
        }
    }

    /// Largest transaction that is written with one durable write, in bytes.
    #[must_use]
    pub const fn direct_bytes_max(&self) -> u64 {
        self.superblock.direct_bytes_max
    }

    /// What begins at the start of `bytes`, of any epoch.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for a transaction that is whole and cannot be read.
    pub fn at_block(&self, bytes: &[u8]) -> Result<AtBlock, StoreError> {
        let Some(header) = Header::parse(self.superblock.crc_seed(), bytes) else {
            return Ok(AtBlock::Nothing);
        };
        let journal_bytes = header.transaction_bytes();
        let payload = usize::try_from(header.payload_bytes)
            .ok()
            .and_then(|length| bytes.get(HEADER_BYTES..HEADER_BYTES.checked_add(length)?));
        let Some(payload) = payload.filter(|payload| crc32c::crc32c(payload) == header.payload_crc)
        else {
            return Ok(AtBlock::Incomplete { journal_bytes });
        };
        let records = codec::decode(payload, header.record_count).map_err(|malformed| {
            StoreError::Corrupt {
                what: format!("journal transaction {}", header.sequence),
                detail: malformed.to_string(),
            }
        })?;
        Ok(AtBlock::Whole(LoggedTransaction {
            epoch: header.epoch,
            sequence: header.sequence,
            journal_bytes,
            records,
        }))
    }

    /// Bytes that a record takes in a journal.
    #[must_use]
    pub fn record_bytes(record: &Record) -> u64 {
        codec::encoded_bytes(std::slice::from_ref(record))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzzing::{
        ForgedSuperblock, ForgedTransaction, encode, forge_superblock, forge_transaction,
    };
    use mobifs_base::{ByteRange, ObjectId};

    #[test]
    fn transactions_are_read_where_they_begin() {
        let uuid = [3; 16];
        let superblock = forge_superblock(&ForgedSuperblock {
            uuid,
            journal_bytes: 1 << 20,
            epoch: 7,
            generation: 1,
            clean: false,
            reach: 1 << 20,
        });
        let reader = LogReader::new(&superblock).unwrap();
        assert_eq!(
            (reader.uuid(), reader.epoch(), reader.journal_bytes()),
            (uuid, 7, 1 << 20)
        );
        let range = ByteRange {
            start: 0,
            end: 4096,
        };
        let records = vec![Record::Direct {
            object: ObjectId(5),
            range,
        }];
        let payload = encode(&records);
        let forged = |uuid| {
            forge_transaction(&ForgedTransaction {
                uuid,
                epoch: 6,
                sequence: 2,
                record_count: 1,
                payload: &payload,
            })
        };
        let mut blocks = forged(uuid);
        let whole = AtBlock::Whole(LoggedTransaction {
            epoch: 6,
            sequence: 2,
            journal_bytes: 4096,
            records: records.clone(),
        });
        assert_eq!(reader.at_block(&blocks).unwrap(), whole);
        assert_eq!(LogReader::record_bytes(&records[0]), payload.len() as u64);
        // Of another store, cut short, and damaged.
        assert_eq!(reader.at_block(&forged([4; 16])).unwrap(), AtBlock::Nothing);
        let incomplete = AtBlock::Incomplete {
            journal_bytes: 4096,
        };
        assert_eq!(
            reader.at_block(&blocks[..HEADER_BYTES]).unwrap(),
            incomplete
        );
        blocks[HEADER_BYTES] ^= 1;
        assert_eq!(reader.at_block(&blocks).unwrap(), incomplete);
        assert!(LogReader::new(&[0; 4096]).is_err());
    }
}
