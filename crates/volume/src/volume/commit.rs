//! Handing closed transactions over to the store.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mobifs_base::{MonotonicNs, ObjectId, PAGE_BYTES_U64, SpaceInfo, TransactionId};
use mobifs_engine::{ClosedUntil, Commit, FsError, Next, SyncPoint};
use mobifs_store::{Calibration, StoreError, Transaction};

use super::group_commit::Wanted;
use super::last_commits::{Checkpoint, FailedCommit};
use super::locks::{ApplyLock, CommitLock};
use super::types::CallingThreads;
use super::{Shared, Volume, VolumeError};
use crate::AppName;

impl Shared {
    /// Commits one transaction. The engine learns of the success together with the store's new
    /// reservations, so that no room is reserved twice in between.
    pub(super) fn commit_one(
        &self,
        commit_lock: &CommitLock<'_>,
        commit: &Commit,
    ) -> Result<(), StoreError> {
        self.try_commit(commit_lock, std::slice::from_ref(commit), false)
    }

    /// As [`Shared::commit_one`], for transactions that do not depend on each other: all or none.
    /// Where several fail they are as if they had not been tried.
    pub(super) fn commit_group(
        &self,
        commit_lock: &CommitLock<'_>,
        group: &[Commit],
    ) -> Result<(), StoreError> {
        self.try_commit(commit_lock, group, false)
    }

    /// As [`Shared::commit_group`]; `may_wait`: no caller waits for it.
    fn try_commit(
        &self,
        commit_lock: &CommitLock<'_>,
        group: &[Commit],
        may_wait: bool,
    ) -> Result<(), StoreError> {
        debug_assert!(!group.is_empty(), "a group has a transaction");
        debug_assert!(are_apart(group), "an app has one transaction of a group");
        let started = self.moment().now;
        let result = self.hand_over(group);
        match (&result, group) {
            (Ok(()), _) => {
                let page_bytes: u64 = group.iter().map(Commit::page_bytes).sum();
                self.learn_commit(page_bytes.div_ceil(PAGE_BYTES_U64), started);
                self.committed(group);
            }
            (Err(error), [commit]) => self.refuse(commit.transaction, error, may_wait),
            (Err(error), _) => {
                tracing::debug!(%error, "a group of transactions is tried one by one");
                let mut locked = self.lock_engine();
                for commit in group {
                    locked.engine.commit_put_back(commit.transaction);
                }
                drop(locked);
                return result;
            }
        }
        self.record_failures(result.as_ref().err());
        if result.as_ref().is_err_and(StoreError::is_full) {
            self.wait_for_room();
        }
        if let Err(error) = self.refresh_space(commit_lock) {
            tracing::warn!(%error, "the lower filesystem does not say how much room there is");
        }
        result
    }

    /// The store has these transactions, durably.
    fn committed(&self, group: &[Commit]) {
        let moment = self.moment();
        let mut locked = self.lock_engine();
        let before = locked.engine.dirty_bytes();
        for commit in group {
            locked.engine.committed(commit.transaction);
        }
        let after = locked.engine.dirty_bytes();
        debug_assert!(after <= before, "a commit makes nothing dirty");
        let freed = before.saturating_sub(after);
        self.forecast.lock().committed(freed);
        drop(locked);
        let last = Checkpoint {
            wall: moment.wall,
            now: moment.now,
        };
        for commit in group {
            let sizes = &commit.sizes;
            self.freed_space.lock().committed(sizes, moment.now);
            let mut checkpoints = self.checkpoints.lock();
            checkpoints.extend(commit.apps.iter().map(|path| (path.clone(), last)));
        }
    }

    /// A commit failed: its apps accept no changes until it succeeds, unless it `may_wait` for
    /// room.
    fn refuse(&self, transaction: TransactionId, error: &StoreError, may_wait: bool) {
        if error.is_full() {
            let mut locked = self.lock_engine();
            // A program that may still roll back may go on changing its files.
            if may_wait && self.may_roll_back.load(Ordering::SeqCst) {
                locked.engine.commit_put_back(transaction);
                drop(locked);
                self.postpone_commits();
                return;
            }
            locked.engine.commit_failed(transaction, FsError::NoSpace);
            drop(locked);
            tracing::error!(%error, "a commit failed; its apps are read-only until there is room");
            return;
        }
        self.lock_engine()
            .engine
            .commit_failed(transaction, FsError::ReadOnly);
        if !self.is_power_cut() {
            tracing::error!(
                %error,
                "a commit failed; its apps are read-only until `mobifs sync` succeeds"
            );
        }
    }

