//! Tests of a running volume over stores in memory and in a directory.
#![cfg(not(feature = "interleavings"))]

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mobifs_base::{FileKind, ObjectId};
use mobifs_engine::{Caller, FsError, SetIdBits, TransactioningName, WriteAt};
use mobifs_store::{MemoryStore, Store};

use super::faulty::Faulty;
use super::{KernelCache, Volume, VolumeError, VolumeOptions};
use crate::fixtures::node;
use crate::{AppSelection, Arena, Config, KernelHeld, OpenedStore, PolicyChange, Resumption};

const CALLER: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0o022,
};

fn options(config: &str) -> VolumeOptions {
    VolumeOptions::new(&Config::parse(config, Path::new("test")).unwrap())
}

/// Without a checkpointer: nothing is committed unless the test asks.
fn quiet(config: &str) -> VolumeOptions {
    VolumeOptions {
        background: false,
        ..options(config)
    }
}

fn directory(volume: &Volume, parent: ObjectId, name: &str) -> ObjectId {
    volume
        .create(&CALLER, parent, name.as_bytes(), &node(FileKind::Directory))
        .unwrap()
        .id
}

fn file(volume: &Volume, parent: ObjectId, name: &str, content: &[u8]) -> ObjectId {
    let id = volume
        .create(&CALLER, parent, name.as_bytes(), &node(FileKind::Regular))
        .unwrap()
        .id;
    write(volume, id, content).unwrap();
    id
}

fn write(volume: &Volume, id: ObjectId, content: &[u8]) -> Result<usize, FsError> {
    volume.write(id, WriteAt::Offset(0), content, SetIdBits::Stay, false)
}

fn content(volume: &Volume, parent: ObjectId, name: &str) -> Result<Vec<u8>, FsError> {
    let node = volume.lookup(parent, name.as_bytes())?;
    let mut out = vec![0; usize::try_from(node.attributes.size).unwrap()];
    assert_eq!(volume.read(node.id, 0, &mut out)?, out.len());
    volume.forget(node.id, 1);
    Ok(out)
}

/// Every file's path and content below the root. Directories may be nested in any depth.
fn walk(volume: &Volume, found: &mut BTreeSet<(String, Vec<u8>)>) {
    let mut waiting = vec![(ObjectId::ROOT, String::new())];
    while let Some((parent, above)) = waiting.pop() {
        for entry in volume.read_directory(parent, 0, usize::MAX).unwrap() {
            let name = String::from_utf8(entry.name.as_bytes().to_vec()).unwrap();
            let path = format!("{above}/{name}");
            if entry.kind == FileKind::Directory {
                let node = volume.lookup(parent, name.as_bytes()).unwrap();
                waiting.push((node.id, path));
            } else {
                found.insert((path, content(volume, parent, &name).unwrap()));
            }
        }
        if parent != ObjectId::ROOT {
            volume.forget(parent, 1);
        }
    }
}

const SMALL: &str = "journal_bytes = \"4MiB\"\nmemory_budget_bytes = \"4MiB\"\n";

fn open(directory: &Path, config: &str) -> OpenedStore {
    let config = Config::parse(config, Path::new("test")).unwrap();
    OpenedStore::open(directory, &crate::OpenOptions::new(&config)).unwrap()
}

#[test]
fn a_durable_fsync_survives_a_power_cut_and_a_relaxed_one_need_not() {
    let store = tempfile::tempdir().unwrap();
    let config = format!("{SMALL}[[app]]\nmatch = \"bank\"\nclass = \"durable\"\n");
    let opened = open(store.path(), &config);
    let volume = Volume::start(opened.store(), quiet(&config)).unwrap();
    for app in ["bank", "mail"] {
        let parent = directory(&volume, ObjectId::ROOT, app);
        let id = file(&volume, parent, "f", app.as_bytes());
        volume.fsync(id).unwrap();
    }
    volume.cut_power();
    opened.abandon();
    assert_eq!(volume.attributes(ObjectId::ROOT), Err(FsError::Io));

    let opened = open(store.path(), &config);
    let volume = Volume::start(opened.store(), quiet(&config)).unwrap();
    let bank = volume.lookup(ObjectId::ROOT, b"bank").unwrap().id;
    assert_eq!(content(&volume, bank, "f").unwrap(), b"bank");
    assert_eq!(
        volume.lookup(ObjectId::ROOT, b"mail"),
        Err(FsError::NotFound)
    );
}

