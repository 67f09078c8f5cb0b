//! A mount whose cgroup allows hardly any threads.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{Fixture, mobifs, needs_mounts, succeeds, wait_until};

/// A cgroup that limits processes and threads; removed at the end.
struct Group(PathBuf);

impl Group {
    /// None where there is no such limit, or none that may be used.
    fn new(name: &str) -> Option<Self> {
        let of_its_own = Path::new("/sys/fs/cgroup/pids");
        let unified = Path::new("/sys/fs/cgroup");
        let root = if of_its_own.is_dir() {
            of_its_own
        } else {
            unified
        };
        let group = Self(root.join(format!("mobifs-test-{name}-{}", std::process::id())));
        fs::create_dir(&group.0).ok()?;
        group.0.join("pids.max").exists().then_some(group)
    }

    fn add(&self, process: u32) {
        fs::write(self.0.join("cgroup.procs"), process.to_string()).unwrap();
    }

    fn set_max(&self, max: &str) {
        fs::write(self.0.join("pids.max"), max).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _more = fs::write(self.0.join("pids.max"), "max");
        for _ in 0..200 {
            match fs::remove_dir(&self.0) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                _ => return,
            }
        }
    }
}

fn parent_of(process: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    parent.unwrap().trim().parse().unwrap()
}

#[test]
fn a_successor_that_can_start_no_threads_leaves_the_mount_to_a_later_one() {
    needs_mounts!();
    let Some(group) = Group::new("successor") else {
        return mobifs_skip::skip("no cgroup that limits threads");
    };
    let fixture = Fixture::new();
    fixture.mount(&[]);
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    let file = fixture.mountpoint.join("app/file");
    // From hardly a process to all threads but a few.
    for max in [3, 5, 7] {
        let content = format!("acknowledged, at most {max} threads");
        fs::write(&file, &content).unwrap();
        let daemon = fixture.daemon_pid();
        group.add(parent_of(daemon));
        group.add(daemon);
        group.set_max(&max.to_string());
        let process = Pid::from_raw(i32::try_from(daemon).unwrap()).unwrap();
        kill_process(process, Signal::KILL).unwrap();
        // At least one successor has tried.
        std::thread::sleep(Duration::from_millis(500));
        group.set_max("max");
        assert_eq!(
            fs::read_to_string(&file).unwrap(),
            content,
            "{max}: {}",
            fixture.log()
        );
        assert!(fixture.is_mounted());
        wait_until(|| fixture.daemon_pid() != daemon);
    }
    fixture.umount();
    drop(group);
}

#[test]
fn commands_are_answered_where_no_thread_can_be_started() {
    needs_mounts!();
    let Some(group) = Group::new("commands") else {
        return mobifs_skip::skip("no cgroup that limits threads");
    };
    let fixture = Fixture::new();
    fixture.mount(&[]);
    fs::create_dir(fixture.mountpoint.join("app")).unwrap();
    group.add(fixture.daemon_pid());
    let threads = fs::read_to_string(group.0.join("pids.current")).unwrap();
    group.set_max(threads.trim());
    for words in [
        &["status"][..],
        &["sync"],
        &["set", "--app", "app", "--class", "durable"],
    ] {
        succeeds(&mobifs(words, &fixture.mountpoint));
    }
    group.set_max("max");
    fixture.umount();
    drop(group);
}
