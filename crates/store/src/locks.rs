//! The store's locks, and the order in which a thread takes them.
//!
//! Every lock of the store has a [`Rank`]; a thread takes only locks of a higher rank than all that
//! it holds. Builds with debug assertions check that at each lock, so a test that takes two locks
//! the wrong way round fails even if no other thread is in the way.

use std::ops::{Deref, DerefMut};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The place of a lock in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// The journal's epoch: held by a commit, or an apply, from its beginning to its end.
    Epoch,
    /// Content in place: held by every thread that writes to files of the lower tree.
    Content,
    /// Names of the lower tree: read-held to find objects, write-held while names move.
    Names,
    /// What is pending and what is known of the lower tree.
    State,
    /// Handles that are kept open; no call is made while it is held.
    Handles,
    /// Which files have preallocation; no call is made while it is held.
    Preallocations,
}

/// The locks of one store: only these are in an order with each other. (A test may open a second
/// store in the middle of a call that the first one makes to its lower filesystem.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order(#[cfg(debug_assertions)] u64);

impl Order {
    /// The lock order of a new store instance.
    pub(crate) fn new() -> Self {
        #[cfg(debug_assertions)]
        {
            use std::sync::atomic::{AtomicU64, Ordering};
            static NEXT: AtomicU64 = AtomicU64::new(0);
            Self(NEXT.fetch_add(1, Ordering::Relaxed))
        }
        #[cfg(not(debug_assertions))]
        Self()
    }
}

/// A lock that is held, for the check of the order.
struct Held(#[cfg(debug_assertions)] (Order, Rank));

#[cfg(debug_assertions)]
mod order {
    use std::cell::RefCell;

    use super::{Held, Order, Rank};

    thread_local! {
        static HELD: RefCell<Vec<(Order, Rank)>> = const { RefCell::new(Vec::new()) };
    }

    impl Held {
        /// To be called before the lock is waited for.
        pub(super) fn take(order: Order, rank: Rank) -> Self {
            HELD.with_borrow(|held| {
                let held = held.iter().filter(|(of, _)| *of == order);
                let highest = held.map(|(_, rank)| *rank).max();
                assert!(
                    highest.is_none_or(|highest| highest < rank),
                    "the lock {rank:?} is taken while {highest:?} is held"
                );
            });
            Self::note(order, rank)
        }

        /// Records a lock that is held, without a check of the order.
        pub(super) fn note(order: Order, rank: Rank) -> Self {
            HELD.with_borrow_mut(|held| held.push((order, rank)));
            Self((order, rank))
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.with_borrow_mut(|held| {
                if let Some(at) = held.iter().rposition(|held| *held == self.0) {
                    held.swap_remove(at);
                }
            });
        }
    }
}

#[cfg(not(debug_assertions))]
impl Held {
    const fn take(_order: Order, _rank: Rank) -> Self {
        Self()
    }

    const fn note(_order: Order, _rank: Rank) -> Self {
        Self()
    }
}

/// A guard of a lock with a rank.
pub(crate) struct Ranked<G> {
    // Unlocked before its rank is released.
    guard: G,
    _held: Held,
}

impl<G> Ranked<G> {
    /// The guard itself, to let other threads lock for a moment.
    pub(crate) const fn guard_mut(&mut self) -> &mut G {
        &mut self.guard
    }
}

impl<G: Deref> Deref for Ranked<G> {
    type Target = G::Target;

    fn deref(&self) -> &Self::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Ranked<G> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.guard
    }
}

/// A mutex with a rank.
#[derive(Debug)]
pub(crate) struct RankedMutex<T> {
    order: Order,
    rank: Rank,
    mutex: Mutex<T>,
}

impl<T> RankedMutex<T> {
    pub(crate) const fn new(order: Order, rank: Rank, value: T) -> Self {
        Self {
            order,
            rank,
            mutex: Mutex::new(value),
        }
    }

    pub(crate) fn lock(&self) -> Ranked<MutexGuard<'_, T>> {
        let held = Held::take(self.order, self.rank);
        Ranked {
            guard: self.mutex.lock(),
            _held: held,
        }
    }

    /// None where it is held already. A thread that does not wait cannot be part of a deadlock, so
    /// this may be called with any other lock held.
    pub(crate) fn try_lock(&self) -> Option<Ranked<MutexGuard<'_, T>>> {
        let guard = self.mutex.try_lock()?;
        Some(Ranked {
            guard,
            _held: Held::note(self.order, self.rank),
        })
    }
}

/// A lock for readers and writers, with a rank.
#[derive(Debug)]
pub(crate) struct RankedRwLock<T> {
    order: Order,
    rank: Rank,
    lock: RwLock<T>,
}

impl<T> RankedRwLock<T> {
    pub(crate) const fn new(order: Order, rank: Rank, value: T) -> Self {
        Self {
            order,
            rank,
            lock: RwLock::new(value),
        }
    }

    pub(crate) fn read(&self) -> Ranked<RwLockReadGuard<'_, T>> {
        let held = Held::take(self.order, self.rank);
        Ranked {
            guard: self.lock.read(),
            _held: held,
        }
    }

    pub(crate) fn write(&self) -> Ranked<RwLockWriteGuard<'_, T>> {
        let held = Held::take(self.order, self.rank);
        Ranked {
            guard: self.lock.write(),
            _held: held,
        }
    }

    /// None where a writer has it.
    #[cfg(test)]
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.lock.try_read()
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_taken_in_their_order() {
        let order = Order::new();
        let state = RankedRwLock::new(order, Rank::State, ());
        let epoch = RankedMutex::new(order, Rank::Epoch, ());
        {
            let _epoch = epoch.lock();
            let _state = state.read();
        }
        let _state = state.write();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "the lock Epoch is taken while Some(State) is held")]
    fn the_wrong_order_is_found() {
        let order = Order::new();
        let state = RankedRwLock::new(order, Rank::State, ());
        let epoch = RankedMutex::new(order, Rank::Epoch, ());
        let _state = state.read();
        let _epoch = epoch.lock();
    }

    /// A test opens a store within a call of another one.
    #[test]
    fn two_stores_have_no_order_between_them() {
        let one = RankedRwLock::new(Order::new(), Rank::State, ());
        let other = RankedMutex::new(Order::new(), Rank::Epoch, ());
        let _one = one.read();
        let _other = other.lock();
    }
}