/// Each call of the checkpointer costs a durable commit two switches of threads, and the lock
/// of the engine while it looks.
#[test]
fn a_caller_that_commits_itself_does_not_call_the_checkpointer() {
    let store = tempfile::tempdir().unwrap();
    let config = format!("{SMALL}[defaults]\nclass = \"durable\"\n");
    let opened = open(store.path(), &config);
    let volume = Volume::start(opened.store(), quiet(&config)).unwrap();
    let id = file(&volume, ObjectId::ROOT, "f", b"0");
    let mut checkpointer = volume.checkpointer();
    checkpointer.run_round();
    for number in 0..10_u8 {
        write(&volume, id, &[number]).unwrap();
        assert!(!checkpointer.is_called(), "it knows of what is open");
        match number % 2 {
            0 => volume.fsync(id).unwrap(),
            _ => volume.sync_app(None, false).unwrap(),
        }
    }
    // A file that is closed and unused wakes it.
    write(&volume, id, b"left").unwrap();
    volume.close_app(".");
    write(&volume, id, b"new").unwrap();
    assert!(checkpointer.is_called());
}

#[test]
fn after_shutdown_the_store_is_plain_files() {
    let store = tempfile::tempdir().unwrap();
    let opened = open(store.path(), SMALL);
    let volume = Volume::start(opened.store(), options(SMALL)).unwrap();
    let app = directory(&volume, ObjectId::ROOT, "app");
    file(&volume, app, "f", b"hello");
    volume.shutdown().unwrap();
    assert_eq!(std::fs::read(store.path().join("app/f")).unwrap(), b"hello");
    opened.close().unwrap();
}

#[test]
fn what_left_memory_is_found_again_while_it_is_trimmed() {
    // Regression: the store was asked to forget objects that a listing in memory still named, and
    // lookups failed for ever if the engine did not withdraw that.
    let store = tempfile::tempdir().unwrap();
    for app in 0..4 {
        for deep in 0..5 {
            let path = store.path().join(format!("app{app}/dir{deep}"));
            std::fs::create_dir_all(&path).unwrap();
            for name in 0..10 {
                std::fs::write(path.join(name.to_string()), format!("{app}{deep}{name}")).unwrap();
            }
        }
    }
    let opened = open(store.path(), SMALL);
    let few = VolumeOptions {
        objects_max: 10,
        ..quiet(SMALL)
    };
    let volume = Volume::start(opened.store(), few).unwrap();
    let mut first = BTreeSet::new();
    walk(&volume, &mut first);
    assert_eq!(first.len(), 200);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::SeqCst) {
                volume.do_housekeeping();
            }
        });
        let walkers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let mut again = BTreeSet::new();
                        walk(&volume, &mut again);
                        assert_eq!(again, first);
                    }
                })
            })
            .collect();
        let results: Vec<_> = walkers.into_iter().map(|walker| walker.join()).collect();
        ended.store(true, Ordering::SeqCst);
        assert!(results.iter().all(Result::is_ok));
    });
    volume.do_housekeeping();
    assert!(
        volume.status().memory.objects <= 10,
        "{}",
        volume.status().memory.objects
    );
}

