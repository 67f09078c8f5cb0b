//! The journal store on a real directory: what is committed is there, whether it was
//! applied, recovered, or only read.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mobifs_base::{
    Attributes, ByteRange, DeviceNumber, Entry, FileKind, Name, ObjectId, ObjectState, Page,
    PageIndex, Timestamp,
};
use mobifs_store::{
    Gate, Intent, JournalOptions, JournalStore, KnownObject, PosixLower, RestartSink, Store,
    Transaction,
};

fn options() -> JournalOptions {
    JournalOptions {
        journal_bytes: 1 << 20,
        direct_bytes_max: Some(128 << 10),
        uuid_if_new: [7; 16],
        ..JournalOptions::default()
    }
}

fn open(path: &Path) -> JournalStore<Gate<PosixLower>> {
    JournalStore::open(Gate::new(PosixLower::open(path).unwrap()), &options())
        .unwrap()
        .0
}

fn attributes(kind: FileKind, size: u64) -> Attributes {
    let time = Timestamp::new(1_700_000_000, 5);
    Attributes {
        kind,
        mode: if kind == FileKind::Directory {
            0o755
        } else {
            0o640
        },
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        rdev: DeviceNumber(0),
        size,
        nlink: 1,
        atime: time,
        mtime: time,
        ctime: time,
    }
}

fn state(id: ObjectId, kind: FileKind, size: u64, created: bool) -> Entry {
    Entry::Object(ObjectState {
        id,
        created,
        attributes: attributes(kind, size),
        symlink_target: None,
        zeroed: Vec::new(),
        allocated: Vec::new(),
        xattrs: Vec::new(),
    })
}

fn dentry(parent: ObjectId, name: &str, child: Option<ObjectId>) -> Entry {
    Entry::Dentry {
        parent,
        name: Name::new(name.as_bytes()).unwrap(),
        child,
    }
}

fn page(object: ObjectId, index: u64, content: &[u8]) -> Entry {
    Entry::Page {
        object,
        index: PageIndex(index),
        page: Page::new(content),
    }
}

fn commit(store: &impl Store, entries: Vec<Entry>) {
    let mut transaction = Transaction::default();
    for entry in entries {
        transaction.push(entry);
    }
    store.commit(transaction).unwrap();
}

const fn new_id(number: u64) -> ObjectId {
    ObjectId(ObjectId::FIRST_NEW.0 + 2 * number)
}

/// A directory with a small file, a large file and a rename of an old one.
fn first_transaction(store: &impl Store) -> Vec<u8> {
    let old = store.list_directory(ObjectId::ROOT).unwrap()[0].id;
    let (directory, small, large) = (new_id(1), new_id(2), new_id(3));
    let content: Vec<u8> = (0..50 * 4096_u32).map(|n| (n / 7) as u8).collect();
    let mut entries = vec![
        state(directory, FileKind::Directory, 0, true),
        state(small, FileKind::Regular, 5, true),
        state(large, FileKind::Regular, content.len() as u64 - 10, true),
        state(old, FileKind::Regular, 8192, false),
        dentry(ObjectId::ROOT, "app", Some(directory)),
        dentry(directory, "small", Some(small)),
        dentry(directory, "large", Some(large)),
        dentry(ObjectId::ROOT, "old", None),
        dentry(directory, "moved", Some(old)),
        page(small, 0, b"hello"),
        page(old, 1, b"second page"),
    ];
    for (index, chunk) in content.chunks(4096).enumerate() {
        entries.push(page(large, index as u64, chunk));
    }
    commit(store, entries);
    content
}

