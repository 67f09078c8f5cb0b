//! What transactions contain, and when: driven by hand, without any store.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use crate::support::{Bed, ROOT};
use mobifs_base::{Entry, MonotonicNs, ObjectId, PageIndex, Room, SpaceInfo, TransactionId};
use mobifs_engine::{
    AppPolicy, AppRules, Caller, Class, Commit, FsError, Limits, Need, RemovalMemory, SetIdBits,
    Stop, SyncPoint, WriteAt,
};

fn pages(commit: &Commit) -> Vec<(ObjectId, u64, Vec<u8>)> {
    commit
        .to_transaction()
        .entries()
        .filter_map(|entry| match entry {
            Entry::Page {
                object,
                index,
                page,
            } => Some((object, index.0, page.stored().to_vec())),
            _ => None,
        })
        .collect()
}

fn dentries(commit: &Commit) -> Vec<(ObjectId, String, Option<ObjectId>)> {
    commit
        .to_transaction()
        .entries()
        .filter_map(|entry| match entry {
            Entry::Dentry {
                parent,
                name,
                child,
            } => Some((parent, name.to_string(), child)),
            _ => None,
        })
        .collect()
}

#[test]
fn the_three_cases_of_a_write() {
    let mut bed = Bed::relaxed();
    let app = bed.directory(ROOT, "app");
    bed.checkpoint();
    let file = bed.file(app, "file");
    bed.write(file, 0, b"appended");
    bed.write(file, 0, b"in place");
    bed.engine.close_all();
    bed.write(file, 0, b"copied!!");
    let closed = bed.engine.next_commit(None).unwrap();
    assert_eq!(pages(&closed), [(file, 0, b"in place".to_vec())]);
    bed.engine.committed(closed.transaction);
    let later = bed.checkpoint();
    assert_eq!(pages(&later[0]), [(file, 0, b"copied!!".to_vec())]);
    assert_eq!(bed.engine.dirty_bytes(), 0);
}

/// Regression: an append of ten bytes counted as all of the page that it is in, so that more was sent
/// to the store than was written.
#[test]
fn sent_are_the_bytes_that_were_written_not_the_pages_that_have_them() {
    let mut bed = Bed::relaxed();
    let app = bed.directory(ROOT, "app");
    let log = bed.file(app, "log");
    bed.checkpoint();
    let counted = |bed: &Bed| {
        let apps = bed.engine.status(MonotonicNs(0)).apps;
        let app = apps.iter().find(|app| app.path == b"app").unwrap();
        (app.written_bytes, app.committed_bytes)
    };
    for n in 0..1000 {
        bed.write(log, n * 10, b"0123456789");
        bed.engine.close_all();
    }
    assert!(bed.checkpoint().len() > 999);
    assert_eq!(counted(&bed), (10_000, 10_000));
    for _ in 0..1000 {
        bed.write(log, 0, &[1; 4096]);
    }
    bed.checkpoint();
    assert_eq!(counted(&bed), (10_000 + 1000 * 4096, 10_000 + 4096));
}

#[test]
fn what_comes_and_goes_within_a_transaction_leaves_no_trace() {
    let mut bed = Bed::relaxed();
    let app = bed.directory(ROOT, "app");
    let database = bed.file(app, "db");
    bed.checkpoint();
    let journal = bed.file(app, "db-journal");
    bed.write(journal, 0, &[1; 4096 * 3]);
    bed.write(database, 0, b"row");
    bed.unlink(app, "db-journal");
    bed.engine.forget(journal, 1);
    let commits = bed.checkpoint();
    assert_eq!(commits.len(), 1);
    assert!(dentries(&commits[0]).is_empty());
    assert_eq!(pages(&commits[0]), [(database, 0, b"row".to_vec())]);
    assert_eq!(bed.engine.dirty_bytes(), 0);
}

