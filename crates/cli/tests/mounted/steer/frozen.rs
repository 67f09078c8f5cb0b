//! Filesystems that are frozen: who changes them waits in the kernel, where no signal ends it.

use std::fs;
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::life::pid;
use super::{BTRFS, Disk, EXT4, mount_line};
use crate::fixture::{PROGRAM, fails, mobifs, needs_mounts, succeeds, wait_until};

/// Where the kernel shows what waits for a frozen filesystem.
const WAITS: &str = "percpu_rwsem_wait";

/// Thaws at the end, also of a test that failed.
struct Frozen(PathBuf);

impl Frozen {
    fn new(at: &Path) -> Self {
        succeeds(&Command::new("fsfreeze").arg("-f").arg(at).output().unwrap());
        Self(at.to_owned())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _thawed = Command::new("fsfreeze").arg("-u").arg(&self.0).output();
    }
}

fn can_be_known() -> bool {
    let obstacle = (!Path::new("/proc/self/wchan").exists()).then_some("no /proc/PID/wchan");
    mobifs_skip::can(obstacle)
}

/// Found by strangers: they hung, and Ctrl-C did not end them.
#[test]
fn a_frozen_filesystem_is_called_so() {
    needs_mounts!();
    if !can_be_known() {
        return;
    }
    for made in [EXT4, BTRFS] {
        let Some(disk) = Disk::new(made) else {
            continue;
        };
        let said = format!("{} is frozen", disk.at.display());
        let before = disk.options();
        let frozen = Frozen::new(&disk.at);
        fails(&disk.try_steer(&[]), 1, &[&said, "fsfreeze -u"]);
        fails(&disk.try_steer(&["--foreground"]), 1, &[&said]);
        fails(&mobifs(&["steer", "--check"], &disk.at), 1, &[&said]);
        fails(&mobifs(&["steer", "--stop"], &disk.at), 1, &[&said]);
        drop(frozen);
        assert_eq!(disk.options(), before);
        disk.steer("");
        let frozen = Frozen::new(&disk.at);
        fails(&mobifs(&["steer", "--stop"], &disk.at), 1, &[&said]);
        drop(frozen);
        // Its daemon goes on.
        assert_eq!(disk.is_in_force(), disk.keeps_order());
        disk.stop();
        assert_eq!(disk.options(), before);
    }
}

/// Whether a thread of the daemon waits for the filesystem to be thawed.
fn is_waiting(disk: &Disk) -> bool {
    let tasks = format!("/proc/{}/task", pid(disk).as_raw_nonzero());
    let mut tasks = fs::read_dir(tasks).unwrap().flatten();
    tasks.any(|task| {
        let place = fs::read_to_string(task.path().join("wchan"));
        place.is_ok_and(|place| place.contains(WAITS))
    })
}

/// Found by strangers: commands that had been ended, or had said that there was no answer, were carried out later.
#[test]
fn a_request_whose_client_has_gone_while_it_waited_is_dropped() {
    needs_mounts!();
    if !can_be_known() {
        return;
    }
    let Some(disk) = Disk::new(EXT4) else { return };
    disk.steer("");
    let device = mount_line(&disk.at)
        .split(' ')
        .nth(2)
        .unwrap()
        .replace(':', "-");
    let socket = Path::new("/run/mobifs").join(format!("steered-{device}.sock"));
    let frozen = Frozen::new(&disk.at);
    let mut sync = Command::new(PROGRAM);
    let sync = sync.args(["sync", "--commit-only"]).arg(&disk.at);
    let mut sync = sync.stderr(Stdio::null()).spawn().unwrap();
    wait_until(|| is_waiting(&disk));
    let mut client = UnixStream::connect(&socket).unwrap();
    client
        .write_all(b"{\"command\":\"stop-steering\"}\n")
        .unwrap();
    // It is with the daemon by now; if it is not, it is dropped all the same.
    std::thread::sleep(std::time::Duration::from_millis(200));
    drop(client);
    drop(frozen);
    assert!(sync.wait().unwrap().success());
    // One that commits comes after it.
    succeeds(&mobifs(&["sync"], &disk.at));
    assert!(disk.is_in_force());
    disk.stop();
}
