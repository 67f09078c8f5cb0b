//! What fuzz targets need of the journal: its parsers without a filesystem, and functions that give
//! forged transactions valid checksums.

use crate::StoreError;
use crate::apply::preallocation::list as preallocation;
use crate::calibration::{Calibration, file as calibration};
use crate::log::codec;
use crate::log::header::{HEADER_BYTES, Header, KIND_RECORDS, transaction_bytes};
use crate::log::overflow::Overflow;
use crate::log::scan;
use crate::log::superblock::{FORMAT_VERSION, LOG_START, SLOTS, Slot, Superblock, choose, parse};
use crate::lower::{JOURNAL_BLOCK_BYTES, JournalBuffer};

pub use crate::log::record::{CopiedBytes, Record};

/// A list of preallocated files as bytes again; the error says why the bytes are none.
///
/// # Errors
/// If the bytes are anything else.
pub fn recode_preallocated(bytes: &[u8], uuid: [u8; 16]) -> Result<Vec<u8>, String> {
    let (sequence, files) =
        preallocation::parse(bytes, uuid).map_err(|damage| damage.to_string())?;
    Ok(preallocation::encode(uuid, sequence, files.iter()))
}

/// A valid list of so many files.
pub fn forge_preallocated(uuid: [u8; 16], files: u64) -> Vec<u8> {
    let files: Vec<_> = (1..=files).map(preallocation::Listed::example).collect();
    preallocation::encode(uuid, files.len() as u64, files.iter())
}

/// The calibration of a device as bytes again; the error says why the bytes are none.
///
/// # Errors
/// If the bytes are anything else.
pub fn recode_calibration(bytes: &[u8], uuid: [u8; 16]) -> Result<Vec<u8>, String> {
    let parsed = calibration::parse(bytes, uuid).map_err(|damage| damage.to_string())?;
    Ok(calibration::encode(uuid, &parsed))
}

/// A valid calibration with so many sizes.
pub fn forge_calibration(uuid: [u8; 16], sizes: u32) -> Vec<u8> {
    calibration::encode(uuid, &Calibration::example(sizes))
}

/// The records as bytes.
pub fn encode(records: &[Record]) -> Vec<u8> {
    let length = usize::try_from(codec::encoded_bytes(records)).unwrap_or(usize::MAX);
    let mut bytes = vec![0; length];
    codec::encode(records, &mut bytes);
    bytes
}

/// What one transaction of these records takes in a journal.
pub fn transaction_length(records: &[Record]) -> usize {
    usize::try_from(transaction_bytes(codec::encoded_bytes(records))).unwrap_or(usize::MAX)
}

/// Exactly `count` records that fill the bytes; the error says why the bytes are not.
///
/// # Errors
/// If the bytes are anything else.
pub fn decode(bytes: &[u8], count: u32) -> Result<Vec<Record>, String> {
    codec::decode(bytes, count).map_err(|malformed| malformed.to_string())
}

/// Whether a journal takes the record.
pub fn is_encodable(record: &Record) -> bool {
    codec::is_encodable(record)
}

/// What a scan of a journal found.
#[derive(Debug, PartialEq)]
pub struct Scanned {
    /// Sequence and records of each transaction.
    pub transactions: Vec<(u64, Vec<Record>)>,
    /// Offset after the last one.
    pub end: u64,
    /// Size of an incomplete one at `end`.
    pub discarded_tail_bytes: u64,
}

/// Scans a journal. `read` gets offset and length of every read before it happens.
///
/// # Errors
/// As mounting the store of that journal.
pub fn scan(journal: &[u8], read: &mut dyn FnMut(u64, u64)) -> Result<Scanned, StoreError> {
    let superblock = superblock_of(journal)?;
    if superblock.journal_bytes > journal.len() as u64 {
        return Err(StoreError::Unsuitable("the journal is cut short".into()));
    }
    let mut read_blocks = |offset, buffer: &mut JournalBuffer| {
        let out = buffer.as_bytes_mut();
        read(offset, out.len() as u64);
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        out.copy_from_slice(&journal[from..from + out.len()]);
        Ok(())
    };
    let found = scan::scan(&superblock, &mut read_blocks, &mut |offset| Ok(offset))?;
    Ok(Scanned {
        transactions: found.transactions,
        end: found.end,
        discarded_tail_bytes: found.discarded_tail_bytes,
    })
}

/// Fields of a forged superblock; its checksum is right.
#[derive(Clone, Copy, Debug)]
pub struct ForgedSuperblock {
    /// Identity of the store.
    pub uuid: [u8; 16],
    /// Size of the journal.
    pub journal_bytes: u64,
    /// Epoch in force.
    pub epoch: u64,
    /// The generation: of two copies the one with the higher one is in force.
    pub generation: u64,
    /// The epoch has no transaction.
    pub clean: bool,
    /// Nothing was written after it in the epoch.
    pub reach: u64,
}

/// A superblock, one block long.
pub fn forge_superblock(forged: &ForgedSuperblock) -> Vec<u8> {
    let mut block = vec![0; JOURNAL_BLOCK_BYTES];
    let superblock = Superblock {
        version: FORMAT_VERSION,
        uuid: forged.uuid,
        journal_bytes: forged.journal_bytes,
        epoch: forged.epoch,
        generation: forged.generation,
        direct_bytes_max: 0,
        clean: forged.clean,
        reach: forged.reach,
        home: None,
        carried: None,
    };
    superblock.encode(&mut block);
    block
}