    fn hand_over(&self, group: &[Commit]) -> Result<(), StoreError> {
        crate::fault_point("commit");
        let mut whole = Transaction::default();
        for commit in group {
            commit.pins.iter().for_each(|&id| self.store.pin(id));
            whole.join(commit.to_transaction());
        }
        self.store.commit(whole)
    }

    /// Updates the reasons for read-only apps from the engine.
    fn record_failures(&self, error: Option<&StoreError>) {
        let mut failures = self.failures.lock();
        if error.is_none() && failures.is_empty() {
            return;
        }
        let failed = self.lock_engine().engine.failed_apps();
        failures.retain(|path, _| failed.contains(path));
        for path in failed {
            failures.entry(path).or_insert_with(|| FailedCommit {
                reason: error.map_or_else(|| "a commit failed".into(), ToString::to_string),
                is_full: error.is_some_and(StoreError::is_full),
            });
        }
    }

    /// Commits what is closed, one transaction after the other, releasing the commit lock in
    /// between; ends when nothing can be committed any more, or the rest waits for the user, or
    /// `pauses` returns true after a commit.
    pub(super) fn commit_closed(&self, mut pauses: impl FnMut() -> bool) -> Committed {
        while !self.is_power_cut() {
            if self.postpones_commits() {
                return Committed::All { until: None };
            }
            self.give_way();
            let commit_lock = self.commit_lock.lock();
            let next = self.next_paced(&mut self.lock_engine());
            let commit = match next {
                Next::Commit(commit) => commit,
                Next::Nothing { until } => return Committed::All { until },
            };
            // A failure is recorded with the app and does not affect the others.
            let _failed = self.try_commit(&commit_lock, std::slice::from_ref(&commit), true);
            self.durable_syncs.committed(commit.page_bytes());
            drop(commit_lock);
            if pauses() {
                return Committed::Part;
            }
        }
        Committed::All { until: None }
    }

    /// Closes everything that is open and commits what was closed by then.
    pub(super) fn commit_all(&self) {
        let point = self.lock_engine().engine.close_all();
        while !self.is_power_cut() && self.commit_until(point) {}
    }

    /// Commits one transaction that was closed at that point; false if there is none.
    pub(super) fn commit_until(&self, point: ClosedUntil) -> bool {
        let commit_lock = self.commit_lock.lock();
        let commit = self.lock_engine().engine.next_commit_until(point);
        // No other thread commits while this one has the commit lock: the remaining transactions
        // have failed.
        let Some(commit) = commit else { return false };
        let _failed = self.commit_one(&commit_lock, &commit);
        true
    }

    /// Brings everything committed to its final place.
    pub(super) fn apply(&self) -> Result<(), StoreError> {
        let applying = self.applying.lock();
        self.apply_alone(&applying)
    }

    /// Has the journal applied before it is full, by this thread or by waiting for the one that
    /// does. A failure is left to the next apply, and the commit that needs the room.
    pub(super) fn apply_nearly_full(&self) {
        if !self.is_journal_nearly_full() {
            return;
        }
        let applying = self.applying.lock();
        let has_failed = self.apply_failure.lock().is_some();
        if !has_failed && self.is_journal_nearly_full() && !self.is_power_cut() {
            let applied = self.apply_alone(&applying);
            if let Err(error) = applied {
                tracing::debug!(%error, "applying the journal makes no room in memory");
            }
        }
    }

    fn apply_alone(&self, _applying: &ApplyLock<'_>) -> Result<(), StoreError> {
        let before = self.room_to_free();
        let freeing = self.freed_space.lock().begin_apply();
        let result = self.store.apply();
        let outcome = result.is_ok().then(|| {
            let after = before.and_then(|_| self.store.space().ok());
            (before.unwrap_or_default(), after.unwrap_or_default())
        });
        let now = self.moment().now;
        self.freed_space.lock().end_apply(freeing, outcome, now);
        let failure = result.as_ref().err().map(ToString::to_string);
        *self.apply_failure.lock() = failure;
        let commit_lock = self.commit_lock.lock();
        if result.is_ok() {
            self.report_applied(&commit_lock, now);
        }
        let refreshed = self.refresh_space(&commit_lock);
        result.and(refreshed)
    }

