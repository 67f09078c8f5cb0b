//! Which blocks of a file are its own already (`FS_IOC_FIEMAP`).

use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;

use mobifs_base::ByteRange;
use rustix::fs;
use rustix::io::{Errno, retry_on_intr};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

use super::handle::Access;
use super::handle::PosixHandle;
use super::root::PosixLower;
use super::{magic, xfs};
use crate::lower::Blocks;

/// Extents asked for at a time.
const EXTENTS: usize = 32;
/// Content that has no blocks yet gets them first.
const FLAG_SYNC: u32 = 1;
const EXTENT_LAST: u32 = 1;
/// To be allocated when it is written.
const EXTENT_DELAYED: u32 = 4;
/// Allocated, and never written.
const EXTENT_UNWRITTEN: u32 = 0x800;
/// Without a known place, without blocks, compressed, inside of other data, or shared with another
/// file: writing there may take blocks.
const EXTENT_NOT_PLAIN: u32 = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400 | 0x2000;

/// `struct fiemap` with its extents (`linux/fiemap.h`).
#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [Extent; EXTENTS],
}

impl Map {
    fn new(flags: u32) -> Self {
        Self {
            start: 0,
            length: 0,
            flags,
            mapped_extents: 0,
            extent_count: EXTENTS as u32,
            reserved: 0,
            extents: [Extent::default(); EXTENTS],
        }
    }
}

/// `struct fiemap_extent`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Extent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved_64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap` ends where its extents begin: that size is part of the request's number.
type Header = [u64; 4];

/// Fills the map that it refers to.
struct FillMap<'m>(&'m mut Map);

// SAFETY: the kernel reads and writes a `struct fiemap` with `extent_count` extents, which
// `Map` mirrors and has room for; the pointer is to a `Map` that is borrowed for the call.
unsafe impl Ioctl for FillMap<'_> {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<Header>(b'f', 11)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

impl PosixLower {
    pub(super) fn has_blocks(
        &self,
        file: &PosixHandle,
        range: ByteRange,
        counted: Blocks,
    ) -> io::Result<bool> {
        let refused = match counted {
            Blocks::Written => EXTENT_NOT_PLAIN | EXTENT_UNWRITTEN,
            Blocks::Allocated => EXTENT_NOT_PLAIN,
        };
        let fd = self.usable(file, Access::Read)?;
        if !magic::overwrites_in_place(fs::fstatfs(fd)?.f_type) {
            return Ok(false);
        }
        let mut map = Map::new(FLAG_SYNC);
        let mut at = range.start;
        while at < range.end {
            (map.start, map.length) = (at, range.end - at);
            // SAFETY: `FillMap` describes this request.
            match retry_on_intr(|| unsafe { ioctl(fd, FillMap(&mut map)) }) {
                Err(Errno::NOTTY | Errno::NOTSUP | Errno::NOSYS | Errno::INVAL) => {
                    return Ok(false);
                }
                other => other?,
            }
            let mapped = map.extents.iter().take(map.mapped_extents as usize);
            match covered(at, range.end, refused, mapped) {
                Some(end) if end > at => at = end,
                _ => return Ok(false),
            }
        }
        Ok(true)
    }
}

impl PosixLower {
    pub(super) fn last_block_after(
        &self,
        file: &PosixHandle,
        offset: u64,
    ) -> io::Result<Option<u64>> {
        let fd = self.usable(file, Access::Read)?;
        let is_xfs = magic::magic(fs::fstatfs(fd)?.f_type) == magic::XFS_MAGIC;
        if is_xfs && !xfs::has_requested_blocks(fd) {
            return Ok(None);
        }
        let mut map = Map::new(0);
        let (mut at, mut end) = (offset, None);
        while at < i64::MAX.cast_unsigned() {
            (map.start, map.length) = (at, i64::MAX.cast_unsigned() - at);
            // SAFETY: `FillMap` describes this request.
            match retry_on_intr(|| unsafe { ioctl(fd, FillMap(&mut map)) }) {
                Err(Errno::NOTTY | Errno::NOTSUP | Errno::NOSYS) => {
                    return Err(io::ErrorKind::Unsupported.into());
                }
                // No file of this filesystem reaches as far.
                Err(Errno::FBIG | Errno::INVAL) => break,
                other => other?,
            }
            let mapped = map.mapped_extents as usize;
            let Some(last) = map.extents.iter().take(mapped).next_back() else {
                break;
            };
            let extents = map.extents.iter().take(mapped);
            // Without a place yet, the filesystem has not allocated them for good.
            let allocated = extents.filter(|extent| extent.flags & EXTENT_DELAYED == 0);
            end = allocated
                .map(|extent| extent.logical.saturating_add(extent.length))
                .chain(end)
                .filter(|&end| end > offset)
                .max();
            let reached = last.logical.saturating_add(last.length);
            if last.flags & EXTENT_LAST != 0 || reached <= at {
                break;
            }
            at = reached;
        }
        Ok(end)
    }
}

