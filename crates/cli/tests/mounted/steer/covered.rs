//! What becomes of the mount options when the mount is not where it was: another filesystem is mounted over it, or
//! it is detached.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::{Disk, EXT4, mount_line, unmount};
use crate::fixture::{PROGRAM, fails, mobifs, needs_mounts, succeeds, wait_until};

/// An ext4 as the kernel shows it, whatever is mounted where.
struct Seen {
    name: String,
}

impl Seen {
    fn of(disk: &Disk) -> Self {
        let line = mount_line(&disk.at);
        let device = PathBuf::from(line.rsplit(' ').nth(1).unwrap());
        let name = device.file_name().unwrap().to_str().unwrap().to_owned();
        Self { name }
    }

    fn options(&self) -> String {
        fs::read_to_string(format!("/proc/fs/ext4/{}/options", self.name)).unwrap_or_default()
    }

    fn commits(&self) -> u64 {
        let info = format!("/proc/fs/jbd2/{}-8/info", self.name);
        let info = fs::read_to_string(info).unwrap();
        info.split(' ').next().unwrap().parse().unwrap()
    }
}

fn pid(disk: &Disk) -> Pid {
    let pid = disk.status()["daemon_pid"].as_i64().unwrap();
    Pid::from_raw(pid.try_into().unwrap()).unwrap()
}

fn kill_daemon(daemon: Pid) {
    kill_process(daemon, Signal::KILL).unwrap();
    let directory = PathBuf::from(format!("/proc/{}", daemon.as_raw_nonzero()));
    wait_until(|| !directory.exists());
}

/// Mounts another ext4 over the disk.
fn cover(disk: &mut Disk) {
    let image = disk.fixture.path("other-image");
    let file = fs::File::create(&image).unwrap();
    file.set_len(64 << 20).unwrap();
    let made = Command::new("mkfs.ext4").arg("-q").arg(&image).output();
    succeeds(&made.unwrap());
    let at = disk.at.clone();
    let image = image.display().to_string();
    let words = ["-o", "loop,data=journal,commit=44", &image];
    disk.fixture.mount_other(&words, &at);
}

/// The daemon went by the path, and set the options of the other filesystem.
#[test]
fn options_are_those_of_the_steered_filesystem_where_another_is_mounted_over_it() {
    needs_mounts!();
    let Some(mut disk) = Disk::new(EXT4) else {
        return;
    };
    let seen = Seen::of(&disk);
    let before = seen.options();
    disk.steer("[defaults]\nage_max_ms = 10000\n");
    let daemon = pid(&disk);
    cover(&mut disk);
    let other = mount_line(&disk.at);
    assert!(other.contains("commit=44"), "{other}");
    let stop = mobifs(&["steer", "--stop"], &disk.at);
    fails(
        &stop,
        1,
        &["cannot be changed or restored: unmount that first"],
    );
    let config = disk.fixture.config("[defaults]\nage_max_ms = 600000\n");
    assert!(config.exists());
    kill_process(daemon, Signal::HUP).unwrap();
    wait_until(|| seen.options().contains("commit=600"));
    assert_eq!(mount_line(&disk.at), other);
    kill_process(daemon, Signal::TERM).unwrap();
    wait_until(|| seen.options() == before);
    assert_eq!(mount_line(&disk.at), other);
}

#[test]
fn stop_after_a_kill_does_not_change_what_is_mounted_over_it() {
    needs_mounts!();
    let Some(mut disk) = Disk::new(EXT4) else {
        return;
    };
    let seen = Seen::of(&disk);
    let before = seen.options();
    disk.steer("[defaults]\nage_max_ms = 10000\n");
    kill_daemon(pid(&disk));
    cover(&mut disk);
    let other = mount_line(&disk.at);
    let stop = mobifs(&["steer", "--stop"], &disk.at);
    fails(
        &stop,
        1,
        &["cannot be changed or restored: unmount that first"],
    );
    assert_eq!(mount_line(&disk.at), other);
    succeeds(&Command::new("umount").arg(&disk.at).output().unwrap());
    disk.stop();
    assert_eq!(seen.options(), before);
}

/// The options stayed as steering had set them, and their note was thrown away.
#[test]
fn options_are_restored_where_only_another_namespace_has_the_mount() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    let seen = Seen::of(&disk);
    let before = seen.options();
    let _holder = Holder::of(&disk);
    disk.steer("[defaults]\nage_max_ms = 7000\n");
    assert!(seen.options().contains("commit=7"));
    let detached = Command::new("umount").arg("-l").arg(&disk.at).output();
    succeeds(&detached.unwrap());
    wait_until(|| seen.options() == before);
}

/// A mount namespace that has all mounts, and keeps them.
struct Holder(Child);