#[test]
fn a_failed_commit_makes_its_app_read_only_until_a_sync_succeeds() {
    let store = Faulty::new();
    let config = "[[app]]\nmatch = \"bank\"\nclass = \"durable\"\n";
    let volume = Volume::start(Arc::clone(&store) as Arc<_>, quiet(config)).unwrap();
    let bank = directory(&volume, ObjectId::ROOT, "bank");
    let id = file(&volume, bank, "f", b"1");
    let other = directory(&volume, ObjectId::ROOT, "other");
    volume.sync_all().unwrap();

    store.broken.store(true, Ordering::SeqCst);
    write(&volume, id, b"2").unwrap();
    assert_eq!(
        volume.fsync(id),
        Err(FsError::Io),
        "fsync reports the failure"
    );
    assert_eq!(write(&volume, id, b"3"), Err(FsError::ReadOnly));
    assert_eq!(
        content(&volume, bank, "f").unwrap(),
        b"2",
        "nothing acknowledged is lost"
    );
    let kept = file(&volume, other, "g", b"other apps go on");
    let status = volume.status();
    let report = status.apps.iter().find(|app| app.name == "bank").unwrap();
    assert!(
        report
            .read_only
            .as_ref()
            .unwrap()
            .contains("the medium is gone"),
        "{report:?}"
    );
    assert!(report.bytes_at_risk > 0);
    let error = volume.sync_app(Some("bank"), false).unwrap_err();
    assert!(
        matches!(&error, VolumeError::NotCommitted { app, .. } if app == "bank"),
        "{error}"
    );
    assert_eq!(volume.sync_all(), Err(FsError::Io));

    store.broken.store(false, Ordering::SeqCst);
    volume.sync_app(None, false).unwrap();
    write(&volume, id, b"4").unwrap();
    volume.fsync(id).unwrap();
    assert!(
        volume
            .status()
            .apps
            .iter()
            .all(|app| app.read_only.is_none())
    );
    assert!(volume.attributes(kept).is_ok());
}

#[test]
fn writers_wait_when_memory_is_used_up() {
    let store = tempfile::tempdir().unwrap();
    let config = format!("{SMALL}[defaults]\nage_max_ms = 1000000\n");
    let opened = open(store.path(), &config);
    let volume = Volume::start(opened.store(), options(&config)).unwrap();
    let app = directory(&volume, ObjectId::ROOT, "app");
    let chunk = vec![0xa5; 128 << 10];
    let id = file(&volume, app, "f", b"");
    for n in 0..256_u64 {
        let at = WriteAt::Offset(n * chunk.len() as u64);
        assert_eq!(
            volume.write(id, at, &chunk, SetIdBits::Stay, false),
            Ok(chunk.len())
        );
        assert!(volume.status().memory.used_bytes <= 4 << 20);
    }
    let mut out = vec![0; 32 << 20];
    assert_eq!(volume.read(id, 0, &mut out), Ok(out.len()));
    assert!(out.iter().all(|&byte| byte == 0xa5));
    volume.shutdown().unwrap();
    opened.close().unwrap();
}

#[test]
fn memory_that_cannot_be_committed_is_no_reason_to_hang() {
    let store = Faulty::new();
    let volume = Volume::start(Arc::clone(&store) as Arc<_>, quiet(SMALL)).unwrap();
    let one = directory(&volume, ObjectId::ROOT, "one");
    let other = directory(&volume, ObjectId::ROOT, "other");
    let (big, small) = (file(&volume, one, "f", b""), file(&volume, other, "f", b""));
    volume.sync_all().unwrap();
    store.broken.store(true, Ordering::SeqCst);
    let chunk = vec![1; 4 << 20];
    write(&volume, big, &chunk).unwrap();
    assert_eq!(write(&volume, small, &chunk), Err(FsError::NoSpace));
    store.broken.store(false, Ordering::SeqCst);
    volume.sync_all().unwrap();
    write(&volume, small, &chunk).unwrap();
}

/// Regression: removals did not wait for memory, whether commits succeeded or not; after a million
/// of them memory was at a multiple of the budget.
#[test]
fn removals_wait_for_commits_and_go_beyond_the_budget_only_without_any() {
    const BUDGET_BYTES: u64 = 64 << 10;
    let store = Faulty::new();
    let options = VolumeOptions {
        memory_budget_bytes: BUDGET_BYTES,
        // Then nothing is committed for an operation that needs memory, where the disk is full.
        rolls_back: true,
        ..quiet("")
    };
    let volume = Volume::start(Arc::clone(&store) as Arc<_>, options).unwrap();
    let app = directory(&volume, ObjectId::ROOT, "app");
    let make = |number: usize| {
        let made = file(&volume, app, &number.to_string(), b"");
        volume.forget(made, 1);
    };
    (0..600).for_each(make);
    volume.sync_all().unwrap();
    let used_after = |number: usize| {
        let name = number.to_string();
        volume.unlink(app, name.as_bytes()).unwrap();
        volume.status().memory.used_bytes
    };
    for number in 0..400 {
        assert!(used_after(number) <= BUDGET_BYTES, "{number}");
    }
    volume.sync_all().unwrap();
    store.is_full.store(true, Ordering::SeqCst);
    let used_bytes = (400..600).map(used_after).max();
    assert!(used_bytes > Some(BUDGET_BYTES), "{used_bytes:?}");
}

