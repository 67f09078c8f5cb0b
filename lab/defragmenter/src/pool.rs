//! Free room of an ext4 as the blocks of a nameless file.
//!
//! ext4 takes no wishes for where something should lie. But a donor for MOVE_EXT may be a file that
//! has the free room already: then it is known where each of its blocks is, and the move brings the
//! file's content exactly there. The donor has the file's old blocks afterwards, which are free room
//! in turn. The file has no name: when it is closed, and after a power cut, all of it is free again.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use mobifs_fragmentation::extents_of;
use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, fallocate, fstat, openat};
use rustix::io::Errno;

use crate::space::Space;

/// Room is taken in portions of this size, so that the last one may fail.
const PORTION_BYTES: u64 = 64 << 20;
const SMALLEST_PORTION_BYTES: u64 = 1 << 20;

/// A nameless file that has free room.
#[derive(Debug)]
pub(crate) struct Pool {
    file: OwnedFd,
    /// Place on the disk → place in the file, and length.
    places: BTreeMap<u64, (u64, u64)>,
}

impl Pool {
    /// Takes about so many bytes of free room; fewer if there are not so many.
    pub(crate) fn take(directory: &Path, bytes: u64) -> Result<Self, Errno> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat(CWD, directory, flags, Mode::RUSR | Mode::WUSR)?;
        let mut reached = 0;
        let mut portion = PORTION_BYTES.min(bytes);
        while reached < bytes && portion > 0 {
            let length = portion.min(bytes - reached);
            match fallocate(&file, FallocateFlags::empty(), reached, length) {
                Ok(()) => reached += length,
                Err(Errno::NOSPC) if portion > SMALLEST_PORTION_BYTES => portion /= 2,
                Err(Errno::NOSPC) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        let mut pool = Self {
            file,
            places: BTreeMap::new(),
        };
        pool.look()?;
        Ok(pool)
    }

    /// Asks anew what it has.
    pub(crate) fn look(&mut self) -> Result<(), Errno> {
        let size = u64::try_from(fstat(&self.file)?.st_size).unwrap_or(0);
        let extents = extents_of(&self.file, size);
        let extents = extents.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        self.places.clear();
        for extent in extents.iter().filter(|extent| !extent.is_unplaced) {
            let place = (extent.logical, extent.length.min(size - extent.logical));
            self.places.insert(extent.physical, place);
        }
        Ok(())
    }

    /// Gives about so many bytes back, the largest runs first; all if it has no more.
    pub(crate) fn give_back(&mut self, bytes: u64) -> Result<(), Errno> {
        let mut places: Vec<(u64, u64)> = self.places.values().copied().collect();
        places.sort_unstable_by_key(|&(_, length)| std::cmp::Reverse(length));
        let mut left = bytes;
        for (logical, length) in places {
            if left == 0 {
                break;
            }
            let length = length.min(left);
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::io::retry_on_intr(|| fallocate(&self.file, punch, logical, length))?;
            left -= length;
        }
        self.look()
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// All room that it has.
    pub(crate) fn space(&self) -> Space {
        let mut space = Space::default();
        for (&physical, &(_, length)) in &self.places {
            space.add(physical, length);
        }
        space
    }

    /// The places in the file, with lengths, of a range on the disk; none if it has not all of it.
    pub(crate) fn parts(&self, start: u64, length: u64) -> Option<Vec<(u64, u64)>> {
        let mut parts = Vec::new();
        let mut at = start;
        let end = start + length;
        while at < end {
            let (&physical, &(logical, length)) = self.places.range(..=at).next_back()?;
            let within = at - physical;
            if within >= length {
                return None;
            }
            let part = (length - within).min(end - at);
            parts.push((logical + within, part));
            at += part;
        }
        Some(parts)
    }

    /// The blocks at a place of the file are now these (physical, length), in order.
    pub(crate) fn exchanged(&mut self, start: u64, length: u64, logical: u64, got: &[(u64, u64)]) {
        self.remove(start, length);
        let mut at = logical;
        for &(physical, length) in got {
            self.places.insert(physical, (at, length));
            at += length;
        }
    }

    fn remove(&mut self, start: u64, length: u64) {
        let end = start + length;
        let hit: Vec<(u64, (u64, u64))> = self
            .places
            .range(..end)
            .rev()
            .take_while(|&(&physical, &(_, length))| physical + length > start)
            .map(|(&physical, &place)| (physical, place))
            .collect();
        for (physical, (logical, length)) in hit {
            self.places.remove(&physical);
            if physical < start {
                self.places.insert(physical, (logical, start - physical));
            }
            let own_end = physical + length;
            if own_end > end {
                let rest = own_end - end;
                self.places.insert(end, (logical + length - rest, rest));
            }
        }
    }
}
