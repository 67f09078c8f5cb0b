//! What is committed and cannot be brought to its place is named, in errors and in the status.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::path::Path;
use std::sync::Arc;

use mobifs_base::{DeviceNumber, FileKind, ObjectId};
use mobifs_store::lower::{Create, Lower};
use mobifs_store::{Gate, JournalOptions, JournalStore, SPARE_FILES};
use mobifs_testkit::crash::{
    Calls, CrashLower, Fate, Fault, Harm, Refusals, RefusedCalls, leftovers,
};
use mobifs_volume::{
    Caller, Config, NodeSpec, RenameMode, SetIdBits, Volume, VolumeOptions, WriteAt,
};

/// A volume over the store that is there, or over a new one.
fn start(lower: &CrashLower) -> Arc<Volume> {
    start_with_journal(lower, 256 << 10)
}

fn start_with_journal(lower: &CrashLower, journal_bytes: u64) -> Arc<Volume> {
    let journal = JournalOptions {
        journal_bytes,
        reserve_bytes: 64 << 10,
        ..JournalOptions::default()
    };
    let (store, _) = JournalStore::open(Gate::new(lower.clone()), &journal).unwrap();
    let options = VolumeOptions {
        background: false,
        ..VolumeOptions::new(&Config::parse("", Path::new("test")).unwrap())
    };
    Volume::start(Arc::new(store), options).unwrap()
}

fn find(volume: &Volume, path: &str) -> Option<ObjectId> {
    let mut names = path.split('/');
    names.try_fold(ObjectId::ROOT, |at, name| {
        let found = volume.lookup(at, name.as_bytes());
        found.ok().map(|node| node.id)
    })
}

fn content(volume: &Volume, path: &str) -> Option<Vec<u8>> {
    let mut out = vec![0; 100];
    let length = volume.read(find(volume, path)?, 0, &mut out).unwrap();
    out.truncate(length);
    Some(out)
}

fn write(volume: &Volume, id: ObjectId, data: &[u8]) {
    volume
        .write(id, WriteAt::Offset(0), data, SetIdBits::Stay, false)
        .unwrap();
}

fn make(volume: &Volume, parent: ObjectId, name: &str, kind: FileKind) -> ObjectId {
    let spec = NodeSpec {
        kind,
        mode: 0o755,
        rdev: DeviceNumber(0),
        symlink_target: None,
    };
    let made = volume.create(&Caller::default(), parent, name.as_bytes(), &spec);
    made.unwrap().id
}

/// The errors named an id, or only the last name.
#[test]
fn an_object_that_cannot_be_applied_is_named() {
    let lower = CrashLower::new();
    let (store, _) =
        JournalStore::open(Gate::new(lower.clone()), &JournalOptions::default()).unwrap();
    let options = VolumeOptions {
        background: false,
        ..VolumeOptions::new(&Config::parse("", Path::new("test")).unwrap())
    };
    let volume = Volume::start(Arc::new(store), options).unwrap();
    let app = make(&volume, ObjectId::ROOT, "app", FileKind::Directory);
    let inside = make(&volume, app, "inside", FileKind::Directory);
    volume.sync_app(None, true).unwrap();
    let file = make(&volume, inside, "file", FileKind::Regular);
    volume.sync_all().unwrap();

    // At different steps of the apply: while the file is made, and when it gets its name.
    let mut named_at = 0;
    for number in 1.. {
        let first = lower.calls() + number;
        lower.set_fault(Some(Fault {
            first,
            count: u64::MAX,
            calls: Calls::Growing,
            errno: 28,
            harm: Harm::Nothing,
        }));
        let done = volume.sync_app(None, true);
        lower.set_fault(None);
        let Err(error) = done else { break };
        let error = error.to_string();
        let reason = volume.status().store.not_applied;
        assert_eq!(reason.as_deref(), Some(&*error), "call {number}");
        named_at += u64::from(error.contains("\"app/inside/file\""));
    }
    assert!(named_at > 1, "{named_at}");
    assert_eq!(volume.status().store.not_applied, None);
    assert_eq!(volume.attributes(file).unwrap().attributes.nlink, 1);
    volume.shutdown().unwrap();
}

