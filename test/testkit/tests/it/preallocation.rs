//! Blocks beyond the end of growing files: they are the store's own and are given back, and room
//! that programs have requested is never touched. On the crash double.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::sync::Arc;

use mobifs_base::{
    ByteRange, Entry, FileKind, ObjectId, ObjectState, PAGE_BYTES_U64, Page, PageIndex,
};
use mobifs_store::lower::{Create, Lower, LowerStat};
use mobifs_store::{
    Gate, JournalOptions, JournalStore, PREALLOCATED_FILE, Preallocation, RestartSink,
    RestartState, Store as _, Transaction,
};
use mobifs_testkit::crash::{CrashLower, Fate};
use mobifs_testkit::entries::{plain_file, root_entry};

type TestStore = JournalStore<Gate<CrashLower>>;

const KIB: u64 = 1 << 10;
const STEP: u64 = 128 * KIB;

fn options() -> JournalOptions {
    JournalOptions {
        journal_bytes: 1 << 20,
        direct_bytes_max: Some(8 << 10),
        uuid_if_new: [7; 16],
        reserve_bytes: 64 << 10,
        ahead_pages_min: 1,
        preallocation: Preallocation {
            database_bytes: STEP,
            ..Preallocation::IN_STEPS
        },
        ..JournalOptions::default()
    }
}

fn open(lower: &CrashLower) -> TestStore {
    JournalStore::open(Gate::new(lower.clone()), &options())
        .unwrap()
        .0
}

fn stat(lower: &CrashLower, name: &str) -> LowerStat {
    lower
        .stat_at(&lower.root().unwrap(), name.as_bytes())
        .unwrap()
}

/// How many bytes beyond its end, rounded up to a block, a file has.
fn unused(lower: &CrashLower, name: &str) -> u64 {
    let file = lower
        .open(&lower.root().unwrap(), name.as_bytes(), false)
        .unwrap();
    let end = lower
        .stat(&file)
        .unwrap()
        .size
        .next_multiple_of(PAGE_BYTES_U64);
    lower
        .allocated_after(&file, end)
        .unwrap()
        .map_or(0, |last| last - end)
}

/// The file grows from `from` pages to `to`; the state says what else changes.
fn grow(store: &TestStore, mut state: ObjectState, from: u64, to: u64, entries: Vec<Entry>) {
    let id = state.id;
    state.attributes.size = to * PAGE_BYTES_U64;
    let mut transaction = Transaction::default();
    transaction.push(Entry::Object(state));
    entries
        .into_iter()
        .for_each(|entry| transaction.push(entry));
    for index in from..to {
        let mut content = [7; 4096];
        content[..16].copy_from_slice(b"SQLite format 3\0");
        transaction.push(Entry::Page {
            object: id,
            index: PageIndex(index),
            page: Page::new(&content),
        });
    }
    store.commit(transaction).unwrap();
}

/// A database of two pages in the lower tree, with its id.
fn with_database(store: &TestStore, name: &str) -> ObjectId {
    let id = ObjectId(store.first_new_object().0 + 2 * u64::from(name.as_bytes()[0]));
    let state = ObjectState {
        created: true,
        ..plain_file(id, 0, 1)
    };
    grow(store, state, 0, 2, vec![root_entry(name, Some(id))]);
    store.apply().unwrap();
    id
}

/// Its id in a mount that has looked it up.
fn id_of(store: &TestStore, name: &str) -> ObjectId {
    let entries = store.list_directory(ObjectId::ROOT).unwrap();
    let entry = entries
        .iter()
        .find(|entry| entry.name.as_bytes() == name.as_bytes());
    entry.unwrap().id
}

fn requested(state: ObjectState, range: ByteRange) -> ObjectState {
    ObjectState {
        allocated: vec![range],
        ..state
    }
}

fn request(store: &TestStore, id: ObjectId, pages: u64, range: ByteRange) {
    let mut transaction = Transaction::default();
    let state = requested(plain_file(id, pages * PAGE_BYTES_U64, 1), range);
    transaction.push(Entry::Object(state));
    store.commit(transaction).unwrap();
    store.apply().unwrap();
}

/// A mount after the power was cut, with everything on the medium that had been written.
fn after_power_cut(lower: &CrashLower) -> CrashLower {
    lower.crash_image(&mut |_| Fate::Land)
}