/// In how many pieces the blocks of a file lie, those beyond its end included; none where it has holes, blocks that
/// are not plain ones, or the filesystem does not say.
pub(super) fn pieces(fd: BorrowedFd<'_>) -> io::Result<Option<usize>> {
    let mut map = Map::new(FLAG_SYNC);
    // The end of the piece before, in the file and on the disk.
    let mut end: Option<(u64, u64)> = None;
    let (mut at, mut count) = (0, 0);
    loop {
        (map.start, map.length) = (at, i64::MAX.cast_unsigned() - at);
        // SAFETY: `FillMap` describes this request.
        match retry_on_intr(|| unsafe { ioctl(fd, FillMap(&mut map)) }) {
            Err(Errno::NOTTY | Errno::NOTSUP | Errno::NOSYS | Errno::INVAL) => return Ok(None),
            other => other?,
        }
        let mapped = map.extents.iter().take(map.mapped_extents as usize);
        let mut is_last = true;
        for extent in mapped {
            let (logical, physical) = end.unwrap_or((0, u64::MAX));
            if extent.logical != logical || extent.flags & EXTENT_NOT_PLAIN != 0 {
                return Ok(None);
            }
            count += usize::from(extent.physical != physical);
            at = extent.logical.saturating_add(extent.length);
            end = Some((at, extent.physical.saturating_add(extent.length)));
            is_last = extent.flags & EXTENT_LAST != 0;
        }
        if is_last {
            return Ok(Some(count));
        }
    }
}

/// How far extents without `refused` flags reach from `at` on; none if they do not reach as far
/// as they should.
fn covered<'e>(
    at: u64,
    end: u64,
    refused: u32,
    extents: impl Iterator<Item = &'e Extent>,
) -> Option<u64> {
    let mut reached = at;
    for extent in extents {
        if reached >= end {
            break;
        }
        if extent.logical > reached || extent.flags & refused != 0 {
            return None;
        }
        reached = reached.max(extent.logical.saturating_add(extent.length));
        if reached < end && extent.flags & EXTENT_LAST != 0 {
            return None;
        }
    }
    Some(reached)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_is_laid_out_as_the_kernel_has_it() {
        assert_eq!(std::mem::offset_of!(Map, extents), size_of::<Header>());
        assert_eq!(size_of::<Extent>(), 56);
        assert_eq!(std::mem::offset_of!(Extent, flags), 40);
    }

    #[test]
    fn gaps_and_other_extents_than_plain_ones_have_no_blocks() {
        let extent = |logical, length, flags| Extent {
            logical,
            length,
            flags,
            ..Extent::default()
        };
        let covered = |extents: &[Extent]| covered(4096, 16384, EXTENT_NOT_PLAIN, extents.iter());
        assert_eq!(covered(&[extent(0, 16384, 0)]), Some(16384));
        let two = [extent(0, 8192, 0), extent(8192, 8192, EXTENT_UNWRITTEN)];
        assert_eq!(covered(&two), Some(16384));
        let refused = EXTENT_NOT_PLAIN | EXTENT_UNWRITTEN;
        assert_eq!(super::covered(4096, 16384, refused, two.iter()), None);
        assert_eq!(covered(&two[..1]), Some(8192), "to be asked again");
        assert_eq!(covered(&[]), Some(4096));
        assert_eq!(covered(&[extent(8192, 8192, 0)]), None);
        assert_eq!(covered(&[extent(0, 8192, EXTENT_LAST)]), None);
        let hole = [extent(0, 8192, 0), extent(12288, 4096, EXTENT_LAST)];
        assert_eq!(covered(&hole), None);
        let shared = [extent(0, 8192, 0), extent(8192, 8192, 0x2000)];
        assert_eq!(covered(&shared), None);
    }
}
