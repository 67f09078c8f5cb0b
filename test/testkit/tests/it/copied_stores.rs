//! Copies of stores that were not unmounted: the same tree and journal, and other inodes. The crash
//! search copies its images as well; these are the bugs that it found.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use mobifs_base::{Entry, ObjectId};
use mobifs_store::lower::{Create, Lower as _};
use mobifs_store::{Gate, JournalOptions, JournalStore, Store as _, StoreError, Transaction};
use mobifs_testkit::crash::{CrashLower, Effect, Fate};
use mobifs_testkit::entries::{plain_file, root_entry};

const OPTIONS: JournalOptions = JournalOptions {
    journal_bytes: 64 << 10,
    direct_bytes_max: Some(8 << 10),
    measuring: mobifs_store::Measuring::AtOpening,
    uuid_if_new: *b"a copied journal",
    read_only: false,
    reserve_bytes: 0,
    ahead_pages_min: 1,
    preallocation: mobifs_store::Preallocation::OFF,
    held_bytes_max: 64 << 20,
};
const FILES: [&str; 4] = ["a", "b", "c", "d"];
/// Size that the files have in the journal only.
const BYTES: u64 = 77;

fn open(lower: &CrashLower) -> JournalStore<Gate<CrashLower>> {
    JournalStore::open(Gate::new(lower.clone()), &OPTIONS)
        .unwrap()
        .0
}

fn changed(id: ObjectId, nlink: u32) -> Entry {
    Entry::Object(plain_file(id, BYTES, nlink))
}

/// A store whose files were changed, and nothing was applied; one of them was renamed.
fn pending() -> CrashLower {
    let lower = CrashLower::new();
    let root = lower.root().unwrap();
    for name in FILES {
        lower
            .create(&root, name.as_bytes(), Create::Regular)
            .unwrap();
    }
    let store = open(&lower);
    let mut transaction = Transaction::default();
    let entries = store.list_directory(ObjectId::ROOT).unwrap();
    for entry in &entries {
        transaction.push(changed(entry.id, 1));
    }
    let first = entries.iter().find(|entry| entry.name.as_bytes() == b"a");
    transaction.push(root_entry("a", None));
    transaction.push(root_entry("renamed", Some(first.unwrap().id)));
    store.commit(transaction).unwrap();
    drop(store);
    lower.crash_image(&mut |_| Fate::Land)
}

/// A copy with some numbers or others.
fn copy(lower: &CrashLower, mut seed: u64) -> CrashLower {
    lower.copy(&mut |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    })
}

fn assert_whole(store: &JournalStore<Gate<CrashLower>>) {
    let mut entries = store.list_directory(ObjectId::ROOT).unwrap();
    entries.sort_by(|one, other| one.name.cmp(&other.name));
    let names: Vec<_> = entries.iter().map(|entry| entry.name.as_bytes()).collect();
    assert_eq!(names, [&b"b"[..], b"c", b"d", b"renamed"]);
    for entry in &entries {
        assert_eq!(store.object(entry.id).unwrap().attributes.size, BYTES);
    }
}

/// The root of a copy may have the number that a file had in the original. Such a journal was taken
/// for a forged one and applied at once without a rename mark; after a power cut in that, a copy
/// was looked up by names that had moved.
#[test]
fn no_number_in_a_copy_makes_its_journal_doubtful() {
    let original = pending();
    for seed in 0..200 {
        let copy = copy(&original, seed);
        let (store, report) = JournalStore::open(Gate::new(copy.clone()), &OPTIONS).unwrap();
        assert!(report.copied && !report.applied, "seed {seed}: {report:?}");
        assert_whole(&store);
        drop(store);
        let (store, report) = JournalStore::open(Gate::new(copy.clone()), &OPTIONS).unwrap();
        assert!(!report.copied && !report.applied, "seed {seed}: {report:?}");
        assert_whole(&store);
        store.close().unwrap();
        assert_whole(&open(&copy));
    }
}