#[test]
fn a_database_grows_in_steps_and_gives_back_the_rest_at_unmount() {
    let lower = CrashLower::new();
    let store = open(&lower);
    let id = with_database(&store, "a");
    assert_eq!(unused(&lower, "a"), STEP - 8 * KIB);
    assert_eq!(store.pending().preallocated_bytes, STEP - 8 * KIB);
    grow(&store, plain_file(id, 0, 1), 2, 31, Vec::new());
    store.apply().unwrap();
    assert_eq!(
        unused(&lower, "a"),
        STEP - 124 * KIB,
        "it grows in the same piece"
    );
    grow(&store, plain_file(id, 0, 1), 31, 40, Vec::new());
    store.apply().unwrap();
    assert_eq!(unused(&lower, "a"), 2 * STEP - 160 * KIB);
    let before = stat(&lower, "a");
    store.close().unwrap();
    assert_eq!(unused(&lower, "a"), 0);
    let after = stat(&lower, "a");
    assert_eq!((after.size, after.mtime), (before.size, before.mtime));
    assert_eq!(store.pending().preallocated_bytes, 0);
}

#[test]
fn nothing_is_preallocated_where_it_is_off() {
    let lower = CrashLower::new();
    let off = JournalOptions {
        preallocation: Preallocation::OFF,
        ..options()
    };
    let store = JournalStore::open(Gate::new(lower.clone()), &off)
        .unwrap()
        .0;
    let id = with_database(&store, "a");
    grow(&store, plain_file(id, 0, 1), 2, 80, Vec::new());
    store.apply().unwrap();
    assert_eq!(unused(&lower, "a"), 0);
}

/// A commit with a long run of new pages, or with much new content, brought a new database to its
/// place at once: its blocks were those of that moment, and there were none to grow in. After four
/// days of ageing half of the databases had a second piece for that.
#[test]
fn new_databases_of_large_commits_are_allocated_with_room_to_grow() {
    let lower = CrashLower::new();
    let store = open(&lower);
    let id = ObjectId(store.first_new_object().0 + 10);
    let made = |size| ObjectState {
        created: true,
        ..plain_file(id, size, 1)
    };
    grow(&store, made(0), 0, 20, vec![root_entry("a", Some(id))]);
    store.apply().unwrap();
    assert_eq!(unused(&lower, "a"), STEP - 80 * KIB);
    // Beyond a step a long run goes to its place, and what the journal has is allocated around it.
    let id = ObjectId(id.0 + 2);
    let made = ObjectState {
        created: true,
        ..plain_file(id, 0, 1)
    };
    grow(&store, made, 0, 20, vec![root_entry("b", Some(id))]);
    grow(&store, plain_file(id, 80 * KIB, 1), 20, 45, Vec::new());
    store.apply().unwrap();
    assert_eq!(unused(&lower, "b"), 2 * STEP - 180 * KIB);
    store.close().unwrap();
    assert_eq!((unused(&lower, "a"), unused(&lower, "b")), (0, 0));
}

/// F1: room that a program requested beyond the end, adjoining the file or apart from it, before
/// and after the store preallocated, and before an earlier mount, was freed.
#[test]
fn requested_room_is_never_freed() {
    const REQUESTS: [(u64, u64); 3] = [(8, 300), (1024, 1100), (40, 56)];
    for (start, end) in REQUESTS.map(|(start, end)| (start * KIB, end * KIB)) {
        let range = ByteRange::new(start, end);
        let lower = CrashLower::new();
        let store = open(&lower);
        let id = with_database(&store, "a");
        request(&store, id, 2, range);
        let expected = end - 8 * KIB;
        assert_eq!(unused(&lower, "a"), expected, "{range:?}");
        // It grows, and nothing more is preallocated.
        grow(&store, plain_file(id, 0, 1), 2, 4, Vec::new());
        store.apply().unwrap();
        assert_eq!(unused(&lower, "a"), expected - 8 * KIB, "{range:?}");
        store.close().unwrap();
        drop(store);
        assert_eq!(unused(&lower, "a"), expected - 8 * KIB, "{range:?}");
        let store = open(&lower);
        let id = id_of(&store, "a");
        grow(&store, plain_file(id, 0, 1), 4, 5, Vec::new());
        store.apply().unwrap();
        drop(store);
        let lower = after_power_cut(&lower);
        open(&lower).apply().unwrap();
        assert_eq!(unused(&lower, "a"), expected - 12 * KIB, "{range:?}");
    }
}