#[test]
fn deleted_files_in_use_leave_memory() {
    let store = tempfile::tempdir().unwrap();
    let opened = open(store.path(), SMALL);
    let volume = Volume::start(opened.store(), quiet(SMALL)).unwrap();
    let app = directory(&volume, ObjectId::ROOT, "app");
    let id = volume.create_unnamed(&CALLER, app, 0o600).unwrap().id;
    let chunk = vec![7; 1 << 20];
    for n in 0..16_u64 {
        volume
            .write(id, WriteAt::Offset(n << 20), &chunk, SetIdBits::Stay, false)
            .unwrap();
    }
    let mut out = vec![0; 16 << 20];
    assert_eq!(volume.read(id, 0, &mut out), Ok(out.len()));
    assert!(out.iter().all(|&byte| byte == 7));
    assert!(volume.status().memory.used_bytes <= 4 << 20);
}

#[test]
fn syncing_an_app_by_name() {
    let store = tempfile::tempdir().unwrap();
    std::fs::create_dir(store.path().join("old")).unwrap();
    std::fs::write(store.path().join("plain"), "").unwrap();
    let opened = open(store.path(), SMALL);
    let volume = Volume::start(opened.store(), quiet(SMALL)).unwrap();
    volume.sync_app(Some("old"), false).unwrap();
    for absent in ["absent", "plain", "old/below", "", "..", "/"] {
        let error = volume.sync_app(Some(absent), false).unwrap_err();
        assert!(
            matches!(error, VolumeError::UnknownApp { .. }),
            "{absent}: {error}"
        );
    }
    let app = directory(&volume, ObjectId::ROOT, "new");
    file(&volume, app, "f", b"x");
    volume.sync_app(Some("new"), true).unwrap();
    assert_eq!(std::fs::read(store.path().join("new/f")).unwrap(), b"x");
}

#[test]
fn classes_change_while_mounted() {
    let store = Arc::new(MemoryStore::new());
    let volume = Volume::start(Arc::clone(&store) as Arc<_>, quiet("")).unwrap();
    let app = directory(&volume, ObjectId::ROOT, "app");
    let id = file(&volume, app, "f", b"x");
    volume.fsync(id).unwrap();
    assert_eq!(store.pending().commits, 0);
    let durable = PolicyChange::parse("class = \"durable\"");
    volume.set_app("app", durable.clone()).unwrap();
    volume.fsync(id).unwrap();
    assert!(store.pending().commits > 0);
    // Names that do not exist were accepted without an error.
    for unknown in ["app/below", "absent", "app/", "", "..", "/"] {
        let error = volume.set_app(unknown, durable.clone()).unwrap_err();
        assert!(
            matches!(error, VolumeError::UnknownApp { .. }),
            "{unknown}: {error}"
        );
    }
    // The configuration, loaded again, takes precedence.
    volume
        .reload(&Config::parse("", Path::new("test")).unwrap())
        .unwrap();
    assert_eq!(
        volume
            .status()
            .apps
            .iter()
            .find(|a| a.name == "app")
            .unwrap()
            .class,
        "relaxed"
    );

    let fixed = Volume::start(Arc::new(MemoryStore::new()), quiet("allow_durable = false"));
    let fixed = fixed.unwrap();
    assert!(!fixed.has_durable_apps());
    let error = fixed.set_app(".", durable).unwrap_err().to_string();
    assert!(error.contains("allow_durable"), "{error}");
}

