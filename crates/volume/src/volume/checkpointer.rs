//! The thread that commits transactions when their policy says so, and applies the
//! journal when it is nearly full or nothing happens.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mobifs_base::MonotonicNs;
use mobifs_store::StoreError;

use super::commit::Committed;
use super::locked_engine::LockedEngine;
use super::{Shared, Volume};
use crate::heap::{HeapWatch, Load};

/// While something is uncommitted, room and limits are checked this often.
const ROUND_MAX: Duration = Duration::from_secs(1);
/// Shortest sleep between two checks of ages.
const ROUND_MIN: Duration = Duration::from_millis(10);
/// Memory of one object without its content, roughly.
const OBJECT_BYTES: u64 = 512;
/// The checkpointer gives way as long as no more than this part of the memory from which on it commits early is
/// in use, so what waits meanwhile is little.
const MEMORY_SHARE: u64 = 4;

/// State that one round of the checkpointer leaves for the next.
struct RoundState {
    last_commit: MonotonicNs,
    commits_seen: u64,
}

/// What a round found.
struct Due {
    /// When closed transactions, or the journal, are to be checked again.
    next_at: Option<MonotonicNs>,
    /// Something was committed since the last round.
    busy: bool,
}

/// The checkpointer of a volume that has no thread for it: the owner of the clock calls it.
#[must_use]
pub struct Checkpointer<'v> {
    shared: &'v Shared,
    round: RoundState,
}

impl std::fmt::Debug for Checkpointer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checkpointer").finish_non_exhaustive()
    }
}

impl Volume {
    /// For a volume without a checkpointer thread ([`crate::VolumeOptions::background`]): what such
    /// a thread does, one round at a time.
    pub fn checkpointer(&self) -> Checkpointer<'_> {
        Checkpointer {
            round: self.shared.first_round(),
            shared: &self.shared,
        }
    }
}

impl Checkpointer<'_> {
    /// Commits and applies what is due. Returns when to call it again: at that moment, or earlier
    /// if it [is called](Self::is_called); none: only then.
    pub fn run_round(&mut self) -> Option<MonotonicNs> {
        let due = self.shared.checkpoint(&mut self.round);
        let now = self.shared.moment().now;
        let rest = self.shared.rest(&mut self.shared.lock_engine(), &due)?;
        let rest_ns = u64::try_from(rest.as_nanos()).unwrap_or(u64::MAX);
        Some(MonotonicNs(now.0.saturating_add(rest_ns)))
    }

    /// Something has happened since the last round for which a thread would have been woken.
    pub fn is_called(&self) -> bool {
        self.shared.lock_engine().wake
    }
}

impl Shared {
    /// Has the checkpointer wait, before it commits a transaction for which no program waits, for a
    /// pause in which no durable `fsync` comes; returns how many it has waited. It does not wait
    /// where memory is short, or where the volume has no thread for it: then its caller would.
    pub(super) fn give_way(&self) -> u32 {
        let is_due = self.options.background && self.durable_syncs.is_due();
        if !is_due || !self.lock_engine().engine.has_waiting() {
            return 0;
        }
        let bytes_max = self.memory_high_bytes() / MEMORY_SHARE;
        self.durable_syncs.wait_for_pause(|pause| {
            let mut locked = self.lock_engine();
            let is_urgent = locked.engine.dirty_bytes() > bytes_max;
            let has_orders =
                self.pressure_flush.load(Ordering::SeqCst) || self.stopping.load(Ordering::SeqCst);
            if is_urgent || has_orders {
                return false;
            }
            locked.wait(&self.wake, Some(pause));
            true
        })
    }

    pub(super) fn run_checkpointer(&self) {
        let mut round = self.first_round();
        let mut heap = HeapWatch::default();
        while !self.stopping.load(Ordering::SeqCst) {
            let due = self.checkpoint(&mut round);
            self.sample_heap(&mut heap, &due);
            self.sleep(&due);
        }
    }

    fn first_round(&self) -> RoundState {
        RoundState {
            last_commit: self.moment().now,
            commits_seen: self.store.pending().commits,
        }
    }

    /// Closes, commits and applies what is due.
    fn checkpoint(&self, round: &mut RoundState) -> Due {
        let keeps_open = self.keeps_open();
        {
            let mut locked = self.lock_engine();
            locked.wake = false;
            locked.checkpointer_idle = false;
            locked.engine.tick(self.moment().now);
            if !keeps_open && locked.engine.dirty_bytes() > self.memory_high_bytes() {
                locked.engine.close_largest();
            }
            locked.closings_seen = locked.engine.closings();
            let (now, dirty_bytes) = (self.moment().now, locked.engine.dirty_bytes());
            self.forecast.lock().sample(now, dirty_bytes);
        }
        self.run_pressure_flush();
        self.retry_with_room();
        let commit_at = self.commit_all_closed();
        self.do_housekeeping();
        let commits = self.store.pending().commits;
        let busy = commits != round.commits_seen;
        if busy {
            round.commits_seen = commits;
            round.last_commit = self.moment().now;
        }
        let apply_at = self.apply_if_due(&mut round.last_commit);
        if !busy {
            self.give_back_at_rest();
        }
        Due {
            next_at: [apply_at, commit_at, self.next_look_for_room()]
                .into_iter()
                .flatten()
                .min(),
            busy,
        }
    }

