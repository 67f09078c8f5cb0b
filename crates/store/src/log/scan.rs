//! Finding the transactions in a journal.

use std::ops::Range;

use crate::StoreError;
use crate::log::codec;
use crate::log::header;
use crate::log::header::{HEADER_BYTES, Header, KIND_RECORDS};
use crate::log::record::Record;
use crate::log::superblock::{FORMAT_VERSION, LOG_START, Superblock};
use crate::log::window::{Blocks, Window};
use crate::lower::JOURNAL_BLOCK_BYTES;

/// After so many bytes the scan checks whether a hole follows.
const LOOK_BYTES: u64 = 1 << 20;
const BLOCK: u64 = JOURNAL_BLOCK_BYTES as u64;

/// The first offset at or after the given one (whole blocks both) that may hold data; skipped
/// blocks were never written.
pub(crate) type NextData<'r> = dyn FnMut(u64) -> Result<u64, StoreError> + 'r;

/// What the scan found.
#[derive(Debug, PartialEq)]
pub(crate) struct Found {
    /// Sequence and records of each transaction.
    pub(crate) transactions: Vec<(u64, Vec<Record>)>,
    /// Offset of the last transaction; `end` if there is none.
    pub(crate) last: u64,
    /// Offset after the last transaction.
    pub(crate) end: u64,
    /// Sequence that the next transaction gets.
    pub(crate) next_sequence: u64,
    /// Size of an incomplete transaction at `end`, as far as it is known.
    pub(crate) discarded_tail_bytes: u64,
}

/// Follows the transactions of the superblock's epoch from the journal's start. Bytes after the
/// last whole one are an incomplete tail, unless a later transaction of the epoch exists: a
/// transaction is written only after the one before it is durable, so then the one missing was
/// damaged.
pub(crate) fn scan(
    superblock: &Superblock,
    blocks: &mut dyn Blocks,
    next_data: &mut NextData<'_>,
) -> Result<Found, StoreError> {
    let mut scanner = Scanner::new(superblock, blocks);
    let mut found = Found {
        transactions: Vec::new(),
        last: LOG_START,
        end: LOG_START,
        next_sequence: 1,
        discarded_tail_bytes: 0,
    };
    let mut tail_bytes = 0;
    while found.end < superblock.journal_bytes {
        match scanner.transaction(found.end, found.next_sequence)? {
            At::Nothing => break,
            At::Incomplete { bytes } => {
                tail_bytes = bytes;
                break;
            }
            At::Whole { bytes, records } => {
                found.transactions.push((found.next_sequence, records));
                found.last = found.end;
                found.end += bytes;
                found.next_sequence += 1;
            }
        }
    }
    // A clean epoch has no transaction, so there is no later one to look for either: its first
    // block is enough to confirm the mark.
    let unused = superblock.clean && found.end == LOG_START && tail_bytes == 0;
    let until = if unused {
        LOG_START + BLOCK
    } else {
        superblock.reach
    };
    scanner.refuse_later_transactions(found.end..until, found.next_sequence, next_data)?;
    found.discarded_tail_bytes = tail_bytes;
    Ok(found)
}

/// What is found where the next transaction would be.
pub(crate) enum At {
    /// No transaction of the epoch.
    Nothing,
    /// A part of it.
    Incomplete {
        /// What it takes in the journal, as far as that is known.
        bytes: u64,
    },
    /// All of it.
    Whole {
        /// What it takes in the journal.
        bytes: u64,
        /// Its records.
        records: Vec<Record>,
    },
}

/// Reads transactions of the superblock's epoch.
pub(crate) struct Scanner<'s, 'r> {
    superblock: &'s Superblock,
    window: Window<'r>,
}

impl<'s, 'r> Scanner<'s, 'r> {
    pub(crate) fn new(superblock: &'s Superblock, blocks: &'r mut dyn Blocks) -> Self {
        Self {
            superblock,
            window: Window::new(superblock, blocks),
        }
    }