#[test]
fn a_policy_may_commit_at_fsync_without_anybody_waiting() {
    let store = Arc::new(MemoryStore::new());
    let config = "[defaults]\nage_max_ms = 1000000\n";
    let volume = Volume::start(Arc::clone(&store) as Arc<_>, options(config)).unwrap();
    let app = directory(&volume, ObjectId::ROOT, "app");
    let id = file(&volume, app, "f", b"x");
    volume.fsync(id).unwrap();
    let policy = |name: TransactioningName| {
        let name = name.as_str();
        PolicyChange::parse(&format!("policy = \"{name}\"\nflush_interval_ms = 1000000"))
    };
    volume
        .set_app("app", policy(TransactioningName::Fsync))
        .unwrap();
    let report = |volume: &Volume| {
        let apps = volume.status().apps;
        apps.into_iter().find(|a| a.name == "app").unwrap()
    };
    assert_eq!(report(&volume).transactions.open, 1);
    volume.fsync(id).unwrap();
    // If the checkpointer does nothing, the runner's limit ends the test.
    while report(&volume).transactions.committed == 0 {
        std::thread::yield_now();
    }
    assert_eq!(report(&volume).policy.name(), "fsync");
    assert_eq!(report(&volume).bytes_at_risk, 0);

    let deaf = quiet("allow_durable = false\n[defaults]\nage_max_ms = 1000000\n");
    let deaf = Volume::start(Arc::new(MemoryStore::new()), deaf).unwrap();
    let error = deaf.set_app(".", policy(TransactioningName::Fsync));
    assert!(error.unwrap_err().to_string().contains("allow_durable"));
}

#[test]
fn old_changes_are_committed_without_a_request() {
    let store = Arc::new(MemoryStore::new());
    let config = "[defaults]\nage_max_ms = 20\n";
    let volume = Volume::start(Arc::clone(&store) as Arc<_>, options(config)).unwrap();
    let app = directory(&volume, ObjectId::ROOT, "app");
    file(&volume, app, "f", b"x");
    // Ends when the checkpointer has done its work; if it does not, the test hangs
    // and the runner's limit ends it.
    while volume.status().apps.iter().any(|app| app.bytes_at_risk > 0) {
        std::thread::yield_now();
    }
    let status = volume.status();
    let app = status.apps.iter().find(|app| app.name == "app").unwrap();
    assert!(app.last_checkpoint.is_some() && app.transactions.committed > 0);
    assert_eq!((app.transactions.open, app.transactions.closed), (0, 0));
}

#[test]
fn many_threads_sync_durably_at_once() {
    let directory_of_store = tempfile::tempdir().unwrap();
    let config = format!("{SMALL}[defaults]\nclass = \"durable\"\n");
    let opened = open(directory_of_store.path(), &config);
    let volume = Volume::start(opened.store(), options(&config)).unwrap();
    let app = directory(&volume, ObjectId::ROOT, "app");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let volume = &volume;
            scope.spawn(move || {
                for n in 0..25 {
                    let name = format!("{thread}-{n}");
                    let id = file(volume, app, &name, name.as_bytes());
                    volume.fsync(id).unwrap();
                }
            });
        }
    });
    volume.cut_power();
    opened.abandon();
    let opened = open(directory_of_store.path(), &config);
    let volume = Volume::start(opened.store(), quiet(&config)).unwrap();
    let app = volume.lookup(ObjectId::ROOT, b"app").unwrap().id;
    for thread in 0..4 {
        for n in 0..25 {
            let name = format!("{thread}-{n}");
            assert_eq!(content(&volume, app, &name).unwrap(), name.as_bytes());
        }
    }
}

#[test]
fn the_status_has_the_documented_form() {
    let volume = Volume::start(Arc::new(MemoryStore::new()), quiet("")).unwrap();
    let app = directory(&volume, ObjectId::ROOT, "app");
    let id = file(&volume, app, "f", &[1; 8192]);
    write(&volume, id, &[2; 8192]).unwrap();
    volume.sync_all().unwrap();
    let json = serde_json::to_value(volume.status()).unwrap();
    assert_eq!(json["schema"], 1);
    assert_eq!(json["daemon_pid"], std::process::id());
    let app = json["apps"]
        .as_array()
        .unwrap()
        .iter()
        .find(|app| app["name"] == "app")
        .unwrap();
    assert_eq!(app["class"], "relaxed");
    assert_eq!(app["bytes_at_risk"], 0);
    assert_eq!(app["bytes_written_by_app"], 16_384);
    assert_eq!(app["bytes_sent_to_store"], 8_192);
    assert_eq!(app["bytes_saved"], 8_192);
    assert_eq!(app["transactions"]["committed"], 1);
    assert!(app["e"].as_f64().unwrap() > 0.0);
    assert!(
        app["last_checkpoint"]["time"]
            .as_str()
            .unwrap()
            .ends_with('Z')
    );
    assert!(app["read_only"].is_null());
    // docs/STATUS.md names every field.
    let documented = include_str!("../../../../docs/STATUS.md");
    let mut names = BTreeSet::new();
    collect_names(&json, &mut names);
    for name in names {
        assert!(
            documented.contains(&format!("`{name}`")),
            "docs/STATUS.md does not have {name}"
        );
    }
}

