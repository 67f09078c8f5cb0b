//! The figures of S3, and how they are counted.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;

use crate::distribution::{Distribution, shares};
use crate::jbd2::{Features, Superblock, Transaction};
use crate::kind::Kind;

/// Where the curve of R_meta is evaluated, in percent of a block.
const PERCENTS: [f64; 11] = [0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 75.0, 100.0];
/// S3 counts fsyncs in so many seconds.
pub(crate) const WINDOW_SECONDS: f64 = 5.0;

/// How much of each journaled block a transaction had changed: R_meta of S3.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Modification {
    /// Blocks that could be compared with an earlier version.
    pub blocks: u64,
    /// Blocks of which no earlier version is known.
    pub unknown_blocks: u64,
    /// Share of blocks of which less than 1 % was changed.
    pub below_1_percent: f64,
    /// Bytes changed in a block.
    pub changed_bytes: Distribution,
    /// Share of blocks of which at most so much was changed: percent, share.
    pub cdf: Vec<(f64, f64)>,
}

/// Blocks of one kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KindFigures {
    /// Which.
    pub kind: Kind,
    /// How many were journaled.
    pub blocks: u64,
    /// Bytes changed in one, on average; none if no earlier version is known of any.
    pub changed_bytes_mean: Option<f64>,
}

/// What the journal of an ext4 shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Jbd2Figures {
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Blocks of the log.
    pub log_blocks: u32,
    /// What the journal's format has.
    pub features: Features,
    /// Transactions.
    pub commits: u64,
    /// Fast commits, which are not among these.
    pub fast_commits: u64,
    /// Blocks of the fast-commit area that were written.
    pub fast_commit_blocks: u64,
    /// Blocks of the filesystem that were journaled.
    pub logged_blocks: u64,
    /// Descriptor blocks.
    pub descriptor_blocks: u64,
    /// Revoke blocks.
    pub revoke_blocks: u64,
    /// Blocks that began with the journal's magic.
    pub escaped_blocks: u64,
    /// Blocks of the filesystem in a transaction.
    pub logged_per_commit: Option<Distribution>,
    /// R_control of S3, the mean of all commits: control blocks of all its blocks.
    pub control_ratio: Option<f64>,
    /// R_meta of S3.
    pub modification: Option<Modification>,
    /// By kind of block.
    pub kinds: Vec<KindFigures>,
    /// Bytes changed by a transaction (Fig. 9 of S3), of those whose blocks all have an earlier version.
    pub changed_bytes_per_commit: Option<Distribution>,
    /// R_commit of S3: the commit block's share of the time; none without the times of the device.
    pub commit_time_ratio: Option<Distribution>,
    /// Times of the parts of a commit, in ms; none without the times of the device.
    pub times: Option<CommitTimes>,
    /// Beginnings of transactions without an end.
    pub incomplete: u64,
    /// Blocks whose checksum is wrong.
    pub damaged_blocks: u64,
}

/// How long the parts of a commit take at the device, in ms, on average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CommitTimes {
    /// Writing data to its place.
    pub data_ms: f64,
    /// Writing to the log all but the commit block.
    pub log_ms: f64,
    /// The flush before the commit block.
    pub flush_before_ms: f64,
    /// Writing the commit block.
    pub commit_block_ms: f64,
    /// The flush after it.
    pub flush_after_ms: f64,
}

/// A block of a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observed {
    pub(crate) kind: Kind,
    pub(crate) changed_bytes: Option<u64>,
    pub(crate) is_escaped: bool,
}

