//! Mounts in mount namespaces of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{Fixture, PROGRAM, message, needs_mounts, succeeds, wait_until};

/// Processes whose command line has this path.
fn processes_of(store: &Path) -> Vec<Pid> {
    let numbers = fs::read_dir("/proc").unwrap().flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let has_path = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let path = store.as_os_str().as_encoded_bytes();
        line.windows(path.len()).any(|window| window == path)
    };
    numbers.filter(has_path).filter_map(Pid::from_raw).collect()
}

/// The process that keeps the namespace of another one.
fn keeper_beside(pid: Pid) -> PathBuf {
    let namespace = |of: &Path| fs::read_link(of.join("ns/mnt")).ok();
    let wanted = namespace(Path::new(&format!("/proc/{}", pid.as_raw_nonzero())));
    let is_keeper = |of: &PathBuf| {
        let line = fs::read(of.join("cmdline")).unwrap_or_default();
        line.starts_with(b"fuse-namespace-keeper\0") && namespace(of) == wanted
    };
    let mut all = fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .map(|entry| entry.path());
    all.find(is_keeper).unwrap()
}

/// Ends the connection of a mount that no process answers any more.
fn abort(connection: &str, at: &Path) {
    let mount = Command::new("mount")
        .args(["-t", "fusectl", "none"])
        .arg(at)
        .status();
    assert!(mount.unwrap().success());
    let _ended = fs::write(at.join(connection).join("abort"), "1");
    let unmount = Command::new("umount").arg(at).status();
    assert!(unmount.unwrap().success());
}

/// The last process of the namespace took the mount away as it ended and waited for an answer that only it could
/// have given: it never ended, and each `sync` of the machine waited for it.
#[test]
fn the_last_processes_of_a_namespace_can_be_killed() {
    needs_mounts!();
    let fixture = Fixture::new();
    let script = r#""$1" mount "$2" "$3" >&2 && grep -F " $3 " /proc/self/mountinfo"#;
    let mut unshare = Command::new("unshare");
    unshare.args([
        "-m",
        "--propagation",
        "private",
        "sh",
        "-c",
        script,
        "sh",
        PROGRAM,
    ]);
    let output = unshare
        .args([&fixture.store, &fixture.mountpoint])
        .output()
        .unwrap();
    succeeds(&output);
    let line = String::from_utf8_lossy(&output.stdout).into_owned();
    let numbers = line
        .split(' ')
        .nth(2)
        .and_then(|number| number.split_once(':'));
    let (major, minor) = numbers.unwrap();
    let device: u64 = major.parse::<u64>().unwrap() << 20 | minor.parse::<u64>().unwrap();
    let killed = processes_of(&fixture.store);
    assert_eq!(killed.len(), 2, "{} {line}", message(&output));
    let keeper = keeper_beside(killed[0]);
    for pid in &killed {
        kill_process(*pid, Signal::KILL).unwrap();
    }
    // The first thread may have ended before the others.
    let has_ended = |pid: &Pid| {
        let threads = fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero()));
        let mut states = threads.into_iter().flatten().flatten();
        states.all(|thread| {
            let state = fs::read_to_string(thread.path().join("stat"));
            state.map_or(true, |state| state.contains(") Z "))
        })
    };
    let until = Instant::now() + Duration::from_secs(20);
    while Instant::now() < until && !killed.iter().all(has_ended) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let have_ended = killed.iter().all(has_ended);
    if !have_ended {
        abort(&device.to_string(), &fixture.directory("control"));
    }
    assert!(have_ended, "a killed process waits for itself");
    // It ends, too, and with it the namespace.
    wait_until(|| !keeper.exists());
    fixture.mount(&[]);
    fixture.umount();
}