/// Files that get another directory, and new ones in it; applied before, and only committed.
fn move_files(volume: &Volume) {
    let app = make(volume, ObjectId::ROOT, "app", FileKind::Directory);
    let from = make(volume, app, "from", FileKind::Directory);
    make(volume, app, "to", FileKind::Directory);
    for name in ["a", "b", "c"] {
        let file = make(volume, from, name, FileKind::Regular);
        write(volume, file, name.as_bytes());
    }
    volume.sync_app(None, true).unwrap();
    let to = find(volume, "app/to").unwrap();
    for name in ["a", "b"] {
        let name = name.as_bytes();
        volume
            .rename(from, name, to, name, RenameMode::Replace)
            .unwrap();
    }
    let new = make(volume, to, "new", FileKind::Regular);
    write(volume, new, b"new");
    volume.unlink(from, b"c").unwrap();
    volume.sync_all().unwrap();
}

fn check_moved(volume: &Volume) {
    for name in ["a", "b", "new"] {
        let path = format!("app/to/{name}");
        assert_eq!(
            content(volume, &path).as_deref(),
            Some(name.as_bytes()),
            "{path}"
        );
    }
    for name in ["a", "b", "c"] {
        assert_eq!(find(volume, &format!("app/from/{name}")), None, "{name}");
    }
}

/// No directory of the tree takes another entry. Where nothing can be kept beside the journal
/// either, nothing of an apply can be finished.
const fn full(takes_no_overflow: bool) -> Refusals {
    Refusals {
        names_max: Some(0),
        file_bytes_max: None,
        symlink_bytes_max: None,
        takes_no_overflow,
        inodes_max: None,
        takes_no_detached: false,
        calls: None,
    }
}

/// The mount was refused if names had begun to move and could not be moved any further.
#[test]
fn a_store_is_mounted_wherever_an_apply_was_cut_although_nothing_can_be_finished() {
    let mut cuts = 0;
    for calls in 1.. {
        let lower = CrashLower::new();
        let volume = start(&lower);
        move_files(&volume);
        lower.cut_after(lower.operations() + calls);
        if volume.sync_app(None, true).is_ok() {
            break;
        }
        for (landed, takes_no_overflow) in [(0, true), (1, true), (2, true), (1, false)] {
            let mut number = 0;
            let image = lower.crash_image(&mut |_| {
                number += 1;
                let lands = landed == 1 || (landed == 2 && number % 2 == 0);
                if lands { Fate::Land } else { Fate::Vanish }
            });
            image.set_refusals(full(takes_no_overflow));
            let volume = start(&image);
            check_moved(&volume);
            // Applied objects can be renamed, other apps can commit, and this stays.
            let to = find(&volume, "app/to").unwrap();
            volume
                .rename(to, b"a", to, b"z", RenameMode::Replace)
                .unwrap();
            make(&volume, ObjectId::ROOT, "other", FileKind::Regular);
            volume.sync_all().unwrap();
            let image = image.crash_image(&mut |_| Fate::Vanish);
            image.set_refusals(full(takes_no_overflow));
            let volume = start(&image);
            assert_eq!(content(&volume, "app/to/z").as_deref(), Some(&b"a"[..]));
            assert_eq!(find(&volume, "app/to/a"), None);
            assert!(find(&volume, "other").is_some());
            // There is room again.
            image.set_refusals(Refusals::default());
            volume.sync_app(None, true).unwrap();
            volume.shutdown().unwrap();
            drop(volume);
            drop(start(&image));
            assert_eq!(leftovers(&image).unwrap(), Vec::<String>::new());
            cuts += 1;
        }
    }
    assert!(cuts > 40, "{cuts}");
}

