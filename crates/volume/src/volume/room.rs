//! The engine's knowledge of the room in the lower filesystem, and commits that wait for room.

use std::sync::atomic::Ordering;

use mobifs_base::MonotonicNs;
use mobifs_engine::FsError;
use mobifs_store::StoreError;

use super::errors::store_failed;
use super::locked_engine::Keeping;
use super::locks::CommitLock;
use super::waiting_commit::CommitWaitingForRoom;
use super::{Shared, Volume};

/// While a commit waits for room, it is checked this often.
const LOOK_INTERVAL_MS: u64 = 2_000;
/// The commit is tried this often although no more room shows: with a quota, room does not show.
const RETRY_INTERVAL_MS: u64 = 60_000;

impl Shared {
    /// Updates the engine's view of the room. Reservations are read before the
    /// room: should applying finish in between, the room is judged too small, never
    /// too large.
    pub(super) fn refresh_space(&self, _commit_lock: &CommitLock<'_>) -> Result<(), StoreError> {
        let pending = self.store.pending();
        let space = self.store.space()?;
        let now = self.moment().now;
        let mut locked = self.lock_engine();
        locked.engine.set_space(space, pending.reserved);
        locked.engine.set_full_disk(pending.on_full_disk);
        locked.space_at = now;
        Ok(())
    }

    fn has_promised_room(&self, commit_lock: &CommitLock<'_>) -> Result<bool, FsError> {
        let refreshed = self.refresh_space(commit_lock);
        refreshed.map_err(|error| store_failed(&error))?;
        Ok(self.lock_engine().engine.has_promised_room())
    }

    /// Whether something may be committed because an operation needs room, here or in memory:
    /// see [`crate::VolumeOptions::rolls_back`].
    pub(super) fn may_commit_for_room(&self, commit_lock: &CommitLock<'_>) -> bool {
        !self.options.rolls_back || self.can_commit(commit_lock)
    }

    /// Whether there is room for a commit, as far as that is known.
    fn can_commit(&self, commit_lock: &CommitLock<'_>) -> bool {
        self.refresh_space(commit_lock).is_err() || self.lock_engine().engine.can_commit()
    }

    /// Whether the checkpointer closes nothing now: a program may still roll back what would be
    /// closed ([`Volume::set_may_roll_back`]), and there is no room to commit it.
    pub(super) fn keeps_open(&self) -> bool {
        if !self.may_roll_back.load(Ordering::SeqCst) {
            return false;
        }
        // If the room cannot be read, the commit will fail or succeed.
        let _known = self.refresh_space(&self.commit_lock.lock());
        let keeps_open = self.lock_engine().engine.keeps_open();
        if keeps_open {
            self.postpone_commits();
        }
        keeps_open
    }

    /// Whether the checkpointer commits nothing of what is closed now: the room is missing, and
    /// after a commit that failed nothing could be changed, and so not rolled back. So the
    /// commit waits for the room, or for the end of the program's transaction.
    pub(super) fn postpones_commits(&self) -> bool {
        if !self.may_roll_back.load(Ordering::SeqCst) || !self.lock_engine().engine.has_waiting() {
            return false;
        }
        if self.is_postponed.load(Ordering::SeqCst) && self.waiting_commit.lock().is_some() {
            return true;
        }
        let has_room = || self.can_commit(&self.commit_lock.lock());
        if has_room() {
            return false;
        }
        // There may be room that only applying frees.
        if let Err(error) = self.apply() {
            tracing::debug!(%error, "applying the journal makes no room");
        }
        if has_room() {
            return false;
        }
        self.postpone_commits();
        true
    }

    /// Until there is more room, or the program's transaction has ended.
    pub(super) fn postpone_commits(&self) {
        if !self.is_postponed.swap(true, Ordering::SeqCst) {
            tracing::warn!(
                "a transaction that may be rolled back is not committed before it ends, or there \
                 is room: other programs have taken the room reserved for it"
            );
        }
        self.look_for_room_later();
    }

