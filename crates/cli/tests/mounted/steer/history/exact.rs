//! What is called exact is one point in time.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::super::{BTRFS, Disk, EXT4};
use super::writer::{State, Writer};
use super::{Kept, history, keeping, sync};
use crate::fixture::{fails, mobifs, needs_mounts, succeeds, wait_until};

/// Apps of these tests do not keep those of others from standing still.
static ALONE: Mutex<()> = Mutex::new(());

pub(super) fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A steered filesystem whose promise holds: without one `mobifs run` starts no program, and btrfs
/// has none.
pub(super) fn promising() -> Option<Disk> {
    let disk = Disk::new(EXT4)?;
    disk.steer("");
    Some(disk)
}

/// The control group that `mobifs run --app` makes; none, with a message, where it cannot.
pub(super) fn group_of(app: &str) -> Option<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mount = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let at = words.next()?;
        (words.next()? == "cgroup2").then(|| PathBuf::from(at))
    });
    let base = own.and_then(|own| Some(mount?.join(own)));
    let can_be_made = |base: &PathBuf| {
        let probe = base.join("mobifs-probe");
        let made = fs::create_dir(&probe).is_ok() && probe.join("cgroup.freeze").exists();
        let _removed = fs::remove_dir(probe);
        made
    };
    let group = base
        .filter(can_be_made)
        .map(|base| base.join(format!("mobifs-{app}")));
    if group.is_none() {
        mobifs_skip::skip("no control groups (cgroup v2) can be made here");
    }
    group
}

fn states(kept: &[Kept]) -> Vec<(bool, State)> {
    let state = |kept: &Kept| Some((kept.is_exact, State::of(&kept.path.join("app"))?));
    kept.iter().filter_map(state).collect()
}

#[test]
fn snapshots_of_running_apps_are_points_in_time() {
    needs_mounts!();
    const SNAPSHOTS: usize = 12;
    let _alone = alone();
    if group_of("ordered").is_none() {
        return;
    }
    let Some(_promising) = promising() else {
        return;
    };
    let Some(disk) = Disk::new(BTRFS) else { return };
    disk.steer(&format!("{}freeze_max_ms = 20000\n", keeping(100)));
    // More than one block of the tree.
    let many = disk.at.join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..500 {
        fs::write(many.join(format!("file {number}")), "content").unwrap();
    }
    let writer = Writer::start(&disk.at.join("app"), Some("ordered"));
    for _ in 0..SNAPSHOTS {
        sync(&disk);
    }
    let status = disk.status();
    drop(writer);
    let states = states(&history(&disk.at));
    assert!(states.len() >= SNAPSHOTS, "{states:?}");
    let exact: Vec<_> = states.iter().filter(|(is_exact, _)| *is_exact).collect();
    assert!(exact.iter().all(|(_, state)| state.existed()), "{exact:?}");
    assert!(exact.len() >= SNAPSHOTS / 2, "{states:?}");
    let stood = &status["native"]["history"]["last_standstill_ms"];
    assert!(stood.is_u64(), "{status}");
}

/// A program that does not stand still makes snapshots inexact, which the history says; those that
/// come between two of its writes are exact.
#[test]
fn a_program_outside_makes_snapshots_inexact() {
    needs_mounts!();
    let _alone = alone();
    let Some(disk) = Disk::new(BTRFS) else { return };
    disk.steer(&keeping(500));
    let writer = Writer::start(&disk.at.join("app"), None);
    wait_until(|| {
        sync(&disk);
        history(&disk.at).iter().any(|kept| !kept.is_exact)
    });
    drop(writer);
    let kept = history(&disk.at);
    let states = states(&kept);
    let lies = |(is_exact, state): &&(bool, State)| *is_exact && !state.existed();
    assert!(!states.iter().any(|state| lies(&state)), "{states:?}");
    let inexact = kept.iter().find(|kept| !kept.is_exact).unwrap();
    let to = disk.fixture.path("to");
    let words = [
        "restore",
        "--at",
        &inexact.time,
        "--to",
        to.to_str().unwrap(),
    ];
    let output = mobifs(&words, &disk.at);
    assert!(output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("not exact"), "{said}");
    // The first daemon's first snapshot was of a filesystem at rest.
    let words = [
        "restore",
        "--exact",
        "--at",
        "1999-01-01T00:00:00Z",
        "--to",
        "/none",
    ];
    fails(
        &mobifs(&words, &disk.at),
        1,
        &["the first exact snapshot is of"],
    );
}

/// It was listed as exact by its name.
#[test]
fn a_snapshot_that_another_program_has_taken_is_not_exact() {
    needs_mounts!();
    let Some(disk) = Disk::new(BTRFS) else { return };
    disk.steer(&keeping(50));
    fs::write(disk.at.join("file"), "content").unwrap();
    sync(&disk);
    let own = history(&disk.at);
    assert!(!own.is_empty() && own.iter().all(|kept| kept.is_exact));
    let other = own[0].path.with_file_name("2026-01-02T03:04:05.000000Z");
    let mut snapshot = Command::new("btrfs");
    snapshot.args(["-q", "subvolume", "snapshot", "-r"]);
    succeeds(&snapshot.arg(&disk.at).arg(&other).output().unwrap());
    let listed = || -> Vec<_> {
        let all = history(&disk.at).into_iter();
        all.map(|kept| (kept.path, kept.is_exact)).collect()
    };
    let own = own.into_iter().map(|kept| (kept.path, true));
    let expected: Vec<_> = [(other, false)].into_iter().chain(own).collect();
    assert_eq!(listed(), expected);
    // A daemon that comes later trusts it no more.
    disk.stop();
    disk.steer(&keeping(50));
    assert_eq!(listed()[..expected.len()], expected);
}

/// Without apps that write nothing has to stand still.
#[test]
fn a_filesystem_at_rest_is_snapshotted_without_a_standstill() {
    needs_mounts!();
    let Some(disk) = Disk::new(BTRFS) else { return };
    disk.steer(&keeping(5));
    fs::write(disk.at.join("file"), "content").unwrap();
    sync(&disk);
    let kept = history(&disk.at);
    assert!(kept.iter().all(|kept| kept.is_exact), "{kept:?}");
    assert!(disk.status()["native"]["history"]["last_standstill_ms"].is_null());
}