/// One object that could not be applied blocked the apply of everything else, until the journal
/// was full and nothing could be committed any more.
#[test]
fn what_cannot_be_applied_keeps_nothing_else_from_its_place() {
    let lower = CrashLower::new();
    let volume = start(&lower);
    move_files(&volume);
    lower.set_refusals(full(false));
    let error = volume.sync_app(None, true).unwrap_err().to_string();
    assert!(error.contains("\"app/to/a\""), "{error}");
    let other = make(&volume, ObjectId::ROOT, "other", FileKind::Regular);
    // Many times what the journal holds.
    for round in 0..200_u32 {
        let data = [round.to_le_bytes(); 1000].concat();
        write(&volume, other, &data);
        volume.sync_all().unwrap();
    }
    let root = lower.root().unwrap();
    let error = volume.sync_app(None, true).unwrap_err().to_string();
    assert!(error.contains("\"app/to/"), "{error}");
    let placed = lower.stat_at(&root, b"other").unwrap();
    assert_eq!(placed.size, 4000);
    check_moved(&volume);
    // An object that cannot be applied can be deleted, or moved to where there is room.
    let to = find(&volume, "app/to").unwrap();
    volume.unlink(to, b"a").unwrap();
    for name in [&b"b"[..], b"new"] {
        volume
            .rename(to, name, ObjectId::ROOT, name, RenameMode::Replace)
            .unwrap();
    }
    volume.sync_app(None, true).unwrap();
    assert_eq!(volume.status().store.not_applied, None);
    for name in ["b", "new"] {
        let placed = lower.stat_at(&root, name.as_bytes());
        assert_eq!(placed.unwrap().size, name.len() as u64);
    }
    volume.shutdown().unwrap();
    drop(volume);
    drop(start(&lower));
    assert_eq!(leftovers(&lower).unwrap(), Vec::<String>::new());
}

/// Three calls of ten to an object fail, always the same ones.
fn some_calls(seed: u64) -> Refusals {
    let calls = RefusedCalls {
        permille: 300,
        seed,
    };
    Refusals {
        calls: Some(calls),
        ..Refusals::default()
    }
}

/// A call that was refused with an error that was not on a list stopped the whole store: a
/// directory that overlayfs does not move (`EXDEV`), a device number that XFS does not take
/// (`EINVAL`).
#[test]
fn whatever_the_filesystem_refuses_an_object_keeps_nothing_else_from_its_place() {
    let mut refused = 0;
    for seed in 0..60 {
        let lower = CrashLower::new();
        let volume = start(&lower);
        let other = make(&volume, ObjectId::ROOT, "other", FileKind::Regular);
        move_files(&volume);
        let app = find(&volume, "app").unwrap();
        let from = find(&volume, "app/from").unwrap();
        make(&volume, app, "fifo", FileKind::Fifo);
        volume
            .rename(app, b"from", ObjectId::ROOT, b"moved", RenameMode::Replace)
            .unwrap();
        volume
            .link(find(&volume, "app/to/a").unwrap(), from, b"a")
            .unwrap();
        volume.sync_all().unwrap();
        lower.set_refusals(some_calls(seed));
        let is_refused = volume.sync_app(None, true).is_err();
        refused += u64::from(is_refused);
        let check = |volume: &Volume| {
            for path in ["app/to/a", "moved/a"] {
                assert_eq!(content(volume, path).as_deref(), Some(&b"a"[..]), "{path}");
            }
            assert!(find(volume, "app/fifo").is_some() && find(volume, "app/from").is_none());
        };
        check(&volume);
        // The journal does not fill up with it, and the store can be mounted.
        for round in 0..100_u32 {
            write(&volume, other, &[round.to_le_bytes(); 1000].concat());
            volume.sync_all().unwrap();
        }
        drop(volume.sync_app(None, true));
        drop(volume);
        let image = lower.crash_image(&mut |_| Fate::Vanish);
        image.set_refusals(some_calls(seed));
        let volume = start(&image);
        check(&volume);
        image.set_refusals(Refusals::default());
        volume.sync_app(None, true).unwrap();
        volume.shutdown().unwrap();
        drop(volume);
        drop(start(&image));
        assert_eq!(leftovers(&image).unwrap(), Vec::<String>::new());
    }
    assert!(refused > 20, "{refused}");
}