fn collect_names(value: &serde_json::Value, names: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(fields) => {
            for (name, value) in fields {
                names.insert(name.clone());
                collect_names(value, names);
            }
        }
        serde_json::Value::Array(values) => {
            values.iter().for_each(|value| collect_names(value, names));
        }
        _ => {}
    }
}

/// What a successor finds in a file after a batch of one write and what `then` does, if the
/// process is killed after it.
fn killed_in_batch(then: impl FnOnce(&Volume, ObjectId)) -> Vec<u8> {
    let arena = Arena::create().unwrap();
    let with = |arena: &Arena| VolumeOptions {
        arena: Some(arena.clone()),
        ..quiet("")
    };
    let store = Arc::new(MemoryStore::new());
    let volume = Volume::start(store.clone(), with(&arena)).unwrap();
    let id = file(&volume, ObjectId::ROOT, "file", b"old");
    volume.open(id).unwrap();
    volume
        .write_batched(id, WriteAt::Offset(0), b"new")
        .unwrap();
    then(&volume, id);
    std::mem::forget(volume);
    let successor = Arena::attach(arena.descriptor().try_clone_to_owned().unwrap()).unwrap();
    let left = Resumption::of(&successor).unwrap();
    let volume = Volume::resume(store, with(&successor), &left).unwrap();
    content(&volume, ObjectId::ROOT, "file").unwrap()
}

#[test]
fn a_kill_takes_a_batch_back_until_it_ends_or_something_else_is_changed() {
    assert_eq!(killed_in_batch(|_, _| {}), b"old");
    let looked = killed_in_batch(|volume, id| {
        assert_eq!(volume.read(id, 0, &mut [0; 3]).unwrap(), 3);
        volume.attributes(id).unwrap();
        volume.statfs().unwrap();
        volume.release(id);
        volume.forget(id, 1);
    });
    assert_eq!(looked, b"old", "a caller that only reads");
    assert_eq!(killed_in_batch(|volume, _| volume.end_batch()), b"new");
    let written = killed_in_batch(|volume, id| {
        volume
            .write(id, WriteAt::Offset(3), b"er", SetIdBits::Stay, false)
            .unwrap();
    });
    assert_eq!(written, b"newer");
    let made = killed_in_batch(|volume, _| {
        directory(volume, ObjectId::ROOT, "other");
    });
    assert_eq!(made, b"new", "what came later is there");
}

#[test]
fn a_batch_does_not_get_larger_than_an_arena_takes_at_once() {
    let much = vec![7; super::locked_engine::BATCH_BYTES_MAX];
    let kept = killed_in_batch(|volume, id| {
        volume.write_batched(id, WriteAt::Offset(0), &much).unwrap();
    });
    assert_eq!(kept, much);
}