#[test]
fn an_unlinked_file_in_use_stays_readable_and_is_not_committed() {
    let mut bed = Bed::relaxed();
    let app = bed.directory(ROOT, "app");
    let file = bed.file(app, "file");
    bed.engine.open(file).unwrap();
    bed.write(file, 0, b"before");
    bed.unlink(app, "file");
    bed.write(file, 0, b"after!");
    assert!(
        bed.checkpoint()
            .iter()
            .all(|commit| pages(commit).is_empty())
    );
    let plan = bed.engine.read_plan(file, 0, 100).unwrap();
    assert_eq!(plan.length, 6);
    assert!(bed.engine.orphan_bytes() > 0);
    bed.engine.release(file);
    bed.engine.forget(file, 1);
    assert_eq!(
        (bed.engine.dirty_bytes(), bed.engine.orphan_bytes()),
        (0, 0)
    );
    assert_eq!(bed.engine.take_forgotten(), [file]);
}

/// Found by the search of histories under tight limits: the directory's inode number was given
/// to a new file, which was taken for the directory when it was looked up.
#[test]
fn a_removed_directory_is_kept_below_for_what_is_still_in_it() {
    let mut bed = Bed::relaxed();
    let directory = bed.directory(ROOT, "directory");
    bed.checkpoint();
    let (caller, moment) = (Caller::default(), bed.moment());
    let unnamed = bed
        .engine
        .create_unnamed(&caller, moment, directory, 0o600)
        .unwrap();
    bed.engine.forget(directory, 1);
    let moment = bed.moment();
    bed.engine
        .remove_directory(moment, ROOT, b"directory", RemovalMemory::WithinBudget)
        .unwrap();
    bed.engine.close_all();
    let commits = bed.drain();
    assert!(commits.iter().any(|commit| commit.pins == [directory]));
    assert_eq!(bed.engine.take_unpinned(), []);
    bed.engine.forget(unnamed.id, 1);
    assert_eq!(bed.engine.take_unpinned(), [directory]);
}

#[test]
fn a_rename_across_apps_joins_their_transactions() {
    let mut bed = Bed::relaxed();
    let (a, b) = (bed.directory(ROOT, "a"), bed.directory(ROOT, "b"));
    let file = bed.file(a, "file");
    bed.checkpoint();
    bed.write(file, 0, b"from a");
    let other = bed.file(b, "other");
    bed.rename((a, "file"), (b, "file"));
    bed.write(file, 0, b"from b");
    let commits = bed.checkpoint();
    assert_eq!(commits.len(), 1, "one transaction for both");
    let mut entries = dentries(&commits[0]);
    entries.sort();
    let expected = [
        (a, "file".to_owned(), None),
        (b, "file".to_owned(), Some(file)),
        (b, "other".to_owned(), Some(other)),
    ];
    assert_eq!(entries, expected);
    assert_eq!(pages(&commits[0]), [(file, 0, b"from b".to_vec())]);
    // Apart again afterwards.
    bed.file(a, "one");
    bed.file(b, "two");
    assert_eq!(bed.checkpoint().len(), 2);
}

#[test]
fn closed_transactions_of_different_apps_commit_in_order_if_they_share_an_object() {
    let mut bed = Bed::relaxed();
    let (a, b) = (bed.directory(ROOT, "a"), bed.directory(ROOT, "b"));
    let file = bed.file(a, "file");
    bed.checkpoint();
    bed.write(file, 0, b"first");
    bed.engine.close_all();
    bed.engine.link(bed.moment(), file, b, b"file").unwrap();
    bed.file(b, "more");
    let last = closed_last(bed.engine.close_app(b"b"));
    let first = bed.engine.next_commit(Some(last)).unwrap();
    assert_eq!(
        pages(&first).len(),
        1,
        "a's earlier transaction is needed first"
    );
    assert!(
        bed.engine.next_commit(Some(last)).is_none(),
        "while it is under way"
    );
    bed.engine.committed(first.transaction);
    assert_eq!(
        bed.engine.next_commit(Some(last)).unwrap().transaction,
        last
    );
}