/// Old files are applied, new ones only committed, and all inodes are in use: an apply was refused.
fn start_without_inodes() -> (CrashLower, Arc<Volume>) {
    let lower = CrashLower::new();
    let volume = start(&lower);
    let app = make(&volume, ObjectId::ROOT, "app", FileKind::Directory);
    for number in 0..OLD_FILES {
        make(&volume, app, &format!("old{number}"), FileKind::Regular);
    }
    // The files that are deleted later are not in use: another mount made them.
    volume.shutdown().unwrap();
    drop(volume);
    let volume = start(&lower);
    let app = find(&volume, "app").unwrap();
    for number in 0..NEW_FILES {
        let file = make(&volume, app, &format!("new{number}"), FileKind::Regular);
        write(&volume, file, &[number]);
    }
    volume.sync_all().unwrap();
    let root = lower.root().unwrap();
    lower.create(&root, FOREIGN, Create::Regular).unwrap();
    lower.set_refusals(Refusals {
        inodes_max: Some(lower.inodes()),
        ..Refusals::default()
    });
    let error = volume.sync_app(None, true).unwrap_err().to_string();
    assert!(error.contains("\"app/new"), "{error}");
    (lower, volume)
}

const OLD_FILES: u8 = 20;
const NEW_FILES: u8 = 6;
/// Another program's file.
const FOREIGN: &[u8] = b"foreign";

/// Names in a directory of the store itself.
fn names_below(lower: &CrashLower, path: &str) -> Vec<String> {
    let directory = path.split('/').fold(lower.root().unwrap(), |at, name| {
        lower.open(&at, name.as_bytes(), false).unwrap()
    });
    let entries = lower.list(&directory).unwrap().into_iter();
    entries
        .map(|entry| String::from_utf8(entry.name).unwrap())
        .collect()
}

fn delete_old(volume: &Volume, count: u8) {
    let app = find(volume, "app").unwrap();
    for number in 0..count {
        volume
            .unlink(app, format!("old{number}").as_bytes())
            .unwrap();
    }
    volume.sync_all().unwrap();
}

fn check_new(volume: &Volume) {
    for number in 0..NEW_FILES {
        let path = format!("app/new{number}");
        assert_eq!(
            content(volume, &path).as_deref(),
            Some(&[number][..]),
            "{path}"
        );
    }
}

/// The second apply had no inode for its overflow file, and failed at the new files: deletions were
/// never applied, and so never freed the inodes that these needed.
#[test]
fn deletions_reach_the_store_where_there_are_no_inodes() {
    for deleted in [1, NEW_FILES / 2, 2 * NEW_FILES] {
        let (lower, volume) = start_without_inodes();
        for _ in 0..3 {
            drop(volume.sync_app(None, true));
        }
        delete_old(&volume, deleted);
        // Enough for all new files, or for some of them.
        let synced = volume.sync_app(None, true);
        assert_eq!(synced.is_ok(), deleted > NEW_FILES, "{synced:?}");
        let names = names_below(&lower, "app");
        let count = |prefix: &str| names.iter().filter(|name| name.starts_with(prefix)).count();
        assert_eq!(count("old"), usize::from(OLD_FILES - deleted), "{names:?}");
        assert!(
            count("new") >= usize::from(deleted.min(NEW_FILES)),
            "{names:?}"
        );
        check_new(&volume);
        lower.set_refusals(Refusals::default());
        volume.shutdown().unwrap();
        drop(volume);
        drop(start(&lower));
        assert_eq!(leftovers(&lower).unwrap(), Vec::<String>::new());
    }
}

