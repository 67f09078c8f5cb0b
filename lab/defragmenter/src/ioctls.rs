//! The ioctls by which filesystems move content. None has a wrapper in rustix.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::ioctl::{Ioctl, IoctlOutput, Updater, ioctl, opcode};

/// `struct file_dedupe_range` (`linux/fs.h`), without what follows it.
#[repr(C)]
struct DedupeHead {
    from: u64,
    length: u64,
    count: u16,
    reserved: [u16; 3],
}

/// The same with one `struct file_dedupe_range_info`.
#[repr(C)]
struct Dedupe {
    head: DedupeHead,
    file: i64,
    to: u64,
    done: u64,
    status: i32,
    reserved: u32,
}

const DEDUPE: rustix::ioctl::Opcode = opcode::read_write::<DedupeHead>(0x94, 54);

/// Lays a range of a file where the donor has the same content, if it still is the same (`FIDEDUPERANGE`). Both
/// are locked meanwhile, and times stay. Says how much, 0 if the content differs.
pub(crate) fn share_the_same(
    donor: BorrowedFd<'_>,
    from: u64,
    file: BorrowedFd<'_>,
    to: u64,
    length: u64,
) -> Result<u64, Errno> {
    let mut request = Dedupe {
        head: DedupeHead {
            from,
            length,
            count: 1,
            reserved: [0; 3],
        },
        file: i64::from(file.as_raw_fd()),
        to,
        done: 0,
        status: 0,
        reserved: 0,
    };
    // SAFETY: the kernel reads and writes the head, from which the request's number is computed, and as many of the
    // structure that follows it as `count` says.
    unsafe { ioctl(donor, Updater::<{ DEDUPE }, Dedupe>::new(&mut request)) }?;
    match request.status {
        0 => Ok(request.done),
        1 => Ok(0),
        status => Err(Errno::from_raw_os_error(status.wrapping_neg())),
    }
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
    // SAFETY: as in `share_the_same`.
    unsafe {
        ioctl(
            file.as_fd(),
            Updater::<{ F2FS_DEFRAGMENT }, F2fsRange>::new(&mut range),
        )
    }
}

/// `struct xfs_commit_range` (`fs/xfs/libxfs/xfs_fs.h`): a part of `file1` for one of the file that the
/// request is made of, if that has not changed since it was begun.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct XfsCommit {
    file1: i32,
    pad: u32,
    file1_offset: u64,
    file2_offset: u64,
    length: u64,
    flags: u64,
    /// What the kernel compares; opaque.
    freshness: [u64; 6],
}

const XFS_START_COMMIT: rustix::ioctl::Opcode = opcode::read::<XfsCommit>(b'X', 130);
const XFS_COMMIT_RANGE: rustix::ioctl::Opcode = opcode::write::<XfsCommit>(b'X', 131);

impl XfsCommit {
    /// Notes how the file is now.
    pub(crate) fn begin(file: impl AsFd) -> Result<Self, Errno> {
        let mut commit = Self::default();
        // SAFETY: as in `share_the_same`; the kernel only writes.
        unsafe {
            ioctl(
                file.as_fd(),
                Updater::<{ XFS_START_COMMIT }, Self>::new(&mut commit),
            )
        }?;
        Ok(commit)
    }

    /// Exchanges a range of the file with one from the beginning of the donor, durably; `BUSY` if the file has
    /// changed. A trial changes nothing.
    pub(crate) fn exchange(
        mut self,
        file: impl AsFd,
        donor: BorrowedFd<'_>,
        (offset, length): (u64, u64),
        is_trial: bool,
    ) -> Result<(), Errno> {
        const DSYNC: u64 = 1 << 1;
        const DRY_RUN: u64 = 1 << 2;
        self.file1 = donor.as_raw_fd();
        (self.file1_offset, self.file2_offset, self.length) = (0, offset, length);
        self.flags = DSYNC | if is_trial { DRY_RUN } else { 0 };
        // SAFETY: the kernel reads the structure from which the request's number is computed.
        let setter = unsafe { rustix::ioctl::Setter::<{ XFS_COMMIT_RANGE }, Self>::new(self) };
        // SAFETY: `setter` describes this request.
        unsafe { ioctl(file.as_fd(), setter) }
    }
}

/// `struct xfs_bstime`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct XfsTime {
    seconds: std::ffi::c_long,
    nanoseconds: i32,
}

/// `struct xfs_bstat`, of which the kernel compares the times only.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct XfsStat {
    inode: u64,
    /// Mode, links, user, group, device, block size.
    about: [u32; 6],
    size: i64,
    read: XfsTime,
    modified: XfsTime,
    changed: XfsTime,
    blocks: i64,
    /// Flags to padding.
    more: [u32; 10],
}

/// `struct xfs_swapext`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct XfsSwap {
    version: i64,
    target: i64,
    donor: i64,
    offset: i64,
    length: i64,
    pad: [u8; 16],
    stat: XfsStat,
}

