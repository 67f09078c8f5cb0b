//! Every bug that faults of the lower filesystem showed, as a short history in which every
//! call fails in turn.

use mobifs_testkit::crash::{Calls, Fault, Harm};
use mobifs_testkit::faults::{Cuts, History, Setting, run, search_every_call};
use mobifs_testkit::operations::Event::{
    self, Apply, Close, CommitNext, Do, Kill, SyncAll, SyncApp, TidyUp,
};
use mobifs_testkit::operations::FileRef::Path;
use mobifs_testkit::operations::{Operation as Op, Payload, RenameMode};

/// Often enough to include the critical moment.
const OFTEN: Cuts = Cuts {
    permille: 250,
    images_max: 12,
};

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

fn write(path: &str, length: u32) -> Event {
    Do(Op::Write {
        file: Path(path.into()),
        offset: 0,
        data: Payload { tag: 1, length },
    })
}

fn rename(from: &str, to: &str) -> Event {
    Do(Op::Rename {
        from: from.into(),
        to: to.into(),
        mode: RenameMode::Replace,
    })
}

fn unlink(path: &str) -> Event {
    Do(Op::Unlink { path: path.into() })
}

/// A fault of `count` calls with `EIO`.
const fn failing(calls: Calls, count: u64) -> Fault {
    Fault {
        first: 1,
        count,
        calls,
        errno: 5,
        harm: Harm::Nothing,
    }
}

fn holds(events: &[Event], setting: Setting, fault: Fault, cuts: Cuts) {
    let history = History {
        events: events.to_vec(),
        setting,
    };
    let total = search_every_call(&history, fault, cuts);
    let total = total.unwrap_or_else(|violation| panic!("{violation}"));
    assert!(total.fault_points > 0);
    assert!(cuts.images_max == 0 || total.crash_points > 0);
}

/// Unused objects leave memory at once, so everything is looked up in the lower filesystem again.
fn forgetful() -> Setting {
    Setting {
        objects_max: 0,
        ..Setting::default()
    }
}

/// After a failed journal write whose tail could not be invalidated the journal took nothing until
/// the next mount, if it had no other transaction, or only ones with new objects.
#[test]
fn a_journal_that_failed_twice_takes_transactions_again() {
    let first = [make_directory("alpha"), SyncAll];
    let later = [
        make_directory("alpha"),
        SyncAll,
        create("alpha/a"),
        SyncAll,
        write("alpha/a", 100),
        SyncAll,
    ];
    for count in [2, 3, 4, u64::MAX] {
        for events in [&first[..], &later] {
            let fault = failing(Calls::Journal, count);
            holds(events, Setting::default(), fault, Cuts::NONE);
        }
    }
}

/// The new epoch of the journal was in force on the medium, the call that wrote it had
/// failed, and applying began again, without a journal to protect it.
#[test]
fn what_was_applied_is_not_applied_again_when_only_the_journal_failed() {
    let events = [
        make_directory("alpha"),
        create("alpha/a"),
        write("alpha/a", 9000),
        SyncAll,
        Apply,
        write("alpha/a", 5000),
        SyncAll,
        Apply,
        SyncAll,
    ];
    for harm in [Harm::Nothing, Harm::Everything] {
        for count in [1, 2] {
            let fault = Fault {
                harm,
                ..failing(Calls::Journal, count)
            };
            holds(&events, Setting::default(), fault, OFTEN);
        }
    }
}

/// The content of a new file had been written to its place when the commit failed; an
/// apply deleted it as unknown, and the commit that was tried again wrote to the deleted
/// file, which was open.
#[test]
fn a_new_file_is_not_lost_when_an_apply_comes_between_two_attempts_to_commit_it() {
    let events = [
        make_directory("alpha"),
        make_directory("beta"),
        SyncAll,
        create("alpha/a"),
        write("alpha/a", 100_000),
        create("beta/b"),
        SyncApp("alpha".into()),
        SyncApp("beta".into()),
        Apply,
        SyncApp("alpha".into()),
        Apply,
    ];
    for calls in [Calls::Changes, Calls::Journal] {
        holds(&events, Setting::default(), failing(calls, 1), Cuts::NONE);
    }
}

