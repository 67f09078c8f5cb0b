//! What opening a store found and did.

use crate::log::Scanned;

/// What opening a store found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The store was closed properly (or is new): there was nothing to do.
    pub clean: bool,
    /// Committed transactions found in the journal.
    pub transactions: u64,
    /// Records in them.
    pub records: u64,
    /// Bytes of journal they take.
    pub bytes: u64,
    /// The transactions are in the tree already; else they are served from memory, and
    /// the next apply brings them there.
    pub applied: bool,
    /// Bytes of a transaction that was being written when the power failed.
    pub discarded_tail_bytes: u64,
    /// The store is a copy of one whose transactions were not in the tree yet: the objects that
    /// they belong to were looked up by name.
    pub copied: bool,
    /// Names in `.mobifs/lost/`: directories that were deleted through the mount while
    /// another program put something into them in the store's directory.
    pub lost: Vec<String>,
}

impl RecoveryReport {
    /// What the journal alone shows.
    pub(crate) fn of(scanned: &Scanned) -> Self {
        Self {
            clean: scanned.clean && scanned.transactions.is_empty(),
            transactions: scanned.transactions.len() as u64,
            records: scanned
                .transactions
                .iter()
                .map(|(_, r)| r.len() as u64)
                .sum(),
            bytes: scanned.bytes,
            applied: false,
            discarded_tail_bytes: scanned.discarded_tail_bytes,
            copied: scanned.is_copied,
            lost: Vec::new(),
        }
    }
}

/// What resuming a store found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resumed {
    /// What opening the store found.
    pub report: RecoveryReport,
    /// The tags of the saved intent, if its transaction is committed; what they stand for must not
    /// be handed over again. Otherwise it left no trace and has to be handed over again.
    pub committed: Vec<u64>,
}
