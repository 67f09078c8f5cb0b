//! Programs that wait for a commit share one write to the journal.
//!
//! One of the waiting calls leads. With the commit lock it closes what each of them waits for, and
//! hands those transactions that do not depend on each other to the store as one: one write, one
//! flush. Calls that come while it works wait for the next leader, and nothing is closed for them
//! until then: what several threads of one app wait for becomes one transaction, and not one for
//! each.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use mobifs_base::{ObjectId, TransactionId};
use mobifs_engine::{Commit, Engine, FsError, SyncPoint};
use mobifs_locks::Order;

use super::Shared;
use super::commit::not_committed;
use super::locks::{Rank, RankedMutex};
use super::sync::Condvar;

/// A group grows no larger, in bytes: each of its calls waits for all of it. The transaction of the
/// call that leads may be larger alone.
const GROUP_BYTES_MAX: u64 = 256 << 10;
/// Transactions of a group at most.
const GROUP_TRANSACTIONS_MAX: usize = 64;

/// What a call waits for.
#[derive(Debug)]
pub(super) enum Wanted {
    /// What is to be durable when this object is: the next leader closes it.
    Object(ObjectId),
    /// These transactions, and what they depend on.
    Transactions(Vec<TransactionId>),
}

impl Wanted {
    /// Closes what is not closed yet, and forgets what is committed.
    fn refresh(&mut self, engine: &mut Engine) {
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

    fn forget_committed(&mut self, engine: &Engine) {
        if let Self::Transactions(all) = self {
            all.retain(|transaction| engine.is_uncommitted(*transaction));
        }
    }

    /// The transactions that are closed and not committed.
    fn closed(&self) -> &[TransactionId] {
        match self {
            Self::Object(_) => &[],
            Self::Transactions(all) => all,
        }
    }

    const fn is_committed(&self) -> bool {
        matches!(self, Self::Transactions(all) if all.is_empty())
    }
}

/// The calls that wait for a commit.
#[derive(Debug)]
pub(super) struct CommitQueue {
    calls: RankedMutex<Calls>,
    /// A leader has ended, or a call's transactions are committed.
    changed: Condvar,
    /// Transactions that were committed together with another one.
    joined: AtomicU64,
    /// Steps of a volume that is moved step by step.
    steps: AtomicU64,
}

#[derive(Debug, Default)]
struct Calls {
    is_led: bool,
    /// Number of the next call.
    next: u64,
    waiting: BTreeMap<u64, Wanted>,
}

/// A call in the queue; it leaves the queue when this is dropped.
struct Place<'a> {
    queue: &'a CommitQueue,
    number: u64,
    leads: bool,
}

impl CommitQueue {
    pub(super) fn new(order: Order) -> Self {
        Self {
            calls: RankedMutex::new(order, Rank::CommitQueue, Calls::default()),
            changed: Condvar::new(),
            joined: AtomicU64::new(0),
            steps: AtomicU64::new(0),
        }
    }

    /// Whether a call commits for all at this moment.
    pub(super) fn is_led(&self) -> bool {
        self.calls.lock().is_led
    }

    /// How many transactions were committed together with another one.
    pub(super) fn joined(&self) -> u64 {
        self.joined.load(Ordering::Relaxed)
    }

    /// Where a test moves the volume: true each second time.
    pub(super) fn is_group_due(&self) -> bool {
        self.steps.fetch_add(1, Ordering::Relaxed) % 2 == 1
    }

    fn enter(&self, wanted: Wanted) -> Place<'_> {
        let mut calls = self.calls.lock();
        let number = calls.next;
        calls.next += 1;
        calls.waiting.insert(number, wanted);
        Place {
            queue: self,
            number,
            leads: false,
        }
    }
}

impl Place<'_> {
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
    fn note_committed(&self, shared: &Shared) -> bool {
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
        let mut place = self.commit_queue.enter(wanted);
        if !place.wait() {
            return Ok(());
        }
        let mut is_alone = false;
        loop {
            // Asked before the commit lock is taken, too: for another app's transaction, which may
            // have that lock next and be large, there is no reason to wait any more.
            if place.note_committed(self) {
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