fn check_view(store: &impl Store, content: &[u8]) {
    let root = store.list_directory(ObjectId::ROOT).unwrap();
    assert_eq!(root.len(), 1);
    let app = root[0].id;
    let mut names: Vec<_> = store.list_directory(app).unwrap();
    names.sort_by(|a, b| a.name.cmp(&b.name));
    let [large, moved, small] = [0, 1, 2].map(|n: usize| names[n].id);
    let mut bytes = vec![9; 5];
    store.read(small, 0, &mut bytes).unwrap();
    assert_eq!(bytes, b"hello");
    let mut bytes = vec![9; content.len() - 10];
    store.read(large, 0, &mut bytes).unwrap();
    assert!(bytes == content[..content.len() - 10]);
    let mut bytes = vec![9; 4096 + 16];
    store.read(moved, 0, &mut bytes).unwrap();
    assert_eq!(&bytes[..4], b"1111");
    assert_eq!(&bytes[4096..], b"second page\0\0\0\0\0");
    assert_eq!(store.object(moved).unwrap().attributes.size, 8192);
}

fn check_tree(path: &Path, content: &[u8]) {
    assert_eq!(std::fs::read(path.join("app/small")).unwrap(), b"hello");
    assert!(std::fs::read(path.join("app/large")).unwrap() == content[..content.len() - 10]);
    let moved = std::fs::read(path.join("app/moved")).unwrap();
    assert_eq!(
        (moved.len(), &moved[..2], &moved[4096..4103]),
        (8192, &b"11"[..], &b"second "[..])
    );
    assert!(!path.join("old").exists());
    let meta = std::fs::metadata(path.join("app/small")).unwrap();
    assert_eq!(
        (meta.mode() & 0o7777, meta.mtime(), meta.mtime_nsec()),
        (0o640, 1_700_000_000, 5)
    );
}

fn prepared() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("old"), "1".repeat(100)).unwrap();
    directory
}

#[test]
fn committed_state_can_be_read_then_applied() {
    let directory = prepared();
    let store = open(directory.path());
    let content = first_transaction(&store);
    check_view(&store, &content);
    assert!(!directory.path().join("app").exists(), "applied lazily");
    store.apply().unwrap();
    check_view(&store, &content);
    check_tree(directory.path(), &content);
    store.close().unwrap();
    let own = directory.path().join(".mobifs");
    for inner in ["stage", "limbo", "lost"] {
        assert_eq!(
            std::fs::read_dir(own.join(inner)).unwrap().count(),
            0,
            "{inner}"
        );
    }
}

#[test]
fn committed_state_survives_the_store() {
    let directory = prepared();
    let store = open(directory.path());
    let content = first_transaction(&store);
    store.cut_power();
    drop(store);
    // Served from the journal, by every mount that comes before the next apply.
    for _ in 0..2 {
        let store = open(directory.path());
        check_view(&store, &content);
        assert!(!directory.path().join("app").exists(), "applied lazily");
    }
    let store = open(directory.path());
    store.apply().unwrap();
    check_tree(directory.path(), &content);
    check_view(&store, &content);
}

#[test]
fn hard_links_exchanges_and_removals_are_redone() {
    let directory = prepared();
    std::fs::create_dir_all(directory.path().join("a/deep")).unwrap();
    std::fs::create_dir(directory.path().join("b")).unwrap();
    std::fs::write(directory.path().join("a/deep/file"), "in a").unwrap();
    let store = open(directory.path());
    let root = store.list_directory(ObjectId::ROOT).unwrap();
    let id = |name: &str| {
        root.iter()
            .find(|e| e.name.as_bytes() == name.as_bytes())
            .unwrap()
            .id
    };
    let (a, b, old) = (id("a"), id("b"), id("old"));
    let deep = store.list_directory(a).unwrap()[0].id;
    commit(
        &store,
        vec![
            state(a, FileKind::Directory, 0, false),
            state(b, FileKind::Directory, 0, false),
            state(deep, FileKind::Directory, 0, false),
            state(old, FileKind::Regular, 100, false),
            // a and b swap, a's child moves into what is now named a, old gets a
            // second name there and keeps none of its first.
            dentry(ObjectId::ROOT, "a", Some(b)),
            dentry(ObjectId::ROOT, "b", Some(a)),
            dentry(a, "deep", None),
            dentry(b, "deep", Some(deep)),
            dentry(deep, "one", Some(old)),
            dentry(deep, "two", Some(old)),
            dentry(ObjectId::ROOT, "old", None),
        ],
    );
    store.close().unwrap();
    let read = |path: &str| std::fs::read_to_string(directory.path().join(path)).unwrap();
    assert_eq!(read("a/deep/file"), "in a");
    assert_eq!(read("a/deep/one"), read("a/deep/two"));
    let links = std::fs::metadata(directory.path().join("a/deep/one"))
        .unwrap()
        .nlink();
    assert_eq!(links, 2);
    assert_eq!(
        std::fs::read_dir(directory.path().join("b"))
            .unwrap()
            .count(),
        0
    );
    assert!(!directory.path().join("old").exists());
}

