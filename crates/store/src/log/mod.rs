//! The journal file: a log of transactions, each written by one sequential write.

mod blocks;
pub(crate) mod codec;
pub(crate) mod create;
pub(crate) mod epoch;
pub(crate) mod header;
pub(crate) mod identity;
pub(crate) mod open;
pub(crate) mod outstanding_copies;
pub(crate) mod overflow;
mod read_ahead;
pub(crate) mod record;
pub(crate) mod scan;
pub(crate) mod superblock;
#[cfg(test)]
mod tests;
mod threshold;
pub(crate) mod window;

use std::io;

use rustix::io::Errno;

use crate::StoreError;
use crate::calibration::WriteTimes;
use crate::log::header::{HEADER_BYTES, Header, KIND_RECORDS, transaction_bytes};
use crate::log::overflow::Overflow;
use crate::log::record::Record;
use crate::log::superblock::{
    FORMAT_VERSION, Home, LOG_START, SLOTS, Superblock, VERSION_WITH_CARRIED, VERSION_WITH_COPIES,
    VERSION_WITH_RENAME_MARK,
};
use crate::lower::{JOURNAL_BLOCK_BYTES, JournalBuffer, Lower};

/// Name of the journal in the `.mobifs` directory.
pub(crate) const JOURNAL: &[u8] = b"journal";
/// The names of damaged journals in `.mobifs` begin with this; a number follows.
pub const DAMAGED_PREFIX: &str = "journal.damaged-";
/// The write buffer is kept up to this size; that of a larger transaction is freed.
const KEPT_BUFFER_BYTES: usize = 1024 * 1024;

/// Transactions in order: the sequence of each, and its records.
pub(crate) type Transactions = Vec<(u64, Vec<Record>)>;

/// An open journal. Used by one thread at a time.
pub(crate) struct Log<H> {
    /// None only if the store is read-only and has no journal.
    journal: Option<H>,
    direct_io: bool,
    access: Access,
    /// The superblock in force.
    superblock: Superblock,
    /// The journal's file; none if there is none.
    home: Option<Home>,
    /// Which slots are known to hold the newest superblock that was written. Never
    /// both false, and the next superblock is written to a slot that does not first,
    /// so that one whole superblock exists at any instant.
    current: [bool; SLOTS],
    /// Counts attempts to write a superblock.
    generation: u64,
    /// Where the next transaction goes.
    position: u64,
    /// Where the last one begins; equal to `position` if there is none, or it was removed.
    last: u64,
    /// Sequence of the next transaction.
    sequence: u64,
    /// Nothing was written to the log in this epoch, nor was a write tried.
    pristine: bool,
    /// What was measured when the journal was made, until it is taken.
    measured: Option<Vec<WriteTimes>>,
    /// Reused for every transaction.
    buffer: JournalBuffer,
}

/// Whether the log takes transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    ReadWrite,
    ReadOnly,
    /// The content of the medium after `position` is not known: a transaction failed, and it could
    /// not be invalidated; or part of one was found there when the journal was opened, which a
    /// later, torn transaction with some of the same blocks could complete. Nothing may be written
    /// before it is invalidated.
    TailUnknown,
    /// Which superblock is in force on the medium is not known, so nothing may be written before a
    /// new epoch is in force.
    EpochUnknown,
}

/// How to open a [`Log`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogOptions {
    /// Size of a new journal file, in bytes; an empty and clean journal of another size is
    /// replaced. Rounded down to whole blocks.
    pub(crate) journal_bytes: u64,
    /// Transactions up to this size are written with one durable write, larger ones
    /// with a write and a flush; none: as remembered.
    pub(crate) direct_bytes_max: Option<u64>,
    /// The same for a new journal, where it is not said above; none: measured.
    pub(crate) direct_bytes_max_if_new: Option<u64>,
    /// Identity of the store, if the journal has to be made.
    pub(crate) uuid_if_new: [u8; 16],
    /// Nothing is created or written.
    pub(crate) read_only: bool,
    /// An empty and clean journal keeps its size, and with it its epoch.
    pub(crate) keeps_size: bool,
}

