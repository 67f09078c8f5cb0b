//! The part of the journal that a scan has in memory: each byte is read once, in order, in large
//! reads.

use std::borrow::Cow;

use crate::StoreError;
use crate::log::superblock::Superblock;
use crate::lower::{JOURNAL_BLOCK_BYTES, JournalBuffer};

/// First read: enough for a log that was emptied not long ago.
const FIRST_READ_BYTES: usize = 64 * 1024;
/// Later reads are of this size.
pub(crate) const READ_BYTES_MAX: usize = 2 * 1024 * 1024;

/// Where the journal is read from.
pub(crate) trait Blocks {
    /// Fills the buffer from the journal at an offset (both whole blocks).
    ///
    /// # Errors
    /// [`StoreError::Lower`], or [`StoreError::Corrupt`] for a journal that was cut short.
    fn read(&mut self, offset: u64, buffer: &mut JournalBuffer) -> Result<(), StoreError>;

    /// The next read will probably be one of so many bytes at this offset.
    fn announce(&mut self, _offset: u64, _bytes: usize) {}
}

impl<F> Blocks for F
where
    F: FnMut(u64, &mut JournalBuffer) -> Result<(), StoreError>,
{
    fn read(&mut self, offset: u64, buffer: &mut JournalBuffer) -> Result<(), StoreError> {
        self(offset, buffer)
    }
}

/// The part of the journal in memory; it advances towards the journal's end.
pub(crate) struct Window<'r> {
    blocks: &'r mut dyn Blocks,
    journal_bytes: u64,
    /// Nothing is read ahead beyond it.
    reach: u64,
    /// Whole blocks of the journal, from `start` on.
    content: Vec<u8>,
    start: u64,
    buffer: JournalBuffer,
    read_bytes: usize,
}

impl<'r> Window<'r> {
    pub(crate) fn new(superblock: &Superblock, blocks: &'r mut dyn Blocks) -> Self {
        Self {
            blocks,
            journal_bytes: superblock.journal_bytes,
            reach: superblock.reach,
            content: Vec::new(),
            start: 0,
            buffer: JournalBuffer::default(),
            read_bytes: FIRST_READ_BYTES,
        }
    }

    /// `bytes` from `offset` (a block) on; they lie within the journal and are at most
    /// [`READ_BYTES_MAX`]. If it fails the scan ends.
    ///
    /// # Errors
    /// As [`Blocks::read`].
    pub(crate) fn bytes_at(&mut self, offset: u64, bytes: usize) -> Result<&[u8], StoreError> {
        if offset < self.start || offset > self.end() {
            self.content.clear();
            self.start = offset;
        }
        let wanted_end = offset + bytes as u64;
        debug_assert!(
            wanted_end <= self.journal_bytes,
            "the bytes lie within the journal"
        );
        if wanted_end > self.end() {
            let passed = usize::try_from(offset - self.start).unwrap_or(usize::MAX);
            self.content.drain(..passed);
            self.start = offset;
        }
        while wanted_end > self.end() {
            self.read_on(wanted_end)?;
        }
        let skip = usize::try_from(offset - self.start).unwrap_or(usize::MAX);
        Ok(&self.content[skip..skip + bytes])
    }

    /// As [`Window::bytes_at`], of any size.
    ///
    /// # Errors
    /// As [`Blocks::read`]; [`StoreError::Unsuitable`] for more than fits into memory.
    pub(crate) fn content(&mut self, offset: u64, bytes: u64) -> Result<Cow<'_, [u8]>, StoreError> {
        let too_large = || {
            StoreError::Unsuitable("the journal has transactions too large for this machine".into())
        };
        let bytes = usize::try_from(bytes).map_err(|_| too_large())?;
        if bytes <= READ_BYTES_MAX {
            return Ok(Cow::Borrowed(self.bytes_at(offset, bytes)?));
        }
        let mut content = Vec::new();
        let reserved = content.try_reserve_exact(bytes);
        reserved.map_err(|_| too_large())?;
        while content.len() < bytes {
            let part = (bytes - content.len()).min(READ_BYTES_MAX);
            let at = offset + content.len() as u64;
            content.extend_from_slice(self.bytes_at(at, part)?);
        }
        Ok(Cow::Owned(content))
    }

    fn end(&self) -> u64 {
        self.start + self.content.len() as u64
    }

    /// Reads on: up to the reach of the log, or only up to `wanted_end`.
    fn read_on(&mut self, wanted_end: u64) -> Result<(), StoreError> {
        let at = self.end();
        let bytes = self.bytes_ahead(at, self.reach.max(wanted_end));
        self.buffer.resize(bytes);
        self.blocks.read(at, &mut self.buffer)?;
        self.content.extend_from_slice(self.buffer.as_bytes());
        self.read_bytes = READ_BYTES_MAX;
        let ahead = self.bytes_ahead(self.end(), self.reach);
        if ahead > 0 {
            self.blocks.announce(self.end(), ahead);
        }
        Ok(())
    }

    /// Bytes to read at an offset, in whole blocks and within the journal.
    fn bytes_ahead(&self, offset: u64, end: u64) -> usize {
        let bytes = end.saturating_sub(offset).min(self.read_bytes as u64);
        let bytes = bytes.next_multiple_of(JOURNAL_BLOCK_BYTES as u64);
        usize::try_from(bytes.min(self.journal_bytes - offset)).unwrap_or(self.read_bytes)
    }
}