#[test]
fn appending_much_to_an_old_file_is_written_once() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("log"), vec![b'x'; 10_000]).unwrap();
    let store = open(directory.path());
    let log = store.list_directory(ObjectId::ROOT).unwrap()[0].id;
    let mut entries = vec![state(log, FileKind::Regular, 3 * 4096 + 64 * 4096, false)];
    entries.extend((3..67).map(|index| page(log, index, &[b'y'; 4096])));
    commit(&store, entries);
    let before = store.pending();
    assert!(
        before.journal_used_bytes < 64 << 10,
        "only the mention is in the journal"
    );
    store.cut_power();
    drop(store);
    open(directory.path()).close().unwrap();
    let content = std::fs::read(directory.path().join("log")).unwrap();
    assert_eq!(content.len(), 67 * 4096);
    assert!(content[..10_000].iter().all(|&b| b == b'x'));
    assert!(content[10_000..3 * 4096].iter().all(|&b| b == 0));
    assert!(content[3 * 4096..].iter().all(|&b| b == b'y'));
}

/// Zeros where a file had a hole were not committed, as they change nothing that can be read. So the
/// room that they were promised was free again after each commit, and a full disk never refused them.
#[test]
fn zeros_in_a_hole_take_the_room_that_they_were_promised() {
    const PAGES: u64 = 8;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    std::fs::write(&path, b"x").unwrap();
    let store = open(directory.path());
    let log = store.list_directory(ObjectId::ROOT).unwrap()[0].id;
    let mut entries = vec![state(log, FileKind::Regular, (1 + PAGES) * 4096, false)];
    entries.extend((1..=PAGES).map(|index| page(log, index, &[0; 4096])));
    let zeros = entries.clone();
    commit(&store, entries);
    let reserved_bytes = store.pending().reserved.bytes();
    assert!(reserved_bytes >= PAGES * 4096, "{reserved_bytes}");
    let used_bytes = store.pending().journal_used_bytes;
    // The same again is no change.
    commit(&store, zeros);
    assert_eq!(store.pending().reserved.bytes(), reserved_bytes);
    assert!(store.pending().journal_used_bytes <= used_bytes + 4096);
    store.apply().unwrap();
    let blocks = path.metadata().unwrap().blocks();
    assert!(blocks * 512 >= PAGES * 4096, "{blocks} blocks");
}

