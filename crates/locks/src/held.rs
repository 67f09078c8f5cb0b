//! Which locks a thread holds.

use crate::rank::Rank;

/// The locks of one instance: only these are in an order with each other. (A test may open a second
/// store in the middle of a call that the first one makes to its lower filesystem.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order(#[cfg(debug_assertions)] u64);

impl Order {
    /// The order of a new instance.
    #[expect(clippy::new_without_default, reason = "two of them are not equal")]
    pub fn new() -> Self {
        #[cfg(debug_assertions)]
        {
            use std::sync::atomic::{AtomicU64, Ordering};
            static NEXT: AtomicU64 = AtomicU64::new(0);
            Self(NEXT.fetch_add(1, Ordering::Relaxed))
        }
        #[cfg(not(debug_assertions))]
        Self()
    }

    /// An order that is not checked, of locks that the system's threads do not take themselves (a
    /// test runs several threads of its own on one of them).
    pub const fn unchecked() -> Self {
        #[cfg(debug_assertions)]
        {
            Self(UNCHECKED)
        }
        #[cfg(not(debug_assertions))]
        Self()
    }
}

#[cfg(debug_assertions)]
const UNCHECKED: u64 = u64::MAX;

/// The record that this thread holds a lock; the lock is released before it is dropped.
#[derive(Debug)]
pub struct Held(#[cfg(debug_assertions)] checked::Lock);

#[cfg(debug_assertions)]
mod checked {
    use std::cell::RefCell;

    use super::{Held, Order, Rank};

    /// A lock that the thread holds.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Lock {
        order: Order,
        place: u8,
        name: &'static str,
    }

    thread_local! {
        static HELD: RefCell<Vec<Lock>> = const { RefCell::new(Vec::new()) };
    }

    impl Held {
        /// To be called before the lock is waited for.
        ///
        /// # Panics
        /// With debug assertions, if the thread holds a lock of this instance that comes later.
        pub fn take(order: Order, rank: impl Rank) -> Self {
            HELD.with_borrow(|held| {
                if order == Order::unchecked() {
                    return;
                }
                let held = held.iter().filter(|lock| lock.order == order);
                if let Some(highest) = held.max_by_key(|lock| lock.place) {
                    assert!(
                        highest.place < rank.place(),
                        "the lock `{}` is taken while `{}` is held",
                        rank.name(),
                        highest.name
                    );
                }
            });
            Self::without_check(order, rank)
        }

        /// For a lock that was not waited for: it may be taken in any order.
        pub fn without_check(order: Order, rank: impl Rank) -> Self {
            let lock = Lock {
                order,
                place: rank.place(),
                name: rank.name(),
            };
            HELD.with_borrow_mut(|held| held.push(lock));
            Self(lock)
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
    /// To be called before the lock is waited for.
    pub fn take(_order: Order, _rank: impl Rank) -> Self {
        Self()
    }

    /// For a lock that was not waited for: it may be taken in any order.
    pub fn without_check(_order: Order, _rank: impl Rank) -> Self {
        Self()
    }
}
