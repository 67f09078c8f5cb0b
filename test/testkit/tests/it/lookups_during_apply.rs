//! Look-ups and reads while an apply waits for the disk.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use mobifs_base::{
    Attributes, DeviceNumber, Entry, FileKind, Name, ObjectId, ObjectState, PAGE_BYTES, Page,
    PageIndex, Timestamp,
};
use mobifs_store::{Gate, JournalOptions, JournalStore, Store, Transaction};
use mobifs_testkit::crash::CrashLower;

/// A thread that waits so long waits for ever.
const PATIENCE: Duration = Duration::from_secs(60);

type TestStore = JournalStore<Gate<CrashLower>>;

fn open(lower: &CrashLower) -> TestStore {
    let options = JournalOptions {
        journal_bytes: 1 << 20,
        direct_bytes_max: Some(8 << 10),
        uuid_if_new: [7; 16],
        ahead_pages_min: 1,
        ..JournalOptions::default()
    };
    JournalStore::open(Gate::new(lower.clone()), &options)
        .unwrap()
        .0
}

fn file(id: ObjectId, created: bool, nlink: u32) -> Entry {
    let time = Timestamp::default();
    Entry::Object(ObjectState {
        id,
        created,
        attributes: Attributes {
            kind: FileKind::Regular,
            mode: 0o600,
            uid: 0,
            gid: 0,
            rdev: DeviceNumber::default(),
            size: PAGE_BYTES as u64,
            nlink,
            atime: time,
            mtime: time,
            ctime: time,
        },
        symlink_target: None,
        zeroed: Vec::new(),
        allocated: Vec::new(),
        xattrs: Vec::new(),
    })
}

fn page(object: ObjectId, fill: u8) -> Entry {
    Entry::Page {
        object,
        index: PageIndex(0),
        page: Page::new(&[fill; PAGE_BYTES]),
    }
}

fn entry(name: &str, child: Option<ObjectId>) -> Entry {
    Entry::Dentry {
        parent: ObjectId::ROOT,
        name: Name::new(name.as_bytes()).unwrap(),
        child,
    }
}

fn commit(store: &TestStore, entries: impl IntoIterator<Item = Entry>) {
    let mut transaction = Transaction::default();
    entries
        .into_iter()
        .for_each(|entry| transaction.push(entry));
    store.commit(transaction).unwrap();
}

/// Files of which every kind of change is pending: content, a new file, one deleted, one
/// that takes the place of another, and one that loses one name of two and moves under the other.
fn with_every_kind_pending(lower: &CrashLower) -> TestStore {
    let store = open(lower);
    let first = store.first_new_object().0;
    let [changed, deleted, moved, replaced, linked, untouched, new] =
        std::array::from_fn(|at| ObjectId(first + at as u64));
    for (name, id) in [
        ("changed", changed),
        ("deleted", deleted),
        ("moved", moved),
        ("replaced", replaced),
        ("untouched", untouched),
    ] {
        commit(
            &store,
            [file(id, true, 1), page(id, 1), entry(name, Some(id))],
        );
    }
    commit(
        &store,
        [
            file(linked, true, 2),
            page(linked, 1),
            entry("linked", Some(linked)),
            entry("linked too", Some(linked)),
        ],
    );
    store.apply().unwrap();
    commit(
        &store,
        [
            page(changed, 2),
            file(changed, false, 1),
            entry("deleted", None),
            file(deleted, false, 0),
            entry("moved", None),
            entry("replaced", Some(moved)),
            file(replaced, false, 0),
            entry("linked", None),
            entry("linked too", None),
            entry("linked again", Some(linked)),
            file(linked, false, 1),
            file(new, true, 1),
            page(new, 2),
            entry("new", Some(new)),
        ],
    );
    store
}

/// Looks everything up, without the store's caches.
fn look(store: &TestStore) {
    let mut content = [0; PAGE_BYTES];
    for found in store.list_directory(ObjectId::ROOT).unwrap() {
        assert_eq!(
            store.object(found.id).unwrap().attributes.kind,
            FileKind::Regular
        );
        store.read(found.id, 0, &mut content).unwrap();
        assert!(matches!(content, [1, ..] | [2, ..]), "{}", content[0]);
    }
}

/// An apply held the lock of the names across up to two syncs of the whole filesystem, so every
/// cold look-up of every app waited for the disk.
#[test]
fn lookups_do_not_wait_for_the_syncs_of_an_apply() {
    let lower = CrashLower::new();
    let store = Arc::new(with_every_kind_pending(&lower));
    let syncs = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&syncs);
    let reader = Arc::clone(&store);
    let mut pending_before = 0;
    lower.set_hook(Box::new(move |_, lower| {
        let is_sync = lower.pending_effects() == 0 && pending_before > 0;
        pending_before = lower.pending_effects();
        if !is_sync {
            return;
        }
        let (looked, waits) = mpsc::channel();
        let store = Arc::clone(&reader);
        let thread = std::thread::spawn(move || {
            look(&store);
            looked.send(()).unwrap();
        });
        assert!(
            waits.recv_timeout(PATIENCE).is_ok(),
            "a look-up waits for a sync of an apply"
        );
        thread.join().unwrap();
        counter.fetch_add(1, Ordering::SeqCst);
    }));
    store.apply().unwrap();
    lower.clear_hook();
    // Content and stage files, detached names, further names of these, the end.
    assert!(syncs.load(Ordering::SeqCst) >= 4, "{syncs:?}");
    look(&store);
}
