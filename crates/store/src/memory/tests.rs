use super::*;

const FILE: ObjectId = ObjectId(ObjectId::FIRST_NEW.0);
const DIR: ObjectId = ObjectId(ObjectId::FIRST_NEW.0 + 2);

fn object(id: ObjectId, kind: FileKind, size: u64, created: bool) -> Entry {
    Entry::Object(ObjectState {
        id,
        created,
        attributes: Attributes {
            kind,
            mode: 0o644,
            uid: 1,
            gid: 2,
            rdev: DeviceNumber::default(),
            size,
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

fn dentry(parent: ObjectId, name: &[u8], child: Option<ObjectId>) -> Entry {
    Entry::Dentry {
        parent,
        name: Name::new(name).unwrap(),
        child,
    }
}

fn page(index: u64, byte: u8) -> Entry {
    Entry::Page {
        object: FILE,
        index: PageIndex(index),
        page: Page::new(&[byte; PAGE_BYTES]),
    }
}

fn commit(store: &MemoryStore, entries: Vec<Entry>) -> Result<(), StoreError> {
    store.commit(Transaction::from_iter(entries))
}

fn names(store: &MemoryStore, id: ObjectId) -> Vec<Vec<u8>> {
    let listing = store.list_directory(id).unwrap();
    listing
        .iter()
        .map(|entry| entry.name.as_bytes().to_vec())
        .collect()
}

#[test]
fn committed_content_reads_back_with_holes_and_end() {
    let store = MemoryStore::new();
    let entries = vec![
        object(FILE, FileKind::Regular, 3 * 4096 + 10, true),
        dentry(ObjectId::ROOT, b"f", Some(FILE)),
        page(1, 7),
        page(3, 8),
    ];
    commit(&store, entries).unwrap();
    let mut out = [1; 20];
    store.read(FILE, 2 * 4096 - 10, &mut out).unwrap();
    assert_eq!((out[9], out[10]), (7, 0));
    store.read(FILE, 3 * 4096, &mut out).unwrap();
    assert_eq!((out[9], out[10]), (8, 0));
    assert_eq!(store.seek(FILE, 0, Seek::Data).unwrap(), Some(4096));
    assert_eq!(store.seek(FILE, 5000, Seek::Hole).unwrap(), Some(8192));
    assert_eq!(
        store.seek(FILE, 3 * 4096, Seek::Hole).unwrap(),
        Some(3 * 4096 + 10)
    );
    assert_eq!(store.seek(FILE, 4 * 4096, Seek::Data).unwrap(), None);
    let Entry::Object(mut state) = object(FILE, FileKind::Regular, 4096, false) else {
        panic!()
    };
    state.zeroed = vec![ByteRange::from(4096)];
    commit(&store, vec![Entry::Object(state)]).unwrap();
    assert_eq!(store.seek(FILE, 0, Seek::Data).unwrap(), None);
    assert_eq!(store.space().unwrap().free_bytes, DEFAULT_TOTAL_BYTES);
}

#[test]
fn a_refused_transaction_leaves_no_trace() {
    let store = MemoryStore::new();
    let before = store.snapshot();
    let unknown = ObjectId(99);
    for entries in [
        vec![
            object(FILE, FileKind::Regular, 0, true),
            dentry(unknown, b"f", Some(FILE)),
        ],
        vec![dentry(ObjectId::ROOT, b"x", Some(unknown))],
        vec![object(FILE, FileKind::Regular, 0, false)],
        vec![
            object(FILE, FileKind::Regular, 0, true),
            dentry(FILE, b"in a file", None),
        ],
    ] {
        assert!(commit(&store, entries).is_err());
        assert_eq!(store.snapshot(), before);
    }
}

#[test]
fn a_move_between_directories_keeps_the_object_whatever_the_order() {
    for reversed in [false, true] {
        let store = MemoryStore::new();
        commit(
            &store,
            vec![
                object(DIR, FileKind::Directory, 0, true),
                object(FILE, FileKind::Regular, 4096, true),
                page(0, 5),
                dentry(ObjectId::ROOT, b"d", Some(DIR)),
                dentry(ObjectId::ROOT, b"f", Some(FILE)),
            ],
        )
        .unwrap();
        let mut entries = vec![
            dentry(ObjectId::ROOT, b"f", None),
            dentry(DIR, b"f2", Some(FILE)),
        ];
        if reversed {
            entries.reverse();
        }
        commit(&store, entries).unwrap();
        assert_eq!(names(&store, ObjectId::ROOT), [b"d"]);
        assert_eq!(names(&store, DIR), [b"f2"]);
        let mut out = [0; 1];
        store.read(FILE, 0, &mut out).unwrap();
        assert_eq!(out, [5]);
    }
}

#[test]
fn pinned_objects_outlive_their_links_but_not_a_power_cut() {
    let store = MemoryStore::new();
    commit(
        &store,
        vec![
            object(FILE, FileKind::Regular, 4096, true),
            page(0, 5),
            dentry(ObjectId::ROOT, b"f", Some(FILE)),
        ],
    )
    .unwrap();
    store.pin(FILE);
    commit(&store, vec![dentry(ObjectId::ROOT, b"f", None)]).unwrap();
    store
        .spill(FILE, &[(PageIndex(0), Page::new(b"spilled"))])
        .unwrap();
    let mut out = [0; 7];
    store.read(FILE, 0, &mut out).unwrap();
    assert_eq!(&out, b"spilled");
    let after_cut = store.reopen();
    assert!(matches!(
        after_cut.object(FILE),
        Err(StoreError::Unknown(FILE))
    ));
    store.unpin(FILE);
    assert!(matches!(store.object(FILE), Err(StoreError::Unknown(FILE))));
    assert_eq!(store.space().unwrap(), after_cut.space().unwrap());
}

#[test]
fn a_spilled_object_can_be_created_later() {
    let store = MemoryStore::new();
    store.pin(FILE);
    store
        .spill(FILE, &[(PageIndex(0), Page::new(b"tmpfile"))])
        .unwrap();
    let entries = vec![
        object(FILE, FileKind::Regular, 7, true),
        dentry(ObjectId::ROOT, b"linked", Some(FILE)),
    ];
    commit(&store, entries).unwrap();
    store.unpin(FILE);
    let mut out = [0; 8];
    store.read(FILE, 0, &mut out).unwrap();
    assert_eq!(&out, b"tmpfile\0");
}

#[test]
fn nothing_is_accepted_without_power() {
    let store = MemoryStore::new();
    store.cut_power();
    let before = store.snapshot();
    assert!(commit(&store, vec![object(DIR, FileKind::Directory, 0, true)]).is_err());
    assert!(store.spill(FILE, &[]).is_err() && store.apply().is_err());
    assert_eq!(store.snapshot(), before);
    assert!(commit(&store.reopen(), vec![]).is_ok());
}
