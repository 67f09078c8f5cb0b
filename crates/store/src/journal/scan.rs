//! Finding the transactions in a journal.

use std::borrow::Cow;
use std::ops::Range;

use super::codec;
use super::log::header::{self, HEADER_BYTES, Header, KIND_RECORDS};
use super::record::Record;
use super::superblock::{FORMAT_VERSION, LOG_START, Superblock};
use crate::StoreError;
use crate::lower::{JOURNAL_BLOCK_BYTES, JournalBuffer};

/// First read: enough for a log that was emptied not long ago.
const FIRST_READ_BYTES: usize = 64 * 1024;
/// Later reads double up to this size.
const READ_BYTES_MAX: usize = 1024 * 1024;
/// After so many bytes it is looked whether the file goes on with a hole.
const LOOK_BYTES: u64 = 1 << 20;
const BLOCK: u64 = JOURNAL_BLOCK_BYTES as u64;

/// Fills the buffer from the journal at an offset (both whole blocks).
pub(super) type ReadBlocks<'r> = dyn FnMut(u64, &mut JournalBuffer) -> Result<(), StoreError> + 'r;

/// The first offset at or behind the given one (whole blocks both) that may hold data;
/// what is passed over was never written.
pub(super) type NextData<'r> = dyn FnMut(u64) -> Result<u64, StoreError> + 'r;

/// What the scan found.
#[derive(Debug, PartialEq)]
pub(super) struct Found {
    /// Sequence and records of each transaction.
    pub(super) transactions: Vec<(u64, Vec<Record>)>,
    /// Offset behind the last transaction.
    pub(super) end: u64,
    /// Sequence that the next transaction gets.
    pub(super) next_sequence: u64,
    /// Size of an incomplete transaction at `end`, as far as it can be told.
    pub(super) discarded_tail_bytes: u64,
}

/// Follows the transactions of the superblock's epoch from the journal's start. What
/// follows the last whole one is an incomplete tail, unless a later transaction of
/// the epoch exists: a transaction is written only after the one before it is
/// durable, so then the one missing was damaged.
pub(super) fn scan(
    superblock: &Superblock,
    read: &mut ReadBlocks<'_>,
    next_data: &mut NextData<'_>,
) -> Result<Found, StoreError> {
    let mut scanner = Scanner {
        superblock,
        window: Window::new(superblock, read),
    };
    let mut found = Found {
        transactions: Vec::new(),
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
                found.end += bytes;
                found.next_sequence += 1;
            }
        }
    }
    // A clean epoch has no transaction, so there is no later one to look for either:
    // its first block is enough to see that the mark can be believed.
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

/// What lies where the next transaction would be.
enum At {
    Nothing,
    Incomplete { bytes: u64 },
    Whole { bytes: u64, records: Vec<Record> },
}

struct Scanner<'s, 'r> {
    superblock: &'s Superblock,
    window: Window<'r>,
}

impl Scanner<'_, '_> {
    fn transaction(&mut self, offset: u64, sequence: u64) -> Result<At, StoreError> {
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
                "it claims to go on behind the journal's end",
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
        let (seed, epoch) = (self.superblock.crc_seed(), self.superblock.epoch);
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
                if header.epoch > epoch {
                    return Err(StoreError::Corrupt {
                        what: "journal superblock".to_owned(),
                        detail: format!(
                            "it is of epoch {epoch}, but transaction {} at byte {offset} is of \
                             epoch {}: the newer superblock is lost",
                            header.sequence, header.epoch
                        ),
                    });
                }
                if header.epoch == epoch && header.sequence > missing {
                    check_format(&header, offset)?;
                    let detail = format!(
                        "it is not whole, although the later transaction {} is there at byte \
                         {offset}",
                        header.sequence
                    );
                    return Err(damaged(missing, range.start, &detail));
                }
            }
            offset += BLOCK;
        }
        Ok(())
    }
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

fn damaged(sequence: u64, offset: u64, detail: &str) -> StoreError {
    StoreError::Corrupt {
        what: format!("journal transaction {sequence} at byte {offset}"),
        detail: detail.to_owned(),
    }
}

/// The part of the journal that is in memory.
struct Window<'r> {
    read: &'r mut ReadBlocks<'r>,
    journal_bytes: u64,
    /// Nothing is read ahead beyond it.
    reach: u64,
    buffer: JournalBuffer,
    start: u64,
    next_read_bytes: usize,
}

impl<'r> Window<'r> {
    fn new(superblock: &Superblock, read: &'r mut ReadBlocks<'r>) -> Self {
        Self {
            read,
            journal_bytes: superblock.journal_bytes,
            reach: superblock.reach,
            buffer: JournalBuffer::default(),
            start: 0,
            next_read_bytes: FIRST_READ_BYTES,
        }
    }

    /// `bytes` from `offset` (a block) on; they lie within the journal and are at most
    /// [`READ_BYTES_MAX`].
    fn bytes_at(&mut self, offset: u64, bytes: usize) -> Result<&[u8], StoreError> {
        let end = self.start + self.buffer.as_bytes().len() as u64;
        if offset < self.start || offset + bytes as u64 > end {
            let ahead = self.reach.saturating_sub(offset);
            let wanted = self
                .next_read_bytes
                .min(usize::try_from(ahead).unwrap_or(usize::MAX))
                .max(bytes.next_multiple_of(JOURNAL_BLOCK_BYTES));
            let left = usize::try_from(self.journal_bytes - offset).unwrap_or(usize::MAX);
            // If the read fails the scan ends, so a window with stale bytes is not used.
            self.buffer.resize(wanted.min(left));
            self.start = offset;
            (self.read)(offset, &mut self.buffer)?;
            self.next_read_bytes = (self.next_read_bytes * 2).min(READ_BYTES_MAX);
        }
        let skip = usize::try_from(offset - self.start).unwrap_or(usize::MAX);
        Ok(&self.buffer.as_bytes()[skip..skip + bytes])
    }

    /// As [`Window::bytes_at`], of any size.
    fn content(&mut self, offset: u64, bytes: u64) -> Result<Cow<'_, [u8]>, StoreError> {
        let bytes = usize::try_from(bytes).map_err(|_| {
            StoreError::Unsuitable("the journal has transactions too large for this machine".into())
        })?;
        if bytes <= READ_BYTES_MAX {
            return Ok(Cow::Borrowed(self.bytes_at(offset, bytes)?));
        }
        let mut content = Vec::with_capacity(bytes);
        while content.len() < bytes {
            let part = (bytes - content.len()).min(READ_BYTES_MAX);
            let at = offset + content.len() as u64;
            content.extend_from_slice(self.bytes_at(at, part)?);
        }
        Ok(Cow::Owned(content))
    }
}