/// Found by the crash search with seed 20261308: a directory that was removed while it was in use,
/// and that an apply had made in part, was taken for one that another program had removed.
#[test]
fn a_removed_directory_that_was_in_use_is_not_missed_after_a_crash() {
    let mut carried = 0;
    for seed in 0..60 {
        let lower = CrashLower::new();
        let volume = start(&lower);
        let app = make(&volume, ObjectId::ROOT, "app", FileKind::Directory);
        volume.sync_app(None, true).unwrap();
        let directory = make(&volume, app, "directory", FileKind::Directory);
        volume.sync_all().unwrap();
        volume.open(directory).unwrap();
        volume.remove_directory(app, b"directory").unwrap();
        volume.sync_all().unwrap();
        lower.set_refusals(some_calls(seed));
        carried += u64::from(volume.sync_app(None, true).is_err());
        drop(volume);
        let image = lower.crash_image(&mut |_| Fate::Land);
        image.set_refusals(Refusals::default());
        let volume = start(&image);
        volume.sync_app(None, true).unwrap();
        assert_eq!(volume.status().store.externally_modified, 0, "seed {seed}");
        volume.shutdown().unwrap();
    }
    assert!(carried > 0);
}

/// The inodes of new objects are recorded in an overflow file where the journal has no room for
/// them: without a spare file one of the new objects was carried over, and its inode was used for
/// that.
#[test]
fn inodes_of_new_objects_are_recorded_where_these_took_the_last() {
    const FILES: usize = 6000;
    let lower = CrashLower::new();
    let volume = start_with_journal(&lower, 64 << 10);
    let app = make(&volume, ObjectId::ROOT, "app", FileKind::Directory);
    // Makes the spare files.
    volume.sync_app(None, true).unwrap();
    for number in 0..FILES {
        make(&volume, app, &number.to_string(), FileKind::Regular);
    }
    volume.sync_all().unwrap();
    let own = names_below(&lower, ".mobifs/stage");
    let staged = own.iter().filter(|name| !name.starts_with('t')).count();
    lower.set_refusals(Refusals {
        inodes_max: Some(lower.inodes() - staged + FILES),
        ..Refusals::default()
    });
    volume.sync_app(None, true).unwrap();
    assert_eq!(names_below(&lower, "app").len(), FILES);
    let own = names_below(&lower, ".mobifs");
    let is_spare = |name: &&&str| own.iter().any(|own| own == **name);
    assert!(SPARE_FILES.iter().all(|name| is_spare(&name)), "{own:?}");
}

/// Changes that need no inode are applied in each apply, whatever others need one.
#[test]
fn renames_reach_the_store_where_there_are_no_inodes() {
    let (lower, volume) = start_without_inodes();
    let app = find(&volume, "app").unwrap();
    for round in 0..5 {
        let (from, to) = (format!("old{round}"), format!("moved{round}"));
        volume
            .rename(
                app,
                from.as_bytes(),
                app,
                to.as_bytes(),
                RenameMode::Replace,
            )
            .unwrap();
        volume.sync_app(None, true).unwrap_err();
        let names = names_below(&lower, "app");
        assert!(names.contains(&to) && !names.contains(&from), "{names:?}");
    }
    check_new(&volume);
}

/// A power cut anywhere in the applies that delete and then make the new files.
#[test]
fn deletions_reach_the_store_without_inodes_wherever_an_apply_was_cut() {
    let mut cuts = 0;
    for calls in 1.. {
        let (lower, volume) = start_without_inodes();
        delete_old(&volume, 2 * NEW_FILES);
        lower.cut_after(lower.operations() + calls);
        if volume.sync_app(None, true).is_ok() {
            break;
        }
        for landed in 0..3 {
            let mut number = 0;
            let image = lower.crash_image(&mut |_| {
                number += 1;
                let lands = landed == 1 || (landed == 2 && number % 2 == 0);
                if lands { Fate::Land } else { Fate::Vanish }
            });
            let volume = start(&image);
            check_new(&volume);
            volume.sync_app(None, true).unwrap();
            let names = names_below(&image, "app");
            let expected = OLD_FILES - 2 * NEW_FILES + NEW_FILES;
            assert_eq!(names.len(), usize::from(expected), "{names:?}");
            check_new(&volume);
            volume.shutdown().unwrap();
            drop(volume);
            assert_eq!(leftovers(&image).unwrap(), Vec::<String>::new());
            cuts += 1;
        }
    }
    assert!(cuts > 100, "{cuts}");
}

