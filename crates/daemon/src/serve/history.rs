//! The history of a store on btrfs: snapshots of what is applied.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mobifs_base::MonotonicNs;
use mobifs_history::{KeepRules, Keeper, NoStandstill, Retention, Subvolume};
use mobifs_volume::{AppliedState, HistoryRules, HistoryStatus};
use parking_lot::Mutex;

/// Where the snapshots of a store lie in it.
pub const STORE_HISTORY: &str = ".mobifs/history";

/// Keeps snapshots of a store.
struct StoreHistory {
    keeper: Mutex<Keeper>,
    /// As it was at the last look, for a status that does not wait for a snapshot which is taken.
    seen: Mutex<Option<HistoryStatus>>,
}

/// Why a wanted history of the store cannot be kept, as a sentence for the user; none if it can, or
/// if none is wanted.
#[must_use]
pub fn why_no_history(store: &Path, rules: &HistoryRules) -> Option<String> {
    let error = rules
        .is_on()
        .then(|| Subvolume::open(store))?
        .map(drop)
        .err()?;
    Some(format!(
        "warning: no history of the store {} will be kept, though [history] wants one: {error}; choose \
         a store that is a subvolume of btrfs, or set keep_count = 0",
        store.display()
    ))
}

/// What the status says of a history; none if there is none.
pub fn history_status(keeper: &Keeper, last_standstill_ms: Option<u64>) -> Option<HistoryStatus> {
    let kept = keeper.kept()?;
    let last = kept.last();
    Some(HistoryStatus {
        kept: kept.len() as u64,
        last: last.map(|last| last.time.to_string()),
        last_is_exact: last.map(|last| last.is_exact),
        last_standstill_ms,
        failed: keeper.failed().map(str::to_owned),
        is_off: !keeper.is_on(),
    })
}

/// What keeps the history of a store, if one is wanted, or there is one of earlier. A read-only mount
/// changes nothing that could be kept.
pub(super) fn of_store(
    store: &Path,
    rules: &HistoryRules,
    read_only: bool,
) -> Option<Arc<dyn AppliedState>> {
    let rules = KeepRules {
        retention: Retention {
            count: if read_only { 0 } else { rules.keep_count },
            age_max: rules.keep_age_max,
        },
        interval_min: rules.interval_min,
        free_min_percent: rules.free_min_percent,
    };
    let keeper = Keeper::new(store, Path::new(STORE_HISTORY), rules);
    let seen = history_status(&keeper, None)?;
    Some(Arc::new(StoreHistory {
        keeper: Mutex::new(keeper),
        seen: Mutex::new(Some(seen)),
    }))
}

impl AppliedState for StoreHistory {
    fn is_due(&self, now: MonotonicNs) -> bool {
        self.keeper.lock().would_take(Duration::from_nanos(now.0))
    }

    fn applied(&self, now: MonotonicNs) {
        let mut keeper = self.keeper.lock();
        let now = Duration::from_nanos(now.0);
        // An error is in the log; the mount does without.
        keeper.after_commit(now, &NoStandstill);
        keeper.run(now, &NoStandstill);
        *self.seen.lock() = history_status(&keeper, None);
    }

    fn history(&self) -> Option<HistoryStatus> {
        let mut seen = self.seen.lock();
        if let Some(mut keeper) = self.keeper.try_lock() {
            keeper.look_what_is_kept();
            *seen = history_status(&keeper, None);
        }
        seen.clone()
    }
}
