//! The daemon of native mode in virtual time: what it sees of the filesystem, and when it commits.
//!
//! It decides with the types of the product, and looks when the product looks
//! (`crates/native/src/steering`).

use mobifs_base::{MonotonicNs, PAGE_BYTES_U64};
use mobifs_engine::{AppPolicy, MachineEvent, Next, ObservedTransaction, Pacing, PacingRules};

/// While something is uncommitted, what was written is looked at this often, in nanoseconds.
const LOOK_NS: u64 = 1_000_000_000;

/// The kernel adds up what it counts when a CPU has so many pages (`WB_STAT_BATCH` of two CPUs).
const BATCH_PAGES: u64 = 16;

/// What the kernel counts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    /// Pages that became dirty, ever. The daemon sees whole batches.
    pub(super) dirtied_pages: u64,
    /// Commits, ever.
    pub(super) commits: u64,
}

/// The daemon.
pub(super) struct Steering {
    observed: ObservedTransaction,
    pacing: Pacing,
    seen: Counters,
    /// The next change is reported.
    is_armed: bool,
    /// One was, and has not been taken in.
    has_changed: bool,
    /// The largest transaction that the kernel makes; none where there is no limit.
    largest_transaction_bytes: Option<u64>,
    /// Everything is committed so long after the last commit, because not all changes are seen, in
    /// nanoseconds.
    unseen_age_ns: Option<u64>,
    last_commit_ns: u64,
    look_at: Option<MonotonicNs>,
}

impl Steering {
    /// Nothing has happened yet. `sees_all`: what it does not see is committed by the kernel in time.
    pub(super) fn new(
        policy: AppPolicy,
        pacing: PacingRules,
        largest_transaction_bytes: Option<u64>,
        sees_all: bool,
    ) -> Self {
        let age_ns = policy.age_max_ms.saturating_mul(1_000_000);
        let unseen_age_ns = (!sees_all).then_some(age_ns);
        Self {
            observed: ObservedTransaction::new(policy),
            pacing: Pacing::new(pacing),
            seen: Counters::default(),
            is_armed: true,
            has_changed: false,
            largest_transaction_bytes,
            unseen_age_ns,
            last_commit_ns: 0,
            look_at: unseen_age_ns.map(MonotonicNs),
        }
    }

    /// When it looks again if nothing happens, in nanoseconds.
    pub(super) fn look_at_ns(&self) -> Option<u64> {
        self.look_at.map(|at| at.0)
    }

    /// The filesystem has changed. The kernel reports that only once after each commit, which wakes
    /// the daemon.
    pub(super) const fn changed(&mut self, now_ns: u64) {
        if self.is_armed {
            self.is_armed = false;
            self.has_changed = true;
            self.look_at = Some(MonotonicNs(now_ns));
        }
    }

    /// The user does something.
    pub(super) fn user_acted(&mut self, now_ns: u64) {
        if self.pacing.user_event(MonotonicNs(now_ns)) {
            self.look_at = Some(MonotonicNs(now_ns));
        }
    }

    /// Something happened to the machine; true if everything is to be committed because of it.
    #[must_use]
    pub(super) fn machine_event(&mut self, now_ns: u64, event: MachineEvent) -> bool {
        self.look_at = Some(MonotonicNs(now_ns));
        self.pacing.machine_event(event)
    }

    pub(super) const fn is_battery_low(&self) -> bool {
        self.pacing.machine().is_battery_low()
    }

    /// Looks at what has happened; true if everything is to be committed now. If not, it looks again
    /// [in time](Self::look_at_ns).
    pub(super) fn look(&mut self, now_ns: u64, counters: Counters) -> bool {
        let now = MonotonicNs(now_ns);
        self.observe(now, counters);
        let close_at = self.observed.tick(now);
        let is_urgent = self.is_nearly_full();
        let until = match self.pacing.next(&mut self.observed, now, is_urgent) {
            Next::Commit(_) => return true,
            Next::Nothing { until } => until,
        };
        let unseen_at = self
            .unseen_age_ns
            .map(|age_ns| MonotonicNs(self.last_commit_ns.saturating_add(age_ns)));
        if unseen_at.is_some_and(|at| at <= now) {
            return true;
        }
        let is_open = self.observed.observed().is_some();
        let look_at = is_open.then(|| MonotonicNs(now.0.saturating_add(LOOK_NS)));
        let moments = [until, close_at, look_at, unseen_at].into_iter().flatten();
        // A moment that has passed would be looked at again and again.
        self.look_at = moments.min().map(|at| at.max(MonotonicNs(now.0 + 1)));
        false
    }

    /// The daemon commits everything that was written before. To be called before the kernel does.
    pub(super) fn commit_begins(&mut self, now_ns: u64) {
        if std::mem::take(&mut self.has_changed) {
            self.observed.changed(MonotonicNs(now_ns), 0, 0);
        }
        self.is_armed = true;
    }

    /// The commit has taken until `ended_ns`.
    pub(super) fn commit_ended(&mut self, now_ns: u64, ended_ns: u64, counters: Counters) {
        let pages = self.take_dirtied(counters);
        if self.observed.observed().is_some() {
            self.observed.changed(MonotonicNs(now_ns), pages, 0);
        }
        self.seen.commits = counters.commits;
        let committed = self.observed.committed();
        let pages = committed.map_or(0, |committed| committed.efficiency.written_pages());
        self.pacing.learn(pages, ended_ns.saturating_sub(now_ns));
        self.last_commit_ns = now_ns;
    }

    fn take_dirtied(&mut self, counters: Counters) -> u64 {
        let dirtied_pages = counters.dirtied_pages / BATCH_PAGES * BATCH_PAGES;
        let pages = dirtied_pages - self.seen.dirtied_pages;
        self.seen.dirtied_pages = dirtied_pages;
        pages
    }

    /// Takes in what was written, and what the kernel has committed by itself.
    fn observe(&mut self, now: MonotonicNs, counters: Counters) {
        let has_changed = std::mem::take(&mut self.has_changed);
        let pages = self.take_dirtied(counters);
        let others = counters.commits - self.seen.commits;
        self.seen.commits = counters.commits;
        let was_open = self.observed.observed().is_some();
        if was_open && others > 0 {
            // What has been written since is not known exactly: if something was, it may be
            // uncommitted.
            let _committed = self.observed.committed();
            if pages > 0 || has_changed {
                self.observed.changed(now, pages, 0);
            }
        } else if has_changed || (was_open && pages > 0) {
            self.observed.changed(now, pages, 0);
        }
        if self.observed.observed().is_none() {
            self.is_armed = true;
        }
    }

    /// Whether the kernel would soon commit by itself, because the journal is full.
    fn is_nearly_full(&self) -> bool {
        let Some(largest) = self.largest_transaction_bytes else {
            return false;
        };
        let observed = self.observed.observed();
        observed.is_some_and(|observed| {
            let bytes = observed.efficiency.written_pages() * PAGE_BYTES_U64;
            observed.is_closed && bytes > largest / 4 * 3
        })
    }
}