/// What a journal held when it was opened.
#[derive(Debug)]
pub(crate) struct Scanned {
    /// Sequence and records of each transaction, in order.
    pub(crate) transactions: Transactions,
    /// Their size in the journal.
    pub(crate) bytes: u64,
    /// Bytes of an incomplete transaction after them, which is ignored: its write was interrupted,
    /// so it was never acknowledged. One whose header did not reach the medium is not counted.
    pub(crate) discarded_tail_bytes: u64,
    /// The last reset was a clean one, and nothing was written since.
    pub(crate) clean: bool,
    /// The transactions are from another journal, of which this is a copy: the inodes that they
    /// name are those of another tree.
    pub(crate) is_copied: bool,
    /// The epoch of the transactions.
    pub(crate) epoch: u64,
    /// Sequence that the next transaction of this epoch would have had.
    pub(crate) next_sequence: u64,
}

impl Scanned {
    /// Whether a transaction is in this journal, or was in an earlier epoch. Its write was begun,
    /// and if it failed it was invalidated.
    pub(crate) fn has(&self, epoch: u64, sequence: u64) -> bool {
        (epoch, sequence) < (self.epoch, self.next_sequence)
    }
}

impl<H> Log<H> {
    /// The size in the journal of one transaction of these records.
    pub(crate) fn transaction_bytes(records: &[Record]) -> u64 {
        transaction_bytes(codec::encoded_bytes(records))
    }

    /// Bytes that are free for transactions of this epoch.
    pub(crate) fn free_bytes(&self) -> u64 {
        let (used_bytes, total_bytes) = (self.used_bytes(), self.total_bytes());
        debug_assert!(used_bytes <= total_bytes, "{used_bytes} of {total_bytes}");
        total_bytes.saturating_sub(used_bytes)
    }

