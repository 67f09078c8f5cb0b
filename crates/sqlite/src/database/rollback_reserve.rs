//! Room that is kept so that a transaction can be rolled back when the disk is full.
//!
//! To roll back, SQLite writes pages from its journal back to the database. MobiFS promises
//! every write room in the lower filesystem when it is made, and a page that was applied in
//! the meantime needs that promise anew. So a transaction may grow only as long as there is
//! as much room left as its journal has pages; without that a full disk would refuse reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a rollback needs besides the journal's pages: entries, sizes, headers.
const SLACK_BYTES: u64 = 256 << 10;

/// Room that the transaction under way needs to be rolled back.
#[derive(Debug, Default)]
pub(crate) struct RollbackReserve {
    journal_bytes: AtomicU64,
}

impl RollbackReserve {
    /// SQLite wrote to the journal, from `at` to `end`. It begins a journal at its start.
    pub(crate) fn journal_written(&self, at: u64, end: u64) {
        if at == 0 {
            self.journal_bytes.store(end, Ordering::Relaxed);
        } else {
            self.journal_bytes.fetch_max(end, Ordering::Relaxed);
        }
    }

    /// The journal is deleted, or truncated.
    pub(crate) fn journal_ended(&self) {
        self.journal_bytes.store(0, Ordering::Relaxed);
    }

    /// What must remain when so much is added to the journal or to the database.
    pub(crate) fn needed_bytes(&self, added_bytes: u64) -> u64 {
        self.journal_bytes.load(Ordering::Relaxed) + added_bytes + SLACK_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_begins_and_ends() {
        let rollback_reserve = RollbackReserve::default();
        assert_eq!(rollback_reserve.needed_bytes(0), SLACK_BYTES);
        rollback_reserve.journal_written(0, 512);
        rollback_reserve.journal_written(512, 9000);
        rollback_reserve.journal_written(512, 700);
        assert_eq!(rollback_reserve.needed_bytes(100), 9100 + SLACK_BYTES);
        rollback_reserve.journal_written(0, 28);
        assert_eq!(
            rollback_reserve.needed_bytes(0),
            28 + SLACK_BYTES,
            "the next one"
        );
        rollback_reserve.journal_ended();
        assert_eq!(rollback_reserve.needed_bytes(0), SLACK_BYTES);
    }
}
