//! Journals with valid checksums and content that no mount would write. Opening such a store may
//! fail, and takes effort in proportion to the journal's content: counted in calls to the lower
//! filesystem, because time cannot be asserted.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use mobifs_base::{
    Attributes, ByteRange, DeviceNumber, FileKind, Name, ObjectId, ObjectState, PageIndex,
    Timestamp,
};
use mobifs_store::fuzzing::{Record, append, encode};
use mobifs_store::lower::{Create, Lower};
use mobifs_store::{
    Capabilities, Gate, Intent, JournalOptions, JournalStore, KnownObject, MEMORY_CAPABILITIES,
    PosixLower, RecoveryReport, RestartSink, RestartState, Store as _, StoreError, StoreScope,
};
use mobifs_testkit::crash::{CrashHandle, CrashLower};

const OPTIONS: JournalOptions = JournalOptions {
    journal_bytes: 4 << 20,
    direct_bytes_max: Some(8 << 10),
    measuring: mobifs_store::Measuring::AtOpening,
    uuid_if_new: *b"a forged journal",
    read_only: false,
    reserve_bytes: 0,
    ahead_pages_min: 1,
    preallocation: mobifs_store::Preallocation::OFF,
    held_bytes_max: 64 << 20,
};
/// Calls that opening a store takes in any case, and for each object that its journal knows.
const CALLS_ALWAYS: u64 = 200;
const CALLS_EACH: u64 = 12;

/// A restart-state sink that keeps nothing.
struct Forgetful;

impl RestartSink for Forgetful {
    fn object(&self, _id: ObjectId, _known: Option<&KnownObject>) {}
    fn intent(&self, _intent: Option<Intent>) {}
}

/// Opens a store to whose journal the records were added, which concern so many objects.
fn open(records: &[Record], objects: u64) -> Result<RecoveryReport, StoreError> {
    let lower = CrashLower::new();
    drop(JournalStore::open(Gate::new(lower.clone()), &OPTIONS).unwrap());
    forge(&lower, records);
    lower.limit_calls(lower.calls() + CALLS_ALWAYS + objects * CALLS_EACH);
    JournalStore::open(Gate::new(lower), &OPTIONS).map(|(_store, report)| report)
}

/// Adds a transaction to a store's journal.
fn forge(lower: &impl Lower, records: &[Record]) {
    assert!(try_forge(lower, records));
}