    /// Reports the applied state, if that is wanted. What was committed after the apply is applied
    /// first: some of it may be in its place already.
    fn report_applied(&self, _commit_lock: &CommitLock<'_>, now: MonotonicNs) {
        let applied = self.options.applied.as_ref();
        let Some(applied) = applied.filter(|applied| applied.is_due(now)) else {
            return;
        };
        let is_applied = self.store.pending().journal_used_bytes == 0 || self.store.apply().is_ok();
        if is_applied {
            applied.applied(now);
        }
    }

    /// The room in the lower filesystem, if deletions wait for an apply: the apply is to increase
    /// it.
    fn room_to_free(&self) -> Option<SpaceInfo> {
        let is_waited_for = self.freed_space.lock().is_waited_for();
        is_waited_for.then(|| self.store.space().ok()).flatten()
    }

    /// When to apply for the sake of what deletions free.
    pub(super) fn free_space_at(&self) -> Option<MonotonicNs> {
        let available_bytes = self.lock_engine().engine.space().available_bytes;
        self.freed_space.lock().due_at(available_bytes)
    }

    /// The error that says which apps are not committed, if any.
    pub(super) fn check_failures(&self) -> Result<(), VolumeError> {
        if self.is_power_cut() {
            return Err(VolumeError::PowerCut);
        }
        let failures = self.failures.lock();
        match failures.iter().next() {
            None => Ok(()),
            Some((path, FailedCommit { reason, is_full })) => Err(VolumeError::NotCommitted {
                app: String::from_utf8_lossy(path).into_owned(),
                others: failures.len() - 1,
                reason: reason.clone(),
                is_full: *is_full,
            }),
        }
    }
}

/// How much [`Shared::commit_closed`] has committed.
pub(super) enum Committed {
    /// What may be committed now; there may be more at that moment.
    All { until: Option<MonotonicNs> },
    /// There is more.
    Part,
}

impl Committed {
    /// When there is something to commit again, if that is known.
    pub(super) const fn until(self) -> Option<MonotonicNs> {
        match self {
            Self::All { until } => until,
            Self::Part => None,
        }
    }
}

/// Whether no app has two of these transactions. What the store gets as one transaction would
/// otherwise have an order within it that it does not know.
fn are_apart(group: &[Commit]) -> bool {
    let mut seen = BTreeSet::new();
    let mut apps = group.iter().flat_map(|commit| &commit.apps);
    group.len() == 1 || apps.all(|app| seen.insert(app))
}

impl Volume {
    /// From now on these threads are told when one of them waits for a commit. They are set once.
    pub fn set_calling_threads(&self, threads: Arc<dyn CallingThreads>) {
        self.shared.durable_syncs.set_callers(threads);
    }

    /// `fsync`: returns at once in a relaxed app; in a durable one when everything
    /// that the app did before is committed.
    ///
    /// # Errors
    /// `NoSpace` if there was no room in the lower filesystem for the commit, `Io` if it failed
    /// otherwise.
    pub fn fsync(&self, id: ObjectId) -> Result<(), FsError> {
        let shared = &self.shared;
        shared.check_power()?;
        if shared.commit_queue.is_led() && shared.lock_engine().engine.is_durable(id) {
            // The next commit closes what is to be durable: it may be more by then, of other
            // threads that wait, and is one transaction all the same.
            let _waiting = shared.durable_syncs.begin();
            return shared.commit_together(Wanted::Object(id));
        }
        let point = {
            let mut locked = shared.lock_engine();
            let point = locked.engine.sync_point(id);
            if point != SyncPoint::Now {
                locked.engine.retry_failed(Some(FsError::NoSpace));
            } else if locked.engine.has_closed() {
                // A policy closed it here, and no thread waits for it.
                shared.wake(&mut locked);
            }
            point
        };
        match point {
            SyncPoint::Now => Ok(()),
            SyncPoint::Committed(all) => {
                let _waiting = shared.durable_syncs.begin();
                shared.commit_together(Wanted::Transactions(all))
            }
        }
    }