const XFS_SWAPEXT: rustix::ioctl::Opcode = opcode::read_write::<XfsSwap>(b'X', 109);

/// Exchanges all extents of two files of the same size, if the first has the times that it had; `BUSY` if
/// not.
pub(crate) fn xfs_swap_extents(
    file: BorrowedFd<'_>,
    donor: BorrowedFd<'_>,
    before: &rustix::fs::Stat,
) -> Result<(), Errno> {
    #[allow(
        clippy::unnecessary_cast,
        reason = "their types differ between machines"
    )]
    let time = |seconds, nanoseconds| XfsTime {
        seconds,
        nanoseconds,
    };
    #[allow(
        clippy::unnecessary_cast,
        reason = "their types differ between machines"
    )]
    let stat = XfsStat {
        inode: before.st_ino as u64,
        size: before.st_size as i64,
        modified: time(
            before.st_mtime as std::ffi::c_long,
            before.st_mtime_nsec as i32,
        ),
        changed: time(
            before.st_ctime as std::ffi::c_long,
            before.st_ctime_nsec as i32,
        ),
        ..XfsStat::default()
    };
    let mut swap = XfsSwap {
        target: i64::from(file.as_raw_fd()),
        donor: i64::from(donor.as_raw_fd()),
        length: stat.size,
        stat,
        ..XfsSwap::default()
    };
    // SAFETY: as in `share_the_same`.
    unsafe { ioctl(file, Updater::<{ XFS_SWAPEXT }, XfsSwap>::new(&mut swap)) }
}

/// `struct xfs_handle`, opaque.
type XfsHandle = [u64; 3];

/// `struct xfs_fsop_handlereq`.
#[repr(C)]
struct XfsHandleRequest {
    file: u32,
    path: *mut c_void,
    flags: u32,
    given: *mut c_void,
    given_bytes: u32,
    got: *mut c_void,
    got_bytes: *mut u32,
}

/// One of the requests about handles; its answer is a number.
struct HandleIoctl<const NUMBER: u8>(XfsHandleRequest);

// SAFETY: the number is computed from the structure that the kernel reads; the pointers in it are null or to
// what is borrowed for as long as the request lasts.
unsafe impl<const NUMBER: u8> Ioctl for HandleIoctl<NUMBER> {
    type Output = i32;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> rustix::ioctl::Opcode {
        opcode::read_write::<XfsHandleRequest>(b'X', NUMBER)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(&mut self.0).cast()
    }

    unsafe fn output_from_ptr(answer: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(answer)
    }
}

/// Opens an XFS file once more, for reading and writing, so that what is done does not change its times. Only
/// root may. `directory` is any on the same filesystem.
pub(crate) fn xfs_open_without_times(
    directory: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
) -> Result<OwnedFd, Errno> {
    const FD_TO_HANDLE: u8 = 106;
    const OPEN_BY_HANDLE: u8 = 107;
    let null = std::ptr::null_mut;
    let mut handle = XfsHandle::default();
    let mut bytes = size_of::<XfsHandle>() as u32;
    let request = XfsHandleRequest {
        file: file.as_raw_fd().cast_unsigned(),
        path: null(),
        flags: OFlags::RDWR.bits(),
        given: null(),
        given_bytes: 0,
        got: std::ptr::from_mut(&mut handle).cast(),
        got_bytes: &raw mut bytes,
    };
    // SAFETY: the kernel writes a handle, which has this size, and how long it is.
    unsafe { ioctl(file, HandleIoctl::<FD_TO_HANDLE>(request)) }?;
    let request = XfsHandleRequest {
        file: 0,
        path: null(),
        flags: OFlags::RDWR.bits(),
        given: std::ptr::from_mut(&mut handle).cast(),
        given_bytes: bytes,
        got: null(),
        got_bytes: std::ptr::null_mut(),
    };
    // SAFETY: the kernel reads the handle that it has written.
    let opened = unsafe { ioctl(directory, HandleIoctl::<OPEN_BY_HANDLE>(request)) }?;
    // SAFETY: the kernel has opened it for this process, and nothing else knows of it.
    let opened = unsafe { OwnedFd::from_raw_fd(opened) };
    fcntl_setfd(&opened, FdFlags::CLOEXEC)?;
    Ok(opened)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_kernel() {
        assert_eq!((size_of::<DedupeHead>(), size_of::<Dedupe>()), (24, 56));
        assert_eq!(size_of::<F2fsRange>(), 16);
        assert_eq!(size_of::<XfsCommit>(), 88);
        assert_eq!(size_of::<XfsHandle>(), 24);
        if size_of::<usize>() == 8 {
            assert_eq!(size_of::<XfsStat>(), 136);
            assert_eq!(size_of::<XfsSwap>(), 192);
            assert_eq!(size_of::<XfsHandleRequest>(), 56);
        }
    }
}
