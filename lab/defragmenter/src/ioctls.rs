//! The ioctls by which filesystems move content. None has a wrapper in rustix.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use rustix::io::Errno;
use rustix::ioctl::{Updater, ioctl, opcode};

/// `struct move_extent` (`fs/ext4/ext4.h`).
#[repr(C)]
struct MoveExtent {
    reserved: u32,
    donor: u32,
    from_block: u64,
    donor_block: u64,
    blocks: u64,
    moved_blocks: u64,
}

const MOVE_EXT: rustix::ioctl::Opcode = opcode::read_write::<MoveExtent>(b'f', 15);

/// Exchanges blocks of an ext4 file with those of a donor, whose content is then that of the file
/// (`EXT4_IOC_MOVE_EXT`). Numbers are in blocks. Says how many have moved.
pub(crate) fn move_extents(
    file: BorrowedFd<'_>,
    donor: BorrowedFd<'_>,
    from_block: u64,
    donor_block: u64,
    blocks: u64,
) -> Result<u64, Errno> {
    let mut request = MoveExtent {
        reserved: 0,
        donor: donor.as_raw_fd().cast_unsigned(),
        from_block,
        donor_block,
        blocks,
        moved_blocks: 0,
    };
    // SAFETY: the request's number is computed from the structure that the kernel reads and
    // writes, and any bytes are such a structure.
    let moved = unsafe { ioctl(file, Updater::<{ MOVE_EXT }, MoveExtent>::new(&mut request)) };
    match moved {
        Ok(()) => Ok(request.moved_blocks),
        // What had moved before stays so; the numbers are then not copied out.
        Err(errno) => Err(errno),
    }
}

/// `struct btrfs_ioctl_defrag_range_args` (`linux/btrfs.h`).
#[repr(C)]
struct BtrfsRange {
    start: u64,
    length: u64,
    flags: u64,
    extent_threshold: u32,
    compress: u32,
    unused: [u32; 4],
}

const BTRFS_DEFRAG_RANGE: rustix::ioctl::Opcode = opcode::write::<BtrfsRange>(0x94, 16);

/// Has btrfs write a range of a file anew, with extents below `extent_threshold` joined.
pub(crate) fn btrfs_defragment(
    file: impl AsFd,
    start: u64,
    length: u64,
    extent_threshold: u32,
) -> Result<(), Errno> {
    /// Begin writing at once.
    const START_IO: u64 = 2;
    let range = BtrfsRange {
        start,
        length,
        flags: START_IO,
        extent_threshold,
        compress: 0,
        unused: [0; 4],
    };
    // SAFETY: the kernel reads the structure from which the request's number is computed.
    let setter = unsafe { rustix::ioctl::Setter::<{ BTRFS_DEFRAG_RANGE }, BtrfsRange>::new(range) };
    // SAFETY: `setter` describes this request.
    unsafe { ioctl(file.as_fd(), setter) }
}

/// `struct f2fs_defragment` (`linux/f2fs.h`).
#[repr(C)]
struct F2fsRange {
    start: u64,
    length: u64,
}

const F2FS_DEFRAGMENT: rustix::ioctl::Opcode = opcode::read_write::<F2fsRange>(0xf5, 8);

/// Has f2fs write a range of a file anew.
pub(crate) fn f2fs_defragment(file: impl AsFd, start: u64, length: u64) -> Result<(), Errno> {
    let mut range = F2fsRange { start, length };
    // SAFETY: as in `move_extents`.
    unsafe {
        ioctl(
            file.as_fd(),
            Updater::<{ F2FS_DEFRAGMENT }, F2fsRange>::new(&mut range),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_kernel() {
        assert_eq!(size_of::<MoveExtent>(), 40);
        assert_eq!(size_of::<BtrfsRange>(), 48);
        assert_eq!(size_of::<F2fsRange>(), 16);
    }
}
