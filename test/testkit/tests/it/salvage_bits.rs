//! Salvages after each bit of a transaction was another one: whatever its records say then, nothing
//! is moved, replaced or deleted for it.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::collections::BTreeMap;

use mobifs_base::{Entry, FileKind, Name, ObjectId, Page, PageIndex};
use mobifs_store::lower::{Create, Lower as _};
use mobifs_store::{Gate, JournalStore, Store as _, inspect};
use mobifs_testkit::crash::{CrashHandle, CrashLower, Fate};
use mobifs_testkit::entries::plain_file;

use super::salvage::{BLOCK, child, commit, damage, open, salvaged};

/// One bit apart, as a damaged name may be.
const DIRECTORIES: [&str; 3] = ["calm", "photos", "qhotos"];
/// The same.
const FILES: [&str; 2] = ["fileA", "fileC"];
/// Where the second transaction begins.
const DAMAGED: usize = 3 * BLOCK;

/// Contents by path. Each file has its first path as content.
type Contents = BTreeMap<String, Vec<u8>>;

fn make_file(lower: &CrashLower, directory: &CrashHandle, name: &str, content: &str) {
    lower
        .create(directory, name.as_bytes(), Create::Regular)
        .unwrap();
    let file = lower.open(directory, name.as_bytes(), true).unwrap();
    lower.write_at(&file, content.as_bytes(), 0).unwrap();
}

fn named(parent: ObjectId, name: &str, child: Option<ObjectId>) -> Entry {
    Entry::Dentry {
        parent,
        name: Name::new(name.as_bytes()).unwrap(),
        child,
    }
}

fn written(object: ObjectId, content: &str) -> [Entry; 2] {
    [
        Entry::Object(plain_file(object, content.len() as u64, 1)),
        Entry::Page {
            object,
            index: PageIndex(0),
            page: Page::new(content.as_bytes()),
        },
    ]
}

/// Three transactions: the first one is intact, and the second will be damaged.
fn history() -> (CrashLower, JournalStore<Gate<CrashLower>>) {
    let lower = CrashLower::new();
    let root = lower.root().unwrap();
    for directory in DIRECTORIES {
        lower
            .create(&root, directory.as_bytes(), Create::Directory)
            .unwrap();
        let handle = lower.open(&root, directory.as_bytes(), true).unwrap();
        for file in FILES {
            make_file(&lower, &handle, file, &format!("{directory}/{file}"));
        }
    }
    lower.sync_all().unwrap();
    let store = open(&lower);
    let [photos, qhotos] = ["photos", "qhotos"].map(|name| child(&store, ObjectId::ROOT, name));
    let [photos_a, photos_c] = FILES.map(|name| child(&store, photos, name));
    let [qhotos_a, qhotos_c] = FILES.map(|name| child(&store, qhotos, name));
    commit(
        &store,
        vec![
            Entry::Object(plain_file(qhotos_a, 12, 1)),
            named(qhotos, "fileA", None),
            named(qhotos, "fileB", Some(qhotos_a)),
        ],
    );
    let mut created = plain_file(ObjectId(ObjectId::FIRST_NEW.0 + 2), 0, 1);
    created.created = true;
    let mut second = vec![
        Entry::Object(plain_file(photos_c, 12, 1)),
        named(photos, "fileC", None),
        // Where the first transaction has taken a name away.
        named(qhotos, "fileA", Some(photos_c)),
        Entry::Object(plain_file(qhotos_c, 12, 0)),
        named(qhotos, "fileC", None),
        named(photos, "fileN", Some(created.id)),
        Entry::Object(created),
    ];
    second.extend(written(photos_a, "new content"));
    commit(&store, second);
    commit(&store, written(photos_a, "newer content").into());
    (lower, store)
}

/// Everything below a directory of the root but the store's own ones.
fn contents(lower: &CrashLower) -> Contents {
    let mut found = Contents::new();
    let mut waiting = vec![(String::new(), lower.root().unwrap())];
    while let Some((path, directory)) = waiting.pop() {
        for entry in lower.list(&directory).unwrap() {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            if name == ".mobifs" {
                continue;
            }
            let path = format!("{path}/{name}");
            let handle = lower.open(&directory, &entry.name, false).unwrap();
            let stat = lower.stat(&handle).unwrap();
            if stat.kind == FileKind::Directory {
                found.insert(path.clone(), b"a directory".to_vec());
                waiting.push((path, handle));
            } else {
                let mut content = vec![0; stat.size as usize];
                lower.read_at(&handle, &mut content, 0).unwrap();
                found.insert(path, content);
            }
        }
    }
    found
}