/// A file is deleted while it is open, a directory is made; between two applies the file is closed,
/// so that its inode number is free when the directory is made in the lower filesystem.
fn with_a_number_that_becomes_free() -> Vec<Event> {
    vec![
        make_directory("alpha"),
        create("alpha/a"),
        SyncAll,
        Apply,
        Do(Op::Open {
            slot: 0,
            path: "alpha/a".into(),
        }),
        unlink("alpha/a"),
        SyncAll,
        Apply,
        make_directory("alpha/d"),
        SyncAll,
        Apply,
        Do(Op::Close { slot: 0 }),
        TidyUp,
        Apply,
    ]
}

/// An apply that failed after it had made new objects made them anew, and went on looking
/// for the inode numbers of the first ones.
#[test]
fn objects_that_an_interrupted_apply_made_are_made_anew() {
    let events = with_a_number_that_becomes_free();
    for calls in [Calls::Changes, Calls::Syncs] {
        holds(&events, Setting::default(), failing(calls, 1), Cuts::NONE);
    }
}

/// The record of the inode numbers of new objects failed, was on the medium all the same, and could
/// not be invalidated at once: recovery looked for its objects although the next apply had made
/// them anew.
#[test]
fn a_failed_record_of_new_objects_is_void_before_they_are_made_anew() {
    let events = with_a_number_that_becomes_free();
    for count in [2, 3] {
        let fault = Fault {
            harm: Harm::Half,
            ..failing(Calls::Journal, count)
        };
        holds(&events, Setting::default(), fault, OFTEN);
    }
}

/// An apply gave a new object its name and failed before it had recorded that: the
/// journal did not say where the object was when it was changed next.
#[test]
fn a_new_object_is_known_by_its_name_once_it_has_one() {
    let events = [
        make_directory("alpha"),
        create("alpha/a"),
        SyncAll,
        Apply,
        Apply,
        write("alpha/a", 100),
        SyncAll,
        write("alpha/a", 200),
        SyncAll,
    ];
    holds(&events, Setting::default(), failing(Calls::All, 1), OFTEN);
}

/// An apply failed when it had moved some objects; these were moved on, the power was
/// cut, and recovery looked for them where they had been before the apply.
#[test]
fn objects_that_an_interrupted_apply_moved_can_be_moved_on() {
    let events = [
        make_directory("alpha"),
        create("alpha/a"),
        make_directory("alpha/d"),
        create("alpha/d/x"),
        SyncAll,
        Apply,
        rename("alpha/a", "alpha/b"),
        rename("alpha/d", "alpha/e"),
        create("alpha/f"),
        SyncAll,
        Apply,
        rename("alpha/b", "alpha/c"),
        rename("alpha/e", "alpha/g"),
        rename("alpha/f", "alpha/h"),
        Close("alpha".into()),
        CommitNext,
        write("alpha/c", 100),
        SyncAll,
    ];
    for calls in [Calls::Changes, Calls::Syncs] {
        holds(&events, Setting::default(), failing(calls, 1), OFTEN);
    }
}

/// A write that needed more than half of the memory budget waited in a loop for room that no thread
/// freed.
#[test]
fn a_write_of_more_than_half_the_memory_makes_room_for_itself() {
    let events = [
        make_directory("alpha"),
        create("alpha/a"),
        create("alpha/b"),
        write("alpha/a", 20_000),
        write("alpha/b", 48_000),
    ];
    let setting = Setting {
        memory_budget_bytes: 64 << 10,
        ..Setting::default()
    };
    holds(&events, setting, failing(Calls::All, 1), Cuts::NONE);
}

