//! What is committed and cannot be brought to its place is named, in errors and in the status.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::path::Path;
use std::sync::Arc;

use mobifs_base::{DeviceNumber, FileKind, ObjectId};
use mobifs_store::{Gate, JournalOptions, JournalStore};
use mobifs_testkit::crash::{
    Calls, CrashLower, Fate, Fault, Harm, Refusals, RefusedCalls, leftovers,
};
use mobifs_volume::{
    Caller, Config, NodeSpec, RenameMode, SetIdBits, Volume, VolumeOptions, WriteAt,
};

/// A volume over the store that is there, or over a new one.
fn start(lower: &CrashLower) -> Arc<Volume> {
    let journal = JournalOptions {
        journal_bytes: 256 << 10,
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
    let root = mobifs_store::lower::Lower::root(&lower).unwrap();
    let error = volume.sync_app(None, true).unwrap_err().to_string();
    assert!(error.contains("\"app/to/"), "{error}");
    let placed = mobifs_store::lower::Lower::stat_at(&lower, &root, b"other").unwrap();
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
        let placed = mobifs_store::lower::Lower::stat_at(&lower, &root, name.as_bytes());
        assert_eq!(placed.unwrap().size, name.len() as u64);
    }
    volume.shutdown().unwrap();
    drop(volume);
    drop(start(&lower));
    assert_eq!(leftovers(&lower).unwrap(), Vec::<String>::new());
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
        let calls = Some(RefusedCalls {
            permille: 300,
            seed,
        });
        lower.set_refusals(Refusals {
            calls,
            ..Refusals::default()
        });
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
        image.set_refusals(Refusals {
            calls,
            ..Refusals::default()
        });
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
