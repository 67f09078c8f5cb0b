//! Locks with ranks, and the check of the order in which a thread takes them.
//!
//! Every lock of an instance (a store, a volume) has a [`Rank`]; a thread takes only locks of a
//! higher rank than all that it holds of that instance. Builds with debug assertions check that at
//! each lock, so a test that takes two locks the wrong way round fails even if no other thread is in
//! the way. Release builds carry neither the check nor its memory.
//!
//! [`RankedMutex`] and [`RankedRwLock`] are locks of `parking_lot`. A crate with locks of another
//! kind composes [`Held`] and [`Ranked`] itself.

mod held;
mod rank;

use std::ops::{Deref, DerefMut};

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub use held::{Held, Order};
pub use rank::Rank;

/// A guard of a lock with a rank.
#[derive(Debug)]
pub struct Ranked<G> {
    // Unlocked before its rank is released.
    guard: G,
    _held: Held,
}

impl<G> Ranked<G> {
    /// A guard, and the record that its lock is held.
    pub const fn new(guard: G, held: Held) -> Self {
        Self { guard, _held: held }
    }

    /// The guard itself, to let other threads lock for a moment.
    pub const fn guard_mut(&mut self) -> &mut G {
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
pub struct RankedMutex<R, T> {
    order: Order,
    rank: R,
    mutex: Mutex<T>,
}

impl<R: Rank, T> RankedMutex<R, T> {
    /// A mutex of the instance with this order.
    pub const fn new(order: Order, rank: R, value: T) -> Self {
        Self {
            order,
            rank,
            mutex: Mutex::new(value),
        }
    }

    /// Waits for the mutex.
    pub fn lock(&self) -> Ranked<MutexGuard<'_, T>> {
        let held = Held::take(self.order, self.rank);
        Ranked::new(self.mutex.lock(), held)
    }

    /// None where it is held already. A thread that does not wait cannot be part of a deadlock, so
    /// this may be called with any other lock held.
    pub fn try_lock(&self) -> Option<Ranked<MutexGuard<'_, T>>> {
        let guard = self.mutex.try_lock()?;
        Some(Ranked::new(
            guard,
            Held::without_check(self.order, self.rank),
        ))
    }
}

/// A lock for readers and writers, with a rank.
#[derive(Debug)]
pub struct RankedRwLock<R, T> {
    order: Order,
    rank: R,
    lock: RwLock<T>,
}

impl<R: Rank, T> RankedRwLock<R, T> {
    /// A lock of the instance with this order.
    pub const fn new(order: Order, rank: R, value: T) -> Self {
        Self {
            order,
            rank,
            lock: RwLock::new(value),
        }
    }

    /// Waits until no writer has it.
    pub fn read(&self) -> Ranked<RwLockReadGuard<'_, T>> {
        let held = Held::take(self.order, self.rank);
        Ranked::new(self.lock.read(), held)
    }

    /// Waits until no other thread has it.
    pub fn write(&self) -> Ranked<RwLockWriteGuard<'_, T>> {
        let held = Held::take(self.order, self.rank);
        Ranked::new(self.lock.write(), held)
    }

    /// None where a writer has it. The rank is not recorded.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.lock.try_read()
    }

    /// The value, of a lock that no other thread can have.
    pub fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Example {
        Outer,
        Inner,
    }

    impl Rank for Example {
        fn place(self) -> u8 {
            self as u8
        }

        fn name(self) -> &'static str {
            match self {
                Self::Outer => "outer",
                Self::Inner => "inner",
            }
        }
    }

    #[test]
    fn locks_are_taken_in_their_order() {
        let order = Order::new();
        let inner = RankedRwLock::new(order, Example::Inner, ());
        let outer = RankedMutex::new(order, Example::Outer, ());
        {
            let _outer = outer.lock();
            let _inner = inner.read();
        }
        let _inner = inner.write();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "the lock `outer` is taken while `inner` is held")]
    fn the_wrong_order_is_found() {
        let order = Order::new();
        let inner = RankedRwLock::new(order, Example::Inner, ());
        let outer = RankedMutex::new(order, Example::Outer, ());
        let _inner = inner.read();
        let _outer = outer.lock();
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "the lock `outer` is taken while `outer` is held")]
    fn a_lock_that_the_thread_holds_already_is_found() {
        let order = Order::new();
        let outer = RankedMutex::new(order, Example::Outer, ());
        let other = RankedMutex::new(order, Example::Outer, ());
        let _outer = outer.lock();
        let _other = other.lock();
    }

    #[test]
    fn a_thread_that_does_not_wait_may_lock_in_any_order() {
        let order = Order::new();
        let inner = RankedMutex::new(order, Example::Inner, ());
        let outer = RankedMutex::new(order, Example::Outer, ());
        let _inner = inner.lock();
        assert!(outer.try_lock().is_some());
    }

    /// A test opens a store within a call of another one.
    #[test]
    fn two_instances_have_no_order_between_them() {
        let one = RankedRwLock::new(Order::new(), Example::Inner, ());
        let other = RankedMutex::new(Order::new(), Example::Outer, ());
        let _one = one.read();
        let _other = other.lock();
    }
}
