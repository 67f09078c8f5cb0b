//! A volume over a store in memory agrees with the model, and so does what a power
//! cut leaves of it.

use mobifs_testkit::harness::check_scripts;
use mobifs_testkit::layout::RELAXED;
use mobifs_testkit::life::{Plan, live};
use mobifs_testkit::media::MemoryMedium;
use mobifs_testkit::operations::Profile;

#[test]
fn every_operation_agrees_with_the_model() {
    let profile = Profile {
        length: 60,
        checkpoints: true,
        ..Profile::default()
    };
    let plan = Plan {
        tree_every: 1,
        ..Plan::default()
    };
    check_scripts(&profile, 100, |script| {
        live(script, &mut MemoryMedium::default(), &plan)
    });
}

#[test]
fn long_histories_agree_with_the_model() {
    let profile = Profile {
        length: 600,
        checkpoints: true,
        cross_percent: 30,
        ..Profile::default()
    };
    check_scripts(&profile, 30, |script| {
        live(script, &mut MemoryMedium::default(), &Plan::default())
    });
}

#[test]
fn a_cut_leaves_every_app_at_a_point_of_its_history() {
    let profile = Profile {
        length: 80,
        checkpoints: true,
        cuts: 2,
        ..Profile::default()
    };
    check_scripts(&profile, 300, |script| {
        live(script, &mut MemoryMedium::default(), &Plan::default())
    });
}

#[test]
fn a_cut_leaves_operations_across_apps_whole() {
    let profile = Profile {
        length: 60,
        checkpoints: true,
        cuts: 1,
        cross_percent: 60,
        large: false,
        ..Profile::default()
    };
    check_scripts(&profile, 300, |script| {
        live(script, &mut MemoryMedium::default(), &Plan::default())
    });
}

/// A volume learns of a file's names by lookups, and the kernel makes few of them.
#[test]
fn a_cut_after_work_without_lookups_leaves_every_app_at_a_point_of_its_history() {
    let profile = Profile {
        length: 150,
        checkpoints: true,
        cuts: 1,
        cross_percent: 40,
        large: false,
        ..Profile::default()
    };
    let plan = Plan {
        remembers_names: true,
        tree_every: usize::MAX,
        ..Plan::default()
    };
    check_scripts(&profile, 1000, |script| {
        live(script, &mut MemoryMedium::default(), &plan)
    });
}

/// The thread commits and evicts at arbitrary moments.
#[test]
fn a_checkpointer_thread_beside_the_program_changes_nothing() {
    let profile = Profile {
        length: 200,
        cuts: 2,
        cross_percent: 30,
        ..Profile::default()
    };
    let config = "[defaults]\nage_max_ms = 1000\n";
    let plan = Plan {
        background: true,
        config: config.into(),
        layout: RELAXED,
        ..Plan::default()
    };
    check_scripts(&profile, 60, |script| {
        live(script, &mut MemoryMedium::default(), &plan)
    });
}
