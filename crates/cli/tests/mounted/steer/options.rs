//! The mount options: changed, restored exactly, and watched.

use std::process::Command;

use super::{BTRFS, Disk, EXT4, Made};
use crate::fixture::{message, mobifs, needs_mounts, succeeds, wait_until};

fn remount(disk: &Disk, options: &str) {
    let mut mount = Command::new("mount");
    mount.args(["-o", &format!("remount,{options}")]);
    succeeds(&mount.arg(&disk.at).output().unwrap());
}

#[test]
fn the_mount_is_as_before_when_steering_stops() {
    needs_mounts!();
    for (made, during) in [
        (
            Made {
                options: "loop,data=journal,commit=7,noatime,nosuid,nodev",
                ..EXT4
            },
            &["commit=12", "noatime", "nosuid", "nodev"][..],
        ),
        (EXT4, &["commit=12", "relatime"]),
        (
            Made {
                options: "loop,noatime,commit=9,compress=zstd",
                ..BTRFS
            },
            &[
                "commit=12",
                "flushoncommit",
                "notreelog",
                "noatime",
                "compress=zstd",
            ],
        ),
        (
            Made {
                options: "loop,flushoncommit",
                ..BTRFS
            },
            &["commit=12", "flushoncommit", "notreelog"],
        ),
    ] {
        let Some(disk) = Disk::new(made) else {
            continue;
        };
        let before = disk.options();
        disk.steer("[defaults]\nage_max_ms = 12345\n[[app]]\nmatch = \"x\"\nage_max_ms = 50000\n");
        let (line, _) = disk.options();
        for option in during {
            assert!(line.contains(option), "{line} has no {option}");
        }
        assert_eq!(disk.is_in_force(), disk.keeps_order());
        disk.stop();
        assert_eq!(disk.options(), before);
        assert!(!disk.is_in_force());
    }
}

#[test]
fn the_shortest_age_of_any_app_is_the_kernels_interval() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    disk.steer("[[app]]\nmatch = \"bank-*\"\nage_max_ms = 8000\n");
    assert!(disk.options().0.contains("commit=8"));
    let status = disk.status();
    assert_eq!(status["apps"][0]["age_max_ms"], 8000);
    assert_eq!(status["native"]["commit_interval_s"], 8);
}

#[test]
fn options_that_another_program_sets_withdraw_the_promise() {
    needs_mounts!();
    for (made, options, shown) in [
        (EXT4, "commit=3", "commit=3"),
        (BTRFS, "commit=3", "commit=3"),
        (BTRFS, "noflushoncommit", "noflushoncommit"),
        (BTRFS, "treelog", "treelog"),
    ] {
        let Some(disk) = Disk::new(made) else {
            continue;
        };
        disk.steer("");
        promises_what_it_can(&disk);
        remount(&disk, options);
        let status = disk.status();
        let why = status["native"]["promise_withdrawn"].as_str().unwrap();
        assert!(why.contains(shown), "{why}");
        assert_eq!(status["native"]["calls_return_at_once"], false);
        assert!(!disk.is_in_force());
        let output = mobifs(&["status"], &disk.at);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // A btrfs never had a promise.
        let expected = if disk.is_btrfs() {
            "promise  none: "
        } else {
            "promise  WITHDRAWN: "
        };
        assert!(text.contains(expected), "{text}");
        // The user decides which of the two it is to be.
        let reload = || {
            let output = mobifs(&["reload"], &disk.at);
            succeeds(&output);
            message(&output)
        };
        assert_eq!(reload(), "");
        promises_what_it_can(&disk);
        assert!(reload().contains("nothing has changed"));
    }
}

fn promises_what_it_can(disk: &Disk) {
    let status = disk.status();
    let why = &status["native"]["promise_withdrawn"];
    if disk.keeps_order() {
        assert!(why.is_null(), "{why}");
    } else {
        let why = why.as_str().unwrap();
        assert!(why.contains("not one point in time"), "{why}");
    }
    assert_eq!(disk.is_in_force(), disk.keeps_order());
}

/// Commits of a btrfs are not one point in time: the content of one file in it may be newer than
/// what another file got later. The command that steers it says so.
#[test]
fn a_btrfs_is_promised_nothing() {
    needs_mounts!();
    let Some(disk) = Disk::new(BTRFS) else { return };
    let output = disk.try_steer(&[]);
    succeeds(&output);
    let warning = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(warning.contains("not one point in time"), "{warning}");
    promises_what_it_can(&disk);
    let status = disk.status();
    assert_eq!(status["native"]["calls_return_at_once"], false);
}

/// They are not among the options that steering sets, and were looked at only before it began.
#[test]
fn options_that_break_every_promise_are_noticed() {
    needs_mounts!();
    for (made, set, unset) in [
        (EXT4, "nobarrier", "barrier"),
        (BTRFS, "nobarrier", "barrier"),
        (BTRFS, "nodatacow", "datacow"),
    ] {
        let Some(disk) = Disk::new(made) else {
            continue;
        };
        disk.steer("");
        remount(&disk, set);
        let status = disk.status();
        let why = status["native"]["promise_withdrawn"].as_str().unwrap();
        assert!(why.contains(set), "{why}");
        assert!(!disk.is_in_force());
        remount(&disk, unset);
        promises_what_it_can(&disk);
    }
}

/// Also where no command is called: a commit looks first.
#[test]
fn a_remount_is_noticed_without_a_command() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    disk.steer("[defaults]\npolicy = \"interval\"\ninterval_ms = 100\n");
    remount(&disk, "commit=3");
    std::fs::write(disk.at.join("file"), "content").unwrap();
    wait_until(|| !disk.is_in_force());
}

#[test]
fn what_another_program_has_set_stays_when_steering_stops() {
    needs_mounts!();
    let Some(disk) = Disk::new(BTRFS) else { return };
    disk.steer("");
    remount(&disk, "commit=3");
    disk.stop();
    let (line, _) = disk.options();
    assert!(line.contains("commit=3"), "{line}");
    assert!(
        !line.contains("flushoncommit") && !line.contains("notreelog"),
        "{line}"
    );
}