/// An overflow file made of a spare file was deleted where writing it failed, and another program
/// could take its inode: then nothing was applied until one was free.
#[test]
fn a_commit_that_finds_no_room_keeps_the_inodes_that_are_kept() {
    const BYTES: usize = 1 << 20;
    let (lower, volume) = start_without_inodes();
    let file = find(&volume, "app/old0").unwrap();
    // Goes to its place, and what overwrites it to the journal, which is too small.
    write(&volume, file, &vec![1; BYTES]);
    volume.sync_all().unwrap();
    volume.sync_app(None, true).unwrap_err();
    let kept = || {
        let spare = names_below(&lower, ".mobifs");
        let spare = spare.iter().filter(|name| name.starts_with("spare-"));
        let overflow = names_below(&lower, ".mobifs/stage");
        let overflow = overflow.iter().filter(|name| name.starts_with('t'));
        spare.count() + overflow.count()
    };
    let before = kept();
    write(&volume, file, &vec![2; BYTES]);
    let mut failed = 0;
    for number in 1.. {
        lower.set_fault(Some(Fault {
            first: lower.calls() + number,
            count: u64::MAX,
            calls: Calls::Growing,
            errno: 28,
            harm: Harm::Nothing,
        }));
        let done = volume.sync_all();
        lower.set_fault(None);
        assert!(kept() >= before, "call {number}: {} of {before}", kept());
        if done.is_ok() {
            break;
        }
        failed += 1;
    }
    assert!(failed > 1, "{failed}");
    check_new(&volume);
}

/// A transaction that was larger than the journal made its overflow file with a new inode, and failed
/// where there was none, although inodes were kept for such files.
#[test]
fn a_commit_larger_than_the_journal_needs_no_new_inode() {
    const BYTES: usize = 1 << 20;
    let lower = CrashLower::new();
    let volume = start_with_journal(&lower, 64 << 10);
    let app = make(&volume, ObjectId::ROOT, "app", FileKind::Directory);
    let file = make(&volume, app, "file", FileKind::Regular);
    write(&volume, file, &vec![1; BYTES]);
    volume.sync_app(None, true).unwrap();
    lower.set_refusals(Refusals {
        inodes_max: Some(lower.inodes()),
        ..Refusals::default()
    });
    for round in 2..5 {
        write(&volume, file, &vec![round; BYTES]);
        volume.sync_app(None, false).unwrap();
        let found = content(&volume, "app/file").unwrap();
        assert!(!found.is_empty() && found.iter().all(|&byte| byte == round));
    }
    volume.shutdown().unwrap();
}

/// Such a transaction took one of the inodes that the next apply needs, until it had one of its own.
#[test]
fn deletions_reach_the_store_without_inodes_after_a_commit_larger_than_the_journal() {
    const BYTES: usize = 1 << 20;
    let (lower, volume) = start_without_inodes();
    let file = find(&volume, &format!("app/old{}", OLD_FILES - 1)).unwrap();
    write(&volume, file, &vec![1; BYTES]);
    volume.sync_app(None, true).unwrap_err();
    for round in 2..5 {
        write(&volume, file, &vec![round; BYTES]);
        volume.sync_all().unwrap();
    }
    delete_old(&volume, 2 * NEW_FILES);
    volume.sync_app(None, true).unwrap();
    let names = names_below(&lower, "app");
    assert_eq!(names.len(), usize::from(OLD_FILES - NEW_FILES), "{names:?}");
    check_new(&volume);
    volume.shutdown().unwrap();
}