/// A write that needed all of the memory budget was refused for want of room: the largest of the
/// transactions that were in its way had no net changes left, and the next one was never
/// considered.
#[test]
fn a_transaction_that_was_undone_does_not_keep_others_in_memory() {
    let events = [
        make_directory("gamma"),
        make_directory("f"),
        Do(Op::RemoveDirectory { path: "f".into() }),
        create("gamma/document"),
        write("gamma/document", 90_650),
    ];
    let setting = Setting {
        memory_budget_bytes: 64 << 10,
        ..Setting::default()
    };
    holds(&events, setting, failing(Calls::All, 1), Cuts::NONE);
}

/// A directory whose listing left memory named a file that was still there, because of another
/// directory in which it had been. The store forgot it, and what was committed of it after that
/// could never be applied.
#[test]
fn a_file_in_memory_is_known_whichever_of_its_names_leave() {
    let link = |from: &str, to: &str| {
        Do(Op::Link {
            from: from.into(),
            to: to.into(),
        })
    };
    let events = [
        make_directory("beta"),
        make_directory("gamma"),
        create("beta/c"),
        make_directory("gamma/b"),
        link("beta/c", "gamma/b/a"),
        make_directory("beta/d"),
        link("gamma/b/a", "gamma/b/b"),
        unlink("beta/c"),
        SyncApp("beta".into()),
        link("gamma/b/b", "f"),
        Apply,
    ];
    let setting = Setting {
        objects_max: 5,
        ..Setting::default()
    };
    holds(&events, setting, failing(Calls::All, 1), OFTEN);
}

/// A mount that had made the journal failed before the journal's name was durable; the
/// next one found it and committed to it, and the power was cut. The same holds for the
/// store's directories.
#[test]
fn what_a_failed_mount_made_is_durable_before_anything_is_committed() {
    let events = [make_directory("alpha"), create("alpha/a"), SyncAll];
    for calls in [Calls::All, Calls::Syncs] {
        holds(&events, Setting::default(), failing(calls, 1), OFTEN);
    }
}

/// A new file had got one of its two names when the apply failed; the other one was made
/// beside the one in `stage`, which stayed as a third link if deleting it failed, too.
#[test]
fn a_file_with_several_names_leaves_none() {
    let events = [
        make_directory("alpha"),
        create("alpha/a"),
        Do(Op::Link {
            from: "alpha/a".into(),
            to: "alpha/b".into(),
        }),
        SyncAll,
        Apply,
        TidyUp,
    ];
    let setting = forgetful();
    for count in [1, u64::MAX] {
        let fault = failing(Calls::Changes, count);
        holds(&events, setting.clone(), fault, OFTEN);
    }
}

/// The names that an apply had moved were not durable when making them so failed; a
/// transaction that came before the next attempt removed the only name at which a cut left a
/// file, and recovery did not find it.
#[test]
fn a_transaction_after_a_failed_apply_does_not_hide_the_places_of_its_files() {
    let link = |to: &str| {
        Do(Op::Link {
            from: "alpha/a".into(),
            to: to.into(),
        })
    };
    let events = [
        make_directory("alpha"),
        create("alpha/a"),
        write("alpha/a", 100),
        link("alpha/b"),
        link("alpha/c"),
        SyncAll,
        Apply,
        unlink("alpha/a"),
        create("alpha/e"),
        SyncAll,
        Apply,
    ];
    let fault = failing(Calls::Syncs, 1);
    holds(&events, Setting::default(), fault, OFTEN);
}

/// A name that was detached in an apply could not be deleted from `limbo`: the next look-up of the
/// file counted it as a link.
#[test]
fn a_name_that_cannot_be_deleted_in_the_lower_filesystem_is_no_link() {
    let link = Do(Op::Link {
        from: "alpha/a".into(),
        to: "alpha/b".into(),
    });
    let events = [
        make_directory("alpha"),
        create("alpha/a"),
        link,
        SyncAll,
        Apply,
        unlink("alpha/b"),
        SyncAll,
        Apply,
        TidyUp,
    ];
    let setting = forgetful();
    for count in [1, 2, u64::MAX] {
        let fault = failing(Calls::Changes, count);
        holds(&events, setting.clone(), fault, Cuts::NONE);
    }
}

