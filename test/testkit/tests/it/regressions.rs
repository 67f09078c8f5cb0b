//! Every bug that a property found, as the shortest script that showed it.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::collections::BTreeMap;
use std::path::Path as FilePath;
use std::sync::Arc;

use mobifs_store::{Capabilities, Gate, JournalOptions, JournalStore, MEMORY_CAPABILITIES};
use mobifs_testkit::crash::{Calls, CrashLower, Effect, Fate, Fault, Harm};
use mobifs_testkit::layout::{DURABLE_ROOT, Layout, NESTED, TOP_LEVEL};
use mobifs_testkit::life::{Plan, live};
use mobifs_testkit::media::{CrashMedium, DirectoryMedium, Medium, MemoryMedium};
use mobifs_testkit::operations::Event::{self, Apply, CommitNext, Cut, Do, SyncAll, TidyUp};
use mobifs_testkit::operations::FileRef::{self, Path};
use mobifs_testkit::operations::{
    Answer, NodeKind, Operation as Op, Payload, RenameMode, Script, XattrMode,
};
use mobifs_testkit::random::Random;
use mobifs_testkit::target::{Target as _, VolumeTarget};
use mobifs_volume::{Config, Volume, VolumeOptions};

fn passes(events: &[Event], medium: &mut impl Medium) {
    passes_with(TOP_LEVEL, events, medium);
}

fn passes_with(layout: Layout, events: &[Event], medium: &mut impl Medium) {
    let script = Script {
        seed: 0,
        events: events.to_vec(),
    };
    let outcome = live(
        &script,
        medium,
        &Plan {
            layout,
            tree_every: 1,
            ..Plan::default()
        },
    );
    assert_eq!(outcome, Ok(()), "{script:?}");
}

fn make_directory(path: &str) -> Event {
    Do(Op::MakeDirectory {
        path: path.into(),
        mode: 0o755,
    })
}

fn create(path: &str) -> Event {
    Do(Op::CreateFile {
        path: path.into(),
        mode: 0o644,
    })
}

fn write(path: &str, offset: u64, length: u32) -> Event {
    Do(Op::Write {
        file: Path(path.into()),
        offset,
        data: Payload { tag: 1, length },
    })
}

fn set_mode(path: &str, mode: u16) -> Event {
    Do(Op::SetMode {
        path: path.into(),
        mode,
    })
}

/// Everything lands.
const fn all(_: &Effect) -> Fate {
    Fate::Land
}

/// What was deleted from the store's own directories is there again.
fn all_but_deletions_of_numbers(effect: &Effect) -> Fate {
    match effect {
        Effect::Unlink { name, .. } if name.iter().all(u8::is_ascii_digit) => Fate::Vanish,
        _ => Fate::Land,
    }
}

/// The kernel takes set-id bits away itself, where they must go, before it asks for
/// an allocation or a copy; the volume took them from root's files, too.
#[test]
fn allocating_and_copying_leave_set_id_bits_to_the_kernel() {
    let events = [
        make_directory("alpha"),
        create("alpha/a"),
        write("alpha/a", 0, 100),
        set_mode("alpha/a", 0o6711),
        Do(Op::Allocate {
            file: Path("alpha/a".into()),
            mode: mobifs_testkit::operations::AllocateMode::ZeroRange { keep_size: false },
            offset: 59_123,
            length: 103_980,
        }),
        Do(Op::CopyRange {
            from: Path("alpha/a".into()),
            from_offset: 0,
            to: Path("alpha/a".into()),
            to_offset: 5000,
            length: 100,
        }),
    ];
    passes(&events, &mut MemoryMedium::default());
}

/// Only regular files lost them.
#[test]
fn a_socket_loses_set_id_bits_with_its_owner() {
    let events = [
        make_directory("alpha"),
        Do(Op::MakeNode {
            path: "alpha/a".into(),
            mode: 0o755,
            kind: NodeKind::Socket,
        }),
        set_mode("alpha/a", 0o6711),
        Do(Op::SetOwner {
            path: "alpha/a".into(),
            uid: Some(1),
            gid: None,
        }),
    ];
    passes(&events, &mut MemoryMedium::default());
}

