//! What an app may do whose uncommitted changes have found no room in the lower filesystem: discard
//! them. Deleting freed nothing, so neither the app nor the mount could ever end.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use crate::support::{Bed, ROOT};
use mobifs_base::{ByteRange, ObjectId, Room, SpaceInfo, TransactionId};
use mobifs_engine::{
    AllocateMode, AttributeChange, Commit, FsError, ReadSegment, RenameMode, SetIdBits, Stop,
    SyncPoint, WriteAt,
};

const PAGE_BYTES: usize = 4096;

/// An app with a committed file, and a large new one for which there was no room.
struct Starved {
    bed: Bed,
    app: ObjectId,
    old: ObjectId,
    big: ObjectId,
    /// The transaction that found no room.
    failed: TransactionId,
}

impl Starved {
    fn new() -> Self {
        let mut bed = Bed::saved();
        bed.engine.set_space(
            SpaceInfo {
                available_bytes: 1 << 40,
                ..SpaceInfo::default()
            },
            Room::NONE,
        );
        let app = bed.directory(ROOT, "app");
        let old = bed.file(app, "old");
        bed.write(old, 0, &[1; 4 * PAGE_BYTES]);
        bed.checkpoint();
        let big = bed.file(app, "big");
        bed.write(big, 0, &[2; 64 * PAGE_BYTES]);
        bed.engine.close_all();
        let failed = bed.engine.next_commit(None).unwrap().transaction;
        bed.engine.commit_failed(failed, FsError::NoSpace);
        assert_eq!(bed.engine.failed_apps(), [b"app".to_vec()]);
        Self {
            bed,
            app,
            old,
            big,
            failed,
        }
    }

    fn write(&mut self, file: ObjectId) -> Result<usize, Stop> {
        let moment = self.bed.moment();
        let engine = &mut self.bed.engine;
        engine.write(moment, file, WriteAt::Append, &[3; 10], SetIdBits::Stay)
    }

    fn cut(&mut self, file: ObjectId, size: u64) {
        let moment = self.bed.moment();
        let cut = AttributeChange {
            size: Some(size),
            ..AttributeChange::default()
        };
        let engine = &mut self.bed.engine;
        engine.set_attributes(moment, file, &cut).unwrap();
    }

    /// Everything is committed, nothing is held, and the app is as any other.
    fn demand_everything_committed(&mut self) {
        let big = self.big;
        self.bed.engine.forget(big, u64::MAX);
        assert!(!self.bed.engine.has_closed());
        assert!(self.bed.engine.failed_apps().is_empty());
        assert_eq!(self.bed.engine.dirty_bytes(), 0);
        let space = self.bed.engine.space();
        assert!(space.available_bytes < 1 << 40, "the store's part stays");
        assert_eq!(self.write(self.old), Ok(10));
    }
}

fn pages_of(commits: &[Commit], file: ObjectId) -> usize {
    let transactions = commits.iter().map(Commit::to_transaction);
    let pages = transactions.filter_map(|it| it.pages.get(&file).map(|pages| pages.len()));
    pages.sum()
}

fn mentions(commit: &Commit, id: ObjectId) -> bool {
    let transaction = commit.to_transaction();
    transaction.objects.iter().any(|state| state.id == id)
}

#[test]
fn uncommitted_content_without_room_is_given_up_by_deleting_it() {
    let mut starved = Starved::new();
    let refused = Err(Stop::Fail(FsError::NoSpace));
    assert_eq!(starved.write(starved.old), refused);
    starved.bed.unlink(starved.app, "big");
    let commits = starved.bed.checkpoint();
    assert_eq!(commits.len(), 1);
    assert_eq!(pages_of(&commits, starved.big), 0, "nothing takes room");
    assert!(!mentions(&commits[0], starved.big), "it is not even made");
    starved.demand_everything_committed();
}

/// A transaction that failed may have become durable all the same. After a crash that is checked by
/// the number of the transaction.
#[test]
fn a_number_that_was_handed_out_never_stands_for_other_content() {
    let mut starved = Starved::new();
    starved.bed.unlink(starved.app, "big");
    let commits = starved.bed.checkpoint();
    assert_ne!(commits[0].transaction, starved.failed);
    // Whatever arrived of the failed one, the name goes.
    let transaction = commits[0].to_transaction();
    let mut entries = transaction.dentries.iter();
    assert!(entries.any(|(parent, name, child)| {
        *parent == starved.app && name.as_bytes() == b"big" && child.is_none()
    }));
}

#[test]
fn what_is_deleted_without_room_stays_readable_for_a_program_that_has_it_open() {
    let mut starved = Starved::new();
    let (big, bytes) = (starved.big, (64 * PAGE_BYTES) as u64);
    starved.bed.engine.open(big).unwrap();
    starved.bed.unlink(starved.app, "big");
    starved.bed.checkpoint();
    let engine = &mut starved.bed.engine;
    assert_eq!(engine.orphan_bytes(), bytes);
    let plan = engine
        .read_plan(big, 5 * PAGE_BYTES as u64, PAGE_BYTES)
        .unwrap();
    let [ReadSegment::Page { page, .. }] = &plan.segments[..] else {
        panic!("{plan:?}")
    };
    assert_eq!(page.to_array(), [2; PAGE_BYTES]);
    engine.release(big);
    engine.forget(big, u64::MAX);
    assert_eq!(engine.dirty_bytes(), 0);
    starved.demand_everything_committed();
}

