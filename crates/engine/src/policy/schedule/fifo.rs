//! First closed, first committed: for comparison.

use alloc::vec::Vec;

use mobifs_base::TransactionId;

use super::{Round, TransactionScheduler, Waiting};

/// Commits everything in the order of closing, however long that takes: as a flusher does that does
/// not track the user.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fifo;

impl TransactionScheduler for Fifo {
    fn choose(&mut self, waiting: &[Waiting], _round: &Round) -> Vec<TransactionId> {
        waiting.iter().map(|waiting| waiting.id).collect()
    }
}
