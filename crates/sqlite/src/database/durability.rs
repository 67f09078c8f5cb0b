//! When SQLite's `fsync` is a commit.
//!
//! The order of everything is kept anyway, so most of SQLite's syncs are not needed. What remains
//! is the promise that a transaction is on the device when its `COMMIT` returns: in class
//! `durable`, and in a transaction over several databases, where one database must not be ahead of
//! the other.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// What kind of file is synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Synced {
    /// The database, by a connection that is about to commit a transaction there.
    DatabaseInTransaction,
    /// The database, at the end of a checkpoint of its log.
    DatabaseInCheckpoint,
    /// A rollback journal.
    Journal,
    /// The write-ahead log.
    Log,
    /// The journal of a transaction over several databases.
    SuperJournal,
}

/// What a sync has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncAction {
    /// Nothing: order is kept.
    Nothing,
    /// Everything is committed when it returns.
    Commit,
}

/// Journals of transactions over several databases, in this process.
static SUPER_JOURNALS: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// A transaction over several databases begins to commit.
pub(crate) fn begin_joint(super_journal: &Path) {
    SUPER_JOURNALS.lock().insert(super_journal.to_owned());
}

/// A transaction over several databases is committed, or abandoned; true if there was one.
pub(crate) fn end_joint(super_journal: &Path) -> bool {
    SUPER_JOURNALS.lock().remove(super_journal)
}

/// Whether it is committing right now, in this process.
pub(crate) fn is_joint_of(super_journal: &Path) -> bool {
    SUPER_JOURNALS.lock().contains(super_journal)
}

/// Whether one is committing right now.
pub(crate) fn is_joint() -> bool {
    !SUPER_JOURNALS.lock().is_empty()
}

/// What the transactions of one database have asked for.
#[derive(Debug, Default)]
pub(crate) struct TransactionSyncs {
    /// The transaction in progress has to be durable when it commits.
    needs_commit: AtomicBool,
    /// The journal was read after it was written: SQLite rolls the transaction back.
    is_rolled_back: AtomicBool,
}

impl TransactionSyncs {
    /// What a sync has to do now. `is_joint`: a transaction over several databases is
    /// committing, perhaps one that this database has no part in.
    pub(crate) fn sync(&self, synced: Synced, is_durable: bool, is_joint: bool) -> SyncAction {
        // The transaction is committed by what comes after it: the end of the journal.
        let is_early = matches!(synced, Synced::Journal | Synced::DatabaseInTransaction);
        if is_durable && is_early {
            self.needs_commit.store(true, Ordering::Relaxed);
        }
        if is_joint || synced == Synced::SuperJournal || (is_durable && !is_early) {
            SyncAction::Commit
        } else {
            SyncAction::Nothing
        }
    }

    /// SQLite reads its journal: it rolls back, all of it or to a savepoint.
    pub(crate) fn journal_read(&self) {
        self.is_rolled_back.store(true, Ordering::Relaxed);
    }

    /// SQLite writes to its journal: the transaction goes on.
    pub(crate) fn journal_written(&self) {
        self.is_rolled_back.store(false, Ordering::Relaxed);
    }

    /// Whether a sync is the last moment, or one of them, at which a transaction can fail and
    /// SQLite rolls it back: after it the journal ends. In the log the frame that commits is
    /// written by then, so the room has to be checked before. A rollback must not fail.
    pub(crate) fn may_still_fail(&self, synced: Synced, is_durable: bool, is_joint: bool) -> bool {
        let is_rolled_back = self.is_rolled_back.load(Ordering::Relaxed);
        match synced {
            Synced::DatabaseInTransaction => (is_durable || is_joint) && !is_rolled_back,
            Synced::SuperJournal => true,
            // A journal is synced when it has ended, too.
            Synced::Journal | Synced::DatabaseInCheckpoint | Synced::Log => false,
        }
    }

    /// A transaction is committed as far as SQLite is concerned.
    pub(crate) fn committed(&self) -> SyncAction {
        if self.needs_commit.swap(false, Ordering::Relaxed) {
            SyncAction::Commit
        } else {
            SyncAction::Nothing
        }
    }

    /// A transaction is over, committed or not.
    pub(crate) fn ended(&self) {
        self.needs_commit.store(false, Ordering::Relaxed);
        self.is_rolled_back.store(false, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_durable_transaction_is_one_commit() {
        let syncs = TransactionSyncs::default();
        let sync = |synced| syncs.sync(synced, true, false);
        assert_eq!(sync(Synced::Journal), SyncAction::Nothing);
        assert_eq!(sync(Synced::DatabaseInTransaction), SyncAction::Nothing);
        assert_eq!(syncs.committed(), SyncAction::Commit);
        assert_eq!(syncs.committed(), SyncAction::Nothing, "nothing was synced");
        assert_eq!(sync(Synced::Log), SyncAction::Commit);
        assert_eq!(sync(Synced::DatabaseInCheckpoint), SyncAction::Commit);
        assert_eq!(sync(Synced::Journal), SyncAction::Nothing);
        syncs.ended();
        assert_eq!(syncs.committed(), SyncAction::Nothing, "it was rolled back");
    }

    #[test]
    fn a_relaxed_one_is_none_unless_it_is_over_several_databases() {
        let syncs = TransactionSyncs::default();
        assert_eq!(syncs.sync(Synced::Log, false, false), SyncAction::Nothing);
        let of_super = syncs.sync(Synced::SuperJournal, false, true);
        assert_eq!(of_super, SyncAction::Commit);
        assert_eq!(syncs.sync(Synced::Journal, false, true), SyncAction::Commit);
        assert_eq!(syncs.committed(), SyncAction::Nothing);
    }

    #[test]
    fn a_transaction_may_fail_as_long_as_it_can_be_rolled_back_and_a_rollback_may_not() {
        let syncs = TransactionSyncs::default();
        let database = Synced::DatabaseInTransaction;
        assert!(syncs.may_still_fail(database, true, false));
        assert!(syncs.may_still_fail(database, false, true));
        assert!(
            !syncs.may_still_fail(database, false, false),
            "nothing is promised"
        );
        for synced in [Synced::Log, Synced::Journal, Synced::DatabaseInCheckpoint] {
            assert!(!syncs.may_still_fail(synced, true, true), "{synced:?}");
        }
        syncs.journal_read();
        assert!(!syncs.may_still_fail(database, true, false));
        syncs.journal_written();
        assert!(
            syncs.may_still_fail(database, true, false),
            "it was a savepoint"
        );
        syncs.journal_read();
        syncs.ended();
        assert!(syncs.may_still_fail(database, true, false), "the next one");
    }

    #[test]
    fn a_transaction_over_other_databases_takes_nothing_from_a_durable_one() {
        let syncs = TransactionSyncs::default();
        let database = Synced::DatabaseInTransaction;
        assert_eq!(syncs.sync(database, true, true), SyncAction::Commit);
        assert_eq!(
            syncs.committed(),
            SyncAction::Commit,
            "the journal has ended"
        );
    }
}