/// Once something had left memory the engine accepted no listing any more.
#[test]
fn directories_are_listed_again_after_they_left_memory() {
    let mut events = vec![make_directory("alpha"), make_directory("beta")];
    events.extend((0..30).map(|n| create(&format!("alpha/{n}"))));
    events.extend([
        SyncAll,
        TidyUp,
        create("beta/a"),
        TidyUp,
        create("alpha/a"),
        TidyUp,
    ]);
    passes(&events, &mut MemoryMedium::default());
}

/// The store went on using the object numbers of the mount before, and the new
/// engine gave the same numbers to new objects.
#[test]
fn objects_are_numbered_anew_after_a_recovery() {
    let events = [
        make_directory("beta"),
        make_directory("gamma"),
        SyncAll,
        Cut,
        create("beta/b"),
        make_directory("gamma/c"),
    ];
    passes(&events, &mut MemoryMedium::default());
    passes(&events, &mut CrashMedium::with_chooser(all));
}

/// A staged object whose deletion was lost was taken for one of the next mount, which
/// has the same number: two files became one.
#[test]
fn what_an_earlier_mount_left_in_stage_is_not_taken_for_a_new_object() {
    let link = Op::Link {
        from: "beta/a".into(),
        to: "beta/b".into(),
    };
    let events = [
        make_directory("beta"),
        make_directory("gamma"),
        create("beta/a"),
        Do(link),
        SyncAll,
        Cut,
        create("gamma/a"),
        create("gamma/b"),
        create("gamma/c"),
        create("gamma/d"),
        SyncAll,
        Cut,
        CommitNext,
        Apply,
    ];
    passes(
        &events,
        &mut CrashMedium::with_chooser(all_but_deletions_of_numbers),
    );
    passes(&events, &mut CrashMedium::with_chooser(all));
}

fn volume_over(lower: &CrashLower) -> VolumeTarget {
    let options = JournalOptions {
        journal_bytes: 1 << 20,
        ..JournalOptions::default()
    };
    let (store, _report) = JournalStore::open(Gate::new(lower.clone()), &options).unwrap();
    let options = VolumeOptions {
        background: false,
        ..VolumeOptions::new(&Config::parse("", FilePath::new("test")).unwrap())
    };
    VolumeTarget::new(Volume::start(Arc::new(store), options).unwrap())
}

/// Only removals of names land.
const fn only_removals(effect: &Effect) -> Fate {
    match effect {
        Effect::Unlink { .. } => Fate::Land,
        _ => Fate::Vanish,
    }
}

