//! When the first change after a commit comes.
//!
//! A filesystem does not show whether it has a running transaction, and a commit of nothing would
//! wake the device, so the kernel is asked to report changes (fanotify). Only the first one counts:
//! as soon as it has come no more are asked for, until the next commit. So programs that write all
//! the time pay for one report in each transaction, and a filesystem at rest wakes no one.
//! Changes of a mapping are not reported; the kernel's own commit interval holds for them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::reports::Reports;

/// What counts as a change.
const MASK: u64 = libc::FAN_MODIFY
    | libc::FAN_ATTRIB
    | libc::FAN_CREATE
    | libc::FAN_DELETE
    | libc::FAN_MOVED_FROM
    | libc::FAN_MOVED_TO
    | libc::FAN_ONDIR;
/// `struct fanotify_event_metadata`: length, version, reserved, its own length, mask, descriptor,
/// process.
const EVENT_BYTES: usize = 24;
const PID_AT: usize = 20;

/// Reports the first change of a filesystem. One thread at a time may arm it and take what it reports.
#[derive(Debug)]
pub(crate) struct ChangeWatch {
    reports: Reports,
    is_armed: AtomicBool,
    own_pid: u32,
}

impl ChangeWatch {
    /// For the filesystem that is mounted there.
    ///
    /// # Errors
    /// The kernel or the filesystem has no such reports.
    pub(crate) fn new(mountpoint: &Path) -> io::Result<Self> {
        let watch = Self {
            reports: Reports::of(mountpoint)?,
            is_armed: AtomicBool::new(false),
            own_pid: std::process::id(),
        };
        watch.arm()?;
        Ok(watch)
    }

    /// From now on the next change is reported.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn arm(&self) -> io::Result<()> {
        if !self.is_armed.load(Ordering::SeqCst) {
            self.reports.begin(MASK)?;
            self.is_armed.store(true, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Whether a change was reported, by another process than this one. If so, no more are.
    pub(crate) fn take(&self) -> bool {
        if !self.drain() {
            return false;
        }
        if self.is_armed.swap(false, Ordering::SeqCst) {
            let _removed = self.reports.end(MASK);
        }
        // Those that came meanwhile.
        self.drain();
        true
    }

    fn drain(&self) -> bool {
        let mut has_changed = false;
        self.reports
            .drain(|events| has_changed |= has_other(events, self.own_pid));
        has_changed
    }
}

impl AsFd for ChangeWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reports.as_fd()
    }
}

/// Whether one of these events is of another process. Where they cannot be understood, one is.
fn has_other(mut events: &[u8], own_pid: u32) -> bool {
    while let Some(event) = events.get(..EVENT_BYTES) {
        let number = |at: usize| {
            let bytes = event
                .get(at..at + 4)
                .and_then(|bytes| bytes.try_into().ok());
            bytes.map_or(0, u32::from_ne_bytes)
        };
        if number(PID_AT) != own_pid {
            return true;
        }
        let length = (number(0) as usize).max(EVENT_BYTES);
        events = events.get(length..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(pid: u32, length: u32) -> Vec<u8> {
        let mut event = vec![0; length as usize];
        event[..4].copy_from_slice(&length.to_ne_bytes());
        event[PID_AT..PID_AT + 4].copy_from_slice(&pid.to_ne_bytes());
        event
    }

    #[test]
    fn own_changes_do_not_count() {
        assert!(!has_other(&[], 7));
        let own = [event(7, 24), event(7, 52)].concat();
        assert!(!has_other(&own, 7));
        let mixed = [event(7, 52), event(8, 24)].concat();
        assert!(has_other(&mixed, 7));
        assert!(!has_other(&[0; 24 * 3], 0), "lengths of 0 end");
    }
}