/// A transaction could not be made durable, nor its tail invalidated, and the page cache still had
/// it. The daemon was killed; its successor relied on what it found and wrote after it, and after a
/// power cut the store could not be opened. The same for what the superblock says.
#[test]
fn what_a_killed_daemon_could_not_make_durable_its_successor_does() {
    let events = [
        make_directory("alpha"),
        SyncApp("alpha".into()),
        create("alpha/a"),
        Kill(0),
        write("alpha/a", 30_000),
        SyncApp("alpha".into()),
        Apply,
        create("alpha/b"),
        SyncAll,
        Kill(0),
        create("alpha/c"),
        SyncAll,
    ];
    let fault = Fault {
        harm: Harm::Lost,
        ..failing(Calls::Journal, 2)
    };
    for direct_bytes_max in [0, 1 << 20] {
        let setting = Setting {
            direct_bytes_max,
            journal_bytes: 64 << 10,
            ..Setting::default()
        };
        holds(&events, setting, fault, OFTEN);
    }
}

/// With few descriptors every new file held one permanently: apps became read-only, and nothing
/// could be applied any more.
#[test]
fn more_files_than_descriptors_are_committed_and_applied() {
    const FILES: u32 = 60;
    let paths: Vec<String> = (0..FILES).map(|file| format!("alpha/{file}")).collect();
    let made = paths
        .iter()
        .flat_map(|path| [create(path), write(path, 5000)]);
    let mut events: Vec<Event> = [make_directory("alpha")].into_iter().chain(made).collect();
    events.extend([SyncAll, Apply]);
    events.extend(paths.iter().map(|path| write(path, 6000)));
    events.extend(paths.iter().step_by(2).map(|path| unlink(path)));
    events.extend([SyncAll, Apply]);
    let setting = Setting {
        handles_max: 16,
        ..forgetful()
    };
    let history = History { events, setting };
    run(&history, None, 0, Cuts::NONE).unwrap();
}

/// A successor made the removal of a rollback journal durable, and where that failed it reported an error for
/// an entry that was gone. Found by the fault search with seed 28121.
#[test]
fn a_removal_of_a_journal_that_a_successor_reports_as_failed_has_removed_nothing() {
    let begun = [
        make_directory("alpha"),
        create("alpha/db"),
        create("alpha/db-journal"),
        write("alpha/db-journal", 512),
        SyncAll,
    ];
    let uncommitted = [write("alpha/db", 100)];
    let setting = Setting {
        durable: vec!["alpha".into()],
        ..Setting::default()
    };
    for end in [
        unlink("alpha/db-journal"),
        rename("alpha/db-journal", "alpha/kept"),
    ] {
        for before in [&[][..], &uncommitted] {
            let events = [&begun, before, &[Kill(0), end.clone()]].concat();
            for count in [1, u64::MAX] {
                let fault = failing(Calls::Journal, count);
                holds(&events, setting.clone(), fault, Cuts::NONE);
            }
        }
    }
}

/// An apply failed while names moved, and a later transaction deleted the file that it had moved: its
/// place was known by no name any more, and after a cut it counted as moved by another program.
#[test]
fn a_file_that_is_deleted_after_a_failed_apply_has_not_been_moved_by_another_program() {
    let events = [
        make_directory("alpha"),
        make_directory("alpha/d"),
        create("alpha/a"),
        write("alpha/a", 5000),
        SyncAll,
        Apply,
        write("alpha/a", 3000),
        rename("alpha/a", "alpha/d/b"),
        SyncAll,
        Apply,
        unlink("alpha/d/b"),
        SyncAll,
        Apply,
    ];
    for setting in [Setting::default(), forgetful()] {
        holds(&events, setting, failing(Calls::Changes, 1), OFTEN);
    }
}
