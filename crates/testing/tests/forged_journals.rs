//! Journals with right checksums that say what no mount would write. Opening such a store may
//! fail, and takes no more than what the journal says once: counted in calls to the filesystem
//! below, because time cannot be asserted.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use mobifs_store::fuzzing::{Record, append, encode};
use mobifs_store::lower::{Create, Lower};
use mobifs_store::{JournalOptions, JournalStore, RecoveryReport, Store as _, StoreError};
use mobifs_testing::crash::CrashLower;
use mobifs_types::{
    Attributes, DeviceNumber, FileKind, Name, ObjectId, ObjectState, PageIndex, Timestamp,
};

const OPTIONS: JournalOptions = JournalOptions {
    journal_bytes: 4 << 20,
    direct_bytes_max: Some(8 << 10),
    uuid_if_new: *b"a forged journal",
    read_only: false,
    held_bytes_max: 64 << 20,
};
/// Calls that opening a store takes in any case, and for each object that its journal knows.
const CALLS_ALWAYS: u64 = 200;
const CALLS_EACH: u64 = 12;

/// Opens a store to whose journal the records were added, which concern so many objects.
fn open(records: &[Record], objects: u64) -> Result<RecoveryReport, StoreError> {
    let lower = CrashLower::new();
    drop(JournalStore::open(lower.clone(), &OPTIONS).unwrap());
    forge(&lower, records);
    lower.limit_calls(lower.calls() + CALLS_ALWAYS + objects * CALLS_EACH);
    JournalStore::open(lower, &OPTIONS).map(|(_store, report)| report)
}

/// Adds a transaction to a store's journal.
fn forge(lower: &CrashLower, records: &[Record]) {
    let own = lower
        .open(&lower.root().unwrap(), b".mobifs", true)
        .unwrap();
    let file = lower.open(&own, b"journal", true).unwrap();
    let mut journal = vec![0; lower.stat(&file).unwrap().size as usize];
    lower.read_at(&file, &mut journal, 0).unwrap();
    assert!(append(&mut journal, records.len() as u32, &encode(records)).unwrap());
    lower.write_at(&file, &journal, 0).unwrap();
}

/// An object of the tree; no inode of the double has a number as high as its own.
fn known(number: u64, kind: FileKind, parent: ObjectId) -> Record {
    Record::Known {
        id: object(number),
        inode: 1_000_000 + number,
        kind,
        parent,
        name: format!("known {number}").into_bytes(),
    }
}

fn object(number: u64) -> ObjectId {
    ObjectId(1000 + number)
}

fn changed(number: u64) -> Record {
    changed_file(object(number))
}

fn changed_file(id: ObjectId) -> Record {
    Record::Object(ObjectState {
        id,
        created: false,
        attributes: Attributes {
            kind: FileKind::Regular,
            mode: 0o600,
            uid: 0,
            gid: 0,
            rdev: DeviceNumber(0),
            size: 1,
            nlink: 1,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
        },
        symlink_target: None,
        zeroed: Vec::new(),
        allocated: Vec::new(),
        xattrs: Vec::new(),
    })
}

/// Each directory was in the next one, and is to be in the next but one: there are more ways
/// up than could ever be gone.
#[test]
fn directories_with_two_places_each_are_looked_for_once() {
    const DIRECTORIES: u64 = 200;
    let mut records = Vec::new();
    for number in 0..DIRECTORIES {
        records.push(known(number, FileKind::Directory, object(number + 1)));
        records.push(Record::Dentry {
            parent: object(number + 2),
            name: Name::new(b"moved").unwrap(),
            child: Some(object(number)),
        });
    }
    let error = open(&records, DIRECTORIES).unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
}

/// The same with every directory in every other one.
#[test]
fn directories_that_are_all_in_each_other_are_looked_for_once() {
    const DIRECTORIES: u64 = 40;
    let mut records = Vec::new();
    for number in 0..DIRECTORIES {
        let others = (0..DIRECTORIES).filter(|other| *other != number);
        records.extend(others.map(|other| known(number, FileKind::Directory, object(other))));
        records.push(changed(number));
    }
    let error = open(&records, DIRECTORIES);
    assert!(error.is_ok(), "{error:?}");
}

/// Many files, all in a directory that is deep down in directories that are gone.
#[test]
fn directories_that_are_gone_are_looked_for_once_and_not_for_each_file() {
    const DIRECTORIES: u64 = 3000;
    const FILES: u64 = 3000;
    let mut records = Vec::new();
    for number in 0..DIRECTORIES {
        records.push(known(number, FileKind::Directory, object(number + 1)));
    }
    for number in DIRECTORIES + 1..=DIRECTORIES + FILES {
        records.push(known(number, FileKind::Regular, object(0)));
        records.push(changed(number));
    }
    let report = open(&records, DIRECTORIES + FILES).unwrap();
    assert!(!report.applied, "{report:?}");
}