/// A file was shortened into the middle of a block, and then room after its end was requested: the
/// apply allocated it first, and freed it by setting the size.
#[test]
fn room_that_is_requested_after_a_shorter_size_is_there() {
    for preallocation in [Preallocation::OFF, Preallocation::IN_STEPS] {
        let lower = CrashLower::new();
        let options = JournalOptions {
            preallocation,
            ..options()
        };
        let store = JournalStore::open(Gate::new(lower.clone()), &options)
            .unwrap()
            .0;
        let id = with_database(&store, "a");
        let state = ObjectState {
            zeroed: vec![ByteRange::new(8 * KIB, u64::MAX)],
            allocated: vec![ByteRange::new(5 * KIB, 300 * KIB)],
            ..plain_file(id, 5 * KIB, 1)
        };
        let mut transaction = Transaction::default();
        transaction.push(Entry::Object(state));
        transaction.push(Entry::Page {
            object: id,
            index: PageIndex(1),
            page: Page::new(&[7; 1 << 10]),
        });
        store.commit(transaction).unwrap();
        store.apply().unwrap();
        assert_eq!(stat(&lower, "a").size, 5 * KIB);
        assert_eq!(unused(&lower, "a"), 292 * KIB);
        store.close().unwrap();
        assert_eq!(unused(&lower, "a"), 292 * KIB);
    }
}

/// F4: a small request where the store had preallocated made all of that stay.
#[test]
fn a_small_request_keeps_only_what_it_asks_for() {
    let lower = CrashLower::new();
    let store = open(&lower);
    let id = with_database(&store, "a");
    request(&store, id, 2, ByteRange::new(8 * KIB, 16 * KIB));
    assert_eq!(unused(&lower, "a"), 8 * KIB);
    store.close().unwrap();
    assert_eq!(unused(&lower, "a"), 8 * KIB);
}

/// F3: the only name that the store knew of a file with two was removed, and its blocks stayed.
#[test]
fn a_file_whose_known_name_goes_gives_back_what_it_had() {
    let lower = CrashLower::new();
    let store = open(&lower);
    let id = with_database(&store, "a");
    let root = lower.root().unwrap();
    lower.create(&root, b"unseen", Create::Directory).unwrap();
    let unseen = lower.open(&root, b"unseen", true).unwrap();
    lower.link(&root, b"a", &unseen, b"other").unwrap();
    assert!(unused(&lower, "a") > 0);
    let mut transaction = Transaction::default();
    transaction.push(root_entry("a", None));
    transaction.push(Entry::Object(plain_file(id, 8 * KIB, 1)));
    store.commit(transaction).unwrap();
    store.apply().unwrap();
    let other = lower.open(&unseen, b"other", false).unwrap();
    assert_eq!(lower.allocated_after(&other, 8 * KIB).unwrap(), None);
    assert_eq!(store.pending().preallocated_bytes, 0);
    store.close().unwrap();
}

