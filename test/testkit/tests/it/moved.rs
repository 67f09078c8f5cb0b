//! Files that grow where they end, or move to where there is room: on the crash double, to which moving makes nothing
//! durable.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use mobifs_base::{
    Entry, ObjectId, ObjectState, PAGE_BYTES, PAGE_BYTES_U64, Page, PageIndex, SpaceInfo,
};
use mobifs_store::lower::Lower as _;
use mobifs_store::{
    Gate, JournalOptions, JournalStore, Preallocation, Store as _, StoreError, Transaction,
};
use mobifs_testkit::crash::{Calls, CrashLower, Fate, Fault, Harm};
use mobifs_testkit::entries::{plain_file, root_entry};

type TestStore = JournalStore<Gate<CrashLower>>;

/// Inode numbers differ, and with them which files lie in several pieces at which size.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const ENOSPC: i32 = 28;

fn options(preallocation: Preallocation) -> JournalOptions {
    JournalOptions {
        journal_bytes: 4 << 20,
        direct_bytes_max: Some(8 << 10),
        uuid_if_new: [7; 16],
        reserve_bytes: 64 << 10,
        preallocation,
        ..JournalOptions::default()
    }
}

fn open(lower: &CrashLower) -> TestStore {
    let options = options(Preallocation::IN_STEPS);
    JournalStore::open(Gate::new(lower.clone()), &options)
        .unwrap()
        .0
}

fn page(name: &str, index: u64) -> [u8; PAGE_BYTES] {
    let mut content = [name.as_bytes()[0]; PAGE_BYTES];
    content[16..24].copy_from_slice(&index.to_le_bytes());
    content[..16].copy_from_slice(b"SQLite format 3\0");
    content
}

/// A database grows from so many pages to so many, in one transaction.
fn grow(
    store: &TestStore,
    id: ObjectId,
    name: &str,
    (from, to): (u64, u64),
) -> Result<(), StoreError> {
    let mut transaction = Transaction::default();
    transaction.push(Entry::Object(ObjectState {
        created: from == 0,
        ..plain_file(id, to * PAGE_BYTES_U64, 1)
    }));
    if from == 0 {
        transaction.push(root_entry(name, Some(id)));
    }
    for index in from..to {
        transaction.push(Entry::Page {
            object: id,
            index: PageIndex(index),
            page: Page::new(&page(name, index)),
        });
    }
    store.commit(transaction)
}

fn ids(store: &TestStore) -> Vec<(ObjectId, &'static str)> {
    let first = store.first_new_object().0;
    let numbers = (0..).step_by(2).map(|offset| ObjectId(first + offset));
    numbers.zip(NAMES).collect()
}

/// Small transactions, as those of a database are, and an apply after each: the files outgrow what they have had
/// several times.
fn grow_all(store: &TestStore) {
    let files = ids(store);
    for (from, to) in [(0, 20), (20, 30), (30, 40), (40, 50), (50, 60)] {
        for &(id, name) in &files {
            grow(store, id, name, (from, to)).unwrap();
        }
        store.apply().unwrap();
    }
    for from in (60..340).step_by(10) {
        for &(id, name) in &files {
            grow(store, id, name, (from, from + 10)).unwrap();
        }
        store.apply().unwrap();
    }
}

fn check(lower: &CrashLower, name: &str, pages: u64) {
    let file = lower.open(&lower.root().unwrap(), name.as_bytes(), false);
    let file = file.unwrap();
    let stat = lower.stat(&file).unwrap();
    assert_eq!(stat.size, pages * PAGE_BYTES_U64, "{name}");
    let time = plain_file(ObjectId(0), 0, 1).attributes.mtime;
    assert_eq!(stat.mtime, time, "{name}");
    let mut found = [0; PAGE_BYTES];
    for index in 0..pages {
        let length = lower.read_at(&file, &mut found, index * PAGE_BYTES_U64);
        assert_eq!(length.unwrap(), PAGE_BYTES);
        assert!(found == page(name, index), "page {index} of {name}");
    }
    let after = lower.allocated_after(&file, stat.size).unwrap();
    assert_eq!(after, None, "{name} has blocks beyond its end");
}

