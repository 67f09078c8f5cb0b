//! A real mount agrees with the model, and so does what a power cut leaves of it.

#![expect(
    clippy::unwrap_used,
    reason = "a test stops where its surroundings fail"
)]

use std::sync::{Mutex, PoisonError};

use mobifs_testkit::harness::check_scripts;
use mobifs_testkit::mount::{live_mounted, scratch};
use mobifs_testkit::operations::Profile;

/// One mount at a time: a process that one test starts holds the files of the other for
/// a moment, and an unmount would find them in use.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn agrees(profile: &Profile, cases: u32, tree_every: usize) {
    if !mobifs_skip::can_mount() {
        return;
    }
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let base = scratch().unwrap();
    check_scripts(profile, cases, |script| {
        let base = tempfile::tempdir_in(base.path()).unwrap();
        live_mounted(script, base.path(), tree_every)
    });
}

#[test]
fn a_mount_agrees_with_the_model() {
    let profile = Profile {
        length: 250,
        ..Profile::default()
    };
    agrees(&profile, 6, 25);
}

#[test]
fn direct_and_asynchronous_writes_agree_with_the_model() {
    let profile = Profile {
        length: 150,
        direct: true,
        ..Profile::default()
    };
    agrees(&profile, 4, 50);
}

#[test]
fn a_power_cut_leaves_every_app_at_a_point_of_its_history() {
    let profile = Profile {
        length: 120,
        checkpoints: true,
        cuts: 3,
        cross_percent: 20,
        direct: true,
        ..Profile::default()
    };
    agrees(&profile, 10, 40);
}
