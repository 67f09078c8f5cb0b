use std::path::{Path, PathBuf};

use mobifs_base::{Entry, FileKind, Name, ObjectId, Page, PageIndex};

use crate::fixtures::file_state;
use crate::log::header::Header;
use crate::log::superblock::{FORMAT_VERSION, LOG_START, Slot, Superblock, parse};
use crate::lower::{Gate, JOURNAL_BLOCK_BYTES, PosixLower};
use crate::recovery::report::RecoveryReport;
use crate::{JournalOptions, JournalStore};
use crate::{Store, StoreError, Transaction};

const FIRST: ObjectId = ObjectId::FIRST_NEW;
const SECOND: ObjectId = ObjectId(ObjectId::FIRST_NEW.0 + 2);

fn try_open(path: &Path) -> Result<(JournalStore<Gate<PosixLower>>, RecoveryReport), StoreError> {
    let options = JournalOptions {
        journal_bytes: 1 << 20,
        direct_bytes_max: Some(0),
        ..JournalOptions::default()
    };
    JournalStore::open(Gate::new(PosixLower::open(path).unwrap()), &options)
}

fn open(path: &Path) -> (JournalStore<Gate<PosixLower>>, RecoveryReport) {
    try_open(path).unwrap()
}

/// Commits a new file of one page.
fn commit(store: &impl Store, id: ObjectId, name: &str, content: &[u8]) {
    let mut transaction = Transaction::default();
    transaction.extend([
        Entry::Object(file_state(id, true, content.len() as u64)),
        Entry::Dentry {
            parent: ObjectId::ROOT,
            name: Name::new(name.as_bytes()).unwrap(),
            child: Some(id),
        },
        Entry::Page {
            object: id,
            index: PageIndex(0),
            page: Page::new(content),
        },
    ]);
    store.commit(transaction).unwrap();
}

fn names(store: &impl Store) -> Vec<String> {
    let mut names: Vec<String> = store
        .list_directory(ObjectId::ROOT)
        .unwrap()
        .into_iter()
        .map(|entry| entry.name.to_string())
        .collect();
    names.sort();
    names
}

/// A store that lost its power with these files committed and not applied.
fn cut(files: &[(ObjectId, &str)]) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let (store, _) = open(directory.path());
    for &(id, name) in files {
        commit(&store, id, name, &[b'x'; 4096]);
    }
    store.cut_power();
    let journal = directory.path().join(".mobifs/journal");
    (directory, journal)
}

#[test]
fn new_objects_are_numbered_above_those_of_an_unapplied_journal() {
    let (directory, _) = cut(&[(FIRST, "first")]);
    let (store, report) = open(directory.path());
    assert!(!report.applied);
    let next = store.first_new_object();
    assert_eq!(next, SECOND);
    commit(&store, next, "second", b"other");
    store.cut_power();
    drop(store);
    let (store, report) = open(directory.path());
    assert_eq!((report.transactions, report.applied), (2, false));
    assert_eq!(names(&store), ["first", "second"]);
    store.apply().unwrap();
    drop(store);
    let read = |name: &str| std::fs::read(directory.path().join(name)).unwrap();
    assert_eq!(
        (read("first"), read("second")),
        (vec![b'x'; 4096], b"other".to_vec())
    );
    // Everything is in the tree, under the numbers of its inodes.
    assert_eq!(open(directory.path()).0.first_new_object(), FIRST);
}

#[test]
fn what_was_discarded_does_not_come_back_when_its_end_is_written_by_another() {
    let (directory, journal) = cut(&[(FIRST, "first"), (SECOND, "second")]);
    let mut image = std::fs::read(&journal).unwrap();
    // The second transaction's last block did not arrive.
    let whole = image.clone();
    let end = LOG_START as usize + 4 * JOURNAL_BLOCK_BYTES;
    let last = end - JOURNAL_BLOCK_BYTES..end;
    assert!(image[last.clone()].iter().any(|&byte| byte != 0));
    image[last.clone()].fill(0);
    std::fs::write(&journal, &image).unwrap();
    let (store, report) = open(directory.path());
    assert!(
        report.discarded_tail_bytes > 0 && !report.applied,
        "{report:?}"
    );
    assert_eq!(names(&store), ["first"]);
    store.cut_power();
    drop(store);
    // Another with the same last block was being written over it, and only that block landed.
    let mut image = std::fs::read(&journal).unwrap();
    image[last.clone()].copy_from_slice(&whole[last]);
    std::fs::write(&journal, &image).unwrap();
    let (store, report) = open(directory.path());
    assert_eq!(report.transactions, 1, "{report:?}");
    assert_eq!(names(&store), ["first"]);
}