    /// Commits and applies everything, if a pressure flush was requested.
    pub(super) fn run_pressure_flush(&self) {
        if !self.pressure_flush.swap(false, Ordering::SeqCst) {
            return;
        }
        self.commit_all();
        let _failed = self.apply_or_say();
    }

    fn sample_heap(&self, heap: &mut HeapWatch, due: &Due) {
        let pending = self.store.pending();
        let (dirty_bytes, objects) = {
            let locked = self.lock_engine();
            (locked.engine.dirty_bytes(), locked.engine.objects())
        };
        let load = if due.busy {
            Load::Busy
        } else if dirty_bytes > 0 || pending.journal_used_bytes > 0 {
            Load::Quiet
        } else {
            Load::AtRest
        };
        // Memory in use, roughly.
        let held_bytes = dirty_bytes + pending.held_bytes + objects * OBJECT_BYTES;
        heap.sample(held_bytes, load, self.moment().now);
    }

    /// Passes to the store which objects are not needed any more, and to the engine how much room
    /// there is.
    pub(super) fn do_housekeeping(&self) {
        self.unpin_unused();
        self.trim_without_trimmer();
        self.report_evicted();
        let space_at = self.lock_engine().space_at;
        if self.moment().now.ms_since(space_at) >= 1000
            && let Err(error) = self.refresh_space(&self.commit_lock.lock())
        {
            tracing::warn!(%error, "the lower filesystem does not say how much room there is");
        }
    }

    /// Removes deleted objects whose last user has gone from the lower filesystem.
    pub(super) fn unpin_unused(&self) {
        let unpinned = self.lock_engine().engine.take_unpinned();
        for id in unpinned {
            self.store.unpin(id);
        }
    }

    /// Commits what is closed. As long as an app goes on writing there is always more of it, so
    /// the journal is applied in between: else a commit would have to do so when it is full, and
    /// a thread that waits for that one, or for the next, would wait for all of the apply.
    fn commit_all_closed(&self) -> Option<MonotonicNs> {
        let mut can_apply = true;
        loop {
            let pauses = || can_apply && self.is_journal_nearly_full();
            match self.commit_closed(pauses) {
                Committed::All { until } => return until,
                Committed::Part => can_apply = self.apply_or_say().is_ok(),
            }
        }
    }

    pub(super) fn is_journal_nearly_full(&self) -> bool {
        let pending = self.store.pending();
        pending.journal_used_bytes > pending.journal_total_bytes / 4 * 3
    }

    /// Applies the journal; a failure is only logged, because the apply is tried again.
    fn apply_or_say(&self) -> Result<(), StoreError> {
        let applied = self.apply();
        if let Err(error) = &applied
            && !self.is_power_cut()
        {
            tracing::error!(
                %error,
                "the store could not apply the journal; the checkpointer tries again later"
            );
        }
        applied
    }

    /// Applies the journal if it is nearly full, nothing was committed for long, or it is time to
    /// free what was deleted; returns when to check again.
    fn apply_if_due(&self, last_commit: &mut MonotonicNs) -> Option<MonotonicNs> {
        let pending = self.store.pending();
        if pending.journal_used_bytes == 0 {
            // Nothing waits to be applied, whichever thread has applied it.
            self.freed_space.lock().all_is_applied();
            return None;
        }
        if self.is_power_cut() {
            return None;
        }
        let idle_ns = u64::try_from(self.options.apply_idle.as_nanos()).unwrap_or(u64::MAX);
        let idle_at = MonotonicNs(last_commit.0.saturating_add(idle_ns));
        let apply_at = self.free_space_at().map_or(idle_at, |at| at.min(idle_at));
        let now = self.moment().now;
        if self.is_journal_nearly_full() {
            // Also in standby: commits need the room.
        } else if self.is_standby() {
            // It is durable in the journal, and the end of standby wakes this thread.
            return None;
        } else if now < apply_at {
            return Some(apply_at);
        }
        match self.apply_or_say() {
            Ok(()) => None,
            Err(_) if self.is_power_cut() => None,
            Err(_) => {
                // As if there had been a commit just now: the next try is due when
                // the idle time has passed again, or what was deleted has waited again.
                *last_commit = now;
                let idle_at = MonotonicNs(now.0.saturating_add(idle_ns));
                Some(self.free_space_at().map_or(idle_at, |at| at.min(idle_at)))
            }
        }
    }

