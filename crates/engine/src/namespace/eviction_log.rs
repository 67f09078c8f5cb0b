//! Which objects have left memory, so that an answer about them may be stale.

use alloc::collections::BTreeMap;

use mobifs_base::ObjectId;

/// Number of evictions that are remembered; more than answers can be under way.
const EVICTIONS_MAX: usize = 4096;

/// Which objects (or their listings) have left memory since answers about them were asked for.
/// While an object is not in memory, the store's answer about it stays valid; but it may be loaded,
/// changed and evicted while an answer is under way.
#[derive(Debug, Default)]
pub(crate) struct EvictionLog {
    /// Grows with every eviction.
    epoch: u64,
    /// Answers asked for before are all stale.
    floor: u64,
    evicted_at: BTreeMap<ObjectId, u64>,
}

impl EvictionLog {
    /// The present epoch of requests.
    pub(super) const fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn evicted(&mut self, id: ObjectId) {
        self.epoch += 1;
        if self.evicted_at.len() >= EVICTIONS_MAX {
            self.all_evicted();
        }
        self.evicted_at.insert(id, self.epoch);
    }

    /// No answer that is under way is valid any more.
    pub(super) fn all_evicted(&mut self) {
        self.epoch += 1;
        self.floor = self.epoch;
        self.evicted_at.clear();
    }

    /// Whether the object has stayed out of memory since an answer about it was asked for.
    pub(super) fn stayed_since(&self, id: ObjectId, epoch: u64) -> bool {
        epoch >= self.floor && self.evicted_at.get(&id).is_none_or(|&left| left <= epoch)
    }
}