#[test]
fn files_that_outgrow_their_piece_move_with_content_and_times_and_bounded() {
    let lower = CrashLower::new();
    let store = open(&lower);
    grow_all(&store);
    let moved_bytes = store.pending().moved_bytes;
    assert!(lower.moves() > 0);
    assert!(moved_bytes > 0);
    let content_bytes = NAMES.len() as u64 * 340 * PAGE_BYTES_U64;
    assert!(
        moved_bytes <= content_bytes,
        "{moved_bytes} of {content_bytes}"
    );
    store.close().unwrap();
    drop(store);
    NAMES.iter().for_each(|name| check(&lower, name, 340));
}

/// The double panics if content is moved there.
#[test]
fn nothing_moves_where_content_would_not_survive_a_cut() {
    let lower = CrashLower::new();
    lower.set_moves_content(false);
    let store = open(&lower);
    grow_all(&store);
    assert_eq!((lower.moves(), store.pending().moved_bytes), (0, 0));
    store.close().unwrap();
    NAMES.iter().for_each(|name| check(&lower, name, 340));
}

#[test]
fn nothing_moves_where_it_is_switched_off() {
    let off = Preallocation {
        large_bytes: 0,
        ..Preallocation::IN_STEPS
    };
    for off in [off, Preallocation::OFF] {
        let lower = CrashLower::new();
        let store = JournalStore::open(Gate::new(lower.clone()), &options(off));
        let store = store.unwrap().0;
        grow_all(&store);
        assert_eq!(lower.moves(), 0, "{off:?}");
        store.close().unwrap();
        NAMES.iter().for_each(|name| check(&lower, name, 340));
    }
}

/// A file that moves is there twice for a while.
#[test]
fn nothing_moves_where_room_is_short() {
    let lower = CrashLower::new();
    let store = open(&lower);
    let space = lower.space().unwrap();
    lower.set_space(SpaceInfo {
        total_bytes: 512 << 20,
        free_bytes: 1300 << 10,
        available_bytes: 1300 << 10,
        ..space
    });
    grow_all(&store);
    assert_eq!(lower.moves(), 0);
    lower.set_space(space);
    store.close().unwrap();
    NAMES.iter().for_each(|name| check(&lower, name, 340));
}

/// The files outgrow 256 KiB by a commit that is durable, and its apply begins.
fn about_to_outgrow() -> (CrashLower, TestStore) {
    let lower = CrashLower::new();
    let store = open(&lower);
    for (id, name) in ids(&store) {
        grow(&store, id, name, (0, 40)).unwrap();
    }
    store.apply().unwrap();
    for (from, to) in [(40, 50), (50, 60), (60, 74)] {
        for (id, name) in ids(&store) {
            grow(&store, id, name, (from, to)).unwrap();
        }
    }
    (lower, store)
}

/// Whatever of an apply reaches the medium, the next mount has all that was committed, and no blocks beyond ends.
fn check_cuts(prepare: impl Fn() -> (CrashLower, TestStore), check: impl Fn(&CrashLower)) {
    let (lower, store) = prepare();
    let first = lower.operations();
    store.apply().unwrap();
    let operations = lower.operations() - first;
    for cut in 0..=operations {
        let (lower, store) = prepare();
        lower.cut_after(lower.operations() + cut);
        let _ = store.apply();
        drop(store);
        let patterns = [
            |_: usize| true,
            |_| false,
            |number| number % 2 == 0,
            |number| number % 3 == 0,
        ];
        for keeps in patterns {
            let mut number = 0;
            let image = lower.crash_image(&mut |_| {
                number += 1;
                if keeps(number) {
                    Fate::Land
                } else {
                    Fate::Vanish
                }
            });
            let store = open(&image);
            store.close().unwrap();
            drop(store);
            check(&image);
        }
    }
}

#[test]
fn no_cut_while_files_move_loses_content() {
    let (lower, store) = about_to_outgrow();
    store.apply().unwrap();
    assert!(lower.moves() > 0);
    check_cuts(about_to_outgrow, |image| {
        NAMES.iter().for_each(|name| check(image, name, 74));
    });
}

/// Commits of a file by their pages: short ones are in the journal, long ones and zeros between them in the file.
fn commit_short_and_long(is_there: bool) -> (CrashLower, TestStore) {
    let lower = CrashLower::new();
    let store = open(&lower);
    let (id, name) = ids(&store)[0];
    let ends = [0, 5, 105, 110, 130, 133, 160, 165, 190, 200, 230];
    for step in ends.windows(2) {
        grow(&store, id, name, (step[0], step[1])).unwrap();
        if is_there && step[1] == 133 {
            store.apply().unwrap();
        }
    }
    (lower, store)
}