    fn look_for_room_later(&self) {
        let now = self.moment().now;
        let space = self.store.space().unwrap_or_default();
        *self.waiting_commit.lock() = Some(CommitWaitingForRoom {
            space,
            failed_at: now,
            looked_at: now,
        });
    }

    /// Takes note of a commit that failed for want of room: the checkpointer tries it again.
    pub(super) fn wait_for_room(&self) {
        self.look_for_room_later();
        self.wake(&mut self.lock_engine());
    }

    /// Lets commits that failed for want of room be tried again, if there is more now.
    pub(super) fn retry_with_room(&self) {
        let now = self.moment().now;
        let mut waiting = self.waiting_commit.lock();
        let Some(commit) = waiting.as_mut() else {
            return;
        };
        if self.failures.lock().is_empty() && !self.is_postponed.load(Ordering::SeqCst) {
            // Another thread had it tried again.
            *waiting = None;
            return;
        }
        if now.ms_since(commit.looked_at) < LOOK_INTERVAL_MS {
            return;
        }
        commit.looked_at = now;
        let is_there = self
            .store
            .space()
            .is_ok_and(|space| commit.has_more(&space));
        if is_there || now.ms_since(commit.failed_at) >= RETRY_INTERVAL_MS {
            *waiting = None;
            drop(waiting);
            self.lock_engine()
                .engine
                .retry_failed(Some(FsError::NoSpace));
        }
    }

    /// When to check for room again.
    pub(super) fn next_look_for_room(&self) -> Option<MonotonicNs> {
        let waiting = self.waiting_commit.lock();
        let looked_at = waiting.as_ref()?.looked_at;
        Some(looked_at.after_ms(LOOK_INTERVAL_MS))
    }
}

impl Volume {
    /// Says whether what a program is changing may still be rolled back by it, by further changes:
    /// it has a rollback journal. As long as that is so, no commit in the background is risked for
    /// which room is missing: see [`crate::VolumeOptions::rolls_back`].
    pub fn set_may_roll_back(&self, may_roll_back: bool) {
        let shared = &self.shared;
        if shared.may_roll_back.swap(may_roll_back, Ordering::SeqCst) == may_roll_back {
            return;
        }
        let mut locked = shared.lock_engine_keeping(Keeping::Batched);
        locked.engine.set_may_roll_back(may_roll_back);
        if !may_roll_back && shared.is_postponed.swap(false, Ordering::SeqCst) {
            shared.wake(&mut locked);
        }
    }

    /// Whether there is room in the lower filesystem for all that was acknowledged. There was when
    /// each change was made; other programs may have taken it since, and then the next commit, or
    /// its apply, fails. An operation asks while it can still be refused. Room that only an apply
    /// frees is freed first.
    ///
    /// # Errors
    /// `Io` if the lower filesystem does not answer.
    pub fn has_promised_room(&self) -> Result<bool, FsError> {
        let shared = &self.shared;
        shared.check_power()?;
        if shared.has_promised_room(&shared.commit_lock.lock())? {
            return Ok(true);
        }
        if let Err(error) = shared.apply() {
            tracing::debug!(%error, "applying the journal makes no room");
        }
        shared.check_power()?;
        shared.has_promised_room(&shared.commit_lock.lock())
    }
}