    /// Where nothing waits to be committed or applied, the arena needs next to no memory. It is
    /// returned in portions: operations run in between, and end the idle time.
    fn give_back_at_rest(&self) {
        let Some(arena) = &self.options.arena else {
            return;
        };
        while self.store.pending().journal_used_bytes == 0 {
            let mut locked = self.lock_engine();
            if locked.engine.dirty_bytes() > 0 || !arena.give_back(&mut locked.engine) {
                return;
            }
        }
    }

    /// Sleeps until something is due, or there is something to do.
    fn sleep(&self, due: &Due) {
        let mut locked = self.lock_engine();
        if locked.wake || self.stopping.load(Ordering::SeqCst) {
            return;
        }
        let rest = self.rest(&mut locked, due);
        locked.wait(&self.wake, rest);
    }

    /// How long there is nothing to do, if nothing happens; none: until something happens.
    fn rest(&self, locked: &mut LockedEngine<'_>, due: &Due) -> Option<Duration> {
        let now = self.moment().now;
        let until = |at: MonotonicNs| {
            Duration::from_nanos(at.0.saturating_sub(now.0)).max(Duration::from_millis(1))
        };
        // Read now, not during the round: a transaction that opened since then, for instance while
        // the journal was applied, has woken no thread.
        let close_at = locked.engine.next_closing();
        let rest = [close_at, due.next_at];
        let rest = rest.into_iter().flatten().min().map(until);
        if locked.engine.has_unpinned() {
            return Some(Duration::ZERO);
        }
        if close_at.is_some() || due.busy {
            // A transaction that opens meanwhile may be due before `close_at`. Where an app commits
            // one transaction after the other itself, this also saves waking this thread for each.
            let round = (self.age_min() / 4).clamp(ROUND_MIN, ROUND_MAX);
            return Some(rest.map_or(round, |rest| rest.min(round)));
        }
        // Nothing is open, so the first change wakes this thread: no timer need wake the machine.
        locked.checkpointer_idle = true;
        rest
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use mobifs_base::{DeviceNumber, FileKind, ObjectId};
    use mobifs_engine::{Caller, NodeSpec};
    use mobifs_store::MemoryStore;

    use super::*;
    use crate::fixtures::node;
    use crate::{Config, VolumeOptions};

    /// The last user of a deleted object woke no thread. Its room in the lower filesystem stayed
    /// taken until something else changed, which it cannot where the disk is full.
    #[test]
    fn the_last_user_of_what_was_deleted_wakes_the_checkpointer() {
        let config = Config::parse("", std::path::Path::new("test.toml")).unwrap();
        let options = VolumeOptions {
            background: false,
            ..VolumeOptions::new(&config)
        };
        let volume = Volume::start(Arc::new(MemoryStore::new()), options).unwrap();
        let shared = &volume.shared;
        let node = NodeSpec {
            kind: FileKind::Regular,
            mode: 0o644,
            rdev: DeviceNumber(0),
            symlink_target: None,
        };
        let caller = Caller {
            uid: 0,
            gid: 0,
            umask: 0,
        };
        let file = volume.create(&caller, ObjectId::ROOT, b"file", &node);
        let file = file.unwrap().id;
        volume.sync_all().unwrap();
        volume.unlink(ObjectId::ROOT, b"file").unwrap();
        volume.sync_all().unwrap();
        let mut round = shared.first_round();
        while shared.checkpoint(&mut round).busy {}
        assert!(!shared.lock_engine().wake);
        volume.forget(file, 1);
        assert!(shared.lock_engine().wake && shared.lock_engine().engine.has_unpinned());
        let due = shared.checkpoint(&mut round);
        assert!(!shared.lock_engine().engine.has_unpinned());
        assert_eq!(shared.rest(&mut shared.lock_engine(), &due), None);
    }

    /// A checkpointer that had seen nothing open slept until something else changed, however
    /// old what had opened during its look became.
    #[test]
    fn what_opens_during_a_look_is_not_slept_over() {
        let config = Config::parse("", std::path::Path::new("test.toml")).unwrap();
        let options = VolumeOptions {
            background: false,
            ..VolumeOptions::new(&config)
        };
        let volume = Volume::start(Arc::new(MemoryStore::new()), options).unwrap();
        let shared = &volume.shared;
        let mut round = shared.first_round();
        let due = shared.checkpoint(&mut round);
        assert_eq!(shared.rest(&mut shared.lock_engine(), &due), None);

        let due = shared.checkpoint(&mut round);
        let node = node(FileKind::Directory);
        let caller = Caller {
            uid: 0,
            gid: 0,
            umask: 0,
        };
        volume
            .create(&caller, ObjectId::ROOT, b"app", &node)
            .unwrap();
        assert!(!shared.lock_engine().wake, "it was at work");
        assert!(shared.rest(&mut shared.lock_engine(), &due).is_some());
    }
}