impl Holder {
    fn of(disk: &Disk) -> Self {
        let holder = Command::new("unshare")
            .args(["-m", "--propagation", "private", "sleep", "1000"])
            .stdout(Stdio::null())
            .spawn();
        let holder = Self(holder.unwrap());
        let table = format!("/proc/{}/mountinfo", holder.0.id());
        let name = disk.at.display().to_string();
        let own = fs::read_link("/proc/self/ns/mnt").unwrap();
        let namespace = format!("/proc/{}/ns/mnt", holder.0.id());
        wait_until(|| {
            let is_apart = fs::read_link(&namespace).is_ok_and(|its| its != own);
            is_apart && fs::read_to_string(&table).unwrap().contains(&name)
        });
        holder
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _killed = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// The note was thrown away, and with it the way back.
#[test]
fn stop_keeps_the_note_of_a_filesystem_that_another_namespace_has() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    let seen = Seen::of(&disk);
    let before = seen.options();
    let device = format!("/dev/{}", seen.name);
    disk.steer("[defaults]\nage_max_ms = 7000\n");
    let daemon = pid(&disk);
    let _holder = Holder::of(&disk);
    kill_daemon(daemon);
    unmount(&disk.at);
    let stop = mobifs(&["steer", "--stop"], &disk.at);
    let said = String::from_utf8_lossy(&stop.stderr).into_owned();
    assert!(
        said.contains("in use where this process does not see it"),
        "{said}"
    );
    assert!(seen.options().contains("commit=7"));
    let again = Command::new("mount")
        .args([&device, disk.at.to_str().unwrap()])
        .output();
    succeeds(&again.unwrap());
    disk.stop();
    assert_eq!(seen.options(), before);
}

/// What programs had written was committed by the kernel's timer only.
#[test]
fn a_daemon_whose_mount_is_detached_commits() {
    needs_mounts!();
    let Some(mut disk) = Disk::new(EXT4) else {
        return;
    };
    let seen = Seen::of(&disk);
    let second = disk.fixture.directory("second");
    let shown = disk.at.display().to_string();
    disk.fixture.mount_other(&["--bind", &shown], &second);
    disk.steer("[defaults]\nage_max_ms = 600000\n");
    fs::write(disk.at.join("file"), "content").unwrap();
    let before = seen.commits();
    let detached = Command::new("umount").arg("-l").arg(&disk.at).output();
    succeeds(&detached.unwrap());
    wait_until(|| seen.commits() > before);
}

/// What had returned at once was lost by a power cut up to the age afterwards.
#[test]
fn what_returned_at_once_is_committed_when_the_class_becomes_durable() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    let seen = Seen::of(&disk);
    disk.steer("[defaults]\nage_max_ms = 600000\n");
    fs::write(disk.at.join("file"), "content").unwrap();
    let before = seen.commits();
    let set = ["set", "--app", ".", "--class", "durable"];
    succeeds(&mobifs(&set, &disk.at));
    assert!(seen.commits() > before);
}

#[test]
fn what_returned_at_once_is_committed_when_the_promise_is_withdrawn() {
    needs_mounts!();
    let Some(disk) = Disk::new(EXT4) else { return };
    let seen = Seen::of(&disk);
    disk.steer("[defaults]\nage_max_ms = 600000\n");
    fs::write(disk.at.join("file"), "content").unwrap();
    let before = seen.commits();
    let mut mount = Command::new("mount");
    mount.args(["-o", "remount,commit=500"]).arg(&disk.at);
    succeeds(&mount.output().unwrap());
    assert!(!disk.status()["native"]["promise_withdrawn"].is_null());
    wait_until(|| seen.commits() > before);
}

/// It was left out of the list, and `mobifs every commit` did not commit it before the machine slept.
#[test]
fn a_covered_filesystem_is_in_the_list_of_all_and_is_committed() {
    needs_mounts!();
    let Some(mut disk) = Disk::new(EXT4) else {
        return;
    };
    disk.steer("");
    let seen = Seen::of(&disk);
    fs::write(disk.at.join("file"), "new").unwrap();
    cover(&mut disk);
    let list = || {
        let mut status = Command::new(PROGRAM);
        let output = status.args(["status", "--json"]).output().unwrap();
        succeeds(&output);
        let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let mounts = all["mounts"].as_array().unwrap().iter();
        let own = mounts.filter(|one| one["mountpoint"] == disk.at.to_str().unwrap());
        own.cloned().collect::<Vec<_>>()
    };
    let [covered] = &list()[..] else {
        panic!("it is not in the list once");
    };
    assert_eq!(covered["is_covered"], true);
    assert_eq!(covered["kind"], "steered");
    assert!(covered["status"]["native"].is_object(), "{covered}");
    let before = seen.commits();
    let output = Command::new(PROGRAM).args(["every", "commit"]).output();
    succeeds(&output.unwrap());
    assert!(seen.commits() > before, "nothing was committed");
    succeeds(&Command::new("umount").arg(&disk.at).output().unwrap());
    assert_eq!(list()[0]["is_covered"], false);
    disk.stop();
}