/// F2: what the list names may be another object when it is read.
#[test]
fn what_is_not_the_listed_file_any_more_is_not_touched() {
    type Change = fn(&CrashLower);
    let changes: [(&str, Change); 4] = [
        ("it was changed by another program", |lower| {
            let file = lower.open(&lower.root().unwrap(), b"a", true).unwrap();
            lower.write_at(&file, b"other", 5).unwrap();
        }),
        ("a program requested more", |lower| {
            let file = lower.open(&lower.root().unwrap(), b"a", true).unwrap();
            lower
                .preallocate(&file, ByteRange::new(8 * KIB, 2 * STEP))
                .unwrap();
        }),
        ("another file has its name", |lower| {
            let root = lower.root().unwrap();
            lower.create(&root, b"kept", Create::Regular).unwrap();
            let file = lower.open(&root, b"kept", true).unwrap();
            lower.write_at(&file, &[1; 8 << 10], 0).unwrap();
            lower
                .preallocate(&file, ByteRange::new(8 * KIB, STEP))
                .unwrap();
            lower.unlink(&root, b"a").unwrap();
            lower.link(&root, b"kept", &root, b"a").unwrap();
        }),
        ("a symlink has its name", |lower| {
            let root = lower.root().unwrap();
            lower.create(&root, b"kept", Create::Regular).unwrap();
            lower.unlink(&root, b"a").unwrap();
            lower.create(&root, b"a", Create::Symlink(b"kept")).unwrap();
        }),
    ];
    for (what, change) in changes {
        let lower = CrashLower::new();
        with_database(&open(&lower), "a");
        let lower = after_power_cut(&lower);
        change(&lower);
        let before = stat(&lower, "a");
        let is_file = before.kind == FileKind::Regular;
        let room = is_file.then(|| unused(&lower, "a"));
        open(&lower).apply().unwrap();
        assert_eq!(stat(&lower, "a"), before, "{what}");
        assert_eq!(is_file.then(|| unused(&lower, "a")), room, "{what}");
    }
}

/// F2: the list itself was a hard link to another file, and was written to.
#[test]
fn a_list_that_is_another_file_too_is_not_written() {
    let lower = CrashLower::new();
    drop(open(&lower));
    let root = lower.root().unwrap();
    let own = lower.open(&root, b".mobifs", true).unwrap();
    lower.create(&root, b"victim", Create::Regular).unwrap();
    lower.unlink(&own, PREALLOCATED_FILE.as_bytes()).unwrap();
    lower
        .link(&root, b"victim", &own, PREALLOCATED_FILE.as_bytes())
        .unwrap();
    let store = open(&lower);
    with_database(&store, "a");
    store.close().unwrap();
    assert_eq!(stat(&lower, "victim").size, 0);
    assert_eq!(unused(&lower, "a"), 0);
}

#[test]
fn the_next_mount_gives_back_at_its_first_apply_what_a_power_cut_has_left() {
    let lower = CrashLower::new();
    with_database(&open(&lower), "a");
    let lower = after_power_cut(&lower);
    let before = stat(&lower, "a");
    assert!(unused(&lower, "a") > 0);
    let store = open(&lower);
    store.apply().unwrap();
    assert_eq!(unused(&lower, "a"), 0);
    assert_eq!(stat(&lower, "a").mtime, before.mtime);
    assert_eq!(store.pending().preallocated_bytes, 0);
}

/// Whatever of the last apply and of an unmount reaches the medium, the next mount finds every block,
/// and no file has another time than that of its last change.
#[test]
fn no_power_cut_leaves_blocks_or_times() {
    let time = plain_file(ObjectId(0), 0, 1).attributes.mtime;
    for cut in 0..60 {
        let lower = CrashLower::new();
        let store = open(&lower);
        let id = with_database(&store, "a");
        grow(
            &store,
            plain_file(id, 0, 1),
            2,
            40,
            vec![root_entry("a", None), root_entry("b", Some(id))],
        );
        lower.cut_after(lower.operations() + cut);
        let _ = store.apply();
        let _ = store.close();
        drop(store);
        for keeps in [|_: usize| true, |_| false, |number| number % 2 == 0] {
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
            for name in ["a", "b"] {
                let there = image.stat_at(&image.root().unwrap(), name.as_bytes());
                let Ok(there) = there else { continue };
                assert_eq!(unused(&image, name), 0, "{name} after cut {cut}");
                assert_eq!(there.mtime, time, "{name} after cut {cut}");
            }
        }
    }
}

/// Remembers nothing: what a successor knows comes from the journal and the list.
#[derive(Default)]
struct NoSink;

impl RestartSink for NoSink {
    fn object(&self, _: ObjectId, _: Option<&mobifs_store::KnownObject>) {}
    fn intent(&self, _: Option<mobifs_store::Intent>) {}
}

