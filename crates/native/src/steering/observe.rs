//! What has happened to the filesystem since the last look.

use mobifs_base::MonotonicNs;
use parking_lot::MutexGuard;

use super::{State, Steering};
use crate::changes::ChangeWatch;
use crate::filesystem::Committer;
use crate::only::Only;
use crate::takeover::{Difference, TakeoverError};

impl Steering {
    /// What a status shows is what there is at this moment.
    pub(crate) fn look_for_status(&self) {
        self.look_at_options();
        self.state.lock().promise.look_at_registration();
        self.look_at_counters();
        // Not if a commit is under way: a status does not wait for a slow device.
        if let Some(alone) = self.committer.try_lock() {
            self.observe_alone(&alone);
        }
        self.look_at_kept();
        // A change that was reported here is not reported to the thread that runs it.
        if self.state.lock().observed.observed().is_some() {
            self.wake();
        }
    }

    /// Takes in what was written, and what the kernel has committed by itself.
    pub(super) fn observe(&self) {
        self.observe_alone(&self.committer.lock());
    }

    fn observe_alone(&self, _alone: &MutexGuard<'_, Option<Committer>>) {
        let has_changed = self.take_change();
        let (dirtied, commits) = (self.dirtied.read(), self.filesystem.commits());
        let moment = Self::moment();
        let now = moment.now;
        let mut state = self.state.lock();
        let pages = state.counts.take_dirtied(dirtied);
        let others = state.counts.take_commits(commits).unwrap_or(0);
        state.counts.other_commits += others;
        if others > 0 {
            state.last_other_commit = Some(moment);
        }
        let was_open = state.observed.observed().is_some();
        if was_open && others > 0 {
            // All that was counted is committed, and what has been written since is not known
            // exactly: if something was, it may be uncommitted.
            state.counts.written_pages += pages;
            let committed = state.observed.committed();
            state.counts.committed(committed);
            if pages > 0 || has_changed {
                state.observed.changed(now, pages, 0);
            }
        } else if was_open || has_changed {
            state.wrote(now, pages, has_changed);
        }
        // A page that becomes dirty where nothing is open is one that a commit has given back, or
        // of a mapping.
        if state.observed.observed().is_none() {
            drop(state);
            self.expect_change(now);
        }
    }

    /// The next change is reported.
    pub(super) fn expect_change(&self, now: MonotonicNs) {
        let armed = self.changes.as_ref().map(ChangeWatch::arm);
        match armed {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::warn!(%error, "the kernel no longer reports changes");
                self.state.lock().wrote(now, 0, true);
            }
            // There may always be some.
            None => self.state.lock().wrote(now, 0, true),
        }
    }

    /// Whether the kernel has reported a change; if so it reports no more.
    pub(super) fn take_change(&self) -> bool {
        let changes = self.changes.as_ref();
        changes.is_some_and(ChangeWatch::take)
    }

    /// What the kernel does not show of this filesystem is said in the status, and once in the log: it
    /// would otherwise be taken for nothing.
    pub(super) fn look_at_counters(&self) {
        let not_counted = self.not_counted();
        let mut state = self.state.lock();
        if state.not_counted != not_counted {
            for sentence in &not_counted {
                tracing::warn!("{sentence}");
            }
            state.not_counted = not_counted;
        }
    }

    fn not_counted(&self) -> Vec<String> {
        let kind = self.filesystem.kind();
        let mut sentences = Vec::new();
        let place = self.filesystem.counters_place();
        if self.dirtied.read().pages.is_none() {
            sentences.push(
                "the kernel does not show how much is written to its filesystems: what programs write \
                 counts as nothing, and commits come at their age only"
                    .to_owned(),
            );
        } else if self.dirtied.scope() == "machine" {
            sentences.push(format!(
                "the kernel does not show how much is written to this {kind} alone ({place}): what is \
                 written to all filesystems counts, and commits may come earlier"
            ));
        }
        if self.filesystem.commits().is_none() {
            sentences.push(format!(
                "the kernel does not show the commits of this {kind} ({place}): those that others \
                 cause are not seen, and what they commit counts as uncommitted"
            ));
        }
        if self.filesystem.device_written_bytes().is_none() {
            sentences.push(format!(
                "the kernel does not show how much the device of this {kind} writes \
                 (/sys/class/block): the status says 0"
            ));
        }
        sentences
    }

    /// Whether the mount options are those that keep the promise; what follows if they are not.
    pub(super) fn look_at_options(&self) {
        let mut state = self.state.lock();
        if state.has_ended {
            return;
        }
        let changed = match state.takeover.difference() {
            Ok(None) if state.only.is_some() => {
                Only::difference(&self.filesystem).map(Difference::Unknown)
            }
            Ok(difference) => difference,
            Err(error) => {
                if matches!(error, TakeoverError::NotMounted { .. }) {
                    state.has_ended = true;
                    state.is_detached = true;
                    self.wake();
                }
                Some(Difference::Unknown(error.to_string()))
            }
        };
        if changed == state.promise.changed {
            return;
        }
        let promised = state.promise.changed.is_none();
        match &changed {
            Some(reason @ Difference::Order) => tracing::warn!(%reason, "nothing is promised"),
            Some(reason) => tracing::error!(%reason, "the promise is withdrawn"),
            None => tracing::info!("the mount options are as they have to be: the promise holds"),
        }
        let cannot_commit = matches!(changed, Some(Difference::Order | Difference::ReadOnly));
        if promised && !state.has_ended && !cannot_commit {
            // What returned while it was promised is made durable, as what returns from now on.
            state.retry_at.get_or_insert(Self::moment().now);
            self.wake();
        }
        state.promise.changed = changed;
        state.promise.update();
    }
}

impl State {
    /// Records that this many pages were written.
    pub(super) fn wrote(&mut self, now: MonotonicNs, pages: u64, has_changed: bool) {
        if pages > 0 || has_changed {
            self.counts.written_pages += pages;
            self.observed.changed(now, pages, 0);
        }
    }
}
