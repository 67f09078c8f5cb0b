//! Bounds of memory: what was found by searches for it, and what no search can count.

use mobifs_testing::layout::NESTED;
use mobifs_testing::life::{Plan, live};
use mobifs_testing::media::CrashMedium;
use mobifs_testing::operations::Event::{Do, SyncAll, TidyUp};
use mobifs_testing::operations::{NodeKind, Operation as Op, Script};

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