    /// `sync(2)` and `syncfs(2)`: everything is committed when it returns.
    ///
    /// # Errors
    /// `NoSpace` if there was no room in the lower filesystem for a commit, `Io` if one failed otherwise.
    pub fn sync_all(&self) -> Result<(), FsError> {
        self.sync_app(None, false).map_err(|error| match error {
            VolumeError::Fs(error) => error,
            error if error.is_full() => FsError::NoSpace,
            _ => FsError::Io,
        })
    }

    /// Commits one app (by its path relative to the mount, `.` for what lies in no
    /// app), or all; retries what failed before. With `apply`, everything committed
    /// also reaches its final place.
    ///
    /// # Errors
    /// [`VolumeError::UnknownApp`], [`VolumeError::NotCommitted`], or what applying
    /// failed with.
    pub fn sync_app(&self, name: Option<&str>, apply: bool) -> Result<(), VolumeError> {
        self.sync_path(name.map(str::as_bytes), apply)
    }

    /// The same for any path.
    ///
    /// # Errors
    /// As [`Volume::sync_app`].
    pub fn sync_path(&self, name: Option<&[u8]>, apply: bool) -> Result<(), VolumeError> {
        self.shared
            .check_power()
            .map_err(|_| VolumeError::PowerCut)?;
        // A commit that is under way may fail for a reason that the caller has removed: it is tried
        // again, too.
        let commit_lock = self.shared.commit_lock.lock();
        self.shared.lock_engine().engine.retry_failed(None);
        drop(commit_lock);
        let committed = match name {
            None => {
                self.shared.commit_all();
                self.shared.check_failures()
            }
            Some(name) => self.commit_app(name),
        };
        if !apply {
            return committed;
        }
        // Also where an app could not commit: what others have deleted may free the room for it.
        let applied = self.shared.apply();
        committed?;
        Ok(applied?)
    }

    /// Applies what is committed and measures the device below the store again; commits wait
    /// meanwhile.
    ///
    /// # Errors
    /// [`VolumeError::PowerCut`], or what the store refuses ([`mobifs_store::Store::calibrate`]).
    pub fn calibrate(&self) -> Result<Calibration, VolumeError> {
        self.shared
            .check_power()
            .map_err(|_| VolumeError::PowerCut)?;
        self.shared.apply()?;
        Ok(self.shared.store.calibrate()?)
    }

    fn commit_app(&self, name: &[u8]) -> Result<(), VolumeError> {
        let point = self.shared.lock_engine().engine.close_app(name);
        let point = match point {
            Some(point) => point,
            None if self.is_app_directory(name)? => {
                self.shared.lock_engine().engine.close_everywhere()
            }
            None => {
                return Err(VolumeError::UnknownApp {
                    name: AppName::from(name).to_string(),
                });
            }
        };
        let SyncPoint::Committed(all) = point else {
            return Ok(());
        };
        let wanted = Wanted::Transactions(all);
        if self.shared.commit_together(wanted).is_err() {
            self.shared.check_failures()?;
            return Err(FsError::Io.into());
        }
        Ok(())
    }

    /// Whether `name` is an app whose directory is there, also one that was not used since the
    /// mount.
    pub(super) fn is_app_directory(&self, name: &[u8]) -> Result<bool, VolumeError> {
        use mobifs_engine::AppRules as _;
        if !self.shared.rules.lock().is_app(name) {
            return Ok(false);
        }
        let mut at = ObjectId::ROOT;
        let mut found = Vec::new();
        let mut missing = Ok(());
        for part in name.split(|&byte| byte == b'/') {
            match self.lookup(at, part) {
                Ok(node) => {
                    at = node.id;
                    found.push(node);
                }
                Err(error) => {
                    missing = Err(error);
                    break;
                }
            }
        }
        found.iter().for_each(|node| self.forget(node.id, 1));
        match missing {
            Ok(()) => Ok(found
                .last()
                .is_some_and(|node| node.attributes.kind == mobifs_base::FileKind::Directory)),
            Err(FsError::NotFound | FsError::NotDirectory | FsError::InvalidArgument) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}
