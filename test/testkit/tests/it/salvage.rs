//! Salvages of stores whose lost transactions are in the tree in part, or whose journal cannot say
//! whether they are. The fuzz target `journal_salvage` has random histories and damage.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use mobifs_base::{Entry, FileKind, Name, ObjectId, PAGE_BYTES, Page, PageIndex};
use mobifs_store::lower::{Create, Lower as _};
use mobifs_store::salvage::{Promise, Survey, salvage, survey};
use mobifs_store::{
    Gate, JournalOptions, JournalStore, Store as _, StoreError, Transaction, inspect,
};
use mobifs_testkit::crash::{CrashLower, Fate};
use mobifs_testkit::entries::{plain_file, root_entry};

pub(super) const OPTIONS: JournalOptions = JournalOptions {
    preallocation: mobifs_store::Preallocation::OFF,
    journal_bytes: 256 << 10,
    direct_bytes_max: Some(8 << 10),
    measuring: mobifs_store::Measuring::AtOpening,
    uuid_if_new: *b"a salvaged store",
    read_only: false,
    reserve_bytes: 0,
    ahead_pages_min: 1,
    held_bytes_max: 64 << 20,
};
const FILES: [&str; 4] = ["a", "b", "c", "d"];
pub(super) const BLOCK: usize = 4096;
/// Size that the first transaction gives to `a`.
const BYTES: u64 = 77;

pub(super) fn open(lower: &CrashLower) -> JournalStore<Gate<CrashLower>> {
    JournalStore::open(Gate::new(lower.clone()), &OPTIONS)
        .unwrap()
        .0
}

/// A store with four files, and nothing in its journal.
fn store() -> (CrashLower, JournalStore<Gate<CrashLower>>) {
    let lower = CrashLower::new();
    let root = lower.root().unwrap();
    for name in FILES {
        lower
            .create(&root, name.as_bytes(), Create::Regular)
            .unwrap();
        let file = lower.open(&root, name.as_bytes(), true).unwrap();
        lower.write_at(&file, &[b'.'; PAGE_BYTES], 0).unwrap();
    }
    lower.sync_all().unwrap();
    let store = open(&lower);
    (lower, store)
}

fn id(store: &JournalStore<Gate<CrashLower>>, name: &str) -> ObjectId {
    child(store, ObjectId::ROOT, name)
}

pub(super) fn child(
    store: &JournalStore<Gate<CrashLower>>,
    parent: ObjectId,
    name: &str,
) -> ObjectId {
    let entries = store.list_directory(parent).unwrap();
    let entry = entries
        .iter()
        .find(|entry| entry.name.as_bytes() == name.as_bytes());
    entry.unwrap().id
}

pub(super) fn commit(store: &JournalStore<Gate<CrashLower>>, entries: Vec<Entry>) {
    let mut transaction = Transaction::default();
    transaction.extend(entries);
    store.commit(transaction).unwrap();
}

fn sized(id: ObjectId, size: u64) -> Entry {
    Entry::Object(plain_file(id, size, 1))
}

/// `a` gets another size; `d` is changed, by the transaction that will be damaged; `a` gets another
/// name, and `b` other content.
fn history() -> (CrashLower, JournalStore<Gate<CrashLower>>) {
    let (lower, store) = store();
    let [a, b, d] = ["a", "b", "d"].map(|name| id(&store, name));
    commit(&store, vec![sized(a, BYTES)]);
    commit(&store, vec![sized(d, 5)]);
    let page = Entry::Page {
        object: b,
        index: PageIndex(0),
        page: Page::new(&[b'!'; PAGE_BYTES]),
    };
    commit(
        &store,
        vec![
            sized(a, BYTES),
            sized(b, PAGE_BYTES as u64),
            page,
            root_entry("a", None),
            root_entry("renamed", Some(a)),
        ],
    );
    (lower, store)
}

/// The bytes of the journal; `change` says what happens to them.
pub(super) fn damage(lower: &CrashLower, mut change: impl FnMut(&mut Vec<u8>)) {
    let own = lower
        .open(&lower.root().unwrap(), b".mobifs", true)
        .unwrap();
    let file = lower.open(&own, b"journal", true).unwrap();
    let mut journal = vec![0; lower.stat(&file).unwrap().size as usize];
    lower.read_at(&file, &mut journal, 0).unwrap();
    change(&mut journal);
    lower.write_at(&file, &journal, 0).unwrap();
    lower.truncate(&file, journal.len() as u64).unwrap();
    lower.sync_all().unwrap();
}

/// The block of the second transaction is lost.
fn damage_second(lower: &CrashLower) {
    damage(lower, |journal| journal[3 * BLOCK..4 * BLOCK].fill(0));
}

fn names(lower: &CrashLower) -> Vec<String> {
    let entries = lower.list(&lower.root().unwrap()).unwrap().into_iter();
    let names = entries.map(|entry| String::from_utf8(entry.name).unwrap());
    let mut names: Vec<String> = names.filter(|name| name != ".mobifs").collect();
    names.sort();
    names
}

