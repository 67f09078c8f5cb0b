//! Snapshots after commits.

use mobifs_base::MonotonicNs;
use mobifs_history::Done;
use mobifs_volume::HistoryRules;
use parking_lot::Mutex;

use super::Steering;
use crate::history::{Keeper, warn_without};

/// While the kernel gives back the room of a snapshot, it is looked at this often, in nanoseconds.
const LOOK_NS: u64 = 1_000_000_000;

impl Steering {
    /// Takes a snapshot if one is due; the caller has just committed and keeps others from committing.
    pub(super) fn keep_history(&self, now: MonotonicNs) {
        self.with_history(|keeper| keeper.after_commit(now));
    }

    /// Removes snapshots that are not kept any more; when to look again.
    pub(super) fn look_at_history(&self) -> Option<MonotonicNs> {
        let _alone = self.committer.lock();
        let now = Self::moment().now;
        self.with_history(|keeper| keeper.look(now));
        let history = self.history.as_ref()?;
        let is_freeing = history.lock().is_freeing();
        is_freeing.then(|| MonotonicNs(now.0.saturating_add(LOOK_NS)))
    }

    /// For the status. Not while a snapshot is taken, for which a status does not wait.
    pub(super) fn look_at_kept(&self) {
        let Some(mut keeper) = self.history.as_ref().and_then(Mutex::try_lock) else {
            return;
        };
        keeper.look_what_is_kept();
        self.state.lock().history = keeper.status();
    }

    fn with_history(&self, work: impl FnOnce(&mut Keeper) -> Done) {
        let Some(history) = &self.history else { return };
        let mut keeper = history.lock();
        let done = work(&mut keeper);
        let mut state = self.state.lock();
        state.history = keeper.status();
        if done.commits > 0 {
            let commits = state.counts.take_commits(self.filesystem.commits());
            let commits = commits.unwrap_or(done.commits);
            state.counts.own_commits += commits.min(done.commits);
            state.counts.other_commits += commits.saturating_sub(done.commits);
        }
    }

    pub(super) fn set_history(&self, rules: HistoryRules) {
        self.state.lock().history_rules = rules;
        match &self.history {
            Some(history) => history.lock().set_rules(rules),
            None => warn_without(&rules),
        }
        self.with_history(|_| Done::default());
    }

    /// So that the filesystem can be unmounted.
    pub(super) fn close_history(&self) {
        self.with_history(|keeper| {
            keeper.close();
            Done::default()
        });
    }
}
