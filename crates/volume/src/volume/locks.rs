//! The volume's locks, and the order in which a thread takes them ([`mobifs_locks`]).
//!
//! The store has an order of its own; its locks come after all of these.

use mobifs_locks::{Held, Order, Ranked};

use super::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The place of a lock in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rank {
    /// Which sources say that the battery is low: held until all that follows from it is in force.
    LowBatteries,
    /// Held while the journal is applied, so that only one thread does.
    Applying,
    /// The commit lock: its holder may change the store's committed state.
    Commit,
    /// Calls that wait for a commit.
    CommitQueue,
    /// Read-held while data is passed from the store to the engine, write-held while the store
    /// forgets.
    Listing,
    /// The rules in force.
    Rules,
    /// A commit that waits for room in the lower filesystem.
    WaitingCommit,
    /// Why apps are read-only.
    Failures,
    /// The engine.
    Engine,
    /// When to commit what is closed.
    Pacing,
    /// Transactions of SQLite under way; no lock is taken while it is held, as with all that follow.
    RollbackJournals,
    /// What deletions free with the next apply.
    FreedSpace,
    /// When each app was last committed.
    Checkpoints,
    /// Users as bursts of requests show them.
    Bursts,
    /// Who asks the kernel to forget objects.
    KernelCache,
    /// Why the last apply failed.
    ApplyFailure,
    /// How long memory would last.
    Forecast,
}

impl mobifs_locks::Rank for Rank {
    fn place(self) -> u8 {
        self as u8
    }

    fn name(self) -> &'static str {
        match self {
            Self::LowBatteries => "low batteries",
            Self::Applying => "applying",
            Self::Commit => "commit lock",
            Self::CommitQueue => "commit queue",
            Self::Listing => "listing",
            Self::Rules => "rules",
            Self::WaitingCommit => "waiting commit",
            Self::Failures => "failures",
            Self::Engine => "engine",
            Self::Pacing => "pacing",
            Self::RollbackJournals => "rollback journals",
            Self::FreedSpace => "freed space",
            Self::Checkpoints => "checkpoints",
            Self::Bursts => "bursts",
            Self::KernelCache => "kernel cache",
            Self::ApplyFailure => "apply failure",
            Self::Forecast => "forecast",
        }
    }
}

/// The order of a new volume's locks.
pub(super) fn new_order() -> Order {
    // There the threads of a test take turns on one thread of the system, which would seem to hold
    // the locks of all.
    if cfg!(feature = "interleavings") {
        Order::unchecked()
    } else {
        Order::new()
    }
}

pub(super) type Guard<'a, T> = Ranked<MutexGuard<'a, T>>;

/// What the commit lock guards.
#[derive(Debug)]
pub(super) struct Committing;

/// What the lock of applying guards.
#[derive(Debug)]
pub(super) struct Applying;

/// The commit lock, held: its holder may change the store's committed state.
pub(super) type CommitLock<'a> = Guard<'a, Committing>;

/// The lock of applying, held: its holder may apply the journal.
pub(super) type ApplyLock<'a> = Guard<'a, Applying>;

/// A mutex of a volume.
#[derive(Debug)]
pub(super) struct RankedMutex<T> {
    order: Order,
    rank: Rank,
    mutex: Mutex<T>,
}

impl<T> RankedMutex<T> {
    pub(super) const fn new(order: Order, rank: Rank, value: T) -> Self {
        Self {
            order,
            rank,
            mutex: Mutex::new(value),
        }
    }

    pub(super) fn lock(&self) -> Guard<'_, T> {
        let held = Held::take(self.order, self.rank);
        Ranked::new(self.mutex.lock(), held)
    }

    /// None where it is held already.
    pub(super) fn try_lock(&self) -> Option<Guard<'_, T>> {
        let guard = self.mutex.try_lock()?;
        Some(Ranked::new(
            guard,
            Held::without_check(self.order, self.rank),
        ))
    }
}

/// A lock of a volume for readers and writers.
#[derive(Debug)]
pub(super) struct RankedRwLock<T> {
    order: Order,
    rank: Rank,
    lock: RwLock<T>,
}

impl<T> RankedRwLock<T> {
    pub(super) const fn new(order: Order, rank: Rank, value: T) -> Self {
        Self {
            order,
            rank,
            lock: RwLock::new(value),
        }
    }

    pub(super) fn read(&self) -> Ranked<RwLockReadGuard<'_, T>> {
        let held = Held::take(self.order, self.rank);
        Ranked::new(self.lock.read(), held)
    }

    pub(super) fn write(&self) -> Ranked<RwLockWriteGuard<'_, T>> {
        let held = Held::take(self.order, self.rank);
        Ranked::new(self.lock.write(), held)
    }
}