fn content(lower: &CrashLower, name: &str) -> Vec<u8> {
    let root = lower.root().unwrap();
    let file = lower.open(&root, name.as_bytes(), false).unwrap();
    let mut content = vec![0; lower.stat(&file).unwrap().size as usize];
    lower.read_at(&file, &mut content, 0).unwrap();
    content
}

/// Salvages the store, mounts and unmounts it, and checks that nothing is left to do.
pub(super) fn salvaged(lower: &CrashLower) -> Survey {
    let done = salvage(lower, &OPTIONS, None).unwrap();
    open(lower).close().unwrap();
    let found = inspect(lower).unwrap();
    assert!(found.report.clean && found.problems.is_empty(), "{found:?}");
    done.survey
}

/// With any part of an apply done, also of its names.
#[test]
fn names_that_a_lost_transaction_has_moved_come_back_and_mixed_files_are_named() {
    let (mut moved, mut mixed, mut untouched) = (0, 0, 0);
    for count in 1.. {
        let (lower, store) = history();
        lower.cut_after(lower.operations() + count);
        let is_complete = store.apply().is_ok();
        drop(store);
        if is_complete {
            break;
        }
        for pattern in 0..4_u64 {
            let mut number = 0_u64;
            let lower = lower.crash_image(&mut |_| {
                number += 1;
                let lands = pattern == 0 || !(number * (pattern + 2)).is_multiple_of(3);
                if lands { Fate::Land } else { Fate::Vanish }
            });
            damage_second(&lower);
            if inspect(&lower).is_ok() {
                // The new epoch has begun.
                continue;
            }
            moved += u64::from(names(&lower).contains(&"renamed".to_owned()));
            let is_written = content(&lower, "b")[0] == b'!';
            let found = salvaged(&lower);
            assert_eq!(names(&lower), FILES, "count {count}, {found:?}");
            assert_eq!(
                content(&lower, "a"),
                [b'.'; BYTES as usize],
                "count {count}"
            );
            assert_eq!(found.recovery_point.transactions, 1, "count {count}");
            assert!(
                found.lost.transactions >= 2,
                "and perhaps a rename mark: {found:?}"
            );
            let b = found
                .lost
                .files
                .iter()
                .find(|file| file.path == "b")
                .unwrap();
            if is_written {
                mixed += 1;
                assert!(b.may_be_mixed, "count {count}: {found:?}");
                assert_eq!(found.promise, Promise::Mixed);
            } else if !b.may_be_mixed {
                untouched += 1;
                assert_eq!(content(&lower, "b"), [b'.'; PAGE_BYTES]);
            }
        }
    }
    assert!(
        moved > 0 && mixed > 0 && untouched > 0,
        "{moved} {mixed} {untouched}"
    );
}

/// Files were changed, without MobiFS, after everything in the journal was applied: what it says of
/// them is old.
#[test]
fn an_epoch_that_was_applied_is_not_applied_again_where_no_superblock_says_so() {
    for is_edited in [false, true] {
        let (lower, store) = history();
        store.close().unwrap();
        if is_edited {
            let root = lower.root().unwrap();
            let file = lower.open(&root, b"renamed", true).unwrap();
            lower.write_at(&file, b"edited", 0).unwrap();
        }
        let before = FILES[1..]
            .iter()
            .chain(&["renamed"])
            .map(|name| content(&lower, name));
        let before: Vec<Vec<u8>> = before.collect();
        damage(&lower, |journal| journal[..2 * BLOCK].fill(0));
        let found = salvaged(&lower);
        assert_eq!(found.recovery_point.transactions, 0, "{found:?}");
        assert_eq!(names(&lower), ["b", "c", "d", "renamed"]);
        let after = FILES[1..]
            .iter()
            .chain(&["renamed"])
            .map(|name| content(&lower, name));
        assert_eq!(after.collect::<Vec<_>>(), before);
    }
}

/// The superblocks are lost, and the transactions are not applied.
#[test]
fn what_is_not_applied_is_found_without_a_superblock() {
    let (lower, store) = history();
    drop(store);
    damage(&lower, |journal| journal[..2 * BLOCK].fill(0));
    let found = salvaged(&lower);
    assert_eq!(found.recovery_point.transactions, 3, "{found:?}");
    assert_eq!(names(&lower), ["b", "c", "d", "renamed"]);
    assert_eq!(content(&lower, "b"), [b'!'; PAGE_BYTES]);
}

#[test]
fn a_journal_that_was_cut_short_loses_what_was_cut_off() {
    let (lower, store) = history();
    drop(store);
    damage(&lower, |journal| journal.truncate(4 * BLOCK));
    let found = salvaged(&lower);
    assert_eq!(found.recovery_point.transactions, 2, "{found:?}");
    assert_eq!(names(&lower), FILES);
    assert_eq!(content(&lower, "d").len(), 5);
}