/// Counts transactions of a JBD2 journal.
#[derive(Debug)]
pub(crate) struct Tally {
    superblock: Superblock,
    logged_per_commit: Vec<f64>,
    control_ratios: Vec<f64>,
    changed: Vec<f64>,
    unknown_blocks: u64,
    changed_per_commit: Vec<f64>,
    kinds: BTreeMap<Kind, (u64, u64, u64)>,
    descriptor_blocks: u64,
    revoke_blocks: u64,
    escaped_blocks: u64,
    seen: HashSet<u32>,
    pub(crate) fast_commits: u64,
    pub(crate) fast_commit_blocks: u64,
    pub(crate) incomplete: u64,
    pub(crate) damaged_blocks: u64,
    pub(crate) commit_time_ratios: Vec<f64>,
    pub(crate) times: Vec<CommitTimes>,
}

impl Tally {
    pub(crate) fn new(superblock: Superblock) -> Self {
        Self {
            superblock,
            logged_per_commit: Vec::new(),
            control_ratios: Vec::new(),
            changed: Vec::new(),
            unknown_blocks: 0,
            changed_per_commit: Vec::new(),
            kinds: BTreeMap::new(),
            descriptor_blocks: 0,
            revoke_blocks: 0,
            escaped_blocks: 0,
            seen: HashSet::new(),
            fast_commits: 0,
            fast_commit_blocks: 0,
            incomplete: 0,
            damaged_blocks: 0,
            commit_time_ratios: Vec::new(),
            times: Vec::new(),
        }
    }

    /// The superblock was written again: a mount may change the features.
    pub(crate) const fn update(&mut self, superblock: Superblock) {
        self.superblock = superblock;
    }

    /// Counts a transaction with its blocks; each once.
    pub(crate) fn add(&mut self, transaction: &Transaction, blocks: &[Observed]) {
        if !self.seen.insert(transaction.sequence) {
            return;
        }
        self.logged_per_commit.push(blocks.len() as f64);
        let control = transaction.control_blocks() as f64;
        self.control_ratios
            .push(control / transaction.blocks() as f64);
        self.descriptor_blocks += transaction.descriptors.len() as u64;
        self.revoke_blocks += transaction.revokes.len() as u64;
        let mut changed_by_commit = Some(0);
        for block in blocks {
            let kind = self.kinds.entry(block.kind).or_default();
            kind.0 += 1;
            self.escaped_blocks += u64::from(block.is_escaped);
            match block.changed_bytes {
                Some(bytes) => {
                    kind.1 += 1;
                    kind.2 += bytes;
                    self.changed.push(bytes as f64);
                }
                None => self.unknown_blocks += 1,
            }
            changed_by_commit = changed_by_commit
                .zip(block.changed_bytes)
                .map(|(sum, bytes)| sum + bytes);
        }
        self.changed_per_commit
            .extend(changed_by_commit.map(|bytes| bytes as f64));
    }

    pub(crate) fn finish(self) -> Jbd2Figures {
        let commits = self.logged_per_commit.len() as u64;
        let percents: Vec<f64> = self
            .changed
            .iter()
            .map(|bytes| bytes * 100.0 / f64::from(self.superblock.block_bytes))
            .collect();
        let modification = Distribution::of(self.changed).map(|changed_bytes| Modification {
            blocks: percents.len() as u64,
            unknown_blocks: self.unknown_blocks,
            below_1_percent: percents.iter().filter(|&&percent| percent < 1.0).count() as f64
                / percents.len() as f64,
            changed_bytes,
            cdf: shares(&percents, &PERCENTS),
        });
        let kinds = self
            .kinds
            .iter()
            .map(|(&kind, &(blocks, known, bytes))| KindFigures {
                kind,
                blocks,
                changed_bytes_mean: (known > 0).then(|| bytes as f64 / known as f64),
            });
        Jbd2Figures {
            block_bytes: self.superblock.block_bytes,
            log_blocks: self.superblock.ring_blocks(),
            features: self.superblock.features,
            commits,
            fast_commits: self.fast_commits,
            fast_commit_blocks: self.fast_commit_blocks,
            logged_blocks: self.logged_per_commit.iter().sum::<f64>() as u64,
            descriptor_blocks: self.descriptor_blocks,
            revoke_blocks: self.revoke_blocks,
            escaped_blocks: self.escaped_blocks,
            logged_per_commit: Distribution::of(self.logged_per_commit),
            control_ratio: mobifs_numerics::mean(self.control_ratios),
            modification,
            kinds: kinds.collect(),
            changed_bytes_per_commit: Distribution::of(self.changed_per_commit),
            commit_time_ratio: Distribution::of(self.commit_time_ratios),
            times: mean_times(&self.times),
            incomplete: self.incomplete,
            damaged_blocks: self.damaged_blocks,
        }
    }
}

