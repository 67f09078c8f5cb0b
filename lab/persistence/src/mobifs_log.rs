//! Counting the transactions of MobiFS's own journal.

use mobifs_base::PAGE_BYTES;
use mobifs_store::StoreError;
use mobifs_store::log_reader::{AtBlock, LogReader, LoggedTransaction, Record};

use crate::bytes::ReadAt;
use crate::distribution::{Distribution, shares};
use crate::error::PersistError;
use crate::figures::{MobifsFigures, PAGE_PERCENTS};

const HEADER_BYTES: u64 = 40;
/// Begins a superblock.
pub(crate) const SUPERBLOCK_MAGIC: &[u8] = b"MobiFSj\0";
/// Begins a transaction.
pub(crate) const TRANSACTION_MAGIC: &[u8] = b"MFtx";
/// A transaction is not larger than this, or it would be in an overflow file.
pub(crate) const TRANSACTION_BYTES_MAX: u64 = 1 << 30;

/// Counts transactions.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    figures: MobifsFigures,
    blocks: Vec<f64>,
    changed: Vec<f64>,
    page_percents: Vec<f64>,
    pub(crate) commit_ms: Vec<f64>,
    pub(crate) flush_ms: Vec<f64>,
}

impl Tally {
    pub(crate) fn add(&mut self, transaction: &LoggedTransaction) {
        let figures = &mut self.figures;
        let (content_before, metadata_before) = (figures.content_bytes, figures.metadata_bytes);
        let mut taken = HEADER_BYTES;
        figures.control_bytes += HEADER_BYTES;
        for record in &transaction.records {
            let bytes = LogReader::record_bytes(record);
            taken += bytes;
            match record {
                Record::Object(_) | Record::Dentry { .. } => figures.metadata_bytes += bytes,
                Record::Bytes { runs, .. } | Record::Copied { runs, .. } => {
                    let content: u64 = runs.iter().map(|(_, run)| run.len() as u64).sum();
                    figures.pages += 1;
                    figures.whole_pages += u64::from(content == PAGE_BYTES as u64);
                    figures.content_bytes += content;
                    figures.control_bytes += bytes - content;
                    self.page_percents
                        .push(content as f64 * 100.0 / PAGE_BYTES as f64);
                }
                Record::Direct { range, .. } => {
                    figures.control_bytes += bytes;
                    figures.direct_bytes = figures.direct_bytes.saturating_add(range.len());
                }
                _ => figures.control_bytes += bytes,
            }
        }
        figures.commits += 1;
        figures.journal_bytes += transaction.journal_bytes;
        figures.padding_bytes += transaction.journal_bytes.saturating_sub(taken);
        self.blocks
            .push(transaction.journal_bytes as f64 / LogReader::BLOCK_BYTES as f64);
        let changed =
            figures.content_bytes - content_before + figures.metadata_bytes - metadata_before;
        self.changed.push(changed as f64);
    }

    /// None if there was no transaction.
    pub(crate) fn finish(self) -> Option<MobifsFigures> {
        (self.figures.commits > 0).then(|| self.figures())
    }

    fn figures(self) -> MobifsFigures {
        let mut figures = self.figures;
        let used = figures.content_bytes + figures.metadata_bytes + figures.control_bytes;
        figures.control_ratio = (used > 0).then(|| figures.control_bytes as f64 / used as f64);
        figures.blocks_per_commit = Distribution::of(self.blocks);
        figures.changed_bytes_per_commit = Distribution::of(self.changed);
        if !self.page_percents.is_empty() {
            figures.page_cdf = shares(&self.page_percents, PAGE_PERCENTS);
        }
        let (flushes, all): (f64, f64) = (self.flush_ms.iter().sum(), self.commit_ms.iter().sum());
        figures.flush_ratio = (all > 0.0).then(|| flushes / all);
        figures.commit_ms = Distribution::of(self.commit_ms);
        figures
    }
}

/// Whether it is a journal of MobiFS: one of the copies of its superblock begins as one does.
pub(crate) fn is_journal(journal: &(impl ReadAt + ?Sized)) -> bool {
    [0, LogReader::BLOCK_BYTES as u64].into_iter().any(|at| {
        let mut magic = [0; SUPERBLOCK_MAGIC.len()];
        journal.read_at(&mut magic, at).is_ok() && magic == *SUPERBLOCK_MAGIC
    })
}

/// The transactions of the epoch in force of a journal that is a file; none if everything is applied.
pub(crate) fn characterise(
    journal: &(impl ReadAt + ?Sized),
) -> Result<MobifsFigures, PersistError> {
    let damaged = |what: &str| PersistError::DamagedStore(what.to_owned());
    let mut superblocks = vec![0; 2 * LogReader::BLOCK_BYTES];
    let read = journal.read_at(&mut superblocks, 0);
    read.map_err(|_| damaged("it has no room for its superblocks"))?;
    let reader = LogReader::new(&superblocks).map_err(refused)?;
    let mut tally = Tally::default();
    let mut offset = superblocks.len() as u64;
    let mut sequence = 1;
    while offset < reader.journal_bytes() {
        let mut content = vec![0; LogReader::BLOCK_BYTES];
        let read = journal.read_at(&mut content, offset);
        read.map_err(|_| damaged("it is shorter than its superblock says"))?;
        if let AtBlock::Incomplete { journal_bytes } = reader.at_block(&content).map_err(refused)? {
            if journal_bytes > reader.journal_bytes() - offset
                || journal_bytes > TRANSACTION_BYTES_MAX
            {
                break;
            }
            content.resize(usize::try_from(journal_bytes).unwrap_or(usize::MAX), 0);
            let read = journal.read_at(&mut content, offset);
            read.map_err(|_| damaged("it is shorter than its superblock says"))?;
        }
        match reader.at_block(&content).map_err(refused)? {
            AtBlock::Whole(found)
                if found.epoch == reader.epoch() && found.sequence == sequence =>
            {
                offset += found.journal_bytes;
                sequence += 1;
                tally.add(&found);
            }
            _ => break,
        }
    }
    refuse_later(journal, &reader, (sequence, offset))?;
    Ok(tally.figures())
}

/// What follows the last whole transaction is one that was not acknowledged, unless there are later ones.
fn refuse_later(
    journal: &(impl ReadAt + ?Sized),
    reader: &LogReader,
    missing: (u64, u64),
) -> Result<(), PersistError> {
    let mut block = vec![0; LogReader::BLOCK_BYTES];
    for at in (missing.1..reader.reach()).step_by(LogReader::BLOCK_BYTES) {
        if journal.read_at(&mut block, at).is_err() {
            let what = "it is shorter than its superblock says";
            return Err(PersistError::DamagedStore(what.to_owned()));
        }
        reader
            .check_not_later(&block, at, missing)
            .map_err(refused)?;
    }
    Ok(())
}

fn refused(error: StoreError) -> PersistError {
    match error {
        StoreError::Corrupt { .. } => PersistError::DamagedStore(error.to_string()),
        other => PersistError::Store(other),
    }
}
