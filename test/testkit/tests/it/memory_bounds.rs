//! Bounds of memory: bugs that searches have found, and what no search can count.

use mobifs_testkit::layout::NESTED;
use mobifs_testkit::life::{Plan, live};
use mobifs_testkit::media::CrashMedium;
use mobifs_testkit::operations::Event::{Do, Kill, SyncAll, TidyUp};
use mobifs_testkit::operations::{FileRef, NodeKind, Operation as Op, RenameMode, Script};

/// Seed 2010 of the life search: the oracle counted open files, and forgot that a directory or a
/// device that a program has open stays in memory, too, with the directories above it.
#[test]
fn what_is_open_without_being_a_file_may_be_in_memory() {
    let script = Script {
        seed: 2010,
        events: vec![
            Do(Op::MakeDirectory {
                path: "beta".into(),
                mode: 0o755,
            }),
            Do(Op::MakeNode {
                path: "beta/f".into(),
                mode: 0o644,
                kind: NodeKind::CharDevice(1, 3),
            }),
            SyncAll,
            Do(Op::Hold {
                slot: 3,
                path: "beta/f".into(),
            }),
            // Every second one asks the kernel to forget, and checks the bound.
            TidyUp,
            TidyUp,
        ],
    };
    let plan = Plan {
        layout: NESTED,
        memory_budget_bytes: 64 << 10,
        objects_max: 0,
        outlives: true,
        ..Plan::default()
    };
    let outcome = live(&script, &mut CrashMedium::new(script.seed), &plan);
    assert_eq!(outcome, Ok(()));
}

/// Seed 3847 of the life search: a daemon was killed when it had made a file, and the reference of
/// the answer, which its successor sends, was never released.
#[test]
fn what_a_killed_daemon_had_made_leaves_memory() {
    let directory = |path: &str| {
        Do(Op::MakeDirectory {
            path: path.into(),
            mode: 0o755,
        })
    };
    let script = Script {
        seed: 0xf07,
        events: vec![
            directory("beta"),
            directory("gamma"),
            Kill(280),
            Do(Op::CreateFile {
                path: "gamma/settings.tmp".into(),
                mode: 0o600,
            }),
            Do(Op::Fsync {
                file: FileRef::Path("gamma/settings.tmp".into()),
            }),
            Kill(13),
            Do(Op::Rename {
                from: "gamma/settings.tmp".into(),
                to: "gamma/settings".into(),
                mode: RenameMode::Replace,
            }),
            TidyUp,
        ],
    };
    let plan = Plan {
        layout: NESTED,
        memory_budget_bytes: 256 << 10,
        objects_max: 0,
        remembers_names: true,
        outlives: true,
        tree_every: 10,
        ..Plan::default()
    };
    let outcome = live(&script, &mut CrashMedium::new(script.seed), &plan);
    assert_eq!(outcome, Ok(()));
}