fn mean_times(times: &[CommitTimes]) -> Option<CommitTimes> {
    let mean = |part: fn(&CommitTimes) -> f64| mobifs_numerics::mean(times.iter().map(part));
    Some(CommitTimes {
        data_ms: mean(|times| times.data_ms)?,
        log_ms: mean(|times| times.log_ms)?,
        flush_before_ms: mean(|times| times.flush_before_ms)?,
        commit_block_ms: mean(|times| times.commit_block_ms)?,
        flush_after_ms: mean(|times| times.flush_after_ms)?,
    })
}

/// Bytes in which two versions of a block differ.
pub(crate) fn changed_bytes(before: &[u8], after: &[u8]) -> u64 {
    let pairs = before.iter().zip(after);
    pairs.filter(|(before, after)| before != after).count() as u64
}

/// What the journal of a MobiFS store shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct MobifsFigures {
    /// Transactions.
    pub commits: u64,
    /// Bytes of the journal that they took: whole blocks.
    pub journal_bytes: u64,
    /// Blocks of a transaction.
    pub blocks_per_commit: Option<Distribution>,
    /// The changed bytes of files among the journal's bytes.
    pub content_bytes: u64,
    /// Attributes and names.
    pub metadata_bytes: u64,
    /// Everything else in records, and headers.
    pub control_bytes: u64,
    /// Zeros up to the end of blocks.
    pub padding_bytes: u64,
    /// Control bytes of those that are not padding: R_control in bytes, as there are no control blocks.
    pub control_ratio: Option<f64>,
    /// Pages of which changed bytes were journaled.
    pub pages: u64,
    /// Those of which all bytes were.
    pub whole_pages: u64,
    /// How many of a page's bytes were journaled (as R_meta): percent, share of pages.
    pub page_cdf: Vec<(f64, f64)>,
    /// Bytes changed by a transaction: content and metadata.
    pub changed_bytes_per_commit: Option<Distribution>,
    /// Bytes of content that went to their places before the commit.
    pub direct_bytes: u64,
    /// Time of a commit at the device, in which its writes or its flush were under way, in ms.
    pub commit_ms: Option<Distribution>,
    /// Share of it that the flush took.
    pub flush_ratio: Option<f64>,
}

/// What programs called.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CallFigures {
    /// fsync, fdatasync, sync, syncfs, msync and sync_file_range; none: not counted.
    pub syncs: Option<u64>,
    /// On average in 5 s.
    pub syncs_in_5_seconds: Option<f64>,
    /// How long the programs ran.
    pub seconds: f64,
}

/// What the device got meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct DeviceFigures {
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes written to ext4's journal.
    pub journal_written_bytes: u64,
    /// Flushes.
    pub flushes: u64,
}

/// A characterisation.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Characterisation {
    /// The version of the document's format.
    pub schema: u32,
    /// What was looked at.
    pub source: String,
    /// The journal of the ext4.
    pub ext4: Option<Jbd2Figures>,
    /// The journal of MobiFS.
    pub mobifs: Option<MobifsFigures>,
    /// What the programs called.
    pub calls: Option<CallFigures>,
    /// What the device got.
    pub device: Option<DeviceFigures>,
}

/// Version of the form of a [`Characterisation`].
pub const SCHEMA: u32 = 1;
/// Where the curve of pages is evaluated.
pub(crate) const PAGE_PERCENTS: &[f64] = &PERCENTS;