/// Appends mostly begin in the middle of a page. For that one page the journal took all pages after
/// it, too, which wrote them to the device twice.
#[test]
fn what_grows_by_odd_steps_is_written_once() {
    const STEP: usize = 70 * 4096 + 100;
    for is_new in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        if !is_new {
            std::fs::write(directory.path().join("log"), "begun").unwrap();
        }
        let store = open(directory.path());
        let log = if is_new {
            new_id(0)
        } else {
            store.list_directory(ObjectId::ROOT).unwrap()[0].id
        };
        let mut content = if is_new {
            Vec::new()
        } else {
            b"begun".to_vec()
        };
        for step in 0..4_u8 {
            let first = content.len() / 4096;
            content.extend((0..STEP).map(|at| (at / 9) as u8 ^ step));
            let created = is_new && step == 0;
            let mut entries = vec![state(log, FileKind::Regular, content.len() as u64, created)];
            let pages = content.chunks(4096).enumerate().skip(first);
            entries.extend(pages.map(|(index, bytes)| page(log, index as u64, bytes)));
            if created {
                entries.push(dentry(ObjectId::ROOT, "log", Some(log)));
            }
            commit(&store, entries);
        }
        let before = store.pending();
        assert!(before.journal_used_bytes < 100 << 10, "{before:?}");
        assert!(before.commit_written_bytes < content.len() as u64 + (100 << 10));
        store.cut_power();
        drop(store);
        open(directory.path()).close().unwrap();
        assert!(std::fs::read(directory.path().join("log")).unwrap() == content);
    }
}

#[test]
fn a_transaction_larger_than_the_journal_is_committed_as_a_whole() {
    let directory = tempfile::tempdir().unwrap();
    let pages = 600_u64;
    std::fs::write(
        directory.path().join("base"),
        vec![b'0'; pages as usize * 4096],
    )
    .unwrap();
    let store = open(directory.path());
    let base = store.list_directory(ObjectId::ROOT).unwrap()[0].id;
    // Overwriting goes through the journal, which has 1 MiB; so do 3,000 new names.
    let mut entries = vec![state(base, FileKind::Regular, pages * 4096, false)];
    entries
        .extend((0..pages).map(|index| page(base, index, &[(index as u8).wrapping_add(1); 4096])));
    for number in 0..3_000 {
        entries.push(state(new_id(number), FileKind::Regular, 0, true));
        entries.push(dentry(
            ObjectId::ROOT,
            &format!("{number:0>100}"),
            Some(new_id(number)),
        ));
    }
    commit(&store, entries);
    store.cut_power();
    drop(store);
    open(directory.path()).close().unwrap();
    let content = std::fs::read(directory.path().join("base")).unwrap();
    for (index, page) in content.chunks(4096).enumerate() {
        assert!(
            page.iter()
                .all(|&byte| byte == (index as u8).wrapping_add(1)),
            "page {index}"
        );
    }
    assert_eq!(
        std::fs::read_dir(directory.path()).unwrap().count(),
        3_000 + 2
    );
}

#[test]
fn root_refuses_a_store_that_another_user_could_have_forged() {
    if !rustix::process::geteuid().is_root() {
        mobifs_skip::skip("needs root to give a directory away");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    open(root.path()).close().unwrap();
    let own = root.path().join(".mobifs");
    std::os::unix::fs::chown(&own, Some(12_345), None).unwrap();
    for read_only in [false, true] {
        let options = JournalOptions {
            read_only,
            ..JournalOptions::default()
        };
        let opened =
            JournalStore::open(Gate::new(PosixLower::open(root.path()).unwrap()), &options);
        let error = opened.map(drop).unwrap_err().to_string();
        assert!(error.contains("user with id 12345"), "{error}");
    }
    std::os::unix::fs::chown(&own, Some(0), None).unwrap();
    open(root.path()).close().unwrap();
}

/// Found by the crash search: the file waits in `limbo/` because it has a name that was never
/// looked up, and its name in `limbo/` was counted.
#[test]
fn a_file_kept_for_its_other_name_shows_the_links_that_it_has() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        std::fs::create_dir(directory.path().join(name)).unwrap();
    }
    std::fs::write(directory.path().join("a/one"), "x").unwrap();
    std::fs::hard_link(
        directory.path().join("a/one"),
        directory.path().join("b/two"),
    )
    .unwrap();
    let store = open(directory.path());
    let root = store.list_directory(ObjectId::ROOT).unwrap();
    let id = |name: &[u8]| root.iter().find(|e| e.name.as_bytes() == name).unwrap().id;
    let (a, b) = (id(b"a"), id(b"b"));
    let file = store.list_directory(a).unwrap()[0].id;
    commit(
        &store,
        vec![
            state(file, FileKind::Regular, 1, false),
            dentry(a, "one", None),
        ],
    );
    store.apply().unwrap();
    let two = store.list_directory(b).unwrap()[0].id;
    assert_eq!(two, file);
    assert_eq!(store.object(two).unwrap().attributes.nlink, 1);
}

