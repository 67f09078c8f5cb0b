//! Keeping the number of objects in memory within its limit, step by step.
//!
//! Objects without references leave the engine; those to which only the kernel's caches refer, the
//! kernel is asked to forget, and its FORGET requests release them. A thread of its own does this:
//! the checkpointer may be busy with the device for seconds, and meanwhile a walk over a large tree
//! would bring any number of objects into memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mobifs_base::ObjectId;
use mobifs_engine::KernelHeld;

use super::locked_engine::LockedEngine;
use super::types::{KernelCache, VolumeError};
use super::{Shared, Volume};

/// Objects looked at while the engine is locked once: less than a millisecond.
const STEP_OBJECTS: usize = 256;
/// Objects that the kernel is asked to forget before its answers are awaited.
const ASKED_MAX: usize = 4096;
/// How long to wait for the kernel's FORGET requests.
const ANSWER_TIME: Duration = Duration::from_millis(20);
/// Rest after a round in which nothing left memory: all that is there is in use.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);

/// What a round did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Round {
    /// Objects that were looked at.
    pub(super) looked_at: usize,
    /// Objects and listings that left memory.
    pub(super) evicted: usize,
    /// Objects that the kernel was asked to forget.
    pub(super) asked: usize,
    /// How often the engine was locked.
    pub(super) steps: usize,
}

impl Volume {
    /// From now on the kernel is asked to forget what keeps too many objects in memory, by a
    /// thread of its own where the volume has any. A volume without a kernel does without that
    /// thread: an app with many databases has one for each of them already.
    ///
    /// # Errors
    /// [`VolumeError::Thread`]; the checkpointer goes on to keep the limits, less promptly.
    pub fn set_kernel_cache(&self, cache: Arc<dyn KernelCache>) -> Result<(), VolumeError> {
        let before = self.shared.kernel_cache.lock().replace(cache);
        if before.is_none() && self.shared.options.background {
            let shared = Arc::clone(&self.shared);
            self.spawn("trimmer", move || shared.run_trimmer())?;
            self.shared.has_trimmer.store(true, Ordering::SeqCst);
        }
        Ok(())
    }
}

impl Shared {
    /// The thread.
    pub(super) fn run_trimmer(&self) {
        while !self.stopping.load(Ordering::SeqCst) {
            let round = self.trim_round();
            let mut locked = self.lock_engine();
            locked.is_trimming = false;
            if self.stopping.load(Ordering::SeqCst) {
                return;
            }
            if !locked.engine.is_crowded() {
                locked.wait(&self.crowded, None);
            } else {
                let rest = if locked.engine.has_many_objects() {
                    self.rest_of_round(&round)
                } else {
                    // A listing that is in use is too large: no reason to hurry.
                    ROUND_INTERVAL
                };
                locked.is_trimming = true;
                locked.wait(&self.crowded, Some(rest));
            }
        }
    }

    /// Where the kernel has released nothing, asking again at once is useless.
    fn rest_of_round(&self, round: &Round) -> Duration {
        let forgotten = self.forgotten_objects.swap(0, Ordering::Relaxed);
        if round.evicted > 0 || forgotten > 0 {
            ANSWER_TIME
        } else {
            ROUND_INTERVAL
        }
    }

    /// Wakes the trimmer if too much is in memory and it is not at work.
    pub(super) fn after_crowding(&self, locked: &mut LockedEngine<'_>) {
        if !locked.is_trimming && locked.engine.is_crowded() {
            locked.is_trimming = true;
            if self.has_trimmer.load(Ordering::SeqCst) {
                self.crowded.notify_one();
            } else {
                self.wake(locked);
            }
        }
    }

    /// What the trimmer does, for a volume that has none. Where too much is in use, the next round
    /// of the checkpointer tries again, not each new object.
    pub(super) fn trim_without_trimmer(&self) {
        if self.has_trimmer.load(Ordering::SeqCst) {
            return;
        }
        let _round = self.trim_round();
        let mut locked = self.lock_engine();
        locked.is_trimming = locked.engine.is_crowded();
    }

    /// Looks at the objects in memory until enough has left it, or all were looked at and
    /// nothing left: a directory may be unused only when what lies in it has left.
    pub(super) fn trim_round(&self) -> Round {
        let cache = self.kernel_cache.lock().clone();
        self.trim_round_asking(|held| match &cache {
            Some(cache) => {
                cache.forget(held);
                held.len()
            }
            None => 0,
        })
    }

    /// As [`Shared::trim_round`]; `ask` has the kernel forget, without locks, and returns how many
    /// objects it was asked to forget.
    pub(super) fn trim_round_asking(&self, mut ask: impl FnMut(&[KernelHeld]) -> usize) -> Round {
        let mut round = Round::default();
        let objects = self.lock_engine().engine.objects();
        let objects = usize::try_from(objects).unwrap_or(usize::MAX);
        let mut in_vain = 0;
        while in_vain < objects && round.asked < ASKED_MAX && !self.is_power_cut() {
            let trimmed = self.lock_engine().engine.trim(STEP_OBJECTS);
            round.steps += 1;
            round.looked_at += trimmed.looked_at;
            round.evicted += trimmed.evicted;
            in_vain = if trimmed.evicted > 0 {
                0
            } else {
                in_vain + trimmed.looked_at
            };
            if trimmed.looked_at == 0 {
                break;
            }
            if !trimmed.kernel_held.is_empty() {
                round.asked += ask(&trimmed.kernel_held);
            }
        }
        self.report_evicted();
        round
    }

    /// Reports to the store which objects have left memory.
    pub(super) fn report_evicted(&self) {
        if !self.lock_engine().engine.has_forgotten() {
            return;
        }
        let _nothing_arrives = self.listing.write();
        let (forgotten, in_use) = {
            let mut locked = self.lock_engine();
            let forgotten: Vec<ObjectId> = locked.engine.take_forgotten();
            if forgotten.is_empty() {
                return;
            }
            let in_use = locked.engine.objects_with_several_names().clone();
            (forgotten, in_use)
        };
        self.store.forget(&forgotten, &in_use);
        // Until this call the engine accepts no data that the store may have forgotten; no thread
        // fetches any, because `listing` is locked.
        self.lock_engine().engine.forgotten();
    }
}
