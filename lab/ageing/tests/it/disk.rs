//! A filesystem on a loop device.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

/// How often a filesystem that is busy is unmounted.
const ATTEMPTS: u32 = 50;

/// A filesystem in an image file, mounted; unmounted and gone with the value.
#[derive(Debug)]
pub(crate) struct Disk {
    base: TempDir,
}

impl Disk {
    /// A new one; none, and the test is skipped, where that cannot be.
    pub(crate) fn new(filesystem: &str, bytes: u64) -> Option<Self> {
        if !mobifs_skip::is_root() {
            return None;
        }
        let disk = Self { base: scratch() };
        fs::create_dir(disk.path()).unwrap();
        File::create(disk.image()).unwrap().set_len(bytes).unwrap();
        let mut mkfs = Command::new(format!("mkfs.{filesystem}"));
        match filesystem {
            "ext4" => mkfs.args(["-q", "-F", "-m", "0"]),
            _ => mkfs.args(["-q", "-f"]),
        };
        disk.can(mkfs.arg(disk.image()))?;
        let mut mount = Command::new("mount");
        disk.can(
            mount
                .args(["-o", "loop"])
                .arg(disk.image())
                .arg(disk.path()),
        )?;
        Some(disk)
    }

    fn can(&self, command: &mut Command) -> Option<()> {
        mobifs_skip::can(mobifs_skip::why_fails(command)).then_some(())
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.base.path().join("mnt")
    }

    fn image(&self) -> PathBuf {
        self.base.path().join("disk.img")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A process that another test is just starting has its files for a moment, too.
        for _attempt in 0..ATTEMPTS {
            if !is_mounted(&self.path()) {
                return;
            }
            let status = Command::new("umount").arg(self.path()).status();
            if status.is_ok_and(|status| status.success()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(std::thread::panicking(), "the disk stays mounted");
    }
}

fn is_mounted(path: &Path) -> bool {
    let status = Command::new("mountpoint").arg("-q").arg(path).status();
    status.is_ok_and(|status| status.success())
}

pub(crate) fn scratch() -> TempDir {
    let base = std::env::var_os("MOBIFS_SCRATCH").unwrap_or_else(|| "/var/tmp".into());
    tempfile::tempdir_in(base).unwrap()
}
