//! Apps go on when the daemon is killed while they stand still.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::super::{BTRFS, Disk, EXT4};
use super::exact::{alone, group_of, promising};
use super::keeping;
use super::writer::{State, Writer};
use crate::fixture::{PROGRAM, mobifs, needs_mounts, succeeds, wait_until};

/// Apps of a filesystem, one of which cannot stand still, so that a daemon waits for it while the
/// other one does.
struct Apps {
    disk: Disk,
    frozen: Disk,
    _promising: Disk,
    stuck: Option<Child>,
    writer: Option<Writer>,
    groups: [PathBuf; 2],
}

impl Apps {
    fn start(name: &str) -> Option<Self> {
        let app = format!("{name}-stuck");
        let groups = [group_of(name)?, group_of(&app)?];
        let promising = promising()?;
        let (disk, frozen) = (Disk::new(BTRFS)?, Disk::new(EXT4)?);
        // A quarter of it is for coming to stand still.
        disk.steer(&format!("{}freeze_max_ms = 60000\n", keeping(5)));
        let writer = Writer::start(&disk.at.join("app"), Some(name));
        succeeds(
            &Command::new("fsfreeze")
                .arg("-f")
                .arg(&frozen.at)
                .output()
                .unwrap(),
        );
        let file = frozen.at.join("file");
        let stuck = Command::new(PROGRAM)
            .args([
                "run",
                "--mechanism",
                "seccomp",
                "--app",
                &app,
                "--",
                "touch",
            ])
            .arg(file)
            .spawn()
            .unwrap();
        let apps = Self {
            disk,
            frozen,
            _promising: promising,
            stuck: Some(stuck),
            writer: Some(writer),
            groups,
        };
        let pid = apps.stuck.as_ref().map(Child::id).unwrap();
        // It waits in the kernel and cannot be interrupted.
        wait_until(|| {
            let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
            state.contains("(touch) D")
        });
        Some(apps)
    }

    fn state(&self) -> State {
        State::of(&self.disk.at.join("app")).unwrap()
    }
}

impl Drop for Apps {
    fn drop(&mut self) {
        let _thawed = Command::new("fsfreeze")
            .arg("-u")
            .arg(&self.frozen.at)
            .output();
        // A test that has failed leaves nothing standing still.
        for group in &self.groups {
            let _gone = fs::write(group.join("cgroup.freeze"), "0");
        }
        let _ended = self.stuck.as_mut().map(Child::wait);
        self.writer = None;
    }
}

fn is_frozen(group: &Path) -> bool {
    let frozen = fs::read_to_string(group.join("cgroup.freeze"));
    frozen.is_ok_and(|frozen| frozen.trim() == "1")
}

fn pid_of(number: &serde_json::Value) -> Pid {
    let number = i32::try_from(number.as_i64().unwrap()).unwrap();
    Pid::from_raw(number).unwrap()
}

/// The process beside the daemon that watches over apps that stand still.
fn guard_of(daemon: Pid) -> Pid {
    let parent = daemon.as_raw_nonzero().to_string();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let found = processes.filter_map(|entry| {
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let (pid, rest) = stat.split_once(" (mobifs-thaw) ")?;
        (rest.split(' ').nth(1)? == parent).then(|| pid.parse::<i32>().ok())?
    });
    let found: Vec<_> = found.collect();
    assert_eq!(found.len(), 1, "{found:?}");
    Pid::from_raw(found[0]).unwrap()
}

/// A commit that takes a snapshot, and a daemon that is killed while apps stand still for it.
fn kill_while_apps_stand_still(apps: &Apps, group: &Path, with_guard: bool) {
    let daemon = pid_of(&apps.disk.status()["daemon_pid"]);
    let mut asking = Command::new(PROGRAM)
        .arg("sync")
        .arg(&apps.disk.at)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until(|| is_frozen(group));
    if with_guard {
        kill_process(guard_of(daemon), Signal::KILL).unwrap();
    }
    kill_process(daemon, Signal::KILL).unwrap();
    let _failed = asking.wait().unwrap();
}

fn goes_on(apps: &Apps) {
    let before = apps.state();
    wait_until(|| apps.state().direct > before.direct);
}

#[test]
fn apps_go_on_when_the_daemon_is_killed() {
    needs_mounts!();
    let _alone = alone();
    let Some(group) = group_of("killed") else {
        return;
    };
    let Some(apps) = Apps::start("killed") else {
        return;
    };
    kill_while_apps_stand_still(&apps, &group, false);
    wait_until(|| !is_frozen(&group));
    goes_on(&apps);
}

/// As when systemd kills all that belongs to the service.
#[test]
fn apps_go_on_with_stop_when_the_guard_was_killed_with_the_daemon() {
    needs_mounts!();
    let _alone = alone();
    let Some(group) = group_of("killed-both") else {
        return;
    };
    let Some(apps) = Apps::start("killed-both") else {
        return;
    };
    kill_while_apps_stand_still(&apps, &group, true);
    assert!(is_frozen(&group));
    succeeds(&mobifs(&["steer", "--stop"], &apps.disk.at));
    assert!(!is_frozen(&group));
    goes_on(&apps);
}

#[test]
fn apps_go_on_with_the_next_daemon_when_the_guard_was_killed_with_the_last() {
    needs_mounts!();
    let _alone = alone();
    let Some(group) = group_of("killed-next") else {
        return;
    };
    let Some(apps) = Apps::start("killed-next") else {
        return;
    };
    kill_while_apps_stand_still(&apps, &group, true);
    assert!(is_frozen(&group));
    // The claim of the last daemon lapses when the kernel has taken it apart.
    wait_until(|| apps.disk.try_steer(&[]).status.success());
    wait_until(|| !is_frozen(&group));
    goes_on(&apps);
}
