//! btrfs: with `flushoncommit` a commit takes all data that was written before it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mobifs_host::MountEntry;

use super::{BtrfsSettings, Settings, name_of_target};
use crate::mount_options::MountOptions;

/// The commit interval that is not shown.
const COMMIT_INTERVAL_DEFAULT_S: u64 = 30;
/// How old data becomes by default before the kernel begins to write it, in hundredths of a second.
const WRITEBACK_DEFAULT_CS: u64 = 3_000 + 500;

/// One btrfs.
#[derive(Clone, Debug)]
pub struct Btrfs {
    /// Its directory in `/sys/fs/btrfs`, if it was found.
    directory: Option<PathBuf>,
    /// One of its devices.
    device: Option<String>,
}

impl Btrfs {
    pub(super) fn of(mount: &MountEntry) -> io::Result<Self> {
        // `/dev/mapper/…` is a link.
        let device = mount.source.canonicalize().ok();
        let device = device.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
        let directory = device.as_ref().and_then(|device| find(device));
        Ok(Self { directory, device })
    }

    pub(super) fn settings(options: &MountOptions) -> Settings {
        let options = &options.filesystem;
        Settings {
            commit_interval_s: options
                .number("commit")
                .unwrap_or(COMMIT_INTERVAL_DEFAULT_S),
            btrfs: Some(BtrfsSettings {
                flush_on_commit: options.has("flushoncommit"),
                tree_log: !options.has("notreelog"),
            }),
            zeroing_kib: None,
        }
    }

    /// Since Linux 6.1.
    pub(super) fn commits(&self) -> Option<u64> {
        let text = fs::read_to_string(self.directory.as_ref()?.join("commit_stats")).ok()?;
        parse_commits(&text)
    }

    pub(super) fn writeback_name(&self) -> Option<String> {
        name_of_target(&self.directory.as_ref()?.join("bdi"))
    }

    pub(super) fn kernel_directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    pub(super) fn device_directory(&self) -> Option<PathBuf> {
        Some(Path::new("/sys/class/block").join(self.device.as_ref()?))
    }
}

fn find(device: &str) -> Option<PathBuf> {
    let mut all = Path::new("/sys/fs/btrfs").read_dir().ok()?.flatten();
    let found = all.find(|entry| entry.path().join("devices").join(device).exists());
    found.map(|entry| entry.path())
}

fn parse_commits(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("commits "));
    line?.parse().ok()
}

/// Data that only overwrites or extends belongs to no transaction before the kernel writes it: that
/// begins when it is so old.
pub(super) fn writeback_age_ms() -> u64 {
    let read = |name: &str| {
        let text = fs::read_to_string(Path::new("/proc/sys/vm").join(name)).ok()?;
        text.trim().parse::<u64>().ok()
    };
    let sum = read("dirty_expire_centisecs")
        .zip(read("dirty_writeback_centisecs"))
        .map(|(expire, pause)| expire.saturating_add(pause));
    sum.unwrap_or(WRITEBACK_DEFAULT_CS).saturating_mul(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_counted_as_the_kernel_shows_them() {
        let text = "commits 24\ncur_commit_ms 0\nlast_commit_ms 5\n";
        assert_eq!(parse_commits(text), Some(24));
        assert_eq!(parse_commits("commits x\n"), None);
        assert_eq!(parse_commits(""), None);
    }
}