/// As [`forge`]; false if there is no room for it.
fn try_forge(lower: &impl Lower, records: &[Record]) -> bool {
    let own = lower
        .open(&lower.root().unwrap(), b".mobifs", true)
        .unwrap();
    let file = lower.open(&own, b"journal", true).unwrap();
    let mut journal = vec![0; lower.stat(&file).unwrap().size as usize];
    lower.read_at(&file, &mut journal, 0).unwrap();
    let is_added = append(&mut journal, records.len() as u32, &encode(records)).unwrap();
    lower.write_at(&file, &journal, 0).unwrap();
    is_added
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

/// Each directory was in the next one, and is to be in the next but one: the number of ways up is
/// exponential.
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

/// Many files, all in a directory that is deep in directories that are gone.
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

/// The root, with a directory and a file in it, of a store that has nothing pending.
fn furnished() -> (CrashLower, CrashHandle) {
    let lower = CrashLower::new();
    drop(JournalStore::open(Gate::new(lower.clone()), &OPTIONS).unwrap());
    let root = lower.root().unwrap();
    lower
        .create(&root, b"directory", Create::Directory)
        .unwrap();
    lower.create(&root, b"file", Create::Regular).unwrap();
    (lower, root)
}

fn made(number: u64, kind: FileKind) -> ObjectState {
    let Record::Object(mut state) = changed(number) else {
        panic!("it is one");
    };
    (state.created, state.attributes.kind) = (true, kind);
    state.id = new(number);
    state
}

fn new(number: u64) -> ObjectId {
    ObjectId(ObjectId::FIRST_NEW.0 + 2 * number)
}

fn entry(parent: ObjectId, name: &str, child: Option<ObjectId>) -> Record {
    let name = Name::new(name.as_bytes()).unwrap();
    Record::Dentry {
        parent,
        name,
        child,
    }
}

/// Such a store was served, and could never be applied. The first two were found by the fuzzer
/// of forged mounts, the others by asking what else it could find.
#[test]
fn what_no_apply_could_do_is_refused_and_nothing_is_touched() {
    let root = ObjectId::ROOT;
    let directory = |number| Record::Object(made(number, FileKind::Directory));
    let mut ownerless = made(0, FileKind::Regular);
    ownerless.attributes.uid = u32::MAX;
    let mut leads_nowhere = made(0, FileKind::Symlink);
    leads_nowhere.symlink_target = Some([].into());
    let refused = [
        (
            "the root has a name",
            vec![
                directory(0),
                entry(root, "d", Some(new(0))),
                entry(new(0), "root", Some(root)),
            ],
        ),
        (
            "a directory is never made",
            vec![directory(0), directory(1), entry(new(0), "d", Some(new(1)))],
        ),
        (
            "a file has entries",
            vec![
                Record::Object(made(0, FileKind::Regular)),
                entry(root, "f", Some(new(0))),
                directory(1),
                entry(new(0), "d", Some(new(1))),
            ],
        ),
        (
            "the store's own directory goes",
            vec![entry(root, ".mobifs", None)],
        ),
        (
            "its place is taken",
            vec![directory(0), entry(root, ".mobifs", Some(new(0)))],
        ),
        (
            "it has no owner",
            vec![Record::Object(ownerless), entry(root, "f", Some(new(0)))],
        ),
        (
            "it leads nowhere",
            vec![
                Record::Object(leads_nowhere),
                entry(root, "s", Some(new(0))),
            ],
        ),
    ];
    let mut wrong = Vec::new();
    for (why, mut records) in refused {
        let (lower, handle) = furnished();
        // What comes first when names move.
        records.push(entry(root, "directory", None));
        forge(&lower, &records);
        let opened = JournalStore::open(Gate::new(lower.clone()), &OPTIONS);
        let is_untouched = lower.stat_at(&handle, b"directory").is_ok();
        if opened.is_ok() || !is_untouched {
            wrong.push((why, opened.map(|(_, report)| report.applied), is_untouched));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A database from another user may come with a journal that targets the other files there.
#[test]
fn a_journal_of_one_file_reaches_no_other_file_of_its_directory() {
    let directory = tempfile::tempdir().unwrap();
    let lower = || {
        let scope = StoreScope::File("database".into());
        PosixLower::open_scoped(directory.path(), scope).unwrap()
    };
    let path = |name: &str| directory.path().join(name);
    std::fs::create_dir(path("directory")).unwrap();
    for name in ["database", "other", "directory/other"] {
        std::fs::write(path(name), name).unwrap();
    }
    drop(JournalStore::open(Gate::new(lower()), &OPTIONS).unwrap());
    let journal = std::fs::read(path("database-mobifs/journal")).unwrap();
    let place = |number, name: &str, kind| Record::Known {
        id: object(number),
        inode: std::fs::metadata(path(name)).unwrap().ino(),
        kind,
        parent: ObjectId::ROOT,
        name: name.as_bytes().to_vec(),
    };
    let other = || place(0, "other", FileKind::Regular);
    let root = ObjectId::ROOT;
    let forged = [
        vec![entry(root, "other", None)],
        vec![entry(root, "database-mobifs", None)],
        vec![other(), changed(0)],
        vec![
            other(),
            entry(root, "database-mobifs-taken", Some(object(0))),
        ],
        vec![
            place(1, "directory", FileKind::Directory),
            entry(object(1), "other", None),
        ],
        vec![
            Record::Object(made(0, FileKind::Regular)),
            entry(root, "new", Some(new(0))),
        ],
    ];
    for records in forged {
        std::fs::write(path("database-mobifs/journal"), &journal).unwrap();
        forge(&lower(), &records);
        if let Ok((store, _)) = JournalStore::open(Gate::new(lower()), &OPTIONS) {
            store.close().unwrap();
        }
        for name in ["other", "directory/other"] {
            let content = std::fs::read_to_string(path(name));
            assert_eq!(content.unwrap(), name, "{records:?}");
        }
        let mut names: Vec<_> = std::fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(
            names,
            ["database", "database-mobifs", "directory", "other"],
            "{records:?}"
        );
    }
}

/// Other programs with write access may change the journal between two processes that serve the
/// store.
#[test]
fn the_successor_of_a_killed_process_refuses_what_no_apply_could_do() {
    let (lower, root) = furnished();
    forge(
        &lower,
        &[
            entry(ObjectId::ROOT, "directory", None),
            entry(ObjectId::ROOT, ".mobifs", None),
        ],
    );
    let resumed = JournalStore::resume(
        Gate::new(lower.clone()),
        &OPTIONS,
        Arc::new(Forgetful),
        RestartState::default(),
    );
    assert!(matches!(resumed, Err(StoreError::Corrupt { .. })));
    assert!(lower.stat_at(&root, b"directory").is_ok());
}

/// How many names a file can have shows a probe that writes: a mount that only reads does not know it, and needs not.
const TOO_MANY_NAMES: &str = "more names than files can have";

/// A journal that no mount writes may still be applied; if not, the store is refused and not
/// served.
fn assert_none_is_served_unapplied<const CASES: usize>(cases: [(&str, Vec<Record>); CASES]) {
    let (mut wrong, mut unapplied) = (Vec::new(), Vec::new());
    for (why, records) in cases {
        let (lower, _) = furnished();
        lower.set_capabilities(Capabilities {
            file_bytes_max: 1 << 40,
            links_max: 1,
            ..MEMORY_CAPABILITIES
        });
        forge(&lower, &records);
        let before = lower.operations();
        let read_only = JournalOptions {
            read_only: true,
            ..OPTIONS
        };
        let is_opened = JournalStore::open(Gate::new(lower.clone()), &read_only).is_ok();
        if is_opened && why != TOO_MANY_NAMES {
            unapplied.push(why);
        }
        assert_eq!(lower.operations(), before, "nothing is written: {why}");
        let Ok((store, report)) = JournalStore::open(Gate::new(lower), &OPTIONS) else {
            continue;
        };
        let closed = store.close();
        if !report.applied || closed.is_err() {
            wrong.push((why, report.applied, closed));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(unapplied.is_empty(), "served read-only: {unapplied:#?}");
}

/// Numbers of later files went on from there, and were given twice.
#[test]
fn an_overflow_file_with_a_number_that_no_mount_gives_is_refused() {
    for file in [0, u64::MAX / 2 + 1, u64::MAX] {
        let record = Record::External {
            file,
            bytes: 0,
            records: 0,
            crc32c: 0,
        };
        let refused = open(&[record], 1).unwrap_err().to_string();
        assert!(
            refused.contains("no mount gives a file this number"),
            "{refused}"
        );
    }
}

/// A place of something in a furnished store.
fn at(number: u64, inode_of: &str, kind: FileKind, name: &str) -> Record {
    let (lower, root) = furnished();
    let inode = lower.stat_at(&root, inode_of.as_bytes()).unwrap().inode;
    Record::Known {
        id: object(number),
        inode,
        kind,
        parent: ObjectId::ROOT,
        name: name.as_bytes().to_vec(),
    }
}

/// The first one was served, and could never be applied.
#[test]
fn places_that_no_mount_records_are_tried_out_before_a_store_is_served() {
    let root = ObjectId::ROOT;
    let directory = || at(0, "directory", FileKind::Directory, "directory");
    let file = |number| at(number, "file", FileKind::Regular, "file");
    let moved = |name: &str, number| entry(root, name, Some(object(number)));
    let removed = |name: &str| entry(root, name, None);
    let other = at(1, "directory", FileKind::Regular, "x");
    let of_the_root = Record::Known {
        id: root,
        inode: 77,
        kind: FileKind::Directory,
        parent: root,
        name: b"root".to_vec(),
    };
    let own = at(0, "directory", FileKind::Directory, ".mobifs");
    let lie = at(0, "directory", FileKind::Regular, "directory");
    let below_itself = entry(object(0), "d", Some(object(0)));
    let below_gone = entry(object(0), "f", Some(object(1)));
    let gone = removed("directory");
    let both = vec![
        file(1),
        file(2),
        moved("a", 1),
        moved("b", 2),
        removed("file"),
    ];
    assert_none_is_served_unapplied([
        ("two objects with one inode", both),
        ("an object with two inodes", vec![file(1), other]),
        ("a place of the root", vec![of_the_root]),
        ("a place of the store's own directory", vec![own]),
        (
            "a directory that is called a file",
            vec![lie, moved("m", 0), gone.clone()],
        ),
        (
            "a directory in itself",
            vec![directory(), gone.clone(), below_itself],
        ),
        (
            "entries of what is removed",
            vec![directory(), file(1), gone, below_gone],
        ),
    ]);
}

#[test]
fn changes_that_no_mount_commits_are_tried_out_before_a_store_is_served() {
    let is_new = entry(ObjectId::ROOT, "new", Some(new(0)));
    let file = || made(0, FileKind::Regular);
    let mut numbered = file();
    numbered.id = ObjectId(7);
    let name_of_numbered = entry(ObjectId::ROOT, "new", Some(numbered.id));
    let mut huge = file();
    huge.attributes.size = u64::MAX;
    let mut odd = file();
    odd.xattrs = vec![(b"unknown.x".to_vec().into(), None)];
    let direct = Record::Direct {
        object: object(9),
        range: ByteRange::new(0, 4096),
    };
    let other_kind = vec![at(0, "file", FileKind::Fifo, "file"), changed(0)];
    let second = entry(ObjectId::ROOT, "second", Some(new(0)));
    let is_new_too = is_new.clone();
    let lost = entry(new(0), "lost", None);
    let [numbered, huge, odd, named_twice, emptied] =
        [numbered, huge, odd, file(), file()].map(Record::Object);
    assert_none_is_served_unapplied([
        (
            "a new object with the number of an inode",
            vec![numbered, name_of_numbered],
        ),
        ("a file that is too large", vec![huge, is_new.clone()]),
        ("an attribute that cannot be set", vec![odd, is_new.clone()]),
        (TOO_MANY_NAMES, vec![named_twice, is_new, second]),
        (
            "a file that has lost an entry",
            vec![emptied, is_new_too, lost],
        ),
        ("changes without attributes", vec![direct]),
        ("changes of an object of another kind", other_kind),
    ]);
}

/// Every commit of a mount leaves room for what an apply has to write.
#[test]
fn a_journal_without_room_for_its_own_apply_is_not_served() {
    let lower = CrashLower::new();
    let options = JournalOptions {
        journal_bytes: 64 << 10,
        ..OPTIONS
    };
    drop(JournalStore::open(Gate::new(lower.clone()), &options).unwrap());
    let is_new = entry(ObjectId::ROOT, "new", Some(new(0)));
    forge(
        &lower,
        &[Record::Object(made(0, FileKind::Regular)), is_new],
    );
    let again = || Record::Object(made(0, FileKind::Regular));
    while try_forge(&lower, &[again()]) {}
    JournalStore::open(Gate::new(lower), &options)
        .map(drop)
        .unwrap_err();
}

/// A file is changed that is, by its inode, a directory; and it has been opened as one, because
/// another file was looked for in it.
#[test]
fn a_file_that_is_a_directory_is_taken_for_gone() {
    let lower = CrashLower::new();
    drop(JournalStore::open(Gate::new(lower.clone()), &OPTIONS).unwrap());
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
    let (store, report) = JournalStore::open(Gate::new(lower), &OPTIONS).unwrap();
    assert!(!report.applied, "{report:?}");
    store.apply().unwrap();
}

/// Found by the fuzzer: what was found in the tree got the id of what the journal changed, by
/// its inode number, and the changes with it.
#[test]
fn what_is_found_does_not_get_the_changes_of_an_object_without_a_place() {
    let lower = CrashLower::new();
    drop(JournalStore::open(Gate::new(lower.clone()), &OPTIONS).unwrap());
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
    let (store, _) = JournalStore::open(Gate::new(lower.clone()), &OPTIONS).unwrap();
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
