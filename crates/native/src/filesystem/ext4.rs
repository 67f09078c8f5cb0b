//! ext4 with `data=journal`: every write belongs to the running transaction of its journal.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mobifs_host::MountEntry;

use super::{Settings, name_of_target, zeroing};
use crate::mount_options::OptionList;

/// One ext4.
#[derive(Clone, Debug)]
pub struct Ext4 {
    /// The name of its device, by which the kernel calls the filesystem.
    name: String,
    device: (u32, u32),
    block_bytes: u64,
    journal: Option<PathBuf>,
}

impl Ext4 {
    pub(super) fn of(mount: &MountEntry) -> io::Result<Self> {
        let device = (mount.device_major, mount.device_minor);
        let link = device_directory(device);
        let name = name_of_target(&link).ok_or_else(|| {
            let shown = link.display();
            let why = if Path::new("/sys/dev").is_dir() {
                ""
            } else {
                ": /sys is not mounted (mount -t sysfs sysfs /sys)"
            };
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("{shown} is not there{why}"),
            )
        })?;
        let block_bytes = rustix::fs::statvfs(&mount.mountpoint)?.f_bsize;
        Ok(Self {
            journal: find_journal(&name),
            name,
            device,
            block_bytes,
        })
    }

    /// The options in force, those that are the default as well.
    ///
    /// # Errors
    /// If `/proc` is not mounted, or the filesystem is not any more.
    pub fn options(&self) -> io::Result<OptionList> {
        let path = Path::new("/proc/fs/ext4").join(&self.name).join("options");
        let text = fs::read_to_string(&path).map_err(|error| {
            io::Error::new(error.kind(), format!("{}: {error}", path.display()))
        })?;
        Ok(OptionList::parse(&text))
    }

    pub(super) fn settings(&self) -> io::Result<Settings> {
        let options = self.options()?;
        let interval = options.number("commit");
        Ok(Settings {
            commit_interval_s: interval.ok_or_else(|| {
                io::Error::other("the kernel does not show the commit interval of this ext4")
            })?,
            btrfs: None,
            zeroing_kib: journals_content(&options)
                .then(|| zeroing::limit_kib(&self.name))
                .flatten(),
        })
    }

    /// How many KiB beside what is written the kernel may fill with zeros past the journal; none: what is
    /// journaled of single files is revoked when its blocks are freed, so nothing puts it back.
    pub(super) fn wanted_zeroing_kib(&self) -> Option<u64> {
        let options = self.options().ok()?;
        journals_content(&options).then_some(0)
    }

    pub(super) fn set_zeroing_kib(&self, kib: u64) -> io::Result<()> {
        zeroing::set_limit_kib(&self.name, kib)
    }

    /// The name of its device.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether an `fsync` may commit one file alone (the feature `fast_commit`).
    pub(super) fn commits_in_part(&self) -> bool {
        self.options()
            .is_ok_and(|options| options.has("fast_commit"))
    }

    /// Whether it has a journal.
    pub const fn has_journal(&self) -> bool {
        self.journal.is_some()
    }

    pub(super) fn largest_transaction_bytes(&self) -> Option<u64> {
        let text = self.journal_info()?;
        parse_info(&text).map(|(_, blocks)| blocks.saturating_mul(self.block_bytes))
    }

    pub(super) fn commits(&self) -> Option<u64> {
        parse_info(&self.journal_info()?).map(|(commits, _)| commits)
    }

    fn journal_info(&self) -> Option<String> {
        fs::read_to_string(self.journal.as_ref()?.join("info")).ok()
    }

    pub(super) fn kernel_directory(&self) -> PathBuf {
        Path::new("/sys/fs/ext4").join(&self.name)
    }

    pub(super) fn device_directory(&self) -> PathBuf {
        device_directory(self.device)
    }

    pub(super) fn writeback_name(&self) -> Option<String> {
        let directory = self.device_directory().canonicalize().ok()?;
        // A partition has that of its disk.
        let own = name_of_target(&directory.join("bdi"));
        own.or_else(|| name_of_target(&directory.parent()?.join("bdi")))
    }
}

fn journals_content(options: &OptionList) -> bool {
    options.value("data") == Some("journal")
}

fn device_directory((major, minor): (u32, u32)) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
}

/// Where the kernel shows the journal: named after the device and the journal's inode, or after
/// the device that has the journal.
fn find_journal(name: &str) -> Option<PathBuf> {
    let all = Path::new("/proc/fs/jbd2");
    let prefix = format!("{name}-");
    let inside = all.read_dir().ok()?.flatten().find(|entry| {
        let inode = entry.file_name();
        let inode = inode.to_str().and_then(|name| name.strip_prefix(&prefix));
        inode.is_some_and(|inode| inode.bytes().all(|byte| byte.is_ascii_digit()))
    });
    if let Some(inside) = inside {
        return Some(inside.path());
    }
    let task = Path::new("/sys/fs/ext4").join(name).join("journal_task");
    let pid = fs::read_to_string(task).ok()?;
    let task = fs::read_to_string(format!("/proc/{}/comm", pid.trim())).ok()?;
    let outside = all.join(task.trim().strip_prefix("jbd2/")?);
    outside.is_dir().then_some(outside)
}

/// The first line: `12 transactions (3 requested), each up to 8192 blocks`.
fn parse_info(text: &str) -> Option<(u64, u64)> {
    let line = text.lines().next()?;
    let commits = line.split(' ').next()?.parse().ok()?;
    let blocks = line.split_once("each up to ")?.1;
    Some((commits, blocks.split(' ').next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_is_read_as_the_kernel_writes_it() {
        let text = "12 transactions (3 requested), each up to 10922 blocks\naverage: \n  0ms ...\n";
        assert_eq!(parse_info(text), Some((12, 10_922)));
        assert_eq!(parse_info(""), None);
        assert_eq!(parse_info("x transactions"), None);
    }
}