/// What files in `.mobifs/lost` contain.
fn kept(lower: &CrashLower) -> Vec<Vec<u8>> {
    let own = lower
        .open(&lower.root().unwrap(), b".mobifs", false)
        .unwrap();
    let lost = lower.open(&own, b"lost", false).unwrap();
    let entries = lower.list(&lost).unwrap().into_iter();
    let contents = entries.map(|entry| {
        let file = lower.open(&lost, &entry.name, false).unwrap();
        let mut content = vec![0; lower.stat(&file).unwrap().size as usize];
        lower.read_at(&file, &mut content, 0).unwrap();
        content
    });
    contents.collect()
}

fn image(lower: &CrashLower) -> CrashLower {
    lower.crash_image(&mut |_| Fate::Land)
}

/// Bytes that the second transaction takes.
fn damaged_bytes(lower: &CrashLower) -> usize {
    let mut bytes = 0;
    damage(lower, |journal| {
        let block = &journal[DAMAGED..DAMAGED + BLOCK];
        let last = block.iter().rposition(|&byte| byte != 0).unwrap();
        assert!(block.windows(5).any(|name| name == b"fileC"));
        assert!(last < BLOCK - 1, "it is one block");
        bytes = last + 1;
    });
    bytes
}

fn flip(lower: &CrashLower, byte: usize, bit: usize) {
    damage(lower, |journal| journal[DAMAGED + byte] ^= 1 << bit);
}

/// A name of a damaged transaction was given to a directory, and the one that had it was taken away.
#[test]
fn no_bit_of_a_damaged_transaction_moves_or_changes_what_lies_in_the_store() {
    let (lower, store) = history();
    let mut expected = contents(&lower);
    drop(store);
    let lower = image(&lower);
    let moved = expected.remove("/qhotos/fileA").unwrap();
    expected.insert("/qhotos/fileB".to_owned(), b"qhotos/fileA".to_vec());
    assert_eq!(moved, b"qhotos/fileA");
    let mut harmed = 0;
    for byte in 0..damaged_bytes(&lower) {
        for bit in 0..8 {
            let lower = image(&lower);
            flip(&lower, byte, bit);
            let found = salvaged(&lower);
            assert!(!found.damage.is_empty(), "byte {byte} bit {bit}");
            assert_eq!(
                found.recovery_point.transactions, 1,
                "byte {byte} bit {bit}"
            );
            assert_eq!(
                contents(&lower),
                expected,
                "byte {byte} bit {bit}: {found:?}"
            );
            assert_eq!(
                kept(&lower),
                [[0; 0]; 0],
                "byte {byte} bit {bit}: {found:?}"
            );
            harmed += 1;
        }
    }
    assert!(harmed > 1000, "{harmed}");
}

/// An apply of the damaged transaction was under way: what only it says is not undone, and no content
/// goes away with it.
#[test]
fn what_a_damaged_transaction_has_moved_stays_or_is_kept_whatever_its_bits_say() {
    let (mut moved, mut kept_files, mut cases) = (0, 0, 0);
    let bytes = damaged_bytes(&image(&history().0));
    for count in 1.. {
        let (lower, store) = history();
        lower.cut_after(lower.operations() + count);
        let is_complete = store.apply().is_ok();
        drop(store);
        if is_complete {
            break;
        }
        let lower = image(&lower);
        for byte in (count as usize % 3..bytes).step_by(3) {
            let lower = image(&lower);
            flip(&lower, byte, (byte + count as usize) % 8);
            if inspect(&lower).is_ok() {
                // The new epoch has begun.
                continue;
            }
            cases += 1;
            let context = format!("count {count} byte {byte}");
            let before = contents(&lower);
            moved += usize::from(
                before
                    .get("/qhotos/fileA")
                    .is_some_and(|c| c == b"photos/fileC"),
            );
            let found = salvaged(&lower);
            let after = contents(&lower);
            let kept = kept(&lower);
            kept_files += kept.len();
            let is_at = |path: &str, content: &str| {
                let there = after.get(path).map(Vec::as_slice);
                assert_eq!(
                    there,
                    Some(content.as_bytes()),
                    "{context}: {path} {found:?}"
                );
            };
            is_at("/calm/fileA", "calm/fileA");
            is_at("/calm/fileC", "calm/fileC");
            is_at("/qhotos/fileB", "qhotos/fileA");
            for content in ["photos/fileC", "qhotos/fileC"] {
                let mut all = after.values().chain(&kept);
                let is_there = all.any(|found| found == content.as_bytes());
                assert!(
                    is_there,
                    "{context}: {content} is gone: {after:?} {found:?}"
                );
            }
        }
    }
    assert!(
        moved > 0 && kept_files > 0 && cases > 100,
        "{moved} {kept_files} {cases}"
    );
}
