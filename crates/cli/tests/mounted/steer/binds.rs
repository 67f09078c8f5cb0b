//! A steered filesystem that is mounted at several places.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Signal, kill_process};

use super::life::pid;
use super::{BTRFS, Disk, EXT4, Made, mount_line, unmount};
use crate::fixture::{fails, message, mobifs, needs_mounts, succeeds, wait_until};

/// The options of the filesystem, which are the same in all its mounts.
fn options(at: &Path) -> String {
    let line = mount_line(at);
    line.rsplit(' ').next().unwrap().to_owned()
}

/// A filesystem and a second mount of it, or of a directory in it; and the options as they were.
fn bound(made: Made, of: &str) -> Option<(Disk, PathBuf, String)> {
    let mut disk = Disk::new(made)?;
    std::fs::create_dir(disk.at.join("directory")).unwrap();
    let second = disk.fixture.directory("second");
    let what = disk.at.join(of).display().to_string();
    disk.fixture.mount_other(&["--bind", &what], &second);
    let before = options(&disk.at);
    Some((disk, second, before))
}

/// The daemon is killed, and what it was told to steer unmounted.
fn left_behind(made: Made, of: &str) -> Option<(Disk, PathBuf, String)> {
    let (disk, second, before) = bound(made, of)?;
    disk.steer("[defaults]\nage_max_ms = 7000\n");
    kill_process(pid(&disk), Signal::KILL).unwrap();
    wait_until(|| disk.registration().is_none());
    unmount(&disk.at);
    assert!(options(&second).contains("commit=7"));
    Some((disk, second, before))
}

#[test]
fn every_mount_of_a_steered_filesystem_can_be_named() {
    needs_mounts!();
    for of in ["", "directory"] {
        let Some((disk, second, before)) = bound(EXT4, of) else {
            return;
        };
        disk.steer("");
        succeeds(&mobifs(&["sync"], &second));
        let status = mobifs(&["status", "--json"], &second);
        succeeds(&status);
        let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
        assert_eq!(status["mountpoint"], disk.at.to_str().unwrap());
        succeeds(&mobifs(&["steer", "--stop"], &second));
        assert_eq!(options(&second), before);
    }
}

/// With the mount that was named steering ends, for the others as well.
#[test]
fn a_bind_mount_of_a_filesystem_whose_named_mount_is_gone_is_not_steered() {
    needs_mounts!();
    let Some((disk, second, before)) = bound(EXT4, "") else {
        return;
    };
    disk.steer("");
    let unmounted = Command::new("umount").arg("-l").arg(&disk.at).output();
    succeeds(&unmounted.unwrap());
    wait_until(|| options(&second) == before);
    let is_not_steered = || {
        let status = mobifs(&["status"], &second);
        message(&status).contains("nor is its filesystem steered")
    };
    wait_until(is_not_steered);
    let stopped = mobifs(&["steer", "--stop"], &second);
    fails(&stopped, 5, &["second is not steered"]);
}

/// What had been noted was taken for that of another mount and removed: the filesystem kept the options
/// of steering for good.
#[test]
fn stop_at_another_mount_restores_what_a_killed_daemon_has_left() {
    needs_mounts!();
    for (made, of) in [(EXT4, ""), (EXT4, "directory"), (BTRFS, "")] {
        let Some((_disk, second, before)) = left_behind(made, of) else {
            continue;
        };
        let status = mobifs(&["status"], &second);
        fails(&status, 5, &["is gone", "mobifs steer --stop"]);
        let stopped = mobifs(&["steer", "--stop"], &second);
        succeeds(&stopped);
        let said = message(&stopped);
        assert!(said.contains("its mount options are restored"), "{said}");
        assert_eq!(options(&second), before);
        let again = mobifs(&["steer", "--stop"], &second);
        fails(&again, 5, &["second is not steered"]);
    }
}

/// It said that nothing was mounted there, or that there was nothing to restore.
#[test]
fn stop_where_it_was_mounted_restores_what_is_mounted_elsewhere() {
    needs_mounts!();
    for is_covered in [false, true] {
        let Some((mut disk, second, before)) = left_behind(EXT4, "") else {
            return;
        };
        let at = disk.at.clone();
        if is_covered {
            disk.fixture.mount_other(&["-t", "tmpfs", "none"], &at);
        }
        let stopped = mobifs(&["steer", "--stop"], &at);
        succeeds(&stopped);
        let said = message(&stopped);
        assert!(said.contains("still mounted at"), "{said}");
        assert!(said.contains(second.to_str().unwrap()), "{said}");
        assert_eq!(options(&second), before);
        let code = mobifs(&["steer", "--stop"], &at).status.code();
        assert_eq!(code, Some(5));
    }
}

/// What the killed daemon had found was forgotten when another mount was steered.
#[test]
fn the_next_daemon_takes_over_at_another_mount() {
    needs_mounts!();
    let Some((mut disk, second, before)) = left_behind(EXT4, "") else {
        return;
    };
    disk.at = second;
    disk.steer("");
    assert!(options(&disk.at).contains("commit=30"));
    disk.stop();
    assert_eq!(options(&disk.at), before);
}
