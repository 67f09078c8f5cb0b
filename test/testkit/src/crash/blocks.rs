//! Which parts of a file have blocks, and are in memory.

use std::io;

use mobifs_base::ByteRange;
use rustix::io::Errno;

use super::Filesystem;
use super::effect::{Effect, InodeKey, SECTOR};
use super::refusals::Action;

/// What is allocated at a time.
const BLOCK: u64 = 4096;

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

    /// Whether the file lies in several pieces: about one in three does, always the same at the same size.
    pub(super) fn is_scattered(&self, key: InodeKey) -> io::Result<bool> {
        let inode = self.file(key)?;
        let end = inode.size.max(inode.allocated_end);
        let is_moved = end <= inode.moved_end;
        let is_large = end > 32 * BLOCK;
        Ok(is_large && !is_moved && (inode.number + end / BLOCK).is_multiple_of(3))
    }

    /// Moves a file. What was not durable is not durable afterwards, and nothing else changes.
    pub(super) fn move_content(&mut self, key: InodeKey, room_bytes: u64) -> io::Result<u64> {
        assert!(self.moves_content, "content does not survive a cut here");
        self.check_call(Action::Write, key)?;
        if !self.is_scattered(key)? {
            return Ok(0);
        }
        let size = self.file(key)?.size;
        if let Some(inode) = self.live.inode_mut(key) {
            inode.moved_end = room_bytes;
        }
        self.moves += 1;
        Ok(size.next_multiple_of(BLOCK))
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