/// Each copy of a copy recorded its numbers after those of the one before, until no room was left
/// for the apply.
#[test]
fn copies_of_copies_take_no_more_of_the_journal() {
    let mut lower = pending();
    let mut used_bytes = None;
    for seed in 0..100 {
        lower = copy(&lower, seed);
        let store = open(&lower);
        assert_whole(&store);
        let now = store.pending().journal_used_bytes;
        assert_eq!(*used_bytes.get_or_insert(now), now, "seed {seed}");
    }
    open(&lower).close().unwrap();
    assert_whole(&open(&lower));
}

#[test]
fn a_copy_of_a_part_is_refused_or_goes_on_without_what_is_missing() {
    for (missing, is_needed) in [("a", true), ("b", false)] {
        let lower = copy(&pending(), 1);
        lower
            .unlink(&lower.root().unwrap(), missing.as_bytes())
            .unwrap();
        let opened = JournalStore::open(Gate::new(lower.clone()), &OPTIONS);
        if is_needed {
            assert!(matches!(opened, Err(StoreError::Corrupt { .. })));
            // Nothing was noted: when it is there again, nothing is missing.
            let root = lower.root().unwrap();
            lower
                .create(&root, missing.as_bytes(), Create::Regular)
                .unwrap();
            assert_whole(&open(&lower));
            continue;
        }
        let (store, _) = opened.unwrap();
        store.close().unwrap();
        let left = open(&lower).list_directory(ObjectId::ROOT).unwrap();
        assert_eq!(left.len(), FILES.len() - 1);
    }
}

/// Found by the crash search. A file that a copy had in `limbo/` under a number of the original was
/// deleted, and a power cut undid that, but not the record that the copy is bound to its own tree.
/// A file with that number here could not be removed then.
#[test]
fn what_a_copy_deletes_from_limbo_does_not_come_back() {
    let lower = copy(&pending(), 1);
    let root = lower.root().unwrap();
    let own = lower.open(&root, b".mobifs", true).unwrap();
    let limbo = lower.open(&own, b"limbo", true).unwrap();
    let number = lower.stat_at(&root, b"c").unwrap().inode.to_string();
    lower.link(&root, b"b", &limbo, number.as_bytes()).unwrap();
    lower.sync_all().unwrap();
    drop(open(&lower));

    let image = lower.crash_image(&mut |effect| match effect {
        Effect::Unlink { .. } => Fate::Vanish,
        _ => Fate::Land,
    });
    let store = open(&image);
    assert_whole(&store);
    let entries = store.list_directory(ObjectId::ROOT).unwrap();
    let removed = entries.iter().find(|entry| entry.name.as_bytes() == b"c");
    let mut transaction = Transaction::default();
    transaction.push(changed(removed.unwrap().id, 0));
    transaction.push(root_entry("c", None));
    store.commit(transaction).unwrap();
    store.apply().unwrap();
}

/// Found by the crash search. A copy that had nothing to bind deleted what it had in `limbo/`, and a power cut after
/// later transactions undid that. The name has the number of the original, and counted as one of the file's.
#[test]
fn a_name_in_limbo_that_comes_back_under_a_foreign_number_does_not_count() {
    let lower = CrashLower::new();
    let root = lower.root().unwrap();
    lower.create(&root, b"a", Create::Regular).unwrap();
    let store = open(&lower);
    let file = store.list_directory(ObjectId::ROOT).unwrap()[0].id;
    let mut transaction = Transaction::default();
    transaction.push(root_entry("b", Some(file)));
    transaction.push(root_entry("a", None));
    store.commit(transaction).unwrap();
    drop(store);
    let own = lower.open(&root, b".mobifs", true).unwrap();
    let limbo = lower.open(&own, b"limbo", true).unwrap();
    lower.link(&root, b"a", &limbo, b"4711").unwrap();
    let store = open(&lower);
    let entries = store.list_directory(ObjectId::ROOT).unwrap();
    assert_eq!(entries[0].name.as_bytes(), b"b");
    let found = store.object(entries[0].id).unwrap();
    assert_eq!(found.attributes.nlink, 1);
    store.apply().unwrap();
    assert_eq!(lower.list(&limbo).unwrap().len(), 0);
}
