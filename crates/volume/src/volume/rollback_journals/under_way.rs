//! The journals for which calls were answered without a commit.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use mobifs_base::{MonotonicNs, Name, ObjectId};
use mobifs_locks::Order;

use super::super::locks::{Rank, RankedMutex};

/// A thread of this number may be another one after so long.
pub(super) const PAUSE_MAX_MS: u64 = 10_000;

/// A journal for which a call was answered without a commit.
#[derive(Clone, Debug)]
pub(super) struct Rollback {
    /// That called.
    pub(super) thread: u32,
    pub(super) directory: ObjectId,
    pub(super) name: Name,
    pub(super) database: ObjectId,
    /// The directory's call has not come yet.
    pub(super) awaits_directory: bool,
    pub(super) called_at: MonotonicNs,
}

/// The journals under way.
#[derive(Debug)]
pub(in crate::volume) struct RollbackJournals {
    pub(super) under_way: RankedMutex<BTreeMap<ObjectId, Rollback>>,
    /// Calls that were answered without a commit.
    pub(super) ordered: AtomicU64,
    /// There may be journals of which a predecessor knew.
    pub(super) is_inherited: bool,
}

impl RollbackJournals {
    /// `is_inherited`: the volume goes on from the state of a killed process.
    pub(in crate::volume) fn new(order: Order, is_inherited: bool) -> Self {
        Self {
            under_way: RankedMutex::new(order, Rank::RollbackJournals, BTreeMap::new()),
            ordered: AtomicU64::new(0),
            is_inherited,
        }
    }

    /// How many calls were answered without a commit.
    pub(in crate::volume) fn ordered(&self) -> u64 {
        self.ordered.load(Ordering::Relaxed)
    }

    /// The journal whose directory this is, if this thread has just begun with it.
    pub(super) fn of_directory(
        &self,
        id: ObjectId,
        thread: u32,
        now: MonotonicNs,
    ) -> Option<(ObjectId, ObjectId)> {
        let under_way = self.under_way.lock();
        let mut all = under_way.iter();
        let found = all.find(|(_, one)| {
            one.directory == id
                && one.awaits_directory
                && one.thread == thread
                && now.ms_since(one.called_at) <= PAUSE_MAX_MS
        });
        found.map(|(&journal, one)| (journal, one.database))
    }

    pub(super) fn of_database(&self, id: ObjectId) -> Option<(ObjectId, Rollback)> {
        let under_way = self.under_way.lock();
        let mut all = under_way.iter();
        let found = all.find(|(_, one)| one.database == id);
        found.map(|(&journal, one)| (journal, one.clone()))
    }
}