/// Found by power cuts: `mobifs sync` returned when the last closed transaction was
/// committed, and an `fsync` in a durable app had committed that one first.
#[test]
fn a_sync_waits_for_older_transactions_than_the_one_an_fsync_commits_first() {
    let mut bed = Bed::relaxed();
    let (a, b) = (bed.directory(ROOT, "a"), bed.directory(ROOT, "b"));
    bed.checkpoint();
    bed.file(a, "older");
    bed.engine.close_app(b"a").unwrap();
    bed.file(b, "newer");
    let newer = closed_last(bed.engine.close_app(b"b"));
    let point = bed.engine.close_all();
    assert_eq!(
        bed.engine.next_commit(Some(newer)).unwrap().transaction,
        newer
    );
    bed.engine.committed(newer);
    bed.file(b, "after the sync began");
    bed.engine.close_app(b"b").unwrap();
    let older = bed.engine.next_commit_until(point).unwrap();
    assert_ne!(older.transaction, newer);
    assert!(
        bed.engine.next_commit_until(point).is_none(),
        "what came later is not waited for"
    );
    bed.engine.committed(older.transaction);
    assert!(bed.engine.next_commit_until(point).is_none());
    assert!(bed.engine.next_commit(None).is_some());
}

/// The only transaction that a sync of one app waits for.
fn closed_last(point: Option<SyncPoint>) -> TransactionId {
    match point {
        Some(SyncPoint::Committed(all)) if all.len() == 1 => all[0],
        other => panic!("{other:?} instead of one transaction"),
    }
}

/// From reading: the newest transaction of one of the two apps was waited for, which need
/// not depend on what the other app did before.
#[test]
fn an_fsync_waits_for_all_durable_apps_that_a_file_has_names_in() {
    let durable = AppPolicy {
        class: Class::Durable,
        ..AppPolicy::default()
    };
    let mut bed = Bed::new(durable, Limits::default());
    let (a, b) = (bed.directory(ROOT, "a"), bed.directory(ROOT, "b"));
    let file = bed.file(a, "file");
    bed.engine.link(bed.moment(), file, b, b"file").unwrap();
    bed.checkpoint();
    bed.file(a, "of one app only");
    bed.engine.close_app(b"a").unwrap();
    bed.file(b, "of the other");
    let SyncPoint::Committed(all) = bed.engine.sync_point(file) else {
        panic!("there is something to wait for")
    };
    assert_eq!(all.len(), 2);
    for transaction in all {
        let commit = bed.engine.next_commit(Some(transaction)).unwrap();
        assert_eq!(
            commit.transaction, transaction,
            "neither depends on the other"
        );
        bed.engine.committed(transaction);
    }
    assert!(!bed.engine.has_closed());
}

#[test]
fn fsync_waits_only_in_durable_apps() {
    let durable = AppPolicy {
        class: Class::Durable,
        ..AppPolicy::default()
    };
    for (policy, waits) in [(AppPolicy::default(), false), (durable, true)] {
        let mut bed = Bed::new(policy, Limits::default());
        let app = bed.directory(ROOT, "app");
        let file = bed.file(app, "file");
        bed.write(file, 0, b"x");
        let point = bed.engine.sync_point(file);
        assert_eq!(point != SyncPoint::Now, waits);
    }
}

#[test]
fn a_failed_commit_makes_the_app_read_only_until_a_retry() {
    let mut bed = Bed::relaxed();
    let (a, b) = (bed.directory(ROOT, "a"), bed.directory(ROOT, "b"));
    bed.checkpoint();
    let file = bed.file(a, "file");
    bed.engine.close_all();
    let commit = bed.engine.next_commit(None).unwrap();
    bed.engine
        .commit_failed(commit.transaction, FsError::ReadOnly);
    assert!(bed.engine.next_commit(None).is_none());
    assert_eq!(
        bed.engine.refusal_of(commit.transaction),
        Some(FsError::ReadOnly)
    );
    let refused = bed
        .engine
        .write(bed.moment(), file, WriteAt::Append, b"x", SetIdBits::Stay);
    assert_eq!(refused, Err(Stop::Fail(FsError::ReadOnly)));
    bed.file(b, "unaffected");
    bed.engine.retry_failed(Some(FsError::NoSpace));
    assert!(
        bed.engine.next_commit(None).is_none(),
        "it failed otherwise"
    );
    bed.engine.retry_failed(None);
    assert_eq!(bed.drain().len(), 1);
    bed.write(file, 0, b"again");
}

