//! Stalls for lack of memory (PSI).

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

/// A task stalled for 200 ms within 2 s. (The window is a multiple of 2 s, which
/// needs no privileges.)
const TRIGGER: &[u8] = b"some 200000 2000000\0";

/// Becomes ready (`POLLPRI`) when memory is short.
#[derive(Debug)]
pub(super) struct Pressure(File);

impl Pressure {
    /// None where the kernel does not report pressure, or not to this user.
    pub(super) fn open(path: &Path) -> Option<Self> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let armed = file.and_then(|mut file| file.write_all(TRIGGER).map(|()| file));
        match armed {
            Ok(file) => Some(Self(file)),
            Err(error) => {
                tracing::debug!(%error, "cannot watch memory pressure");
                None
            }
        }
    }
}

impl AsFd for Pressure {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
