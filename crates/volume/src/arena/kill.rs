//! For tests: a kill at any write to the arena.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts writes; after a number of them nothing is written any more, as if the process
/// had been killed there.
#[derive(Debug)]
pub(super) struct Kill {
    remaining: AtomicU64,
}

impl Default for Kill {
    fn default() -> Self {
        Self {
            remaining: AtomicU64::new(u64::MAX),
        }
    }
}

impl Kill {
    /// The process dies after this many writes.
    pub(super) fn after(&self, writes: u64) {
        self.remaining.store(writes, Ordering::SeqCst);
    }

    /// Whether it has died.
    pub(super) fn is_dead(&self) -> bool {
        self.remaining.load(Ordering::SeqCst) == 0
    }

    /// One more write; false if the process is dead.
    pub(super) fn lives(&self) -> bool {
        let lived = self
            .remaining
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |remaining| {
                remaining.checked_sub(1)
            });
        lived.is_ok()
    }

    /// How much of a longer write is done: the one in which the process dies is torn.
    pub(super) fn part_of<'a>(&self, content: &'a [u8]) -> &'a [u8] {
        if !self.lives() {
            return &[];
        }
        if self.is_dead() {
            &content[..content.len() / 2]
        } else {
            content
        }
    }
}
