//! Content that leaves memory and need not be durable yet: `sync_file_range(2)`.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::io::{Errno, retry_on_intr};

/// Writes what is dirty of a file to the device and waits for that, without a flush of the device
/// and without the file's metadata.
#[cfg(not(target_os = "android"))]
pub(super) fn write_back(file: BorrowedFd<'_>) -> io::Result<()> {
    const ALL: libc::c_uint = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    retry_on_intr(|| {
        // SAFETY: takes numbers only; the descriptor is borrowed for the call.
        let said = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, ALL) };
        match said {
            0 => Ok(()),
            _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        }
    })?;
    Ok(())
}

/// As durable, which is more than asked for: `libc` has no such call there.
#[cfg(target_os = "android")]
pub(super) fn write_back(file: BorrowedFd<'_>) -> io::Result<()> {
    Ok(retry_on_intr(|| rustix::fs::fdatasync(file))?)
}
