//! Writing back a part of a file without making it durable.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};

use mobifs_base::ByteRange;
use rustix::io::{Errno, retry_on_intr};

/// Wait for what is on its way, write the rest, wait for that.
const FLAGS: libc::c_uint = libc::SYNC_FILE_RANGE_WAIT_BEFORE
    | libc::SYNC_FILE_RANGE_WRITE
    | libc::SYNC_FILE_RANGE_WAIT_AFTER;

/// Sends what was written to this range to the device and waits until it has it. Where the kernel
/// has no such call, nothing happens: making the file durable does it all then.
pub(super) fn write_back(file: BorrowedFd<'_>, range: ByteRange) -> io::Result<()> {
    let (Ok(start), Ok(bytes)) = (i64::try_from(range.start), i64::try_from(range.len())) else {
        return Ok(());
    };
    // SAFETY: the call takes numbers only, and the descriptor is borrowed.
    let call = || match unsafe { sync_file_range(file.as_raw_fd(), start, bytes) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    };
    match retry_on_intr(call) {
        // Not there, forbidden by a filter, or not for this kind of filesystem.
        Err(Errno::NOSYS | Errno::PERM | Errno::INVAL | Errno::SPIPE) => Ok(()),
        done => Ok(done?),
    }
}

/// The system call and not the function of the C library, which Android's does not have.
#[cfg(target_pointer_width = "64")]
unsafe fn sync_file_range(file: RawFd, start: i64, bytes: i64) -> libc::c_long {
    // SAFETY: the caller's.
    unsafe { libc::syscall(libc::SYS_sync_file_range, file, start, bytes, FLAGS) }
}

/// `sync_file_range2`, with numbers of 64 bits in two registers each.
#[cfg(target_arch = "arm")]
unsafe fn sync_file_range(file: RawFd, start: i64, bytes: i64) -> libc::c_long {
    const SYNC_FILE_RANGE_2: libc::c_long = 341;
    let low = |wide: i64| wide as u32;
    let high = |wide: i64| (wide >> 32) as u32;
    // SAFETY: the caller's.
    unsafe {
        libc::syscall(
            SYNC_FILE_RANGE_2,
            file,
            FLAGS,
            low(start),
            high(start),
            low(bytes),
            high(bytes),
        )
    }
}

/// Other machines pass such numbers in other ways.
#[cfg(not(any(target_pointer_width = "64", target_arch = "arm")))]
unsafe fn sync_file_range(_file: RawFd, _start: i64, _bytes: i64) -> libc::c_long {
    0
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::FileExt as _;

    use mobifs_base::PAGE_BYTES_U64;

    use super::*;

    /// How many pages of a range are in memory and not on the device; none if the kernel does not
    /// say (`cachestat`, Linux 6.5).
    fn dirty_pages(file: &File, range: ByteRange) -> Option<u64> {
        const CACHESTAT: libc::c_long = 451;
        let asked = [range.start, range.len()];
        // Cached, dirty, being written, evicted, evicted recently.
        let mut found = [0_u64; 5];
        // SAFETY: the kernel reads two numbers and writes five, into arrays of these sizes.
        let failed = unsafe {
            let (asked, found) = (asked.as_ptr(), found.as_mut_ptr());
            libc::syscall(CACHESTAT, file.as_raw_fd(), asked, found, 0)
        };
        (failed == 0).then(|| found[1] + found[2])
    }

    #[test]
    fn a_range_is_on_its_device() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 16 * PAGE_BYTES_U64 as usize], 0)
            .unwrap();
        let range = ByteRange::new(4 * PAGE_BYTES_U64, 12 * PAGE_BYTES_U64);
        let before = dirty_pages(&file, range);
        write_back(file.as_fd(), range).unwrap();
        if before.is_none_or(|pages| pages == 0) {
            mobifs_skip::skip("this kernel or filesystem does not tell which pages are dirty");
            return;
        }
        assert_eq!(dirty_pages(&file, range), Some(0));
        // A file can have no such range; there is nothing to write in it.
        write_back(file.as_fd(), ByteRange::new(u64::MAX - 1, u64::MAX)).unwrap();
    }
}
