//! How far a long command has come, on a terminal only.

use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// Prints a share of a whole, once for each percent.
pub(super) struct Progress {
    whole: u64,
    percent: AtomicU64,
    is_shown: bool,
}

impl Progress {
    pub(super) fn new(whole: u64) -> Self {
        Self {
            whole: whole.max(1),
            percent: AtomicU64::new(0),
            is_shown: std::io::stderr().is_terminal(),
        }
    }

    pub(super) fn note(&self, done: u64) {
        let percent = done.saturating_mul(100) / self.whole;
        let before = self.percent.fetch_max(percent, Ordering::Relaxed);
        if self.is_shown && percent > before {
            eprint!("\r{percent} %");
        }
    }

    pub(super) fn end(&self) {
        if self.is_shown {
            eprint!("\r       \r");
        }
    }
}
