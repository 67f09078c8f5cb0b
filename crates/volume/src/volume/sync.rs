//! The locks and threads of a volume: the system's, or, with the feature `interleavings`,
//! those of a test that chooses which thread runs when.

#[cfg(not(feature = "interleavings"))]
pub(super) use parking_lot::{
    Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
#[cfg(not(feature = "interleavings"))]
pub(super) use std::thread;

#[cfg(feature = "interleavings")]
pub(super) use chosen::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(feature = "interleavings")]
pub(super) use shuttle::sync::{RwLockReadGuard, RwLockWriteGuard};
#[cfg(feature = "interleavings")]
pub(super) use shuttle::thread;

/// The interface of `parking_lot`, as far as a volume uses it, over shuttle's locks.
#[cfg(feature = "interleavings")]
mod chosen {
    use std::ops::{Deref, DerefMut};
    use std::sync::{PoisonError, TryLockError};
    use std::time::Duration;

    use shuttle::sync;

    use super::{RwLockReadGuard, RwLockWriteGuard};

    #[derive(Debug, Default)]
    pub(in super::super) struct Mutex<T>(sync::Mutex<T>);

    #[derive(Debug)]
    pub(in super::super) struct MutexGuard<'a, T> {
        mutex: &'a sync::Mutex<T>,
        /// None only while a condition is waited for.
        inner: Option<sync::MutexGuard<'a, T>>,
    }

    impl<T> Mutex<T> {
        pub(in super::super) const fn new(value: T) -> Self {
            Self(sync::Mutex::new(value))
        }

        pub(in super::super) fn lock(&self) -> MutexGuard<'_, T> {
            let inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            self.guard(inner)
        }

        pub(in super::super) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            match self.0.try_lock() {
                Ok(inner) => Some(self.guard(inner)),
                Err(TryLockError::Poisoned(poisoned)) => Some(self.guard(poisoned.into_inner())),
                Err(TryLockError::WouldBlock) => None,
            }
        }

        fn guard<'a>(&'a self, inner: sync::MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            MutexGuard {
                mutex: &self.0,
                inner: Some(inner),
            }
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            match &self.inner {
                Some(guard) => guard,
                None => unreachable!("a guard is used while its condition is waited for"),
            }
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            match &mut self.inner {
                Some(guard) => guard,
                None => unreachable!("a guard is used while its condition is waited for"),
            }
        }
    }

    #[derive(Debug, Default)]
    pub(in super::super) struct Condvar(sync::Condvar);

    impl Condvar {
        pub(in super::super) const fn new() -> Self {
            Self(sync::Condvar::new())
        }

        pub(in super::super) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(in super::super) fn notify_all(&self) {
            self.0.notify_all();
        }

        pub(in super::super) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let waited = guard.inner.take().map(|inner| self.0.wait(inner));
            guard.inner = waited.map(|waited| waited.unwrap_or_else(PoisonError::into_inner));
        }

        /// The time is over whenever the schedule lets this thread run again.
        pub(in super::super) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) {
            guard.inner = None;
            shuttle::thread::yield_now();
            let inner = guard.mutex.lock();
            guard.inner = Some(inner.unwrap_or_else(PoisonError::into_inner));
        }
    }

    #[derive(Debug, Default)]
    pub(in super::super) struct RwLock<T>(sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub(in super::super) const fn new(value: T) -> Self {
            Self(sync::RwLock::new(value))
        }

        pub(in super::super) fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        }

        pub(in super::super) fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
