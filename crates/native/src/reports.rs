//! Reports of the kernel about a whole filesystem (fanotify).
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::io::{Errno, read};

/// A group of fanotify that names objects by handles, as reports about a filesystem have to.
#[derive(Debug)]
pub(crate) struct Reports {
    group: OwnedFd,
    mountpoint: CString,
}

impl Reports {
    /// Reports of the filesystem that is mounted there; nothing is reported yet.
    ///
    /// # Errors
    /// The kernel has no such reports.
    pub(crate) fn of(mountpoint: &Path) -> io::Result<Self> {
        let flags =
            libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK | libc::FAN_REPORT_FID;
        // SAFETY: the call takes no memory.
        let group = unsafe { libc::fanotify_init(flags, libc::O_RDONLY as libc::c_uint) };
        if group < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        let group = unsafe { OwnedFd::from_raw_fd(group) };
        let mountpoint = CString::new(mountpoint.as_os_str().as_bytes())?;
        Ok(Self { group, mountpoint })
    }

    /// From now on these events are reported.
    ///
    /// # Errors
    /// The kernel or the filesystem has no such reports.
    pub(crate) fn begin(&self, events: u64) -> io::Result<()> {
        self.mark(libc::FAN_MARK_ADD, events)
    }

    /// They are no longer.
    ///
    /// # Errors
    /// They were not.
    pub(crate) fn end(&self, events: u64) -> io::Result<()> {
        self.mark(libc::FAN_MARK_REMOVE, events)
    }

    /// Takes what was reported; several events at a time.
    pub(crate) fn drain(&self, mut take: impl FnMut(&[u8])) {
        let mut buffer = [0; 16 << 10];
        loop {
            match read(&self.group, &mut buffer[..]) {
                Ok(0) => return,
                Ok(length) => take(&buffer[..length]),
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    }

    fn mark(&self, how: libc::c_uint, events: u64) -> io::Result<()> {
        let flags = how | libc::FAN_MARK_FILESYSTEM;
        // SAFETY: the path ends with a NUL and lives until the call returns.
        let done = unsafe {
            libc::fanotify_mark(
                self.group.as_raw_fd(),
                flags,
                events,
                libc::AT_FDCWD,
                self.mountpoint.as_ptr(),
            )
        };
        if done == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

impl AsFd for Reports {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.group.as_fd()
    }
}