#[test]
fn a_full_filesystem_refuses_before_it_acknowledges() {
    let mut bed = Bed::relaxed();
    let space = SpaceInfo {
        available_bytes: 96 << 10,
        free_bytes: 96 << 10,
        total_bytes: 1 << 20,
        block_bytes: 4096,
        ..SpaceInfo::default()
    };
    bed.engine.set_space(space, Room::NONE);
    let app = bed.directory(ROOT, "app");
    let file = bed.file(app, "file");
    let moment = bed.moment();
    let mut written = 0;
    let stop = loop {
        let at = WriteAt::Offset(written);
        match bed
            .engine
            .write(moment, file, at, &[1; 4096], SetIdBits::Stay)
        {
            Ok(_) => written += 4096,
            Err(stop) => break stop,
        }
    };
    assert_eq!(stop, Stop::Need(Need::Space));
    assert!(
        (5 * 4096..=16 * 4096).contains(&written),
        "{written} bytes were accepted"
    );
    // What is there may still be overwritten and removed.
    bed.unlink(app, "file");
    bed.engine.forget(file, 1);
    bed.file(app, "small");
}

#[test]
fn memory_over_budget_needs_a_commit_first() {
    let limits = Limits {
        memory_budget_bytes: 40 << 10,
        ..Limits::default()
    };
    let mut bed = Bed::new(AppPolicy::default(), limits);
    let app = bed.directory(ROOT, "app");
    let file = bed.file(app, "file");
    let moment = bed.moment();
    for index in 0.. {
        let at = WriteAt::Offset(index * 4096);
        match bed
            .engine
            .write(moment, file, at, &[7; 4096], SetIdBits::Stay)
        {
            Ok(_) => assert!(index < 10),
            Err(stop) => {
                assert_eq!(stop, Stop::Need(Need::Memory));
                break;
            }
        }
    }
    bed.checkpoint();
    assert_eq!(bed.engine.dirty_bytes(), 0);
    bed.write(file, 1 << 20, &[7; 4096]);
}

/// One app filled all of the memory, and others waited with it for its commits, or for an apply.
#[test]
fn an_app_with_little_in_memory_does_not_wait_for_one_that_fills_it() {
    let limits = Limits {
        memory_budget_bytes: 160 << 10,
        ..Limits::default()
    };
    let mut bed = Bed::new(AppPolicy::default(), limits);
    let (big, small) = (bed.directory(ROOT, "big"), bed.directory(ROOT, "small"));
    let (big, small) = (bed.file(big, "file"), bed.file(small, "file"));
    let orphan_in = bed.directory(ROOT, "third");
    let orphan = bed.file(orphan_in, "file");
    bed.checkpoint();
    let fill = |bed: &mut Bed, file| {
        let moment = bed.moment();
        let refused = (0..).find_map(|index: u64| {
            let at = WriteAt::Offset(index * 4096);
            let data = [7; 4096];
            let written = bed.engine.write(moment, file, at, &data, SetIdBits::Stay);
            written.err().map(|stop| (index, stop))
        });
        let (pages, stop) = refused.unwrap();
        assert_eq!(stop, Stop::Need(Need::Memory));
        pages
    };
    assert_eq!(
        fill(&mut bed, big),
        34,
        "seven eighths, less a page and the object"
    );
    // Closed or open, it is the same app's.
    bed.engine.close_app(b"big").unwrap();
    assert_eq!(fill(&mut bed, big), 0);
    assert_eq!(fill(&mut bed, small), 4, "the last eighth, less the object");
    bed.checkpoint();
    // What deleted files hold is in no app's transaction, and leaves the last part, too.
    bed.unlink(orphan_in, "file");
    bed.checkpoint();
    fill(&mut bed, orphan);
    assert_eq!(fill(&mut bed, orphan), 0);
    assert!(fill(&mut bed, small) > 0);
}

