//! An ext4 on a served device, or another filesystem on a loop device; unmounted with the value.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use mobifs_advisor::{AdviceReport, Options, advise};
use mobifs_device_model::Preset;
use mobifs_device_server::{
    DeviceCounts, EndHandle, Reply, Request, Scale, ServeOptions, Served, ask, rest,
};
use tempfile::TempDir;

pub(crate) struct Disk {
    pub(crate) base: TempDir,
    served: Option<(Served, EndHandle)>,
    is_mounted: bool,
}

pub(crate) fn succeed(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

impl Disk {
    fn empty() -> Self {
        let parent = std::env::var_os("MOBIFS_SCRATCH").unwrap_or_else(|| "/var/tmp".into());
        let base = tempfile::Builder::new()
            .prefix("mobifs-advise-")
            .tempdir_in(parent);
        let disk = Self {
            base: base.unwrap(),
            served: None,
            is_mounted: false,
        };
        fs::create_dir(disk.path()).unwrap();
        disk
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.base.path().join("mnt")
    }

    fn image(&self) -> PathBuf {
        self.base.path().join("disk")
    }

    /// An ext4 on a served device that only counts time; none, and the test is skipped, where that cannot be.
    pub(crate) fn served(mebibytes: u64) -> Option<Self> {
        let no_loop = || (!Path::new("/dev/loop-control").exists()).then_some("no loop devices");
        if !mobifs_skip::can(mobifs_skip::why_no_mounts().or_else(no_loop)) {
            return None;
        }
        let mut disk = Self::empty();
        let options = ServeOptions {
            image: disk.image(),
            size_bytes: Some(mebibytes << 20),
            config: Some(Preset::Emmc51.config().unwrap()),
            seed: Some(1),
            scale: Scale::new(0.0).unwrap(),
            journal: None,
            nbd: None,
            loop_device: true,
            mountpoint: None,
        };
        let served = Served::start(&options).unwrap();
        let end = served.end_handle();
        let device = served.ready().loop_device.unwrap();
        disk.served = Some((served, end));
        // What is read ahead, as phones do.
        let name = device.file_name().unwrap().to_str().unwrap();
        fs::write(format!("/sys/block/{name}/queue/read_ahead_kb"), "128").unwrap();
        let mut mkfs = Command::new("mkfs.ext4");
        succeed(
            mkfs.args(["-q", "-F", "-b", "4096", "-m", "0"])
                .arg(&device),
        );
        disk.mount();
        Some(disk)
    }

    /// Commits only when it is asked to, so that counts of what is programmed do not depend on time.
    fn mount(&mut self) {
        let (served, _) = self.served.as_ref().unwrap();
        let device = served.ready().loop_device.unwrap();
        let mut mount = Command::new("mount");
        succeed(
            mount
                .args(["-o", "commit=300"])
                .arg(device)
                .arg(self.path()),
        );
        self.is_mounted = true;
    }

    /// Nothing of any file is in memory afterwards.
    pub(crate) fn remount(&mut self) {
        self.unmount();
        self.mount();
    }

    /// A filesystem on a loop device.
    pub(crate) fn plain(filesystem: &str, mebibytes: u64, options: &[&str]) -> Option<Self> {
        if !mobifs_skip::is_root() {
            return None;
        }
        let mut disk = Self::empty();
        let image = File::create(disk.image()).unwrap();
        image.set_len(mebibytes << 20).unwrap();
        let mut mkfs = Command::new(format!("mkfs.{filesystem}"));
        mkfs.arg("-q").args(options).arg(disk.image());
        mobifs_skip::can(mobifs_skip::why_fails(&mut mkfs)).then_some(())?;
        let mut mount = Command::new("mount");
        mount
            .args(["-o", "loop"])
            .arg(disk.image())
            .arg(disk.path());
        disk.is_mounted = mobifs_skip::can(mobifs_skip::why_fails(&mut mount));
        disk.is_mounted.then_some(disk)
    }

    fn unmount(&mut self) {
        if std::mem::take(&mut self.is_mounted) {
            succeed(Command::new("umount").arg(self.path()));
        }
    }

    pub(crate) fn advise(&self, options: &Options) -> AdviceReport {
        advise(&self.path(), options, &|_| {}).unwrap()
    }

    fn stats(&self) -> serde_json::Value {
        let Reply::Stats { stats } = ask(&self.image(), &Request::Stats).unwrap() else {
            panic!("no statistics");
        };
        stats
    }

    /// What the device has done until now.
    pub(crate) fn counts(&self) -> DeviceCounts {
        DeviceCounts::of(&self.stats()).unwrap()
    }

    /// Waits until everything so far is durable, and the device has ended what it does with it in the background.
    pub(crate) fn rest(&self) {
        succeed(Command::new("sync").arg("-f").arg(self.path()));
        rest(&self.image(), Duration::from_secs(60)).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted {
            let _status = Command::new("umount").arg("-l").arg(self.path()).output();
        }
        if let Some((_, end)) = &self.served {
            let _ended = end.end_now();
        }
    }
}