/// The apply writes pages of the journal over zeros in a range that counts as empty, and does not free their blocks.
#[test]
fn no_cut_while_pages_between_long_runs_are_written_loses_content() {
    for is_there in [false, true] {
        check_cuts(
            || commit_short_and_long(is_there),
            |image| check(image, NAMES[0], 230),
        );
    }
}

/// A move is an optimisation: one that fails, or anything beside it, is at most tried again.
#[test]
fn no_call_that_fails_while_files_move_loses_content() {
    let (lower, store) = about_to_outgrow();
    let first = lower.operations();
    store.apply().unwrap();
    let operations = lower.operations() - first;
    for failing in 1..=operations {
        for errno in [ENOSPC, 5] {
            let (lower, store) = about_to_outgrow();
            lower.fail_operation(lower.operations() + failing, errno);
            let _ = store.apply();
            store.apply().unwrap();
            store.close().unwrap();
            drop(store);
            NAMES.iter().for_each(|name| check(&lower, name, 74));
        }
    }
}

/// A disk that fails to write so often, from so many calls after the first move of an apply on. Returns what the apply
/// failed with.
fn apply_on_failing_disk(count: u64, skipped: u64, harm: Harm) -> Option<String> {
    let (lower, store) = about_to_outgrow();
    let hooked = lower.clone();
    let (mut syncs, mut moves) = (0, lower.moves());
    lower.set_hook(Box::new(move |_, lower| {
        // The call after a move is no sync yet.
        if lower.moves() > moves && syncs == 0 {
            syncs = 1;
            moves = lower.moves();
            lower.set_fault(Some(Fault {
                first: lower.calls() + skipped,
                count,
                calls: Calls::Syncs,
                errno: 5,
                harm,
            }));
        }
    }));
    let result = store.apply();
    assert!(hooked.moves() > 0);
    lower.clear_hook();
    lower.set_fault(None);
    let moves = lower.moves();
    store.apply().unwrap();
    if lower.failed_calls() > 0 && result.is_ok() {
        // What is in the journal no more has to be in its place.
        check_image(&lower, 74);
    }
    grow_more(&store);
    if skipped == 0 {
        assert_eq!(lower.moves(), moves, "moves after a failure");
    }
    store.close().unwrap();
    drop(store);
    NAMES.iter().for_each(|name| check(&lower, name, 340));
    check_image(&lower, 340);
    result.err().map(|error| error.to_string())
}

/// The files outgrow more of what they have.
fn grow_more(store: &TestStore) {
    for from in (74..340).step_by(14) {
        for (id, name) in ids(store) {
            grow(store, id, name, (from, (from + 14).min(340))).unwrap();
        }
        store.apply().unwrap();
    }
}

/// What a power cut leaves now.
fn check_image(lower: &CrashLower, pages: u64) {
    let image = lower.crash_image(&mut |_| Fate::Vanish);
    let store = open(&image);
    store.close().unwrap();
    drop(store);
    NAMES.iter().for_each(|name| check(&image, name, pages));
}

/// The content that moved was durable before, and the journal does not have it. Pages are clean after a sync that
/// failed, so that a second sync succeeds and writes nothing.
#[test]
fn content_whose_new_place_cannot_be_written_goes_back_to_the_old_one() {
    for harm in [Harm::Lost, Harm::Nothing, Harm::Everything] {
        for skipped in 0..6 {
            let failed = apply_on_failing_disk(1, skipped, harm);
            if skipped == 0 {
                assert_eq!(failed, None, "{harm:?}");
            }
        }
    }
}

/// Then the file has the blocks of before, with what was in them, and the journal has the rest.
#[test]
fn an_apply_fails_that_can_write_content_neither_in_its_new_place_nor_in_the_old_one() {
    for harm in [Harm::Lost, Harm::Nothing] {
        for count in [2, 3, u64::MAX] {
            let failed = apply_on_failing_disk(count, 0, harm).unwrap();
            let says =
                |name: &&str| failed.contains(&format!("making {name} durable, which has moved"));
            assert!(NAMES.iter().any(says), "{harm:?} {count}: {failed}");
        }
    }
}
