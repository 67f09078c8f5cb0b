//! `mobifs flash serve` as a process.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// A process that serves a device, with a loop device over it.
pub(crate) struct Server {
    process: Child,
    mountpoint: PathBuf,
    pub(crate) loop_device: PathBuf,
}

impl Server {
    fn start(image: &Path) -> Self {
        Self::of_size(image, "64MiB")
    }

    pub(crate) fn of_size(image: &Path, size: &str) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_mobifs-lab"))
            .args(["flash", "serve", "--preset", "emmc51", "--size", size])
            .args(["--scale", "0", "--json", "--loop"])
            .arg(image)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        output.read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap();
        let path = |name: &str| PathBuf::from(ready[name].as_str().unwrap());
        let mountpoint = path("file").parent().unwrap().to_owned();
        Self {
            process,
            mountpoint,
            loop_device: path("loop_device"),
        }
    }

    fn is_mounted(&self) -> bool {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.contains(&format!(" {} ", self.mountpoint.display()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ended = self.process.kill();
        let _ended = self.process.wait();
        let mut clean = Command::new("umount");
        let _gone = clean.arg("-ql").arg(&self.mountpoint).output();
        let mut clean = Command::new("losetup");
        let _gone = clean.arg("-d").arg(&self.loop_device).output();
    }
}

/// With the mount of a killed server left in the table, and a loop device over its file,
/// `mkfs.btrfs` refused to work on the whole machine: "Transport endpoint is not connected".
#[test]
fn the_mount_of_a_killed_server_is_detached_by_the_next() {
    if !mobifs_skip::can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut killed = Server::start(&directory.path().join("killed.img"));
    let alive = Server::start(&directory.path().join("alive.img"));
    killed.process.kill().unwrap();
    killed.process.wait().unwrap();
    assert!(killed.is_mounted(), "a kill unmounts nothing");
    let next = Server::start(&directory.path().join("next.img"));
    assert!(!killed.is_mounted());
    assert!(!killed.mountpoint.exists());
    assert!(alive.is_mounted() && next.is_mounted());
}
