//! What was observed and is not written yet.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;

use mobifs_recording::{LogPart, Observation};
use parking_lot::Mutex;
use rustix::thread::sched_getcpu;

/// Parts, so that workers on different CPUs do not contend.
const SHARDS: usize = 8;
/// A part that has more than this accepts nothing more.
const PART_BYTES_MAX: usize = 4 << 20;
/// A part that has more than this is written at once.
const PART_BYTES_HURRY: usize = 512 << 10;

/// What one shard has.
#[derive(Debug, Default)]
struct Part {
    part: LogPart,
    /// Observations that found no room.
    lost: u64,
}

/// On a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard(Mutex<Part>);

/// Observations that wait for the writing thread: at most [`SHARDS`] times [`PART_BYTES_MAX`]
/// bytes, and as much that is being written.
#[derive(Debug)]
pub(super) struct Buffer {
    shards: [Shard; SHARDS],
    /// There is data, and the writing thread has been woken.
    has_some: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Buffer {
    pub(super) fn new() -> Self {
        Self {
            shards: Default::default(),
            has_some: AtomicBool::new(false),
            thread: OnceLock::new(),
        }
    }

    /// The writing thread.
    pub(super) fn wake_with(&self, thread: Thread) {
        // Set once, by the owner of the thread.
        let _set = self.thread.set(thread);
        self.wake();
    }

    /// Wakes the writing thread.
    pub(super) fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Adds an observation, or counts it as lost.
    pub(super) fn push(&self, observation: &Observation<'_>) {
        let mut shard = self.shards[sched_getcpu() % SHARDS].0.lock();
        if shard.part.size_bytes() >= PART_BYTES_MAX {
            shard.lost += 1;
            return;
        }
        let before = shard.part.size_bytes();
        shard.part.push(observation);
        let is_urgent = before < PART_BYTES_HURRY && shard.part.size_bytes() >= PART_BYTES_HURRY;
        drop(shard);
        // Read first: most of the time it is set, and no other CPU's cache line is invalidated.
        let is_new =
            !self.has_some.load(Ordering::Relaxed) && !self.has_some.swap(true, Ordering::SeqCst);
        if is_new || is_urgent {
            self.wake();
        }
    }

    /// Whether data was added since the last take.
    pub(super) fn has_some(&self) -> bool {
        self.has_some.load(Ordering::SeqCst)
    }

    /// How many observations wait.
    pub(super) fn len(&self) -> u64 {
        self.shards
            .iter()
            .map(|shard| shard.0.lock().part.len())
            .sum()
    }

    /// Takes everything, a part at a time, with the number that was lost with it. `spare` is an
    /// empty part, whose memory is used.
    ///
    /// # Errors
    /// What `write` says; the rest stays.
    pub(super) fn take<E>(
        &self,
        spare: &mut LogPart,
        mut write: impl FnMut(&mut LogPart, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        // Before anything is taken: what is added from now on wakes the thread again.
        self.has_some.store(false, Ordering::SeqCst);
        for shard in &self.shards {
            let lost = {
                let mut shard = shard.0.lock();
                if shard.part.is_empty() && shard.lost == 0 {
                    continue;
                }
                std::mem::swap(&mut shard.part, spare);
                std::mem::take(&mut shard.lost)
            };
            let written = write(spare, lost);
            spare.clear();
            written?;
        }
        Ok(())
    }

    /// Gives the memory back.
    pub(super) fn discard(&self) {
        for shard in &self.shards {
            *shard.0.lock() = Part::default();
        }
    }
}
