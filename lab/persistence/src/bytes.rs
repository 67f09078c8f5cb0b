//! Numbers in blocks, and where blocks come from.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::OFlags;

use crate::error::PersistError;

/// Big-endian, as JBD2 has its numbers; zero beyond the end.
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(array(bytes, at))
}

/// See [`be16`].
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(array(bytes, at))
}

/// See [`be16`].
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(array(bytes, at))
}

/// Little-endian, as ext4 has its numbers; zero beyond the end.
pub(crate) fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

/// See [`le16`].
pub(crate) fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut found = [0; N];
    if let Some(there) = at.checked_add(N).and_then(|end| bytes.get(at..end)) {
        found.copy_from_slice(there);
    }
    found
}

/// CRC32C without the usual inversions at beginning and end, as JBD2 continues it.
pub(crate) fn raw_crc32c(crc: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!crc, bytes)
}

/// Opens what has content at places: a regular file or a block device. Opening others may wait for ever (a
/// FIFO), or do something (a terminal).
pub(crate) fn open(path: &Path) -> Result<File, PersistError> {
    let kind = fs::metadata(path)
        .map_err(PersistError::io(path))?
        .file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(PersistError::NotAFile);
    }
    // It may be a FIFO by now.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let opened = File::options().read(true).custom_flags(flags).open(path);
    opened.map_err(PersistError::io(path))
}

/// What an image is read from.
pub trait ReadAt {
    /// Fills `out` from this byte on.
    ///
    /// # Errors
    /// It ends before that, or cannot be read.
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()>;
}

impl ReadAt for File {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(out, offset)
    }
}

impl ReadAt for [u8] {
    fn read_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let range = start.and_then(|start| Some(start..start.checked_add(out.len())?));
        let found = range.and_then(|range| self.get(range));
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
