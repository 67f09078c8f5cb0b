//! How much programs have written, as far as the kernel counts it cheaply.
//!
//! The kernel counts pages as they become dirty, for each backing device (`BdiDirtied`): near exact
//! (it adds up the counts of the CPUs in batches), of this filesystem only, and one small read. It
//! is shown in debugfs, which is mounted here without a place in the tree, so that nothing is seen
//! of it. Where there is no debugfs, the count of all filesystems together is in `/proc/vmstat`.
//! A page that is dirty already does not count again: what is overwritten is not seen, and what is
//! written is a lower bound (docs/NATIVE.md).

use std::fs;
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags, openat};
use rustix::io::{Errno, pread};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

/// A count of pages that became dirty.
#[derive(Debug)]
pub(crate) enum DirtiedCounter {
    /// The count of the filesystem's backing device.
    Device(OwnedFd),
    /// The count of all filesystems.
    Machine,
}

/// What a counter says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dirtied {
    /// Pages, ever; none: the counter cannot be read.
    pub(crate) pages: Option<u64>,
}

impl DirtiedCounter {
    /// The best one for the backing device of this name.
    pub(crate) fn open(writeback_name: Option<&str>) -> Self {
        let file = writeback_name.ok_or(Errno::NOENT).and_then(open_stats);
        match file {
            Ok(file) => Self::Device(file),
            Err(error) => {
                tracing::info!(
                    %error,
                    "the kernel does not show what is written to this filesystem alone: what is \
                     written to all of them counts"
                );
                Self::Machine
            }
        }
    }

    /// What it counts.
    pub(crate) const fn scope(&self) -> &'static str {
        match self {
            Self::Device(_) => "filesystem",
            Self::Machine => "machine",
        }
    }

    pub(crate) fn read(&self) -> Dirtied {
        let pages = match self {
            Self::Device(file) => {
                let mut buffer = [0; 1024];
                let length = pread(file, &mut buffer, 0).unwrap_or(0);
                let text = String::from_utf8_lossy(&buffer[..length]);
                // In KiB.
                number_after(&text, "BdiDirtied:").map(|kib| kib / 4)
            }
            Self::Machine => {
                let text = fs::read_to_string("/proc/vmstat").unwrap_or_default();
                number_after(&text, "nr_dirtied")
            }
        };
        Dirtied { pages }
    }
}

fn open_stats(writeback_name: &str) -> Result<OwnedFd, Errno> {
    let debugfs = fsopen("debugfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&debugfs)?;
    let root = fsmount(
        &debugfs,
        FsMountFlags::FSMOUNT_CLOEXEC,
        MountAttrFlags::empty(),
    )?;
    let path = format!("bdi/{writeback_name}/stats");
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    openat(&root, path, flags, Mode::empty())
}

fn number_after(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines();
    let rest = lines.find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_as_the_kernel_writes_them() {
        let text = "BdiWriteback:                0 kB\nBdiDirtied:               3840 kB\n";
        assert_eq!(number_after(text, "BdiDirtied:"), Some(3840));
        assert_eq!(
            number_after("nr_dirty 3\nnr_dirtied 77\n", "nr_dirtied"),
            Some(77)
        );
        assert_eq!(number_after(text, "nr_dirtied"), None);
    }
}
