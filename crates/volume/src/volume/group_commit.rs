//! Programs that wait for a commit share one write to the journal.
//!
//! One of the waiting calls leads. With the commit lock it closes what each of them waits for, and
//! hands those transactions that do not depend on each other to the store as one: one write, one
//! flush. Calls that come while it works wait for the next leader, and nothing is closed for them
//! until then: what several threads of one app wait for becomes one transaction, and not one for
//! each.

mod queue;

use std::sync::atomic::Ordering;

use mobifs_engine::{Commit, FsError};

use super::Shared;
use super::errors::not_committed;
pub(super) use queue::{CommitQueue, Wanted};

/// A group grows no larger, in bytes: each of its calls waits for all of it. The transaction of the
/// call that leads may be larger alone.
const GROUP_BYTES_MAX: u64 = 256 << 10;
/// Transactions of a group at most.
const GROUP_TRANSACTIONS_MAX: usize = 64;

/// A call in the queue; it leaves the queue when this is dropped.
struct Place<'a> {
    queue: &'a CommitQueue,
    number: u64,
    leads: bool,
}

impl<'a> Place<'a> {
    fn enter(queue: &'a CommitQueue, wanted: Wanted) -> Self {
        Self {
            queue,
            number: queue.add(wanted),
            leads: false,
        }
    }

    /// Waits until what it wants is committed, or none leads; then it does. Returns whether it
    /// leads.
    fn wait(&mut self) -> bool {
        let mut calls = self.queue.calls.lock();
        loop {
            let wanted = calls.waiting.get(&self.number);
            if wanted.is_none_or(Wanted::is_committed) {
                return false;
            }
            if !calls.is_led {
                calls.is_led = true;
                self.leads = true;
                return true;
            }
            self.queue.changed.wait(calls.guard_mut());
        }
    }

    /// Lets calls whose transactions are committed return; true if this is one of them.
    fn record_committed(&self, shared: &Shared) -> bool {
        let mut calls = self.queue.calls.lock();
        let mut is_any = false;
        {
            let locked = shared.lock_engine();
            for wanted in calls.waiting.values_mut() {
                wanted.forget_committed(&locked.engine);
                is_any |= wanted.is_committed();
            }
        }
        let is_own = calls
            .waiting
            .get(&self.number)
            .is_none_or(Wanted::is_committed);
        // When this one ends, all are woken anyway.
        if is_any && !is_own {
            self.queue.changed.notify_all();
        }
        is_own
    }

    /// What to commit next: what this call needs and, unless it is to be alone, what others wait
    /// for and does not depend on it; nothing if this call has nothing to wait for any more.
    fn next_group(&self, shared: &Shared, is_alone: bool) -> Result<Vec<Commit>, FsError> {
        let mut calls = self.queue.calls.lock();
        let mut locked = shared.lock_engine();
        let engine = &mut locked.engine;
        for wanted in calls.waiting.values_mut() {
            wanted.refresh(engine);
        }
        let own = calls
            .waiting
            .get(&self.number)
            .map_or(&[][..], Wanted::closed);
        let Some(&first) = own.first() else {
            return Ok(Vec::new());
        };
        // No other thread commits while this one has the commit lock: what cannot be handed out
        // has failed before.
        let Some(commit) = engine.next_commit(Some(first)) else {
            let is_full = engine.refusal_of(first) == Some(FsError::NoSpace);
            return Err(not_committed(is_full));
        };
        let mut bytes = commit.bytes();
        let mut group = vec![commit];
        let has_others = calls.waiting.len() > 1 || own.len() > 1;
        if is_alone || !has_others {
            return Ok(group);
        }
        // What is handed out is not handed out again, nor is what depends on it.
        for &transaction in calls.waiting.values().flat_map(Wanted::closed) {
            while group.len() < GROUP_TRANSACTIONS_MAX
                && let Some(commit) =
                    engine.next_commit_within(transaction, GROUP_BYTES_MAX.saturating_sub(bytes))
            {
                bytes += commit.bytes();
                group.push(commit);
            }
        }
        Ok(group)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut calls = self.queue.calls.lock();
        calls.waiting.remove(&self.number);
        if self.leads {
            calls.is_led = false;
            self.queue.changed.notify_all();
        }
    }
}

impl Shared {
    /// Returns when this is committed, by this thread or by another one that waits for a commit.
    pub(super) fn commit_together(&self, wanted: Wanted) -> Result<(), FsError> {
        let mut place = Place::enter(&self.commit_queue, wanted);
        if !place.wait() {
            return Ok(());
        }
        let mut is_alone = false;
        loop {
            // Asked before the commit lock is taken, too: for another app's transaction, which may
            // have that lock next and be large, there is no reason to wait any more.
            if place.record_committed(self) {
                return Ok(());
            }
            let commit_lock = self.commit_lock.lock();
            let group = place.next_group(self, is_alone)?;
            let Some(first) = group.first() else {
                return Ok(());
            };
            let Err(error) = self.commit_group(&commit_lock, &group) else {
                let joined = group.len() as u64 - 1;
                self.commit_queue
                    .joined
                    .fetch_add(joined, Ordering::Relaxed);
                continue;
            };
            if group.len() > 1 {
                // It is not known whose fault it was: each is tried by itself.
                is_alone = true;
                continue;
            }
            // Otherwise it was merged with transactions that free room, and is tried again.
            let is_refused = self
                .lock_engine()
                .engine
                .refusal_of(first.transaction)
                .is_some();
            if is_refused {
                return Err(not_committed(error.is_full()));
            }
        }
    }
}

#[cfg(all(test, not(feature = "interleavings")))]
mod tests;
