//! The calls that wait for a commit, and for what.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use mobifs_base::{ObjectId, TransactionId};
use mobifs_engine::{Engine, FsError, SyncPoint};
use mobifs_locks::Order;

use super::super::locks::{Rank, RankedMutex};
use super::super::sync::Condvar;

/// What a call waits for.
#[derive(Debug)]
pub(in crate::volume) enum Wanted {
    /// What is to be durable when this object is: the next leader closes it.
    Object(ObjectId),
    /// These transactions, and what they depend on.
    Transactions(Vec<TransactionId>),
}

impl Wanted {
    /// Closes what is not closed yet, and forgets what is committed.
    pub(super) fn refresh(&mut self, engine: &mut Engine) {
        if let Self::Object(id) = self {
            let point = engine.sync_point(*id);
            if point != SyncPoint::Now {
                engine.retry_failed(Some(FsError::NoSpace));
            }
            *self = Self::Transactions(match point {
                SyncPoint::Now => Vec::new(),
                SyncPoint::Committed(all) => all,
            });
        }
        self.forget_committed(engine);
    }

    pub(super) fn forget_committed(&mut self, engine: &Engine) {
        if let Self::Transactions(all) = self {
            all.retain(|transaction| engine.is_uncommitted(*transaction));
        }
    }

    /// The transactions that are closed and not committed.
    pub(super) fn closed(&self) -> &[TransactionId] {
        match self {
            Self::Object(_) => &[],
            Self::Transactions(all) => all,
        }
    }

    pub(super) const fn is_committed(&self) -> bool {
        matches!(self, Self::Transactions(all) if all.is_empty())
    }
}

/// The calls that wait for a commit.
#[derive(Debug)]
pub(in crate::volume) struct CommitQueue {
    pub(super) calls: RankedMutex<Calls>,
    /// A leader has ended, or a call's transactions are committed.
    pub(super) changed: Condvar,
    /// Transactions that were committed together with another one.
    pub(super) joined: AtomicU64,
    /// Steps of a volume that is moved step by step.
    steps: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct Calls {
    pub(super) is_led: bool,
    /// Number of the next call.
    next: u64,
    pub(super) waiting: BTreeMap<u64, Wanted>,
}

impl CommitQueue {
    pub(in crate::volume) fn new(order: Order) -> Self {
        Self {
            calls: RankedMutex::new(order, Rank::CommitQueue, Calls::default()),
            changed: Condvar::new(),
            joined: AtomicU64::new(0),
            steps: AtomicU64::new(0),
        }
    }

    /// Whether a call commits for all at this moment.
    pub(in crate::volume) fn is_led(&self) -> bool {
        self.calls.lock().is_led
    }

    /// How many transactions were committed together with another one.
    pub(in crate::volume) fn joined(&self) -> u64 {
        self.joined.load(Ordering::Relaxed)
    }

    /// Where a test moves the volume: true each second time.
    pub(in crate::volume) fn is_group_due(&self) -> bool {
        self.steps.fetch_add(1, Ordering::Relaxed) % 2 == 1
    }

    /// Adds a call; returns its number.
    pub(super) fn add(&self, wanted: Wanted) -> u64 {
        let mut calls = self.calls.lock();
        let number = calls.next;
        calls.next += 1;
        calls.waiting.insert(number, wanted);
        number
    }
}
