//! Content that leaves memory and need not be durable yet: `sync_file_range(2)`.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::io::{Errno, retry_on_intr};

use crate::lower::WrittenBack;

/// Writes what is dirty of a file to the device, without a flush of the device and without the
/// file's metadata.
#[cfg(not(target_os = "android"))]
pub(super) fn write_back(file: BorrowedFd<'_>, until: WrittenBack) -> io::Result<()> {
    const WAIT: libc::c_uint = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let flags = match until {
        WrittenBack::Begun => libc::SYNC_FILE_RANGE_WRITE,
        WrittenBack::Ended => libc::SYNC_FILE_RANGE_WRITE | WAIT,
    };
    retry_on_intr(|| {
        // SAFETY: takes numbers only; the descriptor is borrowed for the call.
        let said = unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) };
        match said {
            0 => Ok(()),
            _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
        }
    })?;
    Ok(())
}

/// Makes it durable, which is more than asked for, and does nothing where that could wait: `libc`
/// has no such call there.
#[cfg(target_os = "android")]
pub(super) fn write_back(file: BorrowedFd<'_>, until: WrittenBack) -> io::Result<()> {
    match until {
        WrittenBack::Begun => Ok(()),
        WrittenBack::Ended => Ok(retry_on_intr(|| rustix::fs::fdatasync(file))?),
    }
}
