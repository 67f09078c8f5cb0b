//! A daemon that is killed in the middle of anything loses nothing and does nothing twice.

use mobifs_testing::harness::check_scripts;
use mobifs_testing::life::{Plan, live};
use mobifs_testing::media::{CrashMedium, MemoryMedium};
use mobifs_testing::operations::Profile;

fn plan() -> Plan {
    Plan {
        outlives: true,
        ..Plan::default()
    }
}

#[test]
fn the_arena_has_the_state_behind_every_operation() {
    let profile = Profile {
        length: 120,
        checkpoints: true,
        cross_percent: 30,
        ..Profile::default()
    };
    check_scripts(&profile, 60, |script| {
        live(script, &mut MemoryMedium::default(), &plan())
    });
}

#[test]
fn a_kill_at_any_write_to_the_arena_is_a_kill_between_two_operations() {
    let profile = Profile {
        length: 120,
        checkpoints: true,
        cross_percent: 30,
        kills: 25,
        large: false,
        ..Profile::default()
    };
    check_scripts(&profile, 150, |script| {
        live(script, &mut MemoryMedium::default(), &plan())
    });
}

#[test]
fn kills_and_power_cuts_come_together() {
    let profile = Profile {
        length: 100,
        checkpoints: true,
        cross_percent: 30,
        kills: 8,
        cuts: 3,
        large: false,
        ..Profile::default()
    };
    check_scripts(&profile, 150, |script| {
        live(script, &mut MemoryMedium::default(), &plan())
    });
}

#[test]
fn the_journal_store_is_gone_on_with() {
    let profile = Profile {
        length: 100,
        checkpoints: true,
        cross_percent: 30,
        kills: 8,
        cuts: 2,
        large: false,
        ..Profile::default()
    };
    check_scripts(&profile, 100, |script| {
        live(script, &mut CrashMedium::new(script.seed), &plan())
    });
}
