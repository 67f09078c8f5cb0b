//! When the filesystem meets an error.
//!
//! The mount options show what an error has led to, and only a look at them shows it. The kernel reports
//! an error (fanotify, Linux 5.16) before it acts on it, so that the promise can be withdrawn at once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use crate::reports::Reports;

/// Reports errors of a filesystem: an ext4's; a btrfs reports none.
#[derive(Debug)]
pub(crate) struct ErrorWatch {
    reports: Reports,
}

impl ErrorWatch {
    /// For the filesystem that is mounted there.
    ///
    /// # Errors
    /// The kernel has no such reports.
    pub(crate) fn new(mountpoint: &Path) -> io::Result<Self> {
        let reports = Reports::of(mountpoint)?;
        reports.begin(libc::FAN_FS_ERROR)?;
        Ok(Self { reports })
    }

    /// Whether an error was reported since the last time.
    pub(crate) fn take(&self) -> bool {
        let mut is_reported = false;
        self.reports.drain(|_| is_reported = true);
        is_reported
    }
}

impl AsFd for ErrorWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reports.as_fd()
    }
}
