//! Figures of commits.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

use crate::commit::base::BaseReads;
use crate::commit::database_logs::DatabaseLogs;
use crate::log::codec;
use crate::log::header::HEADER_BYTES;
use crate::log::record::Record;
use crate::lower::JOURNAL_BLOCK_BYTES;
use crate::store::JournalWrites;

/// Figures of commits since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct CommitCounters {
    commits: AtomicU64,
    written_bytes: AtomicU64,
    blocks: AtomicU64,
    pages: AtomicU64,
    whole_pages: AtomicU64,
    copied_pages: AtomicU64,
    changed_bytes: AtomicU64,
    control_bytes: AtomicU64,
    flushes: AtomicU64,
    base_reads: BaseReads,
    /// Locked only by a commit, of which there is one at a time.
    database_logs: Mutex<DatabaseLogs>,
}

/// The pages of one transaction in the journal.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WrittenPages {
    pub(super) pages: u64,
    pub(super) whole: u64,
}

impl CommitCounters {
    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    pub(crate) fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    /// What went to the journal.
    pub(crate) fn journal(&self) -> JournalWrites {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        JournalWrites {
            blocks: of(&self.blocks),
            pages: of(&self.pages),
            whole_pages: of(&self.whole_pages),
            copied_pages: of(&self.copied_pages),
            changed_bytes: of(&self.changed_bytes),
            control_bytes: of(&self.control_bytes),
            flushes: of(&self.flushes),
        }
    }

    pub(super) const fn base_reads(&self) -> &BaseReads {
        &self.base_reads
    }

    pub(super) fn database_logs(&self) -> MutexGuard<'_, DatabaseLogs> {
        self.database_logs.lock()
    }

    /// A transaction with these records, which took so many bytes of journal; `is_flushed`: it was
    /// made durable by a flush.
    pub(super) fn add_commit(
        &self,
        journal_bytes: u64,
        is_flushed: bool,
        records: &[Record],
        pages: WrittenPages,
    ) {
        let add = |counter: &AtomicU64, value| counter.fetch_add(value, Ordering::Relaxed);
        let changed_bytes: u64 = records.iter().map(Record::content_bytes).sum();
        let is_copied = |record: &&Record| matches!(record, Record::Copied { .. });
        let copied_pages = records.iter().filter(is_copied).count() as u64;
        let all_bytes = HEADER_BYTES as u64 + codec::encoded_bytes(records);
        add(&self.blocks, journal_bytes / JOURNAL_BLOCK_BYTES as u64);
        add(&self.pages, pages.pages);
        add(&self.whole_pages, pages.whole);
        add(&self.copied_pages, copied_pages);
        add(&self.changed_bytes, changed_bytes);
        add(&self.control_bytes, all_bytes - changed_bytes);
        add(&self.flushes, u64::from(is_flushed));
        self.add_written(journal_bytes);
        add(&self.commits, 1);
    }

    pub(super) fn add_written(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
