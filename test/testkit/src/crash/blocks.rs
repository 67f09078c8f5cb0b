//! Which parts of a file have blocks, and are in memory.

use std::io;

use mobifs_base::ByteRange;
use rustix::io::Errno;

use super::Filesystem;
use super::effect::{Effect, InodeKey, SECTOR};
use super::faults::Call;

/// What is allocated at a time.
pub(super) const BLOCK: u64 = 4096;

/// Whether a page counts as being in memory: about two in three, always the same.
pub(super) fn is_cached(inode: u64, offset: u64) -> bool {
    !(inode * 7 + offset / 4096).is_multiple_of(3)
}

/// Whether a listing has the kind of an entry; some filesystems never report it.
pub(super) fn tells_kind(inode: u64) -> bool {
    !inode.is_multiple_of(4)
}

impl Filesystem {
    /// Allocates beyond the end; inside a file nothing shows whether a block was allocated.
    pub(super) fn allocate(&mut self, key: InodeKey, range: ByteRange) -> io::Result<()> {
        let size = self.file(key)?.size;
        if range.is_empty() || range.end > i64::MAX.cast_unsigned() {
            return Err(Errno::INVAL.into());
        }
        if range.end > size {
            let end = range.end.next_multiple_of(BLOCK);
            self.record(Effect::Allocated { inode: key, end });
        }
        Ok(())
    }

    /// Whether a write needs blocks that the file does not have.
    pub(super) fn write_kind(&self, inode: InodeKey, content: &[u8], offset: u64) -> Call {
        let end = (offset + content.len() as u64).div_ceil(SECTOR);
        let first = offset / SECTOR;
        let has_all = self.file(inode).is_ok_and(|file| {
            let there = file.sectors.range(first..end.max(first)).count() as u64;
            there == end - first
        });
        if has_all {
            Call::Overwrite
        } else {
            Call::Extend
        }
    }

    /// Where the last blocks end, if any are after this offset.
    pub(super) fn allocated_after(&self, key: InodeKey, offset: u64) -> io::Result<Option<u64>> {
        let inode = self.file(key)?;
        let last = inode.sectors.last_key_value();
        let written = last.map_or(0, |(last, _)| ((last + 1) * SECTOR).next_multiple_of(BLOCK));
        let end = written.max(inode.allocated_end);
        Ok((end > offset).then_some(end))
    }

    pub(super) fn seek_data(&self, key: InodeKey, offset: u64) -> io::Result<Option<u64>> {
        let inode = self.file(key)?;
        let mut from = inode.sectors.range(offset / SECTOR..);
        let found = from.next().map(|(&index, _)| (index * SECTOR).max(offset));
        Ok(found.filter(|&at| at < inode.size))
    }

    pub(super) fn seek_hole(&self, key: InodeKey, offset: u64) -> io::Result<Option<u64>> {
        let inode = self.file(key)?;
        if offset >= inode.size {
            return Ok(None);
        }
        let mut index = offset / SECTOR;
        while inode.sectors.contains_key(&index) {
            index += 1;
        }
        Ok(Some((index * SECTOR).max(offset).min(inode.size)))
    }
}