/// The journal as a program of format version 1 would have left it.
fn make_older(journal: &Path) {
    let mut image = std::fs::read(journal).unwrap();
    let Slot::Valid(superblock) = parse(&image[..JOURNAL_BLOCK_BYTES]) else {
        panic!("no superblock");
    };
    let older = Superblock {
        version: 1,
        ..superblock
    };
    let (slots, log) = image.split_at_mut(LOG_START as usize);
    slots
        .chunks_mut(JOURNAL_BLOCK_BYTES)
        .for_each(|slot| older.encode(slot));
    let seed = superblock.crc_seed();
    for block in log.chunks_mut(JOURNAL_BLOCK_BYTES) {
        if let Some(header) = Header::parse(seed, block) {
            Header {
                version: 1,
                ..header
            }
            .encode(seed, block);
        }
    }
    std::fs::write(journal, &image).unwrap();
}

#[test]
fn a_journal_of_format_1_is_applied_at_once_and_its_next_epoch_is_of_this_format() {
    let (directory, journal) = cut(&[(FIRST, "first")]);
    make_older(&journal);
    let (store, report) = open(directory.path());
    assert_eq!((report.transactions, report.applied), (1, true));
    assert!(directory.path().join("first").exists());
    commit(&store, FIRST, "second", b"y");
    store.cut_power();
    drop(store);
    let image = std::fs::read(&journal).unwrap();
    let slots = image[..LOG_START as usize].chunks(JOURNAL_BLOCK_BYTES);
    for slot in slots.map(parse) {
        assert!(
            matches!(
                slot,
                Slot::Valid(Superblock {
                    version: FORMAT_VERSION,
                    ..
                })
            ),
            "{slot:?}"
        );
    }
    let (store, report) = open(directory.path());
    assert_eq!((report.transactions, report.applied), (1, false));
    assert_eq!(names(&store), ["first", "second"]);
}

#[test]
fn an_empty_store_of_format_1_is_used_in_it_until_the_next_epoch() {
    let (directory, journal) = cut(&[]);
    make_older(&journal);
    let (store, report) = open(directory.path());
    assert!(report.clean);
    commit(&store, FIRST, "first", b"y");
    store.cut_power();
    drop(store);
    let (store, report) = open(directory.path());
    assert_eq!((report.transactions, report.applied), (1, true));
    store.close().unwrap();
    let image = std::fs::read(&journal).unwrap();
    let slot = parse(&image[..JOURNAL_BLOCK_BYTES]);
    assert!(matches!(slot, Slot::Valid(s) if s.version == FORMAT_VERSION && s.clean));
}

/// Found by the replay of fuzz seeds: a listing of such a tree did not end.
#[test]
fn a_forged_journal_that_is_no_tree_is_not_served() {
    let name = |name: &str| Name::new(name.as_bytes()).unwrap();
    // A directory that contains itself, and one with two names.
    for parent in [FIRST, ObjectId::ROOT] {
        let (directory, _) = cut(&[]);
        let (store, _) = open(directory.path());
        commit(&store, SECOND, "file", b"x");
        let mut transaction = Transaction::default();
        let mut state = file_state(FIRST, true, 1);
        state.attributes.kind = FileKind::Directory;
        transaction.extend([Entry::Object(state)]);
        let entries = [(ObjectId::ROOT, "directory"), (parent, "again")];
        transaction.extend(entries.map(|(parent, at)| Entry::Dentry {
            parent,
            name: name(at),
            child: Some(FIRST),
        }));
        store.commit(transaction).unwrap();
        store.cut_power();
        drop(store);
        try_open(directory.path()).map(drop).unwrap_err();
    }
}