/// Found by a search over killed daemons: the root of a nested app was committed without the change
/// of the directory it is in, which got the time of the apply, a state that never existed.
#[test]
fn an_entry_that_is_committed_alone_leaves_its_directory_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let parent = directory.path().join("a");
    std::fs::create_dir(&parent).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_500_000_000, 7);
    let set_time = |path: &Path| std::fs::File::open(path).unwrap().set_modified(time);
    set_time(&parent).unwrap();
    let mtime = || parent.metadata().unwrap().modified().unwrap();
    // Applied, and recovered.
    for (name, is_applied) in [("one", true), ("two", false)] {
        let store = open(directory.path());
        let root = store.list_directory(ObjectId::ROOT).unwrap();
        let a = root.iter().find(|e| e.name.as_bytes() == b"a").unwrap().id;
        let id = store.first_new_object();
        let entries = vec![
            state(id, FileKind::Directory, 0, true),
            dentry(a, name, Some(id)),
        ];
        commit(&store, entries);
        if is_applied {
            store.apply().unwrap();
        }
        drop(store);
        open(directory.path()).close().unwrap();
        assert!(parent.join(name).is_dir());
        assert_eq!(mtime(), time, "{name}");
    }
}

/// Found by the fault search: a journal names one place of a file, so after a recovery the store
/// did not know that it had two, and when it was found again by the other it became another file.
#[test]
fn a_recovered_file_is_the_same_by_each_of_its_names() {
    let directory = tempfile::tempdir().unwrap();
    let [a, b, file] = [1, 2, 3].map(new_id);
    let shown = |nlink, created| {
        let mut entry = state(file, FileKind::Regular, 0, created);
        if let Entry::Object(state) = &mut entry {
            state.attributes.nlink = nlink;
        }
        entry
    };
    let store = open(directory.path());
    let mut entries = vec![shown(2, true)];
    for (id, name) in [(a, "a"), (b, "b")] {
        entries.push(state(id, FileKind::Directory, 0, true));
        entries.push(dentry(ObjectId::ROOT, name, Some(id)));
        entries.push(dentry(id, "file", Some(file)));
    }
    commit(&store, entries);
    store.apply().unwrap();
    commit(&store, vec![shown(2, false)]);
    drop(store);
    let store = open(directory.path());
    store.apply().unwrap();
    let list = |id| store.list_directory(id).unwrap();
    let root = list(ObjectId::ROOT);
    let id = |name: &[u8]| root.iter().find(|e| e.name.as_bytes() == name).unwrap().id;
    let [a, b] = [id(b"a"), id(b"b")];
    // The journal says the first of these.
    for (seen, other) in [(b, a), (a, b)] {
        let known = list(seen)[0].id;
        assert_eq!(store.object(known).unwrap().attributes.nlink, 2);
        store.forget(&[a, b], &BTreeSet::new());
        assert_eq!(list(other)[0].id, known);
        store.forget(&[a, b], &BTreeSet::new());
    }
}

