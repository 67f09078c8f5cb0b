//! The history of a store on btrfs: snapshots of what is applied.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mobifs_base::MonotonicNs;
use mobifs_history::{KeepRules, Keeper, NoStandstill, Retention, Subvolume};
use mobifs_volume::{AppliedState, HistoryRules};
use parking_lot::Mutex;

/// Where the snapshots of a store lie in it.
pub const STORE_HISTORY: &str = ".mobifs/history";

/// Keeps snapshots of a store.
struct StoreHistory {
    keeper: Mutex<Keeper>,
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

/// What keeps the history of a store, if one is wanted.
pub(super) fn of_store(store: &Path, rules: &HistoryRules) -> Option<Arc<dyn AppliedState>> {
    if !rules.is_on() {
        return None;
    }
    let rules = KeepRules {
        retention: Retention {
            count: rules.keep_count,
            age_max: rules.keep_age_max,
        },
        interval_min: rules.interval_min,
        free_min_percent: rules.free_min_percent,
    };
    let keeper = Mutex::new(Keeper::new(store, Path::new(STORE_HISTORY), rules));
    Some(Arc::new(StoreHistory { keeper }))
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
        keeper.look(now, &NoStandstill);
    }
}
