//! Which closed transaction is committed first, and which must wait (S0 §5.4).
//!
//! [`TransactionScheduler`] is the interface. It decides only about the transactions it gets:
//! urgent ones are committed without it, and the engine decides how long a transaction may wait at
//! all ([`Pacing`](crate::Pacing)).

mod fifo;
mod name;
mod queues;

use alloc::vec::Vec;

use mobifs_base::{AppId, TransactionId};

pub use fifo::Fifo;
pub use name::SchedulerName;
pub use queues::{SKIPS_MAX, ThreeQueues};

/// A closed transaction that waits for its commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Which one.
    pub id: TransactionId,
    /// The app; of joined ones the first.
    pub app: AppId,
    /// Its length: pages and entries to commit.
    pub pages: u64,
}

/// What commits take on a device, roughly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceEstimate {
    /// Time of a commit of nothing, in nanoseconds.
    pub latency_ns: u64,
    /// Time for each page, in nanoseconds.
    pub page_ns: u64,
}

impl Default for DeviceEstimate {
    /// An eMMC of 2015: a flush of 3 ms, 125 MB/s.
    fn default() -> Self {
        Self {
            latency_ns: 3_000_000,
            page_ns: 33_000,
        }
    }
}

impl DeviceEstimate {
    /// Pages whose commits count for the throughput; shorter ones for the latency.
    const LONG_PAGES: u64 = 64;

    /// Time that a commit of `pages` pages takes, in nanoseconds.
    pub const fn commit_ns(&self, pages: u64) -> u64 {
        let transfer_ns = self.page_ns.saturating_mul(pages);
        self.latency_ns.saturating_add(transfer_ns)
    }

    /// A commit of `pages` pages took `took_ns` nanoseconds: an eighth of the estimate
    /// comes from the last one.
    pub fn learn(&mut self, pages: u64, took_ns: u64) {
        let blend = |old: u64, new: u64| (old.saturating_mul(7).saturating_add(new)) / 8;
        if pages >= Self::LONG_PAGES {
            let transfer_ns = took_ns.saturating_sub(self.latency_ns);
            self.page_ns = blend(self.page_ns, transfer_ns / pages).max(1);
        } else {
            let transfer_ns = self.page_ns.saturating_mul(pages);
            self.latency_ns = blend(self.latency_ns, took_ns.saturating_sub(transfer_ns));
        }
    }
}

/// One interval in which transactions may be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// Which interval: while it is the same, nothing grows older for having been
    /// skipped.
    pub number: u64,
    /// What is left of it, in nanoseconds.
    pub available_ns: u64,
    /// What commits take.
    pub device: DeviceEstimate,
}

/// Decides which of the waiting transactions are committed in an interval.
pub trait TransactionScheduler: Send {
    /// The ones to commit now, in this order. `waiting` is in the order of closing; of
    /// each app the answer holds the first ones, in that order.
    fn choose(&mut self, waiting: &[Waiting], round: &Round) -> Vec<TransactionId>;
}
