//! Daemons of which a command sees nothing, or not all, as in a container or after another program has removed
//! what is there of them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use mobifs_steered::Claim;
use rustix::process::{Signal, kill_process};

use super::life::pid;
use super::{Disk, EXT4, mount_line};
use crate::fixture::{
    Fixture, IN_USE, PROGRAM, fails, is_mounted, message, mobifs, needs_mounts, succeeds,
    wait_until,
};

/// A command that sees another `/run`.
fn elsewhere(words: &[&str], place: &Path) -> Output {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c"]);
    command.arg("mount -t tmpfs none /run && exec \"$@\"");
    command.args(["sh", PROGRAM]).args(words).arg(place);
    command.output().unwrap()
}

/// A second daemon took the filesystem over, and at its end "restored" the options of the first.
#[test]
fn a_daemon_in_another_run_is_seen_to_live() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    disk.steer("[defaults]\nage_max_ms = 12000\n");
    let during = disk.options();
    let another = ["/run is another one"];
    fails(&elsewhere(&["status"], &disk.at), 5, &another);
    fails(&elsewhere(&["sync"], &disk.at), 5, &another);
    fails(&elsewhere(&["steer", "--stop"], &disk.at), 5, &another);
    fails(&elsewhere(&["steer"], &disk.at), IN_USE, &another);
    let check = elsewhere(&["steer", "--check"], &disk.at);
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(said.contains(another[0]), "{said}");
    assert_eq!(disk.options(), during);
    assert!(disk.is_in_force());
    disk.stop();
    // Nothing holds the filesystem any more.
    succeeds(&elsewhere(&["steer", "--check"], &disk.at));
}

/// Found by strangers: a `steer` beside a daemon that began or ended was told of another /run.
#[test]
fn a_daemon_that_ends_is_not_one_in_another_run() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    disk.steer("");
    // Its note stays, as that of one which has withdrawn its registration and commits what there is.
    kill_process(pid(&disk), Signal::KILL).unwrap();
    wait_until(|| disk.registration().is_none());
    let mark = Claim::take(&disk.at).unwrap();
    fails(&disk.try_steer(&[]), IN_USE, &["is ending"]);
    drop(mark);
    disk.steer("");
    disk.stop();
}

/// It was called gone, and `mobifs umount` took the mount of a living daemon away.
#[test]
fn a_mounts_daemon_in_another_run_is_not_called_gone() {
    needs_mounts!();
    let fixture = Fixture::new();
    fixture.mount(&[]);
    let another = ["/run is another one"];
    fails(&elsewhere(&["status"], &fixture.mountpoint), 5, &another);
    fails(&elsewhere(&["umount"], &fixture.mountpoint), 5, &another);
    assert!(is_mounted(&fixture.mountpoint));
    fs::write(fixture.mountpoint.join("file"), "works").unwrap();
    fixture.umount();
}

/// The status said that calls return at once, and programs that looked waited for theirs.
#[test]
fn a_registration_that_another_program_removes_is_put_back() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    disk.steer("");
    let line = mount_line(&disk.at);
    let device = line.split(' ').nth(2).unwrap();
    let file = Path::new("/run/mobifs-steered").join(device);
    fs::remove_file(&file).unwrap();
    assert!(!disk.is_in_force());
    let status = disk.status();
    assert_eq!(status["native"]["calls_return_at_once"], true);
    assert!(disk.is_in_force());
    disk.stop();
    assert!(!file.exists());
}

/// They spoke of the filesystem as if nothing had steered it.
#[test]
fn what_a_killed_daemon_has_left_is_said_by_check_and_doctor() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    disk.steer("[defaults]\nage_max_ms = 12000\n");
    kill_process(pid(&disk), Signal::KILL).unwrap();
    wait_until(|| disk.registration().is_none());
    let shown = disk.at.display().to_string();
    let gone = format!("The daemon that steered {shown} is gone");
    let stop = format!("mobifs steer --stop {shown}");
    let check = mobifs(&["steer", "--check"], &disk.at);
    succeeds(&check);
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    let zeroing = "Steering sets extent_max_zeroout_kb in /sys/fs/ext4 to 0 and restores";
    for needle in [&gone, &stop, "restores commit=5 when it stops", zeroing] {
        assert!(said.contains(needle), "{said}");
    }
    let doctor = mobifs(&["doctor"], &disk.at);
    succeeds(&doctor);
    let said = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(
        said.contains("the daemon that steered the filesystem is gone"),
        "{said}"
    );
    assert!(said.contains(&stop), "{said}");
    let stopped = mobifs(&["steer", "--stop"], &disk.at);
    succeeds(&stopped);
    let said = message(&stopped);
    assert!(said.contains("its mount options are restored"), "{said}");
}
