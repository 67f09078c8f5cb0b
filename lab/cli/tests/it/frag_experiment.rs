//! `mobifs frag experiment` as a user calls it. Needs root, `/dev/fuse` and loop devices.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long a test waits for something that must happen, before it says that it did not.
const PATIENCE: Duration = Duration::from_secs(120);

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mobifs-lab"));
    command.args(["frag", "experiment"]).args(arguments);
    command
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn can_run() -> bool {
    let reason = mobifs_skip::why_no_mounts().map(str::to_owned);
    let reason = reason.or_else(|| {
        let has_loops = Path::new("/dev/loop-control").exists();
        (!has_loops).then(|| "no loop devices".to_owned())
    });
    mobifs_skip::can(reason)
        && mobifs_skip::can(mobifs_skip::why_fails(Command::new("mkfs.ext4").arg("-V")))
}

fn scratch() -> tempfile::TempDir {
    let parent = std::env::var_os("MOBIFS_SCRATCH").unwrap_or_else(|| "/var/tmp".into());
    tempfile::tempdir_in(parent).unwrap()
}

fn mounts() -> String {
    fs::read_to_string("/proc/self/mounts").unwrap()
}

/// Waits until something is mounted in, or from, a directory.
fn wait_until_mounted(place: &str) {
    let begun = Instant::now();
    while !mounts().contains(place) {
        assert!(begun.elapsed() < PATIENCE, "nothing was mounted");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_experiment_that_is_not_known_is_refused_with_those_that_are() {
    let output = command(&["nonsense"]).output().unwrap();
    let said = errors(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("'nonsense'") && said.contains("io-counts"));
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn an_experiment_writes_a_page_and_a_document() {
    if !can_run() {
        return;
    }
    let base = scratch();
    let out = base.path().join("report");
    let arguments = [
        "io-counts",
        "--tiny",
        "--json",
        "--out",
        out.to_str().unwrap(),
    ];
    let output = command(&arguments).output().unwrap();
    assert!(output.status.success(), "{}", errors(&output));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    let written = fs::read_to_string(out.join("report.json")).unwrap();
    assert_eq!(printed, serde_json::from_str::<Value>(&written).unwrap());
    assert_eq!(printed["schema"], 1);
    let experiment = &printed["experiments"][0];
    assert_eq!(experiment["name"], "io-counts");
    assert_eq!(experiment["data"]["whole"]["extents"], 1);
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.ends_with("</html>\n"));
    let mut names: Vec<_> = fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["report.html", "report.json"]);
    assert!(!mounts().contains(out.to_str().unwrap()));
}

#[test]
fn an_interruption_leaves_nothing_behind() {
    if !can_run() {
        return;
    }
    let out = scratch();
    let place = out.path().to_str().unwrap();
    let child = command(&["scan", "--out", place])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until_mounted(place);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = errors(&output);
    assert!(said.contains("interrupted"), "{said}");
    assert!(!mounts().contains(place));
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 0);
}

/// `sync` hung on the whole machine: a thread of the killed process waited for the filesystem on the device that the
/// process had served, and kept the connection of its mount open.
#[test]
fn a_killed_experiment_leaves_nothing_that_others_wait_for() {
    if !can_run() {
        return;
    }
    let base = scratch();
    let place = base.path().to_str().unwrap();
    for after_ms in [0, 400, 1_500] {
        let mut program = command(&["sqlite", "--out", place])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        wait_until_mounted(place);
        std::thread::sleep(Duration::from_millis(after_ms));
        program.kill().unwrap();
        let until = Instant::now() + PATIENCE;
        while mounts().contains(place) || program.try_wait().unwrap().is_none() {
            if Instant::now() > until {
                abort_all(place);
                panic!("it still waits {} s after the kill", PATIENCE.as_secs());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        rustix::fs::sync();
    }
}

/// Ends what hangs, so that the machine can be used.
fn abort_all(place: &str) {
    let devices = |line: &&str| line.starts_with(place) && line.contains("mobifs-device-model");
    for line in mounts().lines().filter(devices) {
        let place = line.split(' ').nth(1).unwrap();
        let _busy = rustix::mount::unmount(place, rustix::mount::UnmountFlags::FORCE);
    }
}