#[test]
fn what_is_cut_off_without_room_is_not_committed() {
    let mut starved = Starved::new();
    let (old, big) = (starved.old, starved.big);
    starved.cut(big, PAGE_BYTES as u64);
    let (mode, length) = (AllocateMode::PunchHole, PAGE_BYTES as u64);
    let moment = starved.bed.moment();
    let engine = &mut starved.bed.engine;
    engine.allocate(moment, old, mode, 0, length).unwrap();
    let commits = starved.bed.checkpoint();
    assert_eq!(commits.len(), 1);
    assert_eq!(pages_of(&commits, big), 1);
    let states = commits[0].to_transaction().objects;
    let zeroed = |id| states.iter().find(|state| state.id == id).unwrap();
    assert_eq!(zeroed(old).zeroed, [ByteRange::new(0, length)]);
    // The failed attempt may have written it to a file of the lower filesystem already.
    assert!(zeroed(big).created);
    assert_eq!(zeroed(big).zeroed, [ByteRange::from(length)]);
    starved.demand_everything_committed();
}

#[test]
fn what_needs_room_is_refused_and_what_gives_nothing_back_waits() {
    let mut starved = Starved::new();
    let (app, moment) = (starved.app, starved.bed.moment());
    let engine = &mut starved.bed.engine;
    let (from, to) = ((app, b"old".as_slice()), (app, b"moved".as_slice()));
    let moved = engine.rename(moment, from, to, RenameMode::Replace);
    assert_eq!(moved, Err(Stop::Fail(FsError::NoSpace)));
    let of_mode = AttributeChange {
        mode: Some(0o600),
        ..AttributeChange::default()
    };
    engine
        .set_attributes(moment, starved.old, &of_mode)
        .unwrap();
    engine.close_all();
    assert!(engine.next_commit(None).is_none(), "nothing has changed");
    assert_eq!(engine.merges(), 0);
    // It is merged with what frees room after it.
    starved.bed.unlink(app, "big");
    assert_eq!(starved.bed.checkpoint().len(), 1);
    assert_eq!(starved.bed.engine.merges(), 1);
    starved.demand_everything_committed();
}

#[test]
fn another_reason_to_fail_refuses_removals() {
    let mut starved = Starved::new();
    let engine = &mut starved.bed.engine;
    engine.retry_failed(None);
    let again = engine.next_commit(None).unwrap().transaction;
    engine.commit_failed(again, FsError::ReadOnly);
    let moment = starved.bed.moment();
    let memory = mobifs_engine::RemovalMemory::WithinBudget;
    let engine = &mut starved.bed.engine;
    let removed = engine.unlink(moment, starved.app, b"big", memory);
    assert_eq!(removed, Err(Stop::Fail(FsError::ReadOnly)));
}

/// A caller of `fsync` waits for the transaction that its own has become a part of.
#[test]
fn a_caller_that_waits_for_a_merged_transaction_waits_for_the_whole() {
    let mut starved = Starved::new();
    let failed = starved.failed;
    starved.bed.unlink(starved.app, "old");
    let engine = &mut starved.bed.engine;
    let Some(SyncPoint::Committed(awaited)) = engine.close_app(b"app") else {
        panic!("nothing to wait for");
    };
    let [awaited] = awaited[..] else {
        panic!("{awaited:?}")
    };
    for waits_for in [failed, awaited] {
        let commit = engine.next_commit(Some(waits_for)).unwrap();
        assert!(engine.is_uncommitted(waits_for));
        engine.commit_failed(commit.transaction, FsError::NoSpace);
        assert_eq!(engine.refusal_of(waits_for), Some(FsError::NoSpace));
        engine.retry_failed(None);
    }
    let commit = engine.next_commit(Some(failed)).unwrap();
    engine.committed(commit.transaction);
    assert!(!engine.is_uncommitted(failed) && !engine.is_uncommitted(awaited));
    assert_eq!(pages_of(&[commit], starved.big), 64, "it was not deleted");
    assert!(!engine.has_closed() && engine.failed_apps().is_empty());
}

/// Another app's transaction that depends on the failed one stays after all of it, and one that
/// what is deleted depends on is part of it.
#[test]
fn the_order_of_other_apps_is_kept() {
    let mut starved = Starved::new();
    let other = starved.bed.directory(ROOT, "other");
    let note = starved.bed.file(other, "note");
    starved.bed.write(note, 0, &[4; 10]);
    starved.bed.engine.close_all();
    // A new app's directory is an entry of the root, as that of the starved one was.
    let commits = starved.bed.drain();
    assert!(commits.iter().any(|commit| mentions(commit, note)));
    starved.bed.unlink(starved.app, "big");
    starved.bed.unlink(other, "note");
    let commits = starved.bed.checkpoint();
    let of = |id| commits.iter().position(|commit| mentions(commit, id));
    assert!(of(starved.app).is_some() && of(other).is_some());
    assert_ne!(of(starved.app), of(other), "they have nothing in common");
    starved.demand_everything_committed();
}
