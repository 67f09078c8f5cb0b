//! Which parts of a file have blocks.

use std::io;

use mobifs_base::ByteRange;
use rustix::io::Errno;

use super::Filesystem;
use super::effect::{Effect, InodeKey, SECTOR};

/// What is allocated at a time.
const BLOCK: u64 = 4096;

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
