//! Histories of programs that use databases through the VFS and, call by call, through SQLite's
//! own VFS, which is the oracle: results and classes of errors are the same, the databases hold
//! the same, and after the last close plain SQLite opens what MobiFS had.
//!
//! In a history there are several processes with several connections each, opened with all kinds of
//! flags and parameters, in all journal modes; other processes that do not know MobiFS; bursts of
//! threads that open and close at once; kills between two calls and in the middle of one, of commits
//! over two databases too, after which either is opened alone; and files
//! and directories of their user or of another one, writable or not. Half of them have a small
//! disk, which other programs fill at times, and in the end for a last close.
//!
//! `MOBIFS_HISTORIES` says how many, `MOBIFS_HISTORY_SEED` which.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::programs::{Actor, serve};
use common::stateful::World;
use common::{number_from, purpose};
use mobifs_testkit::random::Random;

/// Not a test: one of the programs.
#[test]
fn one_of_the_programs() {
    if let Some((user, _)) = purpose() {
        serve(user.parse().unwrap());
    }
}

#[test]
fn the_vfs_does_what_plain_sqlite_does() {
    let seed = number_from("MOBIFS_HISTORY_SEED", 1);
    let histories = number_from("MOBIFS_HISTORIES", 12);
    let (mut calls, mut full_closes, mut marks_left, mut joint_kills) = (0, 0, 0, 0);
    for number in 0..histories {
        let seed = seed.wrapping_mul(1_000_003) + number;
        let mut world = World::new(Random::new(seed), &|| Actor::start("one_of_the_programs"));
        for _ in 0..60 {
            world.step();
        }
        let finished = world.finish();
        calls += finished.calls;
        full_closes += finished.closes_on_full_disks;
        marks_left += finished.marks_left;
        joint_kills += finished.joint_kills;
        if number % 10 == 9 {
            eprintln!("{} histories, {calls} calls", number + 1);
        }
    }
    eprintln!(
        "{histories} histories, {calls} calls, {full_closes} last closes on full disks; {marks_left} \
         databases were left marked, with a message; {joint_kills} programs ended within a commit over \
         two databases"
    );
    // A search in which each close finds room proves nothing of those that find none.
    assert!(full_closes == 0 || marks_left > 0);
    // A kill after a random time rarely comes within such a commit.
    assert!(histories < 100 || joint_kills > histories / 100);
}