/// Fields of a forged transaction; its checksums are right.
#[derive(Clone, Copy, Debug)]
pub struct ForgedTransaction<'a> {
    /// Identity of the store.
    pub uuid: [u8; 16],
    /// Its epoch.
    pub epoch: u64,
    /// Its sequence.
    pub sequence: u64,
    /// How many records it says it has.
    pub record_count: u32,
    /// What is in the place of the records.
    pub payload: &'a [u8],
}

/// A transaction, in whole blocks.
pub fn forge_transaction(forged: &ForgedTransaction<'_>) -> Vec<u8> {
    let payload_bytes = u32::try_from(forged.payload.len()).unwrap_or(u32::MAX);
    let whole = transaction_bytes(u64::from(payload_bytes));
    let mut blocks = vec![0; usize::try_from(whole).unwrap_or(usize::MAX)];
    let header = Header {
        #[expect(clippy::cast_possible_truncation, reason = "the version is small")]
        version: FORMAT_VERSION as u16,
        kind: KIND_RECORDS,
        epoch: forged.epoch,
        sequence: forged.sequence,
        payload_bytes,
        record_count: forged.record_count,
        payload_crc: crc32c::crc32c(forged.payload),
    };
    header.encode(crc32c::crc32c(&forged.uuid), &mut blocks);
    blocks[HEADER_BYTES..HEADER_BYTES + forged.payload.len()].copy_from_slice(forged.payload);
    blocks
}

/// Writes a transaction after the last one of a journal, as if a mount had committed it.
/// Says whether there was room.
///
/// # Errors
/// If the journal itself cannot be read.
pub fn append(journal: &mut [u8], record_count: u32, payload: &[u8]) -> Result<bool, StoreError> {
    let superblock = superblock_of(journal)?;
    let found = scan(journal, &mut |_, _| {})?;
    let blocks = forge_transaction(&ForgedTransaction {
        uuid: superblock.uuid,
        epoch: superblock.epoch,
        sequence: found.transactions.len() as u64 + 1,
        record_count,
        payload,
    });
    let start = usize::try_from(found.end).unwrap_or(usize::MAX);
    let Some(room) = journal.get_mut(start..start + blocks.len()) else {
        return Ok(false);
    };
    room.copy_from_slice(&blocks);
    // Marked as clean, the epoch would have no transaction.
    let superblock = Superblock {
        clean: false,
        generation: superblock.generation + 1,
        ..superblock.reaching((start + blocks.len()) as u64)
    };
    write_superblocks(journal, &superblock);
    Ok(true)
}

/// The records with which the epoch of a forged superblock begins.
#[derive(Clone, Copy, Debug)]
pub struct ForgedCarried {
    /// Number of the overflow file; 0: the epoch begins with nothing.
    pub file: u64,
    /// Bytes that the records take in it.
    pub bytes: u64,
    /// How many records.
    pub records: u32,
    /// Checksum of these bytes.
    pub crc32c: u32,
}

impl ForgedCarried {
    /// The valid values for these records in this file.
    pub fn of(file: u64, records: &[Record]) -> Self {
        let content = encode(records);
        Self {
            file,
            bytes: content.len() as u64,
            records: u32::try_from(records.len()).unwrap_or(u32::MAX),
            crc32c: crc32c::crc32c(&content),
        }
    }
}

/// Has both superblocks of a journal say that its epoch begins with this, as after an apply that
/// the lower filesystem refused; the epoch under way, or with `is_new` one that has no transaction
/// yet.
///
/// # Errors
/// If the journal itself cannot be read.
pub fn carry(journal: &mut [u8], forged: ForgedCarried, is_new: bool) -> Result<(), StoreError> {
    let superblock = superblock_of(journal)?;
    let superblock = if is_new {
        superblock.for_new_epoch(superblock.epoch + 1, superblock.home)
    } else {
        superblock
    };
    let carried = Overflow {
        file: forged.file,
        bytes: forged.bytes,
        records: forged.records,
        crc32c: forged.crc32c,
    };
    let superblock = Superblock {
        version: FORMAT_VERSION,
        clean: false,
        generation: superblock.generation + 1,
        carried: Some(carried),
        ..superblock
    };
    write_superblocks(journal, &superblock);
    Ok(())
}

fn write_superblocks(journal: &mut [u8], superblock: &Superblock) {
    let mut block = vec![0; JOURNAL_BLOCK_BYTES];
    superblock.encode(&mut block);
    for slot in 0..SLOTS {
        journal[slot * JOURNAL_BLOCK_BYTES..][..JOURNAL_BLOCK_BYTES].copy_from_slice(&block);
    }
}

fn superblock_of(journal: &[u8]) -> Result<Superblock, StoreError> {
    let log_start = usize::try_from(LOG_START).unwrap_or(usize::MAX);
    let slots = journal.get(..log_start).map(|blocks| {
        let (first, second) = blocks.split_at(JOURNAL_BLOCK_BYTES);
        [parse(first), parse(second)]
    });
    choose(slots.unwrap_or([Slot::Damaged; SLOTS])).map(|(superblock, _)| superblock)
}