/// Written as far as the end of their last page, files had to be cut off when they were
/// applied, which wrote that page to the device a second time.
#[test]
fn many_new_files_are_written_once_and_as_they_will_be() {
    const FILES: u64 = 300;
    const BYTES: u64 = 5_000;
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let name = |number: u64| format!("file {number}");
    let mut entries = Vec::new();
    for number in 0..FILES {
        let id = new_id(number);
        entries.push(state(id, FileKind::Regular, BYTES, true));
        entries.push(dentry(ObjectId::ROOT, &name(number), Some(id)));
        entries.push(page(id, 0, &[number as u8; 4096]));
        entries.push(page(id, 1, &[number as u8; 904]));
    }
    commit(&store, entries);
    for number in 0..FILES {
        let staged = format!(".mobifs/stage/{}", new_id(number).0);
        let found = std::fs::metadata(directory.path().join(staged)).unwrap();
        assert_eq!((found.size(), found.mode() & 0o7777), (BYTES, 0o640));
        assert_eq!(found.mtime(), 1_700_000_000);
    }
    assert_eq!(store.pending().commit_written_bytes / (FILES * BYTES), 1);
    // What changes before the apply is not left as it was: longer, shorter, not readable.
    let mut shorter = state(new_id(1), FileKind::Regular, 4096, false);
    let mut private = state(new_id(2), FileKind::Regular, BYTES, false);
    if let (Entry::Object(shorter), Entry::Object(private)) = (&mut shorter, &mut private) {
        shorter.zeroed = vec![ByteRange::from(4096)];
        private.attributes.mode = 0o600;
    }
    let longer = state(new_id(0), FileKind::Regular, 9_000, false);
    commit(
        &store,
        vec![longer, page(new_id(0), 2, &[9; 808]), shorter, private],
    );
    store.close().unwrap();
    for number in 0..FILES {
        let path = directory.path().join(name(number));
        let mut expected = vec![number as u8; BYTES as usize];
        match number {
            0 => {
                expected.resize(8192, 0);
                expected.resize(9_000, 9);
            }
            1 => expected.truncate(4096),
            _ => {}
        }
        assert!(std::fs::read(&path).unwrap() == expected, "{path:?}");
        let mode = std::fs::metadata(&path).unwrap().mode() & 0o7777;
        assert_eq!(mode, if number == 2 { 0o600 } else { 0o640 });
    }
}

/// Counts the names that are reported.
#[derive(Default)]
struct Names(AtomicUsize);

impl RestartSink for Names {
    fn object(&self, _id: ObjectId, known: Option<&KnownObject>) {
        let location = known.and_then(|known| known.location.as_ref());
        let names = location.map_or(0, |location| location.names.len());
        self.0.fetch_add(names, Ordering::SeqCst);
    }

    fn intent(&self, _intent: Option<Intent>) {}
}

/// Found by an unmount that took minutes: with each name that a file got, all of its names were
/// reported to the sink.
#[test]
fn many_names_of_one_file_are_recorded_together() {
    const NAMES: usize = 400;
    let directory = prepared();
    let sink = Arc::new(Names::default());
    let lower = PosixLower::open(directory.path()).unwrap();
    let reported_to = Arc::clone(&sink) as Arc<dyn RestartSink>;
    let (store, _) =
        JournalStore::open_with_sink(Gate::new(lower), &options(), reported_to).unwrap();
    let (new, old) = (
        new_id(1),
        store.list_directory(ObjectId::ROOT).unwrap()[0].id,
    );
    for (file, kind) in [(new, "new"), (old, "old")] {
        let mut entries = vec![state(file, FileKind::Regular, 100, file == new)];
        let name = |number| format!("{kind}-{number}");
        entries.extend((0..NAMES).map(|n| dentry(ObjectId::ROOT, &name(n), Some(file))));
        commit(&store, entries);
    }
    store.apply().unwrap();
    let reported = sink.0.load(Ordering::SeqCst);
    assert!(reported < 10 * NAMES, "{reported}");
    store.close().unwrap();
    let links = |name: &str| {
        std::fs::metadata(directory.path().join(name))
            .unwrap()
            .nlink()
    };
    assert_eq!(links("new-7"), NAMES as u64);
    assert_eq!(links("old-7"), NAMES as u64 + 1);
}