/// The same where names may have moved, so that all of it is applied at once.
#[test]
fn an_apply_looks_for_directories_that_are_gone_once() {
    const DIRECTORIES: u64 = 3000;
    let mut records = Vec::new();
    for number in 0..DIRECTORIES {
        records.push(known(number, FileKind::Directory, object(number + 1)));
        // Two names, so it is no tree.
        records.push(known(number, FileKind::Directory, object(number + 2)));
        records.push(Record::Dentry {
            parent: object(number),
            name: Name::new(b"gone").unwrap(),
            child: None,
        });
    }
    let report = open(&records, DIRECTORIES).unwrap();
    assert!(report.applied, "{report:?}");
}

/// Found by the fuzzer of forged mounts: such a store was served, and could never be applied.
#[test]
fn a_root_that_is_no_directory_is_refused() {
    let Record::Object(file) = changed(0) else {
        panic!("it is one");
    };
    let root = ObjectState {
        id: ObjectId::ROOT,
        ..file
    };
    let page = Record::Bytes {
        object: ObjectId::ROOT,
        index: PageIndex(0),
        fresh: true,
        runs: vec![(0, vec![1])],
    };
    open(&[Record::Object(root), page], 1).unwrap_err();
}

/// Found by the fuzzer: a new object was a file when it was made and a symlink afterwards, and
/// nothing said where it leads.
#[test]
fn a_new_symlink_without_a_target_is_refused() {
    let Record::Object(file) = changed(0) else {
        panic!("it is one");
    };
    let made = ObjectState {
        created: true,
        ..file
    };
    let mut symlink = made.clone();
    symlink.attributes.kind = FileKind::Symlink;
    let name = Record::Dentry {
        parent: ObjectId::ROOT,
        name: Name::new(b"symlink").unwrap(),
        child: Some(object(0)),
    };
    let records = [Record::Object(made), name, Record::Object(symlink)];
    open(&records, 1).unwrap_err();
}

/// A file is changed that is, by its inode, a directory; and it has been opened as one, because
/// another file was looked for in it.
#[test]
fn a_file_that_is_a_directory_is_taken_for_gone() {
    let lower = CrashLower::new();
    drop(JournalStore::open(lower.clone(), &OPTIONS).unwrap());
    let root = lower.root().unwrap();
    lower.create(&root, b"made", Create::Directory).unwrap();
    let place = Record::Known {
        id: object(1),
        inode: lower.stat_at(&root, b"made").unwrap().inode,
        kind: FileKind::Regular,
        parent: ObjectId::ROOT,
        name: b"made".to_vec(),
    };
    let below = known(0, FileKind::Regular, object(1));
    forge(&lower, &[place, below, changed(0), changed(1)]);
    let (store, report) = JournalStore::open(lower, &OPTIONS).unwrap();
    assert!(!report.applied, "{report:?}");
    store.apply().unwrap();
}

/// Found by the fuzzer: what was found in the tree got the id of what the journal changed, by
/// its inode number, and the changes with it.
#[test]
fn what_is_found_does_not_get_the_changes_of_an_object_without_a_place() {
    let lower = CrashLower::new();
    drop(JournalStore::open(lower.clone(), &OPTIONS).unwrap());
    let root = lower.root().unwrap();
    lower.create(&root, b"made", Create::Directory).unwrap();
    let inode = lower.stat_at(&root, b"made").unwrap().inode;
    let page = Record::Bytes {
        object: ObjectId(inode),
        index: PageIndex(0),
        fresh: true,
        runs: vec![(0, vec![1])],
    };
    forge(&lower, &[changed_file(ObjectId(inode)), page]);
    let (store, _) = JournalStore::open(lower.clone(), &OPTIONS).unwrap();
    let found = store.list_directory(ObjectId::ROOT).unwrap();
    assert_eq!(found.len(), 1);
    assert_ne!(found[0].id, ObjectId(inode));
    let kind = store.object(found[0].id).unwrap().attributes.kind;
    assert_eq!(kind, FileKind::Directory);
    store.apply().unwrap();
}

/// Found by the fuzzer: a new object was given an inode that nothing has, without names that
/// move, and so was never made.
#[test]
fn inodes_of_new_objects_are_tried_out_before_a_store_is_served() {
    let Record::Object(mut new) = changed(4) else {
        panic!("it is an object");
    };
    new.created = true;
    let name = Record::Dentry {
        parent: ObjectId::ROOT,
        name: Name::new(b"new").unwrap(),
        child: Some(object(4)),
    };
    let bind = Record::Bind {
        id: object(4),
        inode: 1_000_000,
    };
    open(&[Record::Object(new), name, bind], 1).unwrap_err();
}
