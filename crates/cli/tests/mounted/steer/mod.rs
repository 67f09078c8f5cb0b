//! Native mode: filesystems of the kernel that are steered.

mod allocated;
mod binds;
mod check;
mod commands;
mod commits;
mod covered;
mod frozen;
pub(crate) mod history;
mod life;
mod only;
mod options;
mod out_of_reach;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use mobifs_steered::{Device, Directory, Steered};

use crate::fixture::{Fixture, PROGRAM, mobifs, succeeds, wait_until};

/// ext4 that journals content; without work that the kernel does later.
pub(crate) const EXT4: Made = Made {
    make: &[
        "mkfs.ext4",
        "-q",
        "-b",
        "4096",
        "-J",
        "size=16",
        "-E",
        "lazy_itable_init=0",
    ],
    options: "loop,data=journal",
    mib: 96,
};
pub(crate) const BTRFS: Made = Made {
    make: &["mkfs.btrfs", "-q", "-f"],
    options: "loop",
    mib: 256,
};

/// How a filesystem is made and mounted.
#[derive(Clone, Copy)]
pub(crate) struct Made {
    pub(crate) make: &'static [&'static str],
    pub(crate) options: &'static str,
    pub(crate) mib: u64,
}

/// A filesystem on a loop device, unmounted at the end.
pub(crate) struct Disk {
    pub(crate) fixture: Fixture,
    pub(crate) at: PathBuf,
    options: &'static str,
}

impl Disk {
    /// None, with a message, where the kernel does not have it.
    pub(crate) fn new(made: Made) -> Option<Self> {
        let mut fixture = Fixture::new();
        let image = fixture.path("image");
        let file = fs::File::create(&image).unwrap();
        file.set_len(made.mib << 20).unwrap();
        let at = fixture.directory("disk");
        let (make, options) = (made.make, made.options);
        let mut mount = Command::new("mount");
        mount.args(["-o", made.options]).arg(&image).arg(&at);
        let made = mobifs_skip::why_fails(Command::new(make[0]).args(&make[1..]).arg(&image));
        if !mobifs_skip::can(made.or_else(|| mobifs_skip::why_fails(&mut mount))) {
            return None;
        }
        fixture.unmount_at_end(&at);
        Some(Self {
            fixture,
            at,
            options,
        })
    }

    /// After an unmount.
    pub(crate) fn mount_again(&self) {
        let mut mount = Command::new("mount");
        mount.args(["-o", self.options]);
        mount.arg(self.fixture.path("image")).arg(&self.at);
        succeeds(&mount.output().unwrap());
    }

    pub(crate) fn try_steer(&self, words: &[&str]) -> Output {
        let mut command = Command::new(PROGRAM);
        command
            .args(["steer", "--log"])
            .arg(self.fixture.path("log"));
        command.args(words).arg(&self.at).output().unwrap()
    }

    /// Steered by this configuration.
    pub(crate) fn steer(&self, config: &str) {
        let config = self.fixture.config(config);
        succeeds(&self.try_steer(&["--config", config.to_str().unwrap()]));
    }

    pub(crate) fn stop(&self) {
        succeeds(&mobifs(&["steer", "--stop"], &self.at));
    }

    /// Its line in the table of mounts, and all options of an ext4.
    pub(crate) fn options(&self) -> (String, String) {
        let line = mount_line(&self.at);
        let device = PathBuf::from(line.rsplit(' ').nth(1).unwrap());
        let name = device.file_name().unwrap();
        let all = Path::new("/proc/fs/ext4").join(name).join("options");
        (line, fs::read_to_string(all).unwrap_or_default())
    }

    /// Whether a commit is one point in time, so that something is promised.
    pub(crate) fn keeps_order(&self) -> bool {
        !self.is_btrfs()
    }

    pub(crate) fn is_btrfs(&self) -> bool {
        mount_line(&self.at).contains(" - btrfs ")
    }

    /// The kernel's count of commits.
    pub(crate) fn commits(&self) -> u64 {
        let line = mount_line(&self.at);
        let device = PathBuf::from(line.rsplit(' ').nth(1).unwrap());
        let name = device.file_name().unwrap().to_str().unwrap();
        if line.contains(" - ext4 ") {
            let info = format!("/proc/fs/jbd2/{name}-8/info");
            let info = fs::read_to_string(info).unwrap();
            return info.split(' ').next().unwrap().parse().unwrap();
        }
        let mut all = fs::read_dir("/sys/fs/btrfs").unwrap().flatten();
        let own = all.find(|entry| entry.path().join("devices").join(name).exists());
        let stats = fs::read_to_string(own.unwrap().path().join("commit_stats")).unwrap();
        let commits = stats.lines().next().unwrap().strip_prefix("commits ");
        commits.unwrap().parse().unwrap()
    }

    /// Bytes that its device has written.
    pub(crate) fn device_bytes(&self) -> u64 {
        let line = mount_line(&self.at);
        let device = PathBuf::from(line.rsplit(' ').nth(1).unwrap());
        let name = device.file_name().unwrap().to_str().unwrap();
        let stat = fs::read_to_string(format!("/sys/class/block/{name}/stat")).unwrap();
        let sectors: u64 = stat.split_whitespace().nth(6).unwrap().parse().unwrap();
        sectors * 512
    }

    pub(crate) fn status(&self) -> serde_json::Value {
        let output = mobifs(&["status", "--json"], &self.at);
        succeeds(&output);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The registration of a daemon that lives.
    pub(crate) fn registration(&self) -> Option<Steered> {
        let line = mount_line(&self.at);
        let device = Device::parse(line.split(' ').nth(2).unwrap()).unwrap();
        Directory::standard().find(device)
    }

    /// Whether calls of programs may return at once.
    pub(crate) fn is_in_force(&self) -> bool {
        let steered = self.registration();
        steered.is_some_and(|steered| steered.is_in_force())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ended = mobifs(&["steer", "--stop"], &self.at);
    }
}

/// Unmounts. A process that another test is starting has all our files open until it executes its
/// program.
pub(crate) fn unmount(at: &Path) {
    wait_until(|| {
        let done = Command::new("umount").arg(at).output().unwrap();
        done.status.success()
    });
}

pub(crate) fn mount_line(at: &Path) -> String {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let at = at.to_str().unwrap();
    let mut lines = table.lines();
    let line = lines.rfind(|line| line.split(' ').nth(4) == Some(at));
    line.unwrap().to_owned()
}