/// Found by the crash search. All names of a file went in one apply: the first moved into
/// `limbo/`, the second, which the journal had recorded, was removed. The cut undid the
/// move and not the removal, and the store could not be opened any more.
#[test]
fn a_file_whose_names_all_go_is_found_wherever_the_apply_is_cut() {
    let link = Op::Link {
        from: "alpha/d".into(),
        to: "alpha/c".into(),
    };
    let Do(rename) = rename("alpha/d", "alpha/e") else {
        unreachable!("it is an operation")
    };
    let unlink = Op::Unlink {
        path: "alpha/c".into(),
    };
    let mut cuts = 0;
    for calls in 0.. {
        let lower = CrashLower::new();
        let mut target = volume_over(&lower);
        let volume = Arc::clone(target.volume());
        for event in [make_directory("alpha"), create("alpha/d")] {
            let Do(operation) = event else { continue };
            target.execute(&operation).unwrap();
        }
        volume.sync_app(None, true).unwrap();
        target.execute(&link).unwrap();
        volume.sync_app(None, true).unwrap();
        target.execute(&rename).unwrap();
        target.execute(&unlink).unwrap();
        volume.sync_app(None, false).unwrap();
        lower.cut_after(lower.operations() + calls);
        let is_cut = volume.sync_app(None, true).is_err();
        let after = lower.crash_image(&mut |effect| only_removals(effect));
        let tree = volume_over(&after).tree().unwrap();
        let paths: Vec<&str> = tree
            .0
            .keys()
            .map(String::as_str)
            .filter(|p| !p.is_empty())
            .collect();
        assert_eq!(paths, ["alpha", "alpha/e"], "cut after {calls} calls");
        if !is_cut {
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 5, "{cuts} cuts");
}

/// A file that had names in two apps before the mount is changed through one of them while the
/// other has not been looked up.
#[test]
fn a_link_across_apps_from_an_earlier_mount_ties_both() {
    let events = [
        make_directory("alpha"),
        make_directory("beta"),
        create("alpha/a"),
        Do(Op::Link {
            from: "alpha/a".into(),
            to: "beta/a".into(),
        }),
        SyncAll,
        Cut,
        write("alpha/a", 0, 100),
        create("beta/b"),
        Event::SyncApp("beta".into()),
        Cut,
    ];
    let mut medium = CrashMedium::with_chooser(all);
    let script = Script {
        seed: 0,
        events: events.to_vec(),
    };
    assert_eq!(live(&script, &mut medium, &Plan::default()), Ok(()));
}

/// The same when the other app has not been used at all: it was called committed.
#[test]
fn an_app_is_committed_only_with_the_files_that_it_shares() {
    let events = [
        make_directory("alpha"),
        make_directory("gamma"),
        create("alpha/a"),
        Do(Op::Link {
            from: "alpha/a".into(),
            to: "gamma/a".into(),
        }),
        create("gamma/b"),
        SyncAll,
        Cut,
        write("alpha/a", 0, 100),
        Event::SyncApp("gamma".into()),
        Cut,
        write("alpha/a", 0, 200),
        Do(Op::Fsync {
            file: Path("gamma/b".into()),
        }),
        Cut,
    ];
    let mut medium = CrashMedium::with_chooser(all);
    let script = Script {
        seed: 0,
        events: events.to_vec(),
    };
    assert_eq!(live(&script, &mut medium, &Plan::default()), Ok(()));
}

fn rename(from: &str, to: &str) -> Event {
    Do(Op::Rename {
        from: from.into(),
        to: to.into(),
        mode: RenameMode::Replace,
    })
}

/// Runs it with a commit of `alpha` and with one of `beta` before the last cut.
fn passes_with_a_commit_of_either(before: &[Event]) {
    for app in ["alpha", "beta"] {
        let mut events = before.to_vec();
        events.extend([
            create("alpha/later"),
            create("beta/later"),
            Event::SyncApp(app.into()),
            Cut,
        ]);
        let script = Script { seed: 0, events };
        let outcome = live(&script, &mut MemoryMedium::default(), &Plan::default());
        assert_eq!(outcome, Ok(()), "{app}: {script:?}");
    }
}

/// Changes a file that is open: as in a mount, where the kernel knows its names, it is not looked
/// up again.
fn write_open() -> Event {
    Do(Op::Write {
        file: FileRef::Handle(1),
        offset: 0,
        data: Payload {
            tag: 1,
            length: 100,
        },
    })
}

fn link_and_open(from: &str, to: &str) -> [Event; 2] {
    let link = Do(Op::Link {
        from: from.into(),
        to: to.into(),
    });
    let open = Do(Op::Open {
        slot: 1,
        path: to.into(),
    });
    [link, open]
}

/// A directory that moved took one name of a file to another app, and a change through the
/// file's other name, in the app that it had been in, was committed without that app. Found
/// by power cuts of a mount over btrfs.
#[test]
fn a_file_whose_names_a_moved_directory_parted_ties_both_apps() {
    let mut events = vec![
        make_directory("alpha"),
        make_directory("alpha/d"),
        make_directory("beta"),
        create("alpha/d/a"),
    ];
    events.extend(link_and_open("alpha/d/a", "alpha/b"));
    events.extend([rename("alpha/d", "beta/d"), SyncAll, write_open()]);
    passes_with_a_commit_of_either(&events);
}

/// The same where two directories change places.
#[test]
fn a_file_whose_names_an_exchange_parted_ties_both_apps() {
    let mut events = vec![
        make_directory("alpha"),
        make_directory("alpha/d"),
        make_directory("beta"),
        make_directory("beta/d"),
        create("beta/d/a"),
    ];
    events.extend(link_and_open("beta/d/a", "beta/b"));
    events.extend([
        Do(Op::Rename {
            from: "alpha/d".into(),
            to: "beta/d".into(),
            mode: RenameMode::Exchange,
        }),
        SyncAll,
        write_open(),
    ]);
    passes_with_a_commit_of_either(&events);
}

/// The directory that a file was first found in counted as its place, although the file's
/// name there had gone, and took the file along to another app.
#[test]
fn a_file_does_not_move_with_a_directory_that_it_had_a_name_in() {
    let mut events = vec![
        make_directory("alpha"),
        make_directory("alpha/d"),
        make_directory("beta"),
        create("alpha/d/a"),
    ];
    events.extend(link_and_open("alpha/d/a", "alpha/b"));
    events.extend([
        Do(Op::Unlink {
            path: "alpha/d/a".into(),
        }),
        rename("alpha/d", "beta/d"),
        SyncAll,
        write_open(),
    ]);
    passes_with_a_commit_of_either(&events);
}

/// A name in a third app goes to a fourth: the file is still that of the first, too.
#[test]
fn a_linked_name_that_a_moved_directory_took_along_ties_its_new_app() {
    let mut events = vec![
        make_directory("alpha"),
        make_directory("beta"),
        make_directory("delta"),
        make_directory("delta/d"),
        create("alpha/b"),
    ];
    events.extend(link_and_open("alpha/b", "delta/d/a"));
    events.extend([rename("delta/d", "beta/d"), SyncAll, write_open()]);
    passes_with_a_commit_of_either(&events);
}

/// Found by the kill search. An apply failed after it had written the rename mark, and the next
/// attempt began with the content again, which it first zeroed. A cut just then lost it, because
/// recovery did not apply it any more.
#[test]
fn content_that_the_journal_calls_done_is_not_begun_again() {
    let (mut failures, mut cuts) = (0, 0);
    for failing in 0.. {
        let mut has_failed = false;
        for calls in 0.. {
            let lower = CrashLower::new();
            let mut target = volume_over(&lower);
            let volume = Arc::clone(target.volume());
            for event in [
                make_directory("alpha"),
                create("alpha/d"),
                write("alpha/d", 0, 5000),
            ] {
                let Do(operation) = event else { continue };
                target.execute(&operation).unwrap();
            }
            volume.sync_app(None, false).unwrap();
            lower.set_fault(Some(Fault {
                first: lower.calls() + 1 + failing,
                count: 1,
                calls: Calls::Changes,
                errno: 5,
                harm: Harm::Nothing,
            }));
            has_failed = volume.sync_app(None, true).is_err();
            lower.set_fault(None);
            lower.cut_after(lower.operations() + calls);
            let is_cut = volume.sync_app(None, true).is_err();
            let mut found = volume_over(&lower.crash_image(&mut |_| Fate::Land));
            let read = Op::Read {
                file: Path("alpha/d".into()),
                offset: 0,
                length: 10_000,
            };
            let payload = Payload {
                tag: 1,
                length: 5000,
            };
            assert_eq!(
                found.execute(&read),
                Ok(Answer::Data(payload.bytes())),
                "call {failing} failed, and the power was cut after {calls}"
            );
            if !is_cut {
                break;
            }
            cuts += 1;
        }
        if !has_failed {
            break;
        }
        failures += 1;
    }
    assert!(failures > 5 && cuts > 50, "{failures} {cuts}");
}

fn set_xattr(name: &str, length: u32) -> Op {
    Op::SetXattr {
        path: "alpha/d".into(),
        name: name.into(),
        value: Payload { tag: 1, length },
        mode: XattrMode::Any,
    }
}

/// A volume with a file, over a disk that keeps few extended attributes of one object.
fn with_little_room_for_xattrs() -> (CrashLower, VolumeTarget) {
    let lower = CrashLower::new();
    lower.set_capabilities(Capabilities {
        xattr_bytes_max: 400,
        ..MEMORY_CAPABILITIES
    });
    let mut target = volume_over(&lower);
    for event in [make_directory("alpha"), create("alpha/d")] {
        let Do(operation) = event else { continue };
        target.execute(&operation).unwrap();
    }
    (lower, target)
}

/// Found by trying: where an attribute had to go before another one could come, the apply
/// failed, and each after it, so that the store could not be unmounted any more.
#[test]
fn extended_attributes_come_when_others_have_made_room() {
    for changes in [
        // One goes, one comes.
        &[set_xattr("user.a", 300)][..],
        // One shrinks, one grows.
        &[set_xattr("user.z", 10), set_xattr("user.a", 300)],
    ] {
        // Without a cut at first.
        for calls in [u64::MAX / 2].into_iter().chain(0..) {
            let (lower, mut target) = with_little_room_for_xattrs();
            let volume = Arc::clone(target.volume());
            target.execute(&set_xattr("user.z", 300)).unwrap();
            volume.sync_app(None, true).unwrap();
            if changes.len() == 1 {
                let remove = Op::RemoveXattr {
                    path: "alpha/d".into(),
                    name: "user.z".into(),
                };
                target.execute(&remove).unwrap();
            }
            for change in changes {
                target.execute(change).unwrap();
            }
            volume.sync_app(None, false).unwrap();
            lower.cut_after(lower.operations() + calls);
            let applied = volume.sync_app(None, true);
            if calls > 1000 {
                applied.unwrap();
                continue;
            }
            let mut found = volume_over(&lower.crash_image(&mut |_| Fate::Land));
            found.volume().sync_app(None, true).unwrap();
            assert_eq!(xattrs(&mut found), xattrs(&mut target), "{calls} calls");
            if applied.is_ok() {
                assert!(calls > 3, "only {calls} calls were cut");
                break;
            }
        }
    }
}

fn xattrs(target: &mut VolumeTarget) -> BTreeMap<String, Vec<u8>> {
    target.tree().unwrap().0["alpha/d"].xattrs.clone()
}

#[test]
fn whatever_extended_attributes_fit_are_applied() {
    let (lower, mut target) = with_little_room_for_xattrs();
    let volume = Arc::clone(target.volume());
    let mut random = Random::new(20_261_122);
    let mut refused = 0;
    for _ in 0..500 {
        for _ in 0..random.below(6) {
            let name = format!("user.{}", random.pick(&["a", "b", "longer", "z"]));
            let operation = if random.chance(25) {
                Op::RemoveXattr {
                    path: "alpha/d".into(),
                    name,
                }
            } else {
                set_xattr(&name, random.below(350) as u32)
            };
            refused += u32::from(target.execute(&operation).is_err());
        }
        volume.sync_app(None, random.chance(50)).unwrap();
    }
    assert!(refused > 50, "there was room for all: {refused}");
    volume.sync_app(None, true).unwrap();
    let mut found = volume_over(&lower.crash_image(&mut |_| Fate::Vanish));
    assert_eq!(xattrs(&mut found), xattrs(&mut target));
}

fn truncate(path: &str, size: u64) -> Event {
    Do(Op::Truncate {
        file: Path(path.into()),
        size,
    })
}

/// Found by killing daemons under load. Much new content goes to its place at once, and where a
/// file had been cut off, in memory and not in the lower filesystem yet, its old content was after
/// the new end: in the same page it showed as soon as the file grew.
#[test]
fn truncated_content_does_not_come_back_after_new_content() {
    let long = 48 * 4096;
    // For a file that is in the lower filesystem already, and for one that is made there.
    for applied in [true, false] {
        for size in [10_000, 12_288, 0] {
            let from = u64::from(size != 0) * 12_288;
            let mut events = vec![make_directory("alpha"), create("alpha/f")];
            events.push(write("alpha/f", 0, long));
            events.push(if applied { Apply } else { SyncAll });
            events.extend([truncate("alpha/f", size), SyncAll]);
            events.extend([write("alpha/f", from, 20 * 4096 + 100), SyncAll]);
            events.extend([truncate("alpha/f", 190_000), SyncAll, Apply]);
            passes(&events, &mut MemoryMedium::default());
            passes(&events, &mut CrashMedium::with_chooser(all));
        }
    }
}

fn remove_directory(path: &str) -> Event {
    Do(Op::RemoveDirectory { path: path.into() })
}

fn fsync_directory(path: &str) -> Event {
    Do(Op::FsyncDirectory { path: path.into() })
}

/// Found by a crash workload from outside this repository: a top-level directory is an app of its
/// own, whose transaction an `fsync` of the mount did not wait for.
#[test]
fn an_fsync_of_a_directory_covers_entries_of_other_apps() {
    for (layout, directory) in [(DURABLE_ROOT, ""), (NESTED, ""), (NESTED, "gamma")] {
        let entry = |name: &str| match directory {
            "" => name.to_owned(),
            directory => format!("{directory}/{name}"),
        };
        let events = [
            make_directory("gamma"),
            make_directory("delta"),
            SyncAll,
            make_directory(&entry("b")),
            fsync_directory(directory),
            Cut,
            remove_directory(&entry("b")),
            fsync_directory(directory),
            Cut,
            make_directory(&entry("b")),
            create(&entry("b/file")),
            SyncAll,
            rename(&entry("b"), "delta/moved"),
            fsync_directory(directory),
            Cut,
            rename("delta/moved", &entry("b")),
            Event::Close("delta".into()),
            fsync_directory("delta"),
            fsync_directory(directory),
            Cut,
        ];
        passes_with(layout, &events, &mut CrashMedium::with_chooser(all));
        passes_with(layout, &events, &mut MemoryMedium::default());
    }
}

/// Found in exploratory testing: what the store keeps for a removed directory in use was
/// deleted as if it were a file.
#[test]
fn nothing_is_left_of_a_removed_directory_that_was_in_use() {
    let hold = |slot, path: &str| {
        let path = path.into();
        Do(Op::Hold { slot, path })
    };
    let symlink = Do(Op::MakeSymlink {
        path: "alpha/link".into(),
        target: "nowhere".into(),
    });
    let fifo = Do(Op::MakeNode {
        path: "alpha/fifo".into(),
        mode: 0o644,
        kind: NodeKind::Fifo,
    });
    let unlink = |path: &str| Do(Op::Unlink { path: path.into() });
    for (made, removed) in [(SyncAll, SyncAll), (Apply, SyncAll), (SyncAll, Apply)] {
        let mut events = vec![
            make_directory("alpha"),
            make_directory("alpha/d"),
            symlink.clone(),
            fifo.clone(),
            SyncAll,
            made,
            hold(0, "alpha/d"),
            hold(1, "alpha/link"),
            hold(2, "alpha/fifo"),
            remove_directory("alpha/d"),
            unlink("alpha/link"),
            unlink("alpha/fifo"),
            SyncAll,
            removed,
            Apply,
        ];
        events.extend((0..3).map(|slot| Do(Op::CloseHeld { slot })));
        let directory = tempfile::tempdir().unwrap();
        passes(&events, &mut CrashMedium::with_chooser(all));
        passes(&events, &mut DirectoryMedium::new(directory.path()));
    }
}

/// Found by reading, then by this: an app in a moved directory is another app at its new place,
/// whose transaction overtook that of the move, and left the app's later content with its earlier
/// names.
#[test]
fn an_app_below_a_moved_directory_is_not_committed_before_the_move() {
    let before = [
        make_directory("alpha"),
        make_directory("alpha/a"),
        create("alpha/a/file"),
        // No app here, but one where it goes.
        make_directory("alpha/c"),
        make_directory("alpha/c/a"),
        create("alpha/c/a/file"),
        SyncAll,
        create("alpha/a/earlier"),
        create("alpha/c/a/earlier"),
    ];
    for (from, to, file) in [
        ("alpha", "beta", "beta/a/file"),
        ("alpha/c", "beta", "beta/a/file"),
    ] {
        for commit in [
            Do(Op::Fsync {
                file: Path(file.into()),
            }),
            Event::SyncApp("beta/a".into()),
        ] {
            let mut events = before.to_vec();
            events.extend([rename(from, to), write(file, 0, 10), commit, Cut]);
            passes_with(NESTED, &events, &mut MemoryMedium::default());
        }
    }
}