/// It was refused, and said so, and stays so.
#[test]
fn a_newer_format_is_not_salvaged() {
    let (lower, store) = history();
    drop(store);
    damage(&lower, |journal| {
        for slot in 0..2 {
            let block = &mut journal[slot * BLOCK..][..BLOCK];
            block[8] = 77;
            let crc = crc32c(&block[..124]);
            block[124..128].copy_from_slice(&crc.to_le_bytes());
        }
    });
    for refused in [
        survey(&lower, None).map(drop),
        salvage(&lower, &OPTIONS, None).map(drop),
    ] {
        let is_newer = matches!(refused, Err(StoreError::NewerFormat { found: 77, .. }));
        assert!(is_newer, "{refused:?}");
    }
}

/// CRC32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc: u32, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            (crc >> 1) ^ if crc & 1 == 0 { 0 } else { 0x82f6_3b78 }
        })
    })
}

/// A journal that another store's takes the place of is set aside; so is one that is no journal.
#[test]
fn what_is_no_journal_of_this_store_is_set_aside() {
    let (lower, store) = history();
    store.close().unwrap();
    let (other, other_store) = {
        let lower = CrashLower::new();
        let options = JournalOptions {
            uuid_if_new: *b"of another store",
            ..OPTIONS
        };
        let store = JournalStore::open(Gate::new(lower.clone()), &options)
            .unwrap()
            .0;
        (lower, store)
    };
    drop(other_store);
    let own = other
        .open(&other.root().unwrap(), b".mobifs", true)
        .unwrap();
    let file = other.open(&own, b"journal", false).unwrap();
    let mut foreign = vec![0; other.stat(&file).unwrap().size as usize];
    other.read_at(&file, &mut foreign, 0).unwrap();
    for (content, number) in [(foreign, 1), (vec![7; 100], 2)] {
        // As a copy: another file.
        let mobifs = lower
            .open(&lower.root().unwrap(), b".mobifs", true)
            .unwrap();
        lower.unlink(&mobifs, b"journal").unwrap();
        lower.create(&mobifs, b"taken", Create::Regular).unwrap();
        lower.create(&mobifs, b"journal", Create::Regular).unwrap();
        damage(&lower, |journal| journal.clone_from(&content));
        let done = salvage(&lower, &OPTIONS, None).unwrap();
        assert_eq!(done.kept, Some(format!("journal.damaged-{number}")));
        open(&lower).close().unwrap();
        assert_eq!(names(&lower), ["b", "c", "d", "renamed"]);
        lower.unlink(&mobifs, b"taken").unwrap();
    }
}

/// A directory is removed from the store while the journal, which is intact, moves a file into it and makes others in
/// it: the file that lay elsewhere was deleted, and a new directory in it made the journal useless.
#[test]
fn what_goes_into_a_directory_that_is_missing_is_kept() {
    let lower = CrashLower::new();
    let root = lower.root().unwrap();
    lower.create(&root, b"old", Create::Regular).unwrap();
    let file = lower.open(&root, b"old", true).unwrap();
    lower.write_at(&file, b"precious", 0).unwrap();
    lower.create(&root, b"dir", Create::Directory).unwrap();
    let directory = lower.open(&root, b"dir", true).unwrap();
    lower.create(&directory, b"inner", Create::Regular).unwrap();
    lower.sync_all().unwrap();
    let store = open(&lower);
    let [old, dir] = ["old", "dir"].map(|name| id(&store, name));
    let _inner = child(&store, dir, "inner");
    let new = |number: u64| ObjectId(ObjectId::FIRST_NEW.0 + 2 * number);
    let entry = |parent, name: &str, child| Entry::Dentry {
        parent,
        name: Name::new(name.as_bytes()).unwrap(),
        child: Some(child),
    };
    let mut sub = plain_file(new(0), 0, 2);
    (sub.attributes.kind, sub.attributes.mode, sub.created) = (FileKind::Directory, 0o755, true);
    let mut file = plain_file(new(1), PAGE_BYTES as u64, 1);
    file.created = true;
    let page = Entry::Page {
        object: new(1),
        index: PageIndex(0),
        page: Page::new(&[b'!'; PAGE_BYTES]),
    };
    commit(
        &store,
        vec![
            sized(old, 8),
            root_entry("old", None),
            entry(dir, "moved", old),
            Entry::Object(sub),
            entry(dir, "sub", new(0)),
            Entry::Object(file),
            entry(new(0), "file", new(1)),
            page,
        ],
    );
    drop(store);
    lower.unlink(&directory, b"inner").unwrap();
    lower.remove_directory(&root, b"dir").unwrap();
    lower.sync_all().unwrap();
    let found = survey(&lower, None).unwrap();
    assert_eq!(found.made_again, ["dir"]);
    salvage(&lower, &OPTIONS, None).unwrap();
    open(&lower).close().unwrap();
    assert_eq!(names(&lower), ["dir"]);
    let at = |path: &[&str]| {
        let mut handle = lower.root().unwrap();
        for part in path {
            handle = lower.open(&handle, part.as_bytes(), false).unwrap();
        }
        let mut content = vec![0; lower.stat(&handle).unwrap().size as usize];
        lower.read_at(&handle, &mut content, 0).unwrap();
        content
    };
    assert_eq!(at(&["dir", "moved"]), b"precious");
    assert_eq!(at(&["dir", "sub", "file"]), [b'!'; PAGE_BYTES]);
}