/// A durable `fsync` waited for the commit of all that another app had written until its limits,
/// 100 MiB by default; later for 4 MiB, which was most of what the slowest took.
#[test]
fn a_transaction_beside_a_durable_app_stays_short() {
    /// The app `durable` is, once it is there.
    struct ByName;
    impl AppRules for ByName {
        fn is_app(&self, path: &[u8]) -> bool {
            !path.contains(&b'/')
        }
        fn has_apps_below(&self, _path: &[u8]) -> bool {
            false
        }
        fn policy(&self, path: &[u8]) -> AppPolicy {
            let class = if path == b"durable" {
                Class::Durable
            } else {
                Class::Relaxed
            };
            AppPolicy {
                class,
                ..AppPolicy::default()
            }
        }
    }
    for (neighbour, closings, closings_beside_fsyncs) in [("relaxed", 0, 0), ("durable", 12, 47)] {
        let mut bed = Bed::with_rules(Box::new(ByName), Limits::default());
        let small = bed.directory(ROOT, neighbour);
        let small = bed.file(small, "file");
        let big = bed.directory(ROOT, "big");
        let file = bed.file(big, "file");
        bed.checkpoint();
        let before = bed.engine.closings();
        // Overwriting the same pages takes no more memory, so it closes nothing.
        for megabyte in (0..3).cycle().take(40).chain(3..50) {
            bed.write(file, megabyte << 20, &vec![7; 1 << 20]);
        }
        assert_eq!(
            bed.engine.closings() - before,
            closings,
            "beside {neighbour}"
        );
        bed.checkpoint();
        bed.engine.sync_point(small);
        let before = bed.engine.closings();
        for megabyte in 3..50 {
            bed.write(file, megabyte << 20, &vec![8; 1 << 20]);
        }
        assert_eq!(
            bed.engine.closings() - before,
            closings_beside_fsyncs,
            "beside fsyncs of {neighbour}"
        );
    }
}

#[test]
fn age_closes_a_transaction() {
    let policy = AppPolicy {
        age_max_ms: 5_000,
        ..AppPolicy::default()
    };
    let mut bed = Bed::new(policy, Limits::default());
    let app = bed.directory(ROOT, "app");
    bed.checkpoint();
    bed.now_ms = 1_000;
    bed.file(app, "file");
    assert_eq!(
        bed.engine.tick(MonotonicNs(5_999_000_000)),
        Some(MonotonicNs(6_000_000_000))
    );
    assert!(!bed.engine.has_closed());
    bed.engine.tick(MonotonicNs(6_000_000_000));
    assert!(bed.engine.has_closed());
}

#[test]
fn a_page_read_before_a_commit_is_not_used_after_it() {
    let mut bed = Bed::relaxed();
    let app = bed.directory(ROOT, "app");
    let file = bed.file(app, "file");
    bed.write(file, 0, &[1; 4096]);
    bed.checkpoint();
    let moment = bed.moment();
    let partial = |bed: &mut Bed| {
        bed.engine
            .write(moment, file, WriteAt::Offset(10), b"x", SetIdBits::Stay)
    };
    let Err(Stop::Need(Need::Page {
        object,
        index,
        version,
    })) = partial(&mut bed)
    else {
        panic!("the page is only in the store")
    };
    assert_eq!((object, index), (file, PageIndex(0)));
    // Another writer replaces the page, and it is committed, before the answer comes.
    bed.write(file, 0, &[2; 4096]);
    bed.checkpoint();
    bed.engine
        .provide_page(object, index, version, mobifs_base::Page::new(&[1; 4096]));
    let Err(Stop::Need(Need::Page { version, .. })) = partial(&mut bed) else {
        panic!("the answer was overtaken")
    };
    bed.engine
        .provide_page(object, index, version, mobifs_base::Page::new(&[2; 4096]));
    assert_eq!(partial(&mut bed), Ok(1));
}

#[test]
fn a_name_that_is_now_a_file_and_now_an_app_stays_in_order() {
    let mut bed = Bed::relaxed();
    let before = bed.file(ROOT, "x");
    bed.unlink(ROOT, "x");
    bed.engine.forget(before, 1);
    let app = bed.directory(ROOT, "x");
    let commits = bed.checkpoint();
    let last = commits
        .iter()
        .flat_map(dentries)
        .rfind(|(_, name, _)| name == "x");
    assert_eq!(last, Some((ROOT, "x".to_owned(), Some(app))));
}
