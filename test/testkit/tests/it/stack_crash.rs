//! The whole stack without a kernel: volume, engine and journal store, on the crash
//! double and in a real directory.

use mobifs_testkit::harness::check_scripts;
use mobifs_testkit::layout;
use mobifs_testkit::life::{Plan, live};
use mobifs_testkit::media::{CrashMedium, DirectoryMedium};
use mobifs_testkit::operations::Profile;

#[test]
fn every_crash_leaves_every_app_at_a_point_of_its_history() {
    let profile = Profile {
        length: 120,
        checkpoints: true,
        cuts: 3,
        large: false,
        ..Profile::default()
    };
    check_scripts(&profile, 400, |script| {
        let plan = Plan {
            remembers_names: script.seed % 2 == 1,
            ..Plan::default()
        };
        live(script, &mut CrashMedium::new(script.seed), &plan)
    });
}

/// Durable and relaxed apps beside and within each other; objects of all kinds are made
/// durable, wherever they lie and whichever app has changed their entries.
#[test]
fn an_fsync_covers_all_that_was_done_to_its_object() {
    let profile = Profile {
        length: 100,
        checkpoints: true,
        cuts: 4,
        cross_percent: 30,
        large: false,
        ..Profile::default()
    };
    check_scripts(&profile, 300, |script| {
        let plan = Plan {
            layout: layout::ALL[script.seed as usize % layout::ALL.len()],
            remembers_names: script.seed.is_multiple_of(3),
            ..Plan::default()
        };
        live(script, &mut CrashMedium::new(script.seed), &plan)
    });
}

#[test]
fn crashes_among_large_writes_leave_a_point_of_the_history() {
    let profile = Profile {
        length: 80,
        checkpoints: true,
        cuts: 2,
        cross_percent: 40,
        large: true,
        ..Profile::default()
    };
    check_scripts(&profile, 80, |script| {
        live(script, &mut CrashMedium::new(script.seed), &Plan::default())
    });
}

#[test]
fn an_unmounted_store_is_a_plain_directory_with_the_same_tree() {
    let base = tempfile::tempdir().unwrap();
    if !rustix::process::geteuid().is_root() {
        mobifs_skip::skip("needs root to make device nodes and to change owners");
        return;
    }
    let profile = Profile {
        length: 120,
        checkpoints: true,
        cuts: 2,
        ..Profile::default()
    };
    check_scripts(&profile, 30, |script| {
        let root = tempfile::tempdir_in(base.path()).unwrap();
        live(
            script,
            &mut DirectoryMedium::new(root.path()),
            &Plan::default(),
        )
    });
}