#[cfg(all(test, not(feature = "interleavings")))]
#[allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use mobifs_base::{FileKind, ObjectId};
    use mobifs_engine::{Caller, SetIdBits, WriteAt};

    use super::super::faulty::{Faulty, JOURNAL_BYTES};
    use super::super::pacing_tests::HandClock;
    use super::*;
    use crate::fixtures::node;
    use crate::{Config, Volume, VolumeOptions};

    struct Bed {
        clock: Arc<HandClock>,
        store: Arc<Faulty>,
        volume: Arc<Volume>,
        file: ObjectId,
    }

    impl Bed {
        /// A file in a durable app, committed.
        fn new() -> Self {
            Self::with_settings("")
        }

        fn with_settings(settings: &str) -> Self {
            let (clock, store) = (Arc::new(HandClock::default()), Faulty::new());
            let config = format!("{settings}\n[defaults]\nclass = \"durable\"\n");
            let options = VolumeOptions {
                background: false,
                clock: Arc::clone(&clock) as Arc<_>,
                ..VolumeOptions::new(&Config::parse(&config, Path::new("test")).unwrap())
            };
            let volume = Volume::start(Arc::clone(&store) as Arc<_>, options).unwrap();
            let make = |parent, kind| {
                let made = volume.create(&Caller::default(), parent, b"made", &node(kind));
                made.unwrap().id
            };
            let app = make(ObjectId::ROOT, FileKind::Directory);
            let file = make(app, FileKind::Regular);
            volume.sync_all().unwrap();
            Self {
                clock,
                store,
                volume,
                file,
            }
        }

        /// The same with a change whose room another program has taken.
        fn without_room() -> Self {
            let bed = Self::new();
            bed.write().unwrap();
            bed.store.is_full.store(true, Ordering::SeqCst);
            assert_eq!(bed.volume.fsync(bed.file), Err(FsError::NoSpace));
            bed
        }

        fn write(&self) -> Result<usize, FsError> {
            self.write_to(self.file, 0, b"x")
        }

        fn write_to(&self, file: ObjectId, offset: u64, data: &[u8]) -> Result<usize, FsError> {
            let at = WriteAt::Offset(offset);
            self.volume.write(file, at, data, SetIdBits::Stay, false)
        }

        /// A file in a directory of its own.
        fn another_file(&self, directory: &[u8]) -> ObjectId {
            let make = |parent, name: &[u8], kind| {
                let made = self
                    .volume
                    .create(&Caller::default(), parent, name, &node(kind));
                made.unwrap().id
            };
            let app = make(ObjectId::ROOT, directory, FileKind::Directory);
            make(app, b"file", FileKind::Regular)
        }

        /// What the checkpointer does so much later; returns how often it tried to commit.
        fn attempts_after_ms(&self, ms: u64) -> u64 {
            let before = self.store.attempts.load(Ordering::SeqCst);
            self.clock.0.fetch_add(ms, Ordering::SeqCst);
            let _next = self.volume.checkpointer().run_round();
            self.store.attempts.load(Ordering::SeqCst) - before
        }
    }

    #[test]
    fn what_found_no_room_is_committed_when_there_is_some() {
        let bed = Bed::without_room();
        assert_eq!(bed.write(), Err(FsError::NoSpace));
        let mut checkpointer = bed.volume.checkpointer();
        assert!(checkpointer.is_called(), "a thread would be asleep");
        assert!(
            checkpointer.run_round().is_some(),
            "and would sleep for ever"
        );
        assert_eq!(
            bed.attempts_after_ms(3 * LOOK_INTERVAL_MS),
            0,
            "nothing has changed"
        );
        bed.store.is_full.store(false, Ordering::SeqCst);
        assert_eq!(bed.attempts_after_ms(LOOK_INTERVAL_MS), 1);
        bed.write().unwrap();
        assert!(
            bed.volume
                .status()
                .apps
                .iter()
                .all(|app| app.read_only.is_none())
        );
        bed.volume.fsync(bed.file).unwrap();
        let _something_was_committed = checkpointer.run_round();
        assert_eq!(
            checkpointer.run_round(),
            None,
            "nothing is left to look for"
        );
    }

    /// The app could not even delete what there was no room for, and no sync and no unmount
    /// succeeded any more.
    #[test]
    fn what_found_no_room_is_given_up_by_deleting_it() {
        let bed = Bed::new();
        let other = bed.another_file(b"other");
        let app = bed.volume.lookup(ObjectId::ROOT, b"other").unwrap().id;
        bed.volume.sync_all().unwrap();
        bed.write_to(other, 0, &[7; 1 << 20]).unwrap();
        bed.store.pages_max.store(10, Ordering::SeqCst);
        let error = bed.volume.shutdown().unwrap_err();
        assert!(error.is_full(), "{error}");
        assert_eq!(bed.volume.sync_all(), Err(FsError::NoSpace));
        assert_eq!(
            bed.write_to(other, 0, b"x"),
            Err(FsError::NoSpace),
            "what needs room is refused"
        );
        // Other apps are not affected.
        bed.write().unwrap();
        bed.volume.fsync(bed.file).unwrap();
        bed.volume.unlink(app, b"file").unwrap();
        bed.volume.fsync(app).unwrap();
        assert_eq!(bed.volume.merges(), 1);
        let apps = bed.volume.status().apps;
        assert!(apps.iter().all(|app| app.read_only.is_none()));
        bed.volume.shutdown().unwrap();
    }

    /// A writer that found no room committed everything, applied it, and then looked again: an app
    /// waited
    /// 6.7 s in one system call for what another one had written.
    #[test]
    fn room_is_made_in_steps_and_only_by_the_caller_that_takes_it() {
        let bed = Bed::new();
        let big: Vec<ObjectId> = [&b"one"[..], b"two"]
            .map(|app| bed.another_file(app))
            .into();
        let small = bed.another_file(b"small");
        bed.volume.sync_all().unwrap();
        let commits = || bed.store.attempts.load(Ordering::SeqCst);
        let before = commits();
        bed.store
            .available_bytes_max
            .store(16 << 20, Ordering::SeqCst);
        bed.clock.0.fetch_add(60_000, Ordering::SeqCst);
        bed.volume.statfs().unwrap();
        // As much as two of them may have, and a bit more.
        let mut written = 0;
        while commits() == before {
            bed.write_to(big[written % 2], (written as u64 / 2) << 16, &[7; 1 << 16])
                .unwrap();
            bed.write_to(small, 0, &[7; 4096]).unwrap();
            written += 1;
            assert!(written < 256, "nothing had to be committed");
        }
        assert!(written > 180, "{written}");
        assert_eq!(commits() - before, 1, "one was enough");
        for page in 0..64 {
            bed.write_to(small, page * 4096, &[7; 4096]).unwrap();
        }
        assert_eq!(commits() - before, 1, "there is room for the small one");
        assert_eq!(bed.store.applies.load(Ordering::SeqCst), 0);
    }

    /// How many seconds it takes until a deleted file of so many bytes is applied, with so much
    /// available, while an app commits all the time; none: more than so many.
    fn seconds_until_applied(
        bytes: usize,
        available_bytes: u64,
        seconds_max: u64,
        before: impl Fn(&Bed),
    ) -> Option<u64> {
        let bed = Bed::with_settings("apply_idle_ms = 3600000");
        let other = bed.another_file(b"other");
        bed.write_to(other, 0, &vec![7; bytes]).unwrap();
        bed.volume.sync_all().unwrap();
        bed.store
            .available_bytes_max
            .store(available_bytes, Ordering::SeqCst);
        bed.volume.shared.apply().unwrap();
        // From now on there is a journal.
        bed.store.commit_bytes.store(1, Ordering::SeqCst);
        before(&bed);
        let applies = bed.store.applies.load(Ordering::SeqCst);
        let app = bed.volume.lookup(ObjectId::ROOT, b"other").unwrap().id;
        bed.volume.unlink(app, b"file").unwrap();
        bed.volume.sync_all().unwrap();
        (0..seconds_max).find(|second| {
            if second % 20 == 0 {
                bed.write().unwrap();
                bed.volume.fsync(bed.file).unwrap();
            }
            bed.attempts_after_ms(1000);
            bed.store.applies.load(Ordering::SeqCst) > applies
        })
    }

    /// Nothing was given back as long as anything was committed: another program found the disk
    /// full.
    #[test]
    fn what_was_deleted_is_applied_although_an_app_goes_on_committing() {
        let plenty = 1 << 30;
        let large = seconds_until_applied(2 << 20, plenty, 100, |_| {}).unwrap();
        assert!((55..=65).contains(&large), "{large}");
        let small = seconds_until_applied(4096, plenty, 700, |_| {}).unwrap();
        assert!((595..=605).contains(&small), "{small}");
        let urgent = seconds_until_applied(2 << 20, 4 << 20, 100, |_| {}).unwrap();
        assert!(urgent <= 2, "{urgent}");
    }

    #[test]
    fn what_was_deleted_is_not_applied_in_standby() {
        let standby = |bed: &Bed| bed.volume.set_screen(false).unwrap();
        assert_eq!(seconds_until_applied(2 << 20, 4 << 20, 700, standby), None);
    }

    /// As long as there was something to commit, nothing was applied before the journal was full:
    /// then a commit had to do it, and a thread that waited for that one waited for all of the
    /// apply.
    #[test]
    fn a_journal_that_fills_is_applied_between_two_commits() {
        let bed = Bed::new();
        for app in 0..9_u8 {
            bed.another_file(&[b'a' + app]);
        }
        bed.store.commit_bytes.store(30, Ordering::SeqCst);
        let before = bed.store.attempts.load(Ordering::SeqCst);
        bed.volume.shared.lock_engine().engine.close_all();
        bed.attempts_after_ms(0);
        let commits = bed.store.attempts.load(Ordering::SeqCst) - before;
        let used = bed.store.journal_used_bytes_max.load(Ordering::SeqCst);
        assert!(commits >= 9, "{commits}");
        assert!(used < JOURNAL_BYTES, "{used}");
        assert!(bed.store.applies.load(Ordering::SeqCst) >= commits / 3);
    }

    /// A writer that found memory used up committed what it had until the journal was full; then a
    /// commit applied all of it, and a thread that waited for a commit waited for that, up to 1.5
    /// s.
    #[test]
    fn a_writer_that_waits_for_memory_leaves_the_end_of_the_journal_to_others() {
        let bed = Bed::with_settings("memory_budget_bytes = \"4MiB\"");
        let (big, small) = (bed.another_file(b"big"), bed.another_file(b"small"));
        bed.volume.sync_all().unwrap();
        let applies_before = bed.store.applies.load(Ordering::SeqCst);
        bed.store.commit_bytes.store(10, Ordering::SeqCst);
        // While it is applied others commit, so the writer must hold nothing that they need.
        let volume = Arc::downgrade(&bed.volume);
        let commits_meanwhile = Arc::new(AtomicU64::new(0));
        let commits = Arc::clone(&commits_meanwhile);
        *bed.store.during_apply.lock() = Some(Box::new(move || {
            let volume = volume.upgrade().unwrap();
            let at = WriteAt::Offset(0);
            let content = commits.fetch_add(1, Ordering::SeqCst).to_ne_bytes();
            volume
                .write(small, at, &content, SetIdBits::Stay, false)
                .unwrap();
            assert!(volume.shared.commit_lock.try_lock().is_some());
            volume.fsync(small).unwrap();
        }));
        for megabyte in 0..64_u64 {
            bed.write_to(big, megabyte << 20, &[7; 1 << 20]).unwrap();
        }
        let used = bed.store.journal_used_bytes_max.load(Ordering::SeqCst);
        assert!(used <= JOURNAL_BYTES, "{used}");
        let applies = bed.store.applies.load(Ordering::SeqCst) - applies_before;
        assert!(applies > 1, "{applies}");
        assert_eq!(commits_meanwhile.load(Ordering::SeqCst), applies);
        *bed.store.during_apply.lock() = None;
    }

    #[test]
    fn room_that_others_have_taken_is_missed_before_a_commit_fails() {
        let bed = Bed::new();
        assert_eq!(bed.volume.has_promised_room(), Ok(true));
        bed.store.is_full.store(true, Ordering::SeqCst);
        assert_eq!(
            bed.volume.has_promised_room(),
            Ok(true),
            "nothing is promised"
        );
        bed.store.is_full.store(false, Ordering::SeqCst);
        bed.write().unwrap();
        assert_eq!(bed.volume.has_promised_room(), Ok(true));
        bed.store.is_full.store(true, Ordering::SeqCst);
        let before = bed.store.attempts.load(Ordering::SeqCst);
        assert_eq!(bed.volume.has_promised_room(), Ok(false));
        assert_eq!(
            bed.store.attempts.load(Ordering::SeqCst),
            before,
            "no commit is tried"
        );
        bed.store.is_full.store(false, Ordering::SeqCst);
        assert_eq!(bed.volume.has_promised_room(), Ok(true));
        bed.volume.fsync(bed.file).unwrap();
    }

    /// It was committed half because of its age. When that failed nothing could be changed any
    /// more, and so not rolled back.
    #[test]
    fn what_may_be_rolled_back_is_not_committed_where_room_is_missing() {
        let bed = Bed::new();
        let write = |byte| bed.write_to(bed.file, 0, &[byte; 4096]);
        write(1).unwrap();
        bed.volume.set_may_roll_back(true);
        bed.store.is_full.store(true, Ordering::SeqCst);
        assert_eq!(bed.attempts_after_ms(600_000), 0, "however old it is");
        // What is open, and what was closed before, can be changed back.
        write(2).unwrap();
        bed.volume.close_app("made");
        assert_eq!(bed.attempts_after_ms(LOOK_INTERVAL_MS), 0);
        write(3).unwrap();
        assert_eq!(bed.attempts_after_ms(LOOK_INTERVAL_MS), 0);
        // Its end needs no room to be seen, and the commit fails as any other.
        bed.volume.set_may_roll_back(false);
        assert!(bed.volume.checkpointer().is_called());
        assert!(bed.attempts_after_ms(600_000) > 0);
        assert_eq!(write(4), Err(FsError::NoSpace));
        bed.store.is_full.store(false, Ordering::SeqCst);
        bed.volume.fsync(bed.file).unwrap();
        write(5).unwrap();
        // With room nothing waits for the end.
        bed.volume.set_may_roll_back(true);
        assert!(bed.attempts_after_ms(600_000) > 0);
    }

    #[test]
    fn a_failed_commit_says_that_there_is_no_room() {
        let bed = Bed::without_room();
        let error = bed.volume.sync_app(None, false).unwrap_err();
        assert!(error.is_full(), "{error}");
        let bed = Bed::new();
        bed.write().unwrap();
        bed.store.broken.store(true, Ordering::SeqCst);
        let error = bed.volume.sync_app(None, false).unwrap_err();
        assert!(!error.is_full(), "{error}");
    }

    #[test]
    fn a_caller_that_waits_for_a_commit_tries_it_again() {
        let bed = Bed::without_room();
        bed.store.is_full.store(false, Ordering::SeqCst);
        bed.volume.fsync(bed.file).unwrap();
        bed.write().unwrap();
    }

    /// A quota that is raised does not show in the room of the disk.
    #[test]
    fn room_that_statfs_does_not_show_is_found_by_trying() {
        let bed = Bed::without_room();
        assert_eq!(bed.attempts_after_ms(RETRY_INTERVAL_MS - 1), 0);
        assert_eq!(bed.attempts_after_ms(LOOK_INTERVAL_MS), 1);
        assert_eq!(
            bed.attempts_after_ms(LOOK_INTERVAL_MS),
            0,
            "not again and again"
        );
    }

    #[test]
    fn what_failed_otherwise_is_not_tried_again() {
        let bed = Bed::new();
        bed.write().unwrap();
        bed.store.broken.store(true, Ordering::SeqCst);
        assert_eq!(bed.volume.fsync(bed.file), Err(FsError::Io));
        assert_eq!(bed.write(), Err(FsError::ReadOnly));
        bed.store.broken.store(false, Ordering::SeqCst);
        assert_eq!(bed.attempts_after_ms(2 * RETRY_INTERVAL_MS), 0);
        assert_eq!(bed.volume.fsync(bed.file), Err(FsError::Io));
    }
}
