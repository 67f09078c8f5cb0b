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

    /// Whether this is still that process.
    pub(crate) fn is_current(self) -> bool {
        self == Self::current()
    }
}

extern "C" fn before() {
    crate::registry::hold();
}

extern "C" fn after_in_parent() {
    crate::registry::release();
}

extern "C" fn after_in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    crate::registry::release();
}

/// From now on forks are noticed. No thread forks while a database is being opened or closed.
pub(crate) fn watch() {
    WATCH.call_once(|| {
        // SAFETY: the handlers are functions of this library, which stays loaded, and do
        // nothing but change an atomic and a lock that allocates nothing.
        let result = unsafe {
            libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child))
        };
        if result != 0 {
            tracing::error!(
                "cannot register handlers of fork(2), for want of memory: forks will not be \
                 noticed"
            );
        }
    });
}
