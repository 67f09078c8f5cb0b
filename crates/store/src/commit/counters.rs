//! Figures of commits.

use std::sync::atomic::{AtomicU64, Ordering};

/// Figures of commits since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct CommitCounters {
    commits: AtomicU64,
    written_bytes: AtomicU64,
}

impl CommitCounters {
    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    pub(crate) fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn add_commit(&self, written_bytes: u64) {
        self.add_written(written_bytes);
        self.commits.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn add_written(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