    /// Bytes that the transactions of this epoch occupy.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.position - LOG_START
    }

    /// Bytes for the transactions of one epoch.
    pub(crate) fn total_bytes(&self) -> u64 {
        self.superblock.journal_bytes - LOG_START
    }

    /// Epoch and sequence of the next transaction.
    pub(crate) fn next(&self) -> (u64, u64) {
        (self.superblock.epoch, self.sequence)
    }

    /// A transaction failed and the tail could not be invalidated: a mount may still find it.
    pub(crate) fn is_tail_unknown(&self) -> bool {
        self.access == Access::TailUnknown
    }

    /// The format of this epoch has [`Record::RenameMark`]: where it is missing, nothing moved.
    pub(crate) fn has_rename_mark(&self) -> bool {
        self.superblock.version >= VERSION_WITH_RENAME_MARK
    }

    /// An epoch of this format may begin with what the one before could not apply, and has
    /// [`Record::RenameMarkInPart`].
    pub(crate) fn may_carry(&self) -> bool {
        self.superblock.version >= VERSION_WITH_CARRIED
    }

    /// The records of this epoch may be [`Record::Copied`].
    pub(crate) fn may_copy(&self) -> bool {
        self.superblock.version >= VERSION_WITH_COPIES
    }

    /// The overflow file that the epoch begins with.
    pub(crate) fn carried(&self) -> Option<Overflow> {
        self.superblock.carried
    }

    /// Whether this epoch has no transaction.
    pub(crate) fn is_empty(&self) -> bool {
        self.position == LOG_START
    }

    /// A [`Log::reset`] has failed. On the medium its epoch may be in force already, in which all
    /// earlier transactions are invalid; so until a reset succeeds nothing may be changed that only
    /// the earlier epoch could repair.
    pub(crate) fn is_epoch_unknown(&self) -> bool {
        self.access == Access::EpochUnknown
    }

    /// Largest transaction that is written with one durable write, in bytes.
    pub(crate) fn direct_bytes_max(&self) -> u64 {
        self.superblock.direct_bytes_max
    }

    /// Whether writes go to the device directly, not through the kernel's page cache.
    pub(crate) fn direct_io(&self) -> bool {
        self.direct_io
    }

    /// Whether there is a journal: a read-only store may have none.
    pub(crate) const fn is_there(&self) -> bool {
        self.journal.is_some()
    }

    /// Identity of the store.
    pub(crate) fn uuid(&self) -> [u8; 16] {
        self.superblock.uuid
    }

    /// Writes one transaction, which is durable on return; returns its size in the journal.
    ///
    /// # Errors
    /// [`StoreError::Lower`]: `ENOSPC` if it does not fit, `EROFS` if the log is read-only, `EIO` if
    /// a [`Log::reset`] has failed, or the error of the device. The transaction will then not be
    /// replayed: either none of it was written, or it was invalidated durably, or (if that failed
    /// too) the log takes no transaction before that is done, which the next call tries first. Only
    /// after a crash before that may a mount find the transaction, as the last one.
    /// [`StoreError::Corrupt`] for records that could not be read again.
    pub(crate) fn append(
        &mut self,
        lower: &impl Lower<Handle = H>,
        records: &[Record],
    ) -> Result<u64, StoreError> {
        self.check_writable("appending to the journal")?;
        self.invalidate_tail(lower)?;
        if !records.iter().all(codec::is_encodable) {
            return Err(StoreError::Corrupt {
                what: "a record to be written".to_owned(),
                detail: "it changes bytes outside of its page".to_owned(),
            });
        }
        let payload_bytes = codec::encoded_bytes(records);
        let bytes = transaction_bytes(payload_bytes);
        let (Ok(payload_bytes), Ok(record_count), true) = (
            u32::try_from(payload_bytes),
            u32::try_from(records.len()),
            bytes <= self.free_bytes(),
        ) else {
            let action = format!("finding room for {bytes} bytes in the journal");
            return Err(StoreError::lower(action)(Errno::NOSPC.into()));
        };
        // The mark that there is no transaction has to be removed first, and a mount searches no
        // further than the reach in the superblock.
        let superblock = Superblock {
            clean: false,
            ..self.superblock.reaching(self.position + bytes)
        };
        if superblock != self.superblock {
            self.write_superblock(lower, superblock)
                .map_err(StoreError::lower("marking the journal as in use"))?;
        }
        self.fill_buffer(records, payload_bytes, record_count, bytes);
        self.pristine = false;
        self.write_transaction(lower, bytes)?;
        self.last = self.position;
        self.position += bytes;
        self.sequence += 1;
        debug_assert!(
            self.position.is_multiple_of(JOURNAL_BLOCK_BYTES as u64),
            "transactions are whole blocks, so that none shares one with another"
        );
        assert!(
            self.position <= self.superblock.journal_bytes,
            "a transaction ends within the journal"
        );
        if self.buffer.as_bytes().len() > KEPT_BUFFER_BYTES {
            self.buffer = JournalBuffer::default();
        }
        Ok(bytes)
    }

    /// Starts a new epoch: all earlier transactions are invalid. To be called only once all of them
    /// are applied and durable. `clean`: the next mount has no recovery to do.
    ///
    /// # Errors
    /// [`StoreError::Lower`]; which epoch is in force on the medium is not known then, so the log
    /// takes no transaction until a later call succeeds ([`Log::is_epoch_unknown`]).
    pub(crate) fn reset(
        &mut self,
        lower: &impl Lower<Handle = H>,
        clean: bool,
    ) -> Result<(), StoreError> {
        self.begin_epoch(lower, clean, None)
    }

    /// As [`Log::reset`], of an epoch that begins with the records in `carried`: all others are
    /// applied, and these are durable.
    ///
    /// # Errors
    /// As [`Log::reset`].
    pub(crate) fn reset_carrying(
        &mut self,
        lower: &impl Lower<Handle = H>,
        carried: Overflow,
    ) -> Result<(), StoreError> {
        self.begin_epoch(lower, false, Some(carried))
    }

    fn begin_epoch(
        &mut self,
        lower: &impl Lower<Handle = H>,
        clean: bool,
        carried: Option<Overflow>,
    ) -> Result<(), StoreError> {
        if self.access == Access::ReadOnly {
            return self.check_writable("emptying the journal");
        }
        let unchanged = self.pristine
            && self.superblock.clean == clean
            && self.superblock.carried == carried
            && self.superblock.version == FORMAT_VERSION;
        if unchanged && self.access == Access::ReadWrite && self.current == [true; SLOTS] {
            return Ok(());
        }
        let next = Superblock {
            clean,
            carried,
            ..self
                .superblock
                .for_new_epoch(self.superblock.epoch + 1, self.home)
        };
        if let Err(source) = self.write_superblock(lower, next) {
            self.access = Access::EpochUnknown;
            return Err(StoreError::lower("emptying the journal")(source));
        }
        debug_assert_eq!(
            self.superblock.epoch, next.epoch,
            "the new superblock is in force"
        );
        self.access = Access::ReadWrite;
        self.position = LOG_START;
        self.last = LOG_START;
        self.sequence = 1;
        self.pristine = true;
        Ok(())
    }

    /// The next transaction takes the place of the last one, which is not needed any more.
    pub(crate) fn pop_last(&mut self) {
        if self.last < self.position {
            debug_assert!(self.sequence > 1, "there is a last transaction");
            self.position = self.last;
            self.sequence -= 1;
        }
    }

    /// From now on the inodes that the transactions name are those of the tree around this
    /// journal.
    ///
    /// # Errors
    /// [`StoreError::Lower`]; which superblock is in force is not known then, and both are whole.
    pub(crate) fn rebind_to_copy(
        &mut self,
        lower: &impl Lower<Handle = H>,
    ) -> Result<(), StoreError> {
        let superblock = Superblock {
            home: self.home,
            ..self.superblock
        };
        self.write_superblock(lower, superblock)
            .map_err(StoreError::lower("noting where a copied journal is"))
    }

    /// What was measured when this journal was made, if it was just made; once.
    pub(crate) fn take_measured(&mut self) -> Option<Vec<WriteTimes>> {
        self.measured.take()
    }

    /// Measures how long writes of each size take. The log is empty.
    ///
    /// The writes put zeros where the first transaction will be, as a new journal has them. A power
    /// cut leaves zeros there, or what was there before, or a mixture of whole sectors of both: no
    /// transaction of this epoch, because there was none, and a header that was invalidated is zeros
    /// itself. The reach of the log stays as it is, since nothing after it is a transaction either. So
    /// a recovery finds an empty log whatever happens.
    ///
    /// # Errors
    /// [`StoreError::Lower`]; the log is as before.
    pub(crate) fn measure(
        &self,
        lower: &impl Lower<Handle = H>,
    ) -> Result<Vec<WriteTimes>, StoreError> {
        const ACTION: &str = "measuring how long writes to the journal take";
        self.check_writable(ACTION)?;
        assert!(
            self.is_empty() && self.access == Access::ReadWrite,
            "only an empty log whose content is known is measured"
        );
        let journal = self.journal().map_err(StoreError::lower(ACTION))?;
        threshold::measure(lower, journal, self.superblock.journal_bytes)
            .map_err(StoreError::lower(ACTION))
    }

    /// From now on transactions up to this size are one durable write.
    ///
    /// # Errors
    /// [`StoreError::Lower`]; which threshold is in force after a crash is not known then, and both
    /// superblocks are of this epoch.
    pub(crate) fn set_direct_bytes_max(
        &mut self,
        lower: &impl Lower<Handle = H>,
        direct_bytes_max: u64,
    ) -> Result<(), StoreError> {
        const ACTION: &str = "noting the largest durable write";
        self.check_writable(ACTION)?;
        if self.superblock.direct_bytes_max == direct_bytes_max {
            return Ok(());
        }
        let superblock = Superblock {
            direct_bytes_max,
            ..self.superblock
        };
        self.write_superblock(lower, superblock)
            .map_err(StoreError::lower(ACTION))
    }

    fn check_writable(&self, action: &str) -> Result<(), StoreError> {
        let errno = match self.access {
            Access::ReadWrite | Access::TailUnknown => return Ok(()),
            Access::ReadOnly => Errno::ROFS,
            Access::EpochUnknown => Errno::IO,
        };
        Err(StoreError::lower(action)(errno.into()))
    }

    fn journal(&self) -> io::Result<&H> {
        self.journal.as_ref().ok_or_else(|| Errno::ROFS.into())
    }

    /// Puts the transaction into the buffer, padded to whole blocks.
    fn fill_buffer(
        &mut self,
        records: &[Record],
        payload_bytes: u32,
        record_count: u32,
        bytes: u64,
    ) {
        // Both fit the address space: the records are in memory already, larger.
        let (payload_end, bytes) = (HEADER_BYTES + payload_bytes as usize, bytes as usize);
        self.buffer.resize(bytes);
        let blocks = self.buffer.as_bytes_mut();
        let payload = &mut blocks[HEADER_BYTES..payload_end];
        codec::encode(records, payload);
        let header = Header {
            #[expect(clippy::cast_possible_truncation, reason = "the version is small")]
            version: self.superblock.version as u16,
            kind: KIND_RECORDS,
            epoch: self.superblock.epoch,
            sequence: self.sequence,
            payload_bytes,
            record_count,
            payload_crc: crc32c::crc32c(payload),
        };
        header.encode(self.superblock.crc_seed(), blocks);
        blocks[payload_end..].fill(0);
    }

    fn write_transaction(
        &mut self,
        lower: &impl Lower<Handle = H>,
        bytes: u64,
    ) -> Result<(), StoreError> {
        let (offset, sequence) = (self.position, self.sequence);
        let journal = self
            .journal()
            .map_err(StoreError::lower("writing the journal"))?;
        let written = if bytes <= self.superblock.direct_bytes_max {
            lower.journal_write(journal, &self.buffer, offset, true)
        } else {
            lower
                .journal_write(journal, &self.buffer, offset, false)
                .and_then(|()| lower.journal_flush(journal))
        };
        let Err(source) = written else { return Ok(()) };
        // Which part reached the medium is not known.
        self.access = Access::TailUnknown;
        if let Err(error) = self.invalidate_tail(lower) {
            tracing::error!(
                sequence, offset, %error,
                "the store cannot invalidate a failed transaction; it commits nothing before it can"
            );
        }
        let action = format!("writing journal transaction {sequence} at byte {offset}");
        Err(StoreError::lower(action)(source))
    }

    /// Invalidates the possible remains of a failed transaction by overwriting its header. To be
    /// called before anything changes that such a transaction may refer to; [`Log::append`] does so
    /// itself.
    ///
    /// # Errors
    /// [`StoreError::Lower`]: the content after the last transaction is still not known.
    pub(crate) fn invalidate_tail(
        &mut self,
        lower: &impl Lower<Handle = H>,
    ) -> Result<(), StoreError> {
        if self.access != Access::TailUnknown {
            return Ok(());
        }
        let void = JournalBuffer::zeroed(JOURNAL_BLOCK_BYTES);
        self.journal()
            .and_then(|journal| lower.journal_write(journal, &void, self.position, true))
            .map_err(StoreError::lower("making a failed transaction void"))?;
        self.access = Access::ReadWrite;
        Ok(())
    }

    /// Makes the log durable as it was found when it was opened. The process that wrote it may have
    /// been killed before it was durable; and where a flush had failed, the page cache may have
    /// content that never reaches the medium unless it is written again. This can be true only of
    /// the superblocks and the last transaction, and only after that one an invalidated transaction
    /// may still be on the medium. To be called before anything relies on the log.
    ///
    /// # Errors
    /// [`StoreError::Lower`]: it is not known what a power cut would leave.
    pub(crate) fn make_durable(
        &mut self,
        lower: &impl Lower<Handle = H>,
    ) -> Result<(), StoreError> {
        if self.pristine || self.access == Access::ReadOnly {
            return Ok(());
        }
        let failed = || StoreError::lower("making the journal durable");
        self.write_superblock(lower, self.superblock)
            .map_err(failed())?;
        let journal = self.journal().map_err(failed())?;
        let has_block_after = self.position < self.superblock.journal_bytes;
        let void_bytes = if has_block_after {
            JOURNAL_BLOCK_BYTES
        } else {
            0
        };
        let last_bytes = (self.position - self.last) as usize;
        let mut blocks = JournalBuffer::zeroed(last_bytes);
        blocks::read_blocks(lower, journal, self.last, &mut blocks)?;
        blocks.resize(last_bytes + void_bytes);
        lower
            .journal_write(journal, &blocks, self.last, false)
            .and_then(|()| lower.journal_flush(journal))
            .map_err(failed())?;
        self.access = Access::ReadWrite;
        Ok(())
    }

    /// Writes `next`, with a new generation, to both slots, one after the other.
    fn write_superblock(
        &mut self,
        lower: &impl Lower<Handle = H>,
        next: Superblock,
    ) -> io::Result<()> {
        self.generation += 1;
        let next = Superblock {
            generation: self.generation,
            ..next
        };
        let mut block = JournalBuffer::zeroed(JOURNAL_BLOCK_BYTES);
        next.encode(block.as_bytes_mut());
        let first = usize::from(self.current == [true, false]);
        for slot in [first, 1 - first] {
            self.current[slot] = false;
            let offset = (slot * JOURNAL_BLOCK_BYTES) as u64;
            lower.journal_write(self.journal()?, &block, offset, true)?;
            self.current[slot] = true;
        }
        self.superblock = next;
        Ok(())
    }
}
