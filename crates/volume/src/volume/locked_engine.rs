//! The engine, locked.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use mobifs_base::MonotonicNs;
use mobifs_engine::Engine;

use super::locks::Guard;
use super::sync::Condvar;
use crate::Arena;

/// What the engine's lock guards.
pub(super) struct EngineState {
    pub(super) engine: Engine,
    /// The checkpointer sleeps without a deadline because nothing is open.
    pub(super) checkpointer_idle: bool,
    /// The checkpointer is to run a round at once.
    pub(super) wake: bool,
    /// Transactions that were closed when the checkpointer last looked.
    pub(super) closings_seen: u64,
    /// When the engine last got the room of the lower filesystem.
    pub(super) space_at: MonotonicNs,
    /// The trimmer works, or pauses between two rounds.
    pub(super) is_trimming: bool,
    /// Content written by [`super::Volume::write_batched`] that the arena does not have yet.
    pub(super) batched_bytes: usize,
}

/// Most content of a batch: what an arena takes at once is copied with the lock held.
pub(super) const BATCH_BYTES_MAX: usize = 256 << 10;

/// When the changes of a guard's holder are saved in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keeping {
    /// Before the lock is released.
    Now,
    /// With a later change, if a batch is under way.
    Batched,
}

/// The engine's lock, held. Before it is released, changes are saved in the arena, if there is one;
/// so no caller sees what a kill could undo. The exception is a batch: its writer has declared that
/// nothing relies on it yet.
pub(super) struct LockedEngine<'a> {
    guard: Guard<'a, EngineState>,
    arena: Option<&'a Arena>,
    keeping: Keeping,
}

impl Deref for LockedEngine<'_> {
    type Target = EngineState;

    fn deref(&self) -> &EngineState {
        &self.guard
    }
}

impl DerefMut for LockedEngine<'_> {
    fn deref_mut(&mut self) -> &mut EngineState {
        &mut self.guard
    }
}

impl<'a> LockedEngine<'a> {
    pub(super) const fn new(
        guard: Guard<'a, EngineState>,
        arena: Option<&'a Arena>,
        keeping: Keeping,
    ) -> Self {
        Self {
            guard,
            arena,
            keeping,
        }
    }

    fn save(&mut self) {
        if let Some(arena) = self.arena {
            arena.save(&mut self.guard.engine);
        }
        self.guard.batched_bytes = 0;
    }

    fn goes_on_with_batch(&self) -> bool {
        self.keeping == Keeping::Batched
            && (1..=BATCH_BYTES_MAX).contains(&self.guard.batched_bytes)
    }

    /// Waits for `wake` with the lock released, at most for `timeout`.
    pub(super) fn wait(&mut self, wake: &Condvar, timeout: Option<Duration>) {
        self.save();
        match timeout {
            Some(timeout) => {
                wake.wait_for(self.guard.guard_mut(), timeout);
            }
            None => wake.wait(self.guard.guard_mut()),
        }
    }
}

impl Drop for LockedEngine<'_> {
    fn drop(&mut self) {
        // A panic may have come in the middle of an operation: the saved state stays the one before
        // it.
        if !std::thread::panicking() && !self.goes_on_with_batch() {
            self.save();
        }
    }
}
