//! The thread that commits transactions when their policy says so, and applies the
//! journal when it is nearly full or nothing happens.

use std::sync::atomic::Ordering;
use std::time::Duration;

use mobifs_types::MonotonicNs;

use super::{Shared, TRIM_INTERVAL_MS};
use crate::heap::HeapWatch;

/// While something is uncommitted, room and limits are looked at this often.
const ROUND_MAX: Duration = Duration::from_secs(1);
/// Shortest sleep between two looks at ages.
const ROUND_MIN: Duration = Duration::from_millis(10);
/// Memory of one object without its content, roughly.
const OBJECT_BYTES: u64 = 512;

impl Shared {
    pub(super) fn run_checkpointer(&self) {
        let mut last_commit = self.moment().now;
        let mut commits_seen = self.store.pending().commits;
        let mut heap = HeapWatch::default();
        while !self.stopping.load(Ordering::SeqCst) {
            let deadline = {
                let mut live = self.live();
                live.wake = false;
                live.checkpointer_idle = false;
                let deadline = live.engine.tick(self.moment().now);
                if live.engine.dirty_bytes() > self.memory_high_bytes() {
                    live.engine.close_largest();
                }
                live.closings_seen = live.engine.closings();
                let (now, dirty_bytes) = (self.moment().now, live.engine.dirty_bytes());
                self.forecast.lock().sample(now, dirty_bytes);
                deadline
            };
            self.relieve_if_asked();
            let commit_at = self.commit_closed();
            self.tidy_up();
            let commits = self.store.pending().commits;
            let busy = commits != commits_seen;
            if busy {
                commits_seen = commits;
                last_commit = self.moment().now;
            }
            let apply_at = self.apply_if_due(&mut last_commit);
            if !busy {
                heap.look(self.held_bytes());
            }
            let look_at = [apply_at, commit_at].into_iter().flatten().min();
            self.sleep(deadline, look_at, busy);
        }
    }

    /// Commits everything and brings it to its place, if somebody asked for it.
    pub(super) fn relieve_if_asked(&self) {
        if !self.relief.swap(false, Ordering::SeqCst) {
            return;
        }
        self.commit_all();
        if let Err(error) = self.apply()
            && !self.is_power_cut()
        {
            tracing::error!(%error, "cannot apply the journal; it is tried again later");
        }
    }

    /// Memory in use, roughly.
    fn held_bytes(&self) -> u64 {
        let committed = self.store.pending().held_bytes;
        let live = self.live();
        let objects = live.engine.objects() * OBJECT_BYTES;
        live.engine.dirty_bytes() + committed + objects
    }

    /// Tells the store what is not needed any more, and the engine what room there is.
    pub(super) fn tidy_up(&self) {
        let (unpinned, space_at) = {
            let mut live = self.live();
            (live.engine.take_unpinned(), live.space_at)
        };
        for id in unpinned {
            self.store.unpin(id);
        }
        self.forget_unused();
        if self.moment().now.ms_since(space_at) >= 1000
            && let Err(error) = self.refresh_space(&self.turn.lock())
        {
            tracing::warn!(%error, "cannot tell how much room is left");
        }
    }

    /// Lets unused objects leave memory if there are too many, and tells the store
    /// which have gone.
    fn forget_unused(&self) {
        let now = self.moment().now;
        let _nothing_arrives = self.listing.write();
        let forgotten = {
            let mut live = self.live();
            if live.engine.is_crowded() && now.ms_since(live.trimmed_at) >= TRIM_INTERVAL_MS {
                live.engine.trim();
                live.trimmed_at = now;
            }
            live.engine.take_forgotten()
        };
        if !forgotten.is_empty() {
            self.store.forget(&forgotten);
            // Until here the engine accepts no answers that the store may have
            // forgotten; nobody asks either, because of `listing`.
            self.live().engine.forgotten();
        }
    }

    /// Applies the journal if it is nearly full or nothing was committed for long;
    /// says when to look again.
    fn apply_if_due(&self, last_commit: &mut MonotonicNs) -> Option<MonotonicNs> {
        let pending = self.store.pending();
        if pending.journal_used_bytes == 0 || self.is_power_cut() {
            return None;
        }
        let idle_ns = u64::try_from(self.options.apply_idle.as_nanos()).unwrap_or(u64::MAX);
        let apply_at = MonotonicNs(last_commit.0.saturating_add(idle_ns));
        let now = self.moment().now;
        let nearly_full = pending.journal_used_bytes > pending.journal_total_bytes / 4 * 3;
        if nearly_full {
            // Now, whatever the machine does: commits need the room.
        } else if self.is_standby() {
            // It is as durable where it is, and whoever ends standby wakes us.
            return None;
        } else if now < apply_at {
            return Some(apply_at);
        }
        match self.apply() {
            Ok(()) => None,
            Err(_) if self.is_power_cut() => None,
            Err(error) => {
                tracing::error!(%error, "cannot apply the journal; it is tried again later");
                // As if there had been a commit just now: the next try is due when
                // the idle time has passed again.
                *last_commit = now;
                Some(MonotonicNs(now.0.saturating_add(idle_ns)))
            }
        }
    }

    /// Sleeps until something is due: a transaction by its age (`close_at`), or the
    /// journal or a closed transaction (`look_at`). `busy`: something was committed since
    /// the last look.
    fn sleep(&self, close_at: Option<MonotonicNs>, look_at: Option<MonotonicNs>, busy: bool) {
        let mut live = self.live();
        if live.wake || self.stopping.load(Ordering::SeqCst) {
            return;
        }
        let now = self.moment().now;
        let rest = |at: MonotonicNs| {
            Duration::from_nanos(at.0.saturating_sub(now.0)).max(Duration::from_millis(1))
        };
        let due = [close_at, look_at].into_iter().flatten().min().map(rest);
        if close_at.is_some() || busy {
            // A transaction that opens meanwhile may be due before `close_at`. Where an
            // app commits one transaction after the other by itself, this also spares
            // it waking us for each.
            let round = (self.age_min() / 4).clamp(ROUND_MIN, ROUND_MAX);
            live.wait(&self.wake, Some(due.map_or(round, |due| due.min(round))));
            return;
        }
        // Nothing is open, so the first change wakes us: no need to wake the machine.
        live.checkpointer_idle = true;
        live.wait(&self.wake, due);
    }
}