/// A listing that went on after the entries had left memory missed some and showed others
/// twice, as their places were counted anew when they came back: `rm -r` of a large directory
/// left files.
#[test]
fn a_listing_goes_on_after_its_directory_left_memory_and_after_a_kill() {
    let arena = Arena::create().unwrap();
    let with = |arena: &Arena, seed| VolumeOptions {
        arena: Some(arena.clone()),
        hash_seed: Some(seed),
        objects_max: 1,
        ..quiet("")
    };
    let store = Arc::new(MemoryStore::new());
    let volume = Volume::start(store.clone(), with(&arena, 1)).unwrap();
    let parent = directory(&volume, ObjectId::ROOT, "d");
    // In another order than the store's.
    let names: Vec<String> = (0..40).rev().map(|n| format!("{n:02}")).collect();
    for name in &names {
        let id = file(&volume, parent, name, b"");
        volume.forget(id, 1);
    }
    let (mut seen, mut cookie) = (Vec::new(), 0);
    let mut go_on = |volume: &Volume| {
        let entries = volume.read_directory(parent, cookie, 10).unwrap();
        cookie = entries.last().map_or(cookie, |entry| entry.cookie);
        seen.extend(entries.iter().map(|entry| entry.name.to_string()));
        entries.is_empty()
    };
    let evict_all = |volume: &Volume| {
        volume.sync_all().unwrap();
        volume.do_housekeeping();
        assert!(!volume.shared.lock_engine().engine.has_listing(parent));
    };
    go_on(&volume);
    evict_all(&volume);
    go_on(&volume);
    evict_all(&volume);
    std::mem::forget(volume);
    let arena = Arena::attach(arena.descriptor().try_clone_to_owned().unwrap()).unwrap();
    let left = Resumption::of(&arena).unwrap();
    let volume = Volume::resume(store, with(&arena, 2), &left).unwrap();
    while !go_on(&volume) {}
    seen.sort_unstable_by(|one, other| other.cmp(one));
    assert_eq!(seen, names);
}

/// A kernel that holds every name until it is asked to forget it, and then gives it back.
struct Obedient {
    volume: std::sync::Weak<Volume>,
}

impl KernelCache for Obedient {
    fn forget(&self, objects: &[KernelHeld]) {
        let volume = self.volume.upgrade().unwrap();
        objects.iter().for_each(|held| volume.forget(held.id, 1));
    }
}

/// The search for unused objects looked at all of them with the engine locked, each second, and
/// evicted none of those that the kernel held.
#[test]
fn what_only_the_kernel_holds_leaves_memory_in_bounded_steps() {
    const FILES: usize = 2000;
    let store = Arc::new(MemoryStore::new());
    let few = VolumeOptions {
        objects_max: 50,
        ..quiet("")
    };
    let volume = Volume::start(store, few).unwrap();
    let kernel = Obedient {
        volume: Arc::downgrade(&volume),
    };
    volume.set_kernel_cache(Arc::new(kernel)).unwrap();
    let parent = directory(&volume, ObjectId::ROOT, "d");
    for n in 0..FILES {
        file(&volume, parent, &n.to_string(), b"content");
    }
    assert_eq!(volume.shared.trim_round().asked, 0, "nothing is committed");
    volume.sync_all().unwrap();
    let round = volume.shared.trim_round();
    assert!(round.asked >= FILES - 50, "{round:?}");
    assert!(round.steps * 256 >= round.looked_at, "{round:?}");
    assert!(volume.status().memory.objects <= 50);
    let mut found = BTreeSet::new();
    walk(&volume, &mut found);
    assert_eq!(found.len(), FILES);
}

/// The status of 20,000 apps was 10.6 MB.
#[test]
fn a_status_lists_the_apps_that_are_asked_for() {
    let volume = Volume::start(Arc::new(MemoryStore::new()), quiet("")).unwrap();
    for n in 0..1200 {
        directory(&volume, ObjectId::ROOT, &format!("app{n:04}"));
    }
    let selected = |selection: AppSelection| {
        let mut status = volume.status();
        selection.apply(&mut status).map(|()| status)
    };
    // Also `.`, which lies before all others.
    let status = selected(AppSelection::default()).unwrap();
    assert_eq!((status.apps.len(), status.apps_omitted), (1000, 201));
    assert_eq!(status.totals.apps, 1201);
    let last = status.apps.last().map(crate::AppReport::full_name);
    let next = AppSelection {
        after: last,
        ..AppSelection::default()
    };
    let status = selected(next).unwrap();
    assert_eq!((status.apps.len(), status.apps_omitted), (201, 0));
    let some = AppSelection {
        glob: Some("app00*".into()),
        limit: Some(30),
        ..AppSelection::default()
    };
    let status = selected(some).unwrap();
    assert_eq!((status.apps.len(), status.apps_omitted), (30, 70));
    assert_eq!(status.totals.apps, 1201, "of all apps, ever");
    let none = AppSelection {
        glob: Some("/app".into()),
        ..AppSelection::default()
    };
    assert!(selected(none).is_err());
}
