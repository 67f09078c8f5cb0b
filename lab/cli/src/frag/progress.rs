//! How far a command is that goes through many files.

use std::cell::Cell;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use mobifs_fragmentation::counted;

/// How many files were looked at, on a terminal only.
pub(super) struct Progress {
    next: Option<Cell<Instant>>,
}

impl Progress {
    pub(super) fn new() -> Self {
        let is_seen = std::io::stderr().is_terminal();
        Self {
            next: is_seen.then(|| Cell::new(Instant::now() + Self::PAUSE)),
        }
    }

    const PAUSE: Duration = Duration::from_millis(200);

    pub(super) fn show(&self, files: u64) {
        let now = Instant::now();
        if let Some(next) = self.next.as_ref().filter(|next| next.get() <= now) {
            next.set(now + Self::PAUSE);
            eprint!("\r{}", counted(files, "file", "files"));
        }
    }

    pub(super) fn clear(&self) {
        if self.next.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}