    /// For reading on without following transactions.
    pub(crate) fn into_window(self) -> Window<'r> {
        self.window
    }

    /// What is at an offset where the transaction with this sequence is expected.
    ///
    /// # Errors
    /// As [`scan`], for a transaction that cannot be read although its checksums are right.
    pub(crate) fn transaction(&mut self, offset: u64, sequence: u64) -> Result<At, StoreError> {
        let (seed, epoch) = (self.superblock.crc_seed(), self.superblock.epoch);
        let block = self.window.bytes_at(offset, JOURNAL_BLOCK_BYTES)?;
        let Some(header) = Header::parse(seed, block) else {
            let torn = header::resembles(block, epoch);
            return Ok(if torn {
                At::Incomplete { bytes: BLOCK }
            } else {
                At::Nothing
            });
        };
        if header.epoch != epoch || header.sequence != sequence {
            return Ok(At::Nothing);
        }
        check_format(&header, offset)?;
        let bytes = header.transaction_bytes();
        if bytes > self.superblock.journal_bytes - offset {
            return Err(damaged(
                sequence,
                offset,
                "it claims to go on after the journal's end",
            ));
        }
        let whole_bytes = HEADER_BYTES as u64 + u64::from(header.payload_bytes);
        let content = self.window.content(offset, whole_bytes)?;
        let payload = &content[HEADER_BYTES..];
        if crc32c::crc32c(payload) != header.payload_crc {
            return Ok(At::Incomplete { bytes });
        }
        let records = codec::decode(payload, header.record_count)
            .map_err(|malformed| damaged(sequence, offset, &malformed.to_string()))?;
        Ok(At::Whole { bytes, records })
    }

    /// Searches the range for a header that should not be there.
    fn refuse_later_transactions(
        &mut self,
        range: Range<u64>,
        missing: u64,
        next_data: &mut NextData<'_>,
    ) -> Result<(), StoreError> {
        let seed = self.superblock.crc_seed();
        let end = range.end.min(self.superblock.journal_bytes);
        let mut offset = range.start;
        let mut looked_until = range.start;
        while offset < end {
            // A forged journal may claim to be larger than any disk.
            if offset >= looked_until {
                offset = next_data(offset)?;
                looked_until = offset.saturating_add(LOOK_BYTES);
                if offset >= end {
                    break;
                }
            }
            let block = self.window.bytes_at(offset, JOURNAL_BLOCK_BYTES)?;
            if let Some(header) = Header::parse(seed, block) {
                check_not_later(self.superblock, &header, offset, (missing, range.start))?;
            }
            offset += BLOCK;
        }
        Ok(())
    }
}

/// Refuses a transaction at `offset` that is later than the one that is `missing`, with this sequence
/// and at this offset.
pub(crate) fn check_not_later(
    superblock: &Superblock,
    header: &Header,
    offset: u64,
    missing: (u64, u64),
) -> Result<(), StoreError> {
    let (epoch, (sequence, missing_at)) = (superblock.epoch, missing);
    if header.epoch > epoch {
        return Err(StoreError::Corrupt {
            what: "journal superblock".to_owned(),
            detail: format!(
                "it is of epoch {epoch}, but transaction {} at byte {offset} is of epoch {}: the newer \
                 superblock is lost",
                header.sequence, header.epoch
            ),
        });
    }
    if header.epoch == epoch && header.sequence > sequence {
        check_format(header, offset)?;
        return Err(not_whole(sequence, missing_at, header.sequence, offset));
    }
    Ok(())
}

fn check_format(header: &Header, offset: u64) -> Result<(), StoreError> {
    let found = u32::from(header.version);
    if found > FORMAT_VERSION {
        return Err(StoreError::NewerFormat {
            found,
            supported: FORMAT_VERSION,
        });
    }
    if found == 0 || header.kind != KIND_RECORDS {
        let detail = format!("it has format version {found} and kind {}", header.kind);
        return Err(damaged(header.sequence, offset, &detail));
    }
    Ok(())
}

/// The error for a transaction that cannot be read, while a later one is there.
pub(crate) fn not_whole(sequence: u64, offset: u64, later: u64, later_at: u64) -> StoreError {
    let detail = format!(
        "it is not whole, although the later transaction {later} is there at byte {later_at}"
    );
    damaged(sequence, offset, &detail)
}

fn damaged(sequence: u64, offset: u64, detail: &str) -> StoreError {
    StoreError::Corrupt {
        what: format!("journal transaction {sequence} at byte {offset}"),
        detail: detail.to_owned(),
    }
}