/// As versions without spare files have left a store: there is no inode for a second overflow file.
/// Nothing is applied then; one free inode is enough for everything.
#[test]
fn a_store_without_spare_files_comes_free_with_one_inode() {
    let (lower, volume) = start_without_inodes();
    volume.shutdown().unwrap_err();
    drop(volume);
    let own = lower
        .open(&lower.root().unwrap(), b".mobifs", true)
        .unwrap();
    for name in SPARE_FILES {
        let _may_be_missing = lower.unlink(&own, name.as_bytes());
    }
    // Only the first overflow file is in use; the other one is preallocated.
    let stage = lower.open(&own, b"stage", true).unwrap();
    for name in names_below(&lower, ".mobifs/stage").iter().skip(1) {
        lower.unlink(&stage, name.as_bytes()).unwrap();
    }
    let limit = |inodes| Refusals {
        inodes_max: Some(inodes),
        ..Refusals::default()
    };
    lower.set_refusals(limit(lower.inodes()));

    let volume = start(&lower);
    delete_old(&volume, NEW_FILES);
    volume.shutdown().unwrap_err();
    drop(volume);
    for _ in 0..2 {
        let volume = start(&lower);
        let error = volume.sync_app(None, true).unwrap_err().to_string();
        assert!(error.contains("No space left"), "{error}");
        check_new(&volume);
        let names = names_below(&lower, "app");
        let old = names.iter().filter(|name| name.starts_with("old"));
        assert_eq!(old.count(), usize::from(OLD_FILES), "{names:?}");
        volume.shutdown().unwrap_err();
    }
    let volume = start(&lower);
    let root = lower.root().unwrap();
    lower.unlink(&root, FOREIGN).unwrap();
    volume.sync_app(None, true).unwrap();
    let names = names_below(&lower, "app");
    // As many old files are deleted as new ones are applied.
    assert_eq!(names.len(), usize::from(OLD_FILES), "{names:?}");
    check_new(&volume);
    // From now on inodes are kept.
    let own = names_below(&lower, ".mobifs");
    let spare = own.iter().filter(|name| name.starts_with("spare-"));
    assert!(spare.count() > 0, "{own:?}");
}

/// btrfs without room for metadata refuses each rename after 40 ms: applies of 3,000 deletions held
/// the journal for two minutes each, to carry all of them over.
#[test]
fn a_filesystem_without_room_is_not_asked_for_every_deletion() {
    const FILES: usize = 3000;
    let lower = CrashLower::new();
    let volume = start_with_journal(&lower, 1 << 20);
    let app = make(&volume, ObjectId::ROOT, "app", FileKind::Directory);
    let names: Vec<String> = (0..FILES).map(|number| number.to_string()).collect();
    for name in &names {
        make(&volume, app, name, FileKind::Regular);
    }
    volume.sync_app(None, true).unwrap();
    for name in &names {
        volume.unlink(app, name.as_bytes()).unwrap();
    }
    volume.sync_all().unwrap();
    lower.set_refusals(Refusals {
        takes_no_detached: true,
        ..Refusals::default()
    });
    let root = lower.root().unwrap();
    for round in 0..3 {
        let before = lower.operations();
        let error = volume.sync_app(None, true).unwrap_err();
        let calls = lower.operations() - before;
        assert!(calls < 200, "{calls} calls");
        assert!(error.to_string().contains("3000 changes"), "{error}");
        assert_eq!(names_below(&lower, "app").len(), FILES);
        assert_eq!(find(&volume, "app/0"), None, "it is deleted for programs");
        // Another app's change is applied, whatever is carried over.
        let other = format!("other{round}");
        make(&volume, ObjectId::ROOT, &other, FileKind::Regular);
        volume.sync_app(None, true).unwrap_err();
        lower.stat_at(&root, other.as_bytes()).unwrap();
    }
    // Skipped changes are kept, also after a power cut.
    let image = lower.crash_image(&mut |_| Fate::Vanish);
    drop(volume);
    for lower in [image, lower] {
        lower.set_refusals(Refusals::default());
        let volume = start(&lower);
        volume.sync_app(None, true).unwrap();
        assert_eq!(names_below(&lower, "app"), Vec::<String>::new());
        volume.shutdown().unwrap();
        drop(volume);
        assert_eq!(leftovers(&lower).unwrap(), Vec::<String>::new());
    }
}