/// F5: files that the killed process was about to rename were not found by its successor, which
/// forgot them.
#[test]
fn a_successor_forgets_no_listed_file() {
    for cut in 0..40 {
        let lower = CrashLower::new();
        let store = open(&lower);
        let id = with_database(&store, "a");
        grow(
            &store,
            plain_file(id, 0, 1),
            2,
            40,
            vec![root_entry("a", None), root_entry("b", Some(id))],
        );
        lower.cut_after(lower.operations() + cut);
        let _ = store.apply();
        drop(store);
        let image = lower.kill_image();
        let resumed = JournalStore::resume(
            Gate::new(image.clone()),
            &options(),
            Arc::new(NoSink),
            RestartState::default(),
        );
        let (store, _) = resumed.unwrap();
        store.apply().unwrap();
        store.close().unwrap();
        drop(store);
        assert_eq!(unused(&image, "b"), 0, "after call {cut}");
    }
}

/// Thirteen kinds of damaged lists: a store with one is mounted, and goes on preallocating.
#[test]
fn damaged_lists_are_ignored() {
    type Damage = fn(&mut Vec<u8>);
    let kinds: [Damage; 13] = [
        Vec::clear,
        |list| list.truncate(7),
        |list| list.truncate(30),
        |list| list.truncate(60),
        |list| list.fill(0),
        |list| list.fill(0xff),
        |list| list[0] ^= 1,
        |list| list[8] = 2,
        |list| list[12] ^= 1,
        |list| list[36] ^= 0xff,
        |list| list[40..44].fill(0xff),
        |list| list[44] ^= 1,
        |list| list[50] ^= 1,
    ];
    for (number, damage) in kinds.into_iter().enumerate() {
        let lower = CrashLower::new();
        with_database(&open(&lower), "a");
        let lower = after_power_cut(&lower);
        // What has moved gets room when it grows again.
        lower.set_moves_content(false);
        let own = lower
            .open(&lower.root().unwrap(), b".mobifs", true)
            .unwrap();
        let list = lower
            .open(&own, PREALLOCATED_FILE.as_bytes(), true)
            .unwrap();
        let size = lower.stat(&list).unwrap().size as usize;
        let mut content = vec![0; size];
        lower.read_at(&list, &mut content, 0).unwrap();
        let slots = content.len().div_ceil(128 << 10);
        for slot in 0..slots {
            let end = content.len().min((slot + 1) * (128 << 10));
            let mut damaged = content[slot * (128 << 10)..end].to_vec();
            if damaged.len() > 50 {
                damage(&mut damaged);
            }
            damaged.resize(end - slot * (128 << 10), 0);
            lower
                .write_at(&list, &damaged, slot as u64 * (128 << 10))
                .unwrap();
        }
        let before = unused(&lower, "a");
        let store = open(&lower);
        assert_eq!(
            unused(&lower, "a"),
            before,
            "damage {number}: not known to be the store's"
        );
        with_database(&store, "c");
        assert_eq!(unused(&lower, "c"), STEP - 8 * KIB, "damage {number}");
        store.close().unwrap();
        assert_eq!(unused(&lower, "c"), 0, "damage {number}");
    }
}

/// A request for more than is free did not get the room that was preallocated; and small disks
/// beside much memory had nothing preallocated.
#[test]
fn what_is_preallocated_counts_as_free_and_makes_way() {
    let lower = CrashLower::new();
    let mut space = lower.space().unwrap();
    (space.total_bytes, space.free_bytes, space.available_bytes) = (64 << 20, 8 << 20, 8 << 20);
    lower.set_space(space);
    let store = open(&lower);
    let id = with_database(&store, "a");
    let unused_bytes = STEP - 8 * KIB;
    assert_eq!(unused(&lower, "a"), unused_bytes, "a small disk, too");
    let own = store.space().unwrap();
    assert_eq!(
        own.available_bytes,
        space.available_bytes + unused_bytes - missing_reserve(&store)
    );
    space.available_bytes = 40 << 10;
    lower.set_space(space);
    grow(&store, plain_file(id, 0, 1), 2, 3, Vec::new());
    assert_eq!(unused(&lower, "a"), 0, "before anything finds no room");
    store.apply().unwrap();
    assert_eq!(
        unused(&lower, "a"),
        0,
        "nothing is preallocated while room is short"
    );
    store.close().unwrap();
}

/// What the store keeps of the room because its reserve is not whole.
fn missing_reserve(store: &TestStore) -> u64 {
    let promised = store.pending().on_full_disk.entries_bytes_max;
    if promised > 0 { 0 } else { 64 << 10 }
}
