//! Whether this process is still the one that opened a database.
//!
//! A child has the memory of its parent but not its threads, and shares its locks and its
//! arena: what it did with the parent's databases would be done twice, or not at all.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts forks on the way from the first process to this one.
static GENERATION: AtomicU64 = AtomicU64::new(0);
static WATCH: Once = Once::new();

/// A process, as distinguished from its ancestors and descendants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u64);

impl Generation {
    /// This process.
    pub(crate) fn current() -> Self {
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// This process is a child that was just forked.
    pub(crate) fn begin() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether this is still that process.
    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }
}

/// What is done at a fork: before it, and after it in the parent and in the child.
pub(crate) struct Handlers {
    pub(crate) before: extern "C" fn(),
    pub(crate) in_parent: extern "C" fn(),
    pub(crate) in_child: extern "C" fn(),
}

/// From now on forks are noticed. The handlers are functions of this library that do nothing but
/// change atomics and locks that allocate nothing; only the first call has an effect.
pub(crate) fn watch(handlers: &Handlers) {
    WATCH.call_once(|| {
        // SAFETY: the handlers are functions of this library, which stays loaded, and do
        // nothing but change an atomic and a lock that allocates nothing.
        let result = unsafe {
            libc::pthread_atfork(
                Some(handlers.before),
                Some(handlers.in_parent),
                Some(handlers.in_child),
            )
        };
        if result != 0 {
            tracing::error!(
                "cannot register handlers of fork(2), for want of memory: forks will not be \
                 noticed"
            );
        }
    });
}
