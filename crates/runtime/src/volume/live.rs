//! The engine, locked.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use mobifs_core::Engine;
use mobifs_types::MonotonicNs;

use super::Shared;
use super::sync::{Condvar, MutexGuard};
use crate::Arena;

/// What the engine's lock guards.
pub(super) struct Live {
    pub(super) engine: Engine,
    /// The checkpointer sleeps without a deadline because nothing is open.
    pub(super) checkpointer_idle: bool,
    /// The checkpointer is asked to look at once.
    pub(super) wake: bool,
    /// Transactions that were closed when the checkpointer last looked.
    pub(super) closings_seen: u64,
    /// When the engine was last told about room.
    pub(super) space_at: MonotonicNs,
    /// When unused objects were last looked for.
    pub(super) trimmed_at: MonotonicNs,
}

/// The engine's lock, held. Before it is let go, what was changed is kept in the arena,
/// if there is one; so nobody sees what a kill could undo.
pub(super) struct LiveGuard<'a> {
    guard: MutexGuard<'a, Live>,
    arena: Option<&'a Arena>,
}

impl Shared {
    /// Locks the engine.
    pub(super) fn live(&self) -> LiveGuard<'_> {
        LiveGuard {
            guard: self.live.lock(),
            arena: self.options.arena.as_ref(),
        }
    }
}

impl Deref for LiveGuard<'_> {
    type Target = Live;

    fn deref(&self) -> &Live {
        &self.guard
    }
}

impl DerefMut for LiveGuard<'_> {
    fn deref_mut(&mut self) -> &mut Live {
        &mut self.guard
    }
}

impl LiveGuard<'_> {
    fn save(&mut self) {
        if let Some(arena) = self.arena {
            arena.save(&mut self.guard.engine);
        }
    }

    /// Waits for `wake` with the lock let go, at most for `timeout`.
    pub(super) fn wait(&mut self, wake: &Condvar, timeout: Option<Duration>) {
        self.save();
        match timeout {
            Some(timeout) => {
                wake.wait_for(&mut self.guard, timeout);
            }
            None => wake.wait(&mut self.guard),
        }
    }
}

impl Drop for LiveGuard<'_> {
    fn drop(&mut self) {
        // A panic may have come in the middle of an operation: what is kept stays the
        // state before it.
        if !std::thread::panicking() {
            self.save();
        }
    }
}
