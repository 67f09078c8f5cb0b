//! What can be steered: the kernel's filesystems that have transactions over all files.

mod btrfs;
mod committer;
mod ext4;
mod zeroing;

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use mobifs_host::MountEntry;
use serde::{Deserialize, Serialize};

use crate::mount_options::{Change, MountOptions};
pub use btrfs::Btrfs;
pub(crate) use committer::Committer;
pub use ext4::Ext4;

/// Nothing keeps the order of what is written to the device.
pub(crate) const NO_BARRIER: &str = "nobarrier";
/// btrfs overwrites content in place.
pub(crate) const NO_COW: &str = "nodatacow";

/// The mount options, and settings of the kernel's, that matter for what is promised, as they are in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// The kernel commits a transaction at this age by itself, in seconds.
    pub commit_interval_s: u64,
    /// Those that btrfs has besides.
    pub btrfs: Option<BtrfsSettings>,
    /// How many KiB an ext4 with `data=journal` fills with zeros past its journal at a write to allocated
    /// room; none: another filesystem, or the kernel does not show it.
    #[serde(default)]
    pub zeroing_kib: Option<u64>,
}

/// The options of btrfs that matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BtrfsSettings {
    /// A commit takes all data that was written before it.
    pub flush_on_commit: bool,
    /// An `fsync` of one file may be noted by itself, ahead of the next commit: after a power cut
    /// this file is newer than all others.
    pub tree_log: bool,
}

impl Settings {
    /// What makes these the mount options in force, if `from` is.
    pub fn changes(&self, from: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        if self.commit_interval_s != from.commit_interval_s {
            changes.push(Change::Value("commit", self.commit_interval_s.to_string()));
        }
        if let (Some(to), Some(from)) = (self.btrfs, from.btrfs) {
            if to.flush_on_commit != from.flush_on_commit {
                changes.push(flush_on_commit(to.flush_on_commit));
            }
            if to.tree_log != from.tree_log {
                changes.push(tree_log(to.tree_log));
            }
        }
        changes
    }

    /// What is to be in force so that only what was changed from `before` to `taken` is as
    /// before, and what another program has changed since then stays.
    pub fn undone(&self, before: &Self, taken: &Self) -> Self {
        fn undo<T: PartialEq>(now: T, before: T, taken: T) -> T {
            if now == taken { before } else { now }
        }
        let btrfs = match (self.btrfs, before.btrfs, taken.btrfs) {
            (Some(now), Some(before), Some(taken)) => Some(BtrfsSettings {
                flush_on_commit: undo(
                    now.flush_on_commit,
                    before.flush_on_commit,
                    taken.flush_on_commit,
                ),
                tree_log: undo(now.tree_log, before.tree_log, taken.tree_log),
            }),
            (now, _, _) => now,
        };
        Self {
            commit_interval_s: undo(
                self.commit_interval_s,
                before.commit_interval_s,
                taken.commit_interval_s,
            ),
            btrfs,
            zeroing_kib: undo(self.zeroing_kib, before.zeroing_kib, taken.zeroing_kib),
        }
    }

    /// The options, as mount takes them.
    pub fn shown(&self) -> Vec<String> {
        let mut shown = vec![Change::Value("commit", self.commit_interval_s.to_string())];
        if let Some(btrfs) = self.btrfs {
            shown.push(flush_on_commit(btrfs.flush_on_commit));
            shown.push(tree_log(btrfs.tree_log));
        }
        shown.iter().map(ToString::to_string).collect()
    }
}

const fn flush_on_commit(is_on: bool) -> Change {
    Change::Flag(if is_on {
        "flushoncommit"
    } else {
        "noflushoncommit"
    })
}

const fn tree_log(is_on: bool) -> Change {
    Change::Flag(if is_on { "treelog" } else { "notreelog" })
}

/// A filesystem that can be steered.
#[derive(Clone, Debug)]
pub enum Filesystem {
    /// ext4, or ext3, which the same driver serves.
    Ext4(Ext4),
    /// btrfs.
    Btrfs(Btrfs),
}

impl Filesystem {
    /// Whether filesystems of this type, as the table of mounts names it, can be steered.
    pub(crate) fn is_of_kind(kind: &str) -> bool {
        matches!(kind, "ext4" | "ext3" | "btrfs")
    }

    /// The filesystem of a mount; none if it is of a type that cannot be steered.
    ///
    /// # Errors
    /// If the kernel does not show what has to be known.
    pub fn of(mount: &MountEntry) -> io::Result<Option<Self>> {
        Ok(match mount.kind.as_str() {
            "ext4" | "ext3" => Some(Self::Ext4(Ext4::of(mount)?)),
            "btrfs" => Some(Self::Btrfs(Btrfs::of(mount)?)),
            _ => None,
        })
    }

    /// A number that it has from its first mount to the unmount of its last one, and that no other has
    /// before the machine is restarted: that of its directory in `/sys`, which the kernel makes then.
    /// None where that is not shown.
    pub(crate) fn instance(&self) -> Option<u64> {
        let about = match self {
            Self::Ext4(ext4) => ext4.kernel_directory().metadata(),
            Self::Btrfs(btrfs) => btrfs.kernel_directory()?.metadata(),
        };
        about.ok().map(|about| about.ino())
    }

    /// Whether the filesystem with this [number](Self::instance) is in use, wherever it is mounted.
    pub(crate) fn is_in_use(instance: u64) -> bool {
        ["/sys/fs/ext4", "/sys/fs/btrfs"].iter().any(|directory| {
            let entries = std::fs::read_dir(directory).into_iter().flatten();
            let mut all = entries.flatten().filter_map(|entry| entry.metadata().ok());
            all.any(|about| about.ino() == instance)
        })
    }

    /// Its type.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Ext4(_) => "ext4",
            Self::Btrfs(_) => "btrfs",
        }
    }

    /// The options in force; none if the mount has ended.
    ///
    /// # Errors
    /// If the kernel does not show them.
    pub fn settings(&self, mount_id: u64) -> io::Result<Option<Settings>> {
        let Some(options) = MountOptions::of(mount_id)? else {
            return Ok(None);
        };
        Ok(Some(match self {
            Self::Ext4(ext4) => ext4.settings()?,
            Self::Btrfs(_) => Btrfs::settings(&options),
        }))
    }

    /// The options in force, also when no mount of it is seen here; none where only the table of mounts shows them.
    pub(crate) fn settings_unmounted(&self) -> Option<Settings> {
        match self {
            Self::Ext4(ext4) => ext4.settings().ok(),
            Self::Btrfs(_) => None,
        }
    }

    /// The options with which every change is committed at this age, in seconds, without a daemon.
    pub fn wanted(&self, commit_interval_s: u64) -> Settings {
        let (btrfs, zeroing_kib) = match self {
            Self::Ext4(ext4) => (None, ext4.wanted_zeroing_kib()),
            Self::Btrfs(_) => {
                let wanted = BtrfsSettings {
                    flush_on_commit: true,
                    tree_log: false,
                };
                (Some(wanted), None)
            }
        };
        Settings {
            commit_interval_s,
            btrfs,
            zeroing_kib,
        }
    }

    /// Sets how much the kernel fills with zeros past the journal.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn set_zeroing_kib(&self, kib: u64) -> io::Result<()> {
        match self {
            Self::Ext4(ext4) => ext4.set_zeroing_kib(kib),
            Self::Btrfs(_) => Ok(()),
        }
    }

    /// Whether a commit is one point in time over the content of all files.
    ///
    /// btrfs writes content before it commits, file by file, while programs go on: what the kernel
    /// happens to write later in the same commit (a direct write, `fadvise`, short memory) is newer
    /// than what it wrote before.
    pub const fn keeps_order(&self) -> bool {
        match self {
            Self::Ext4(_) => true,
            Self::Btrfs(_) => false,
        }
    }

    /// The mount option in force, if there is one, with which no commit keeps the promise. No
    /// program under `mobifs` sets these, and steering does not change them.
    ///
    /// # Errors
    /// If the kernel does not show the options.
    pub fn breaking_option(&self, options: &MountOptions) -> io::Result<Option<&'static str>> {
        Ok(match self {
            Self::Ext4(ext4) => {
                let options = ext4.options()?;
                let has_none = options.has("nobarrier") || options.number("barrier") == Some(0);
                has_none.then_some(NO_BARRIER)
            }
            Self::Btrfs(_) => [NO_BARRIER, NO_COW]
                .into_iter()
                .find(|option| options.filesystem.has(option)),
        })
    }

    /// The largest transaction that it takes, in bytes; none if there is no such limit.
    pub fn largest_transaction_bytes(&self) -> Option<u64> {
        match self {
            Self::Ext4(ext4) => ext4.largest_transaction_bytes(),
            Self::Btrfs(_) => None,
        }
    }

    /// Commits since it was mounted; none where the kernel does not count them.
    pub fn commits(&self) -> Option<u64> {
        match self {
            Self::Ext4(ext4) => ext4.commits(),
            Self::Btrfs(btrfs) => btrfs.commits(),
        }
    }

    /// How old changes become at the most before a transaction has them, in milliseconds: its own
    /// age counts from then on only.
    pub fn age_before_transaction_ms(&self) -> u64 {
        match self {
            Self::Ext4(_) => 0,
            Self::Btrfs(_) => btrfs::writeback_age_ms(),
        }
    }

    /// The name in `/sys/class/bdi` under which the kernel counts what it has in memory for it.
    pub fn writeback_name(&self) -> Option<String> {
        match self {
            Self::Ext4(ext4) => ext4.writeback_name(),
            Self::Btrfs(btrfs) => btrfs.writeback_name(),
        }
    }

    /// Where the kernel shows what it counts of it.
    pub(crate) const fn counters_place(&self) -> &'static str {
        match self {
            Self::Ext4(_) => "/proc/fs/jbd2, debugfs",
            Self::Btrfs(_) => "/sys/fs/btrfs, debugfs",
        }
    }

    /// Bytes written to its device since the machine was started.
    pub fn device_written_bytes(&self) -> Option<u64> {
        let directory = match self {
            Self::Ext4(ext4) => ext4.device_directory(),
            Self::Btrfs(btrfs) => btrfs.device_directory()?,
        };
        let text = std::fs::read_to_string(directory.join("stat")).ok()?;
        // reads merged sectors ms writes merged sectors …
        let sectors: u64 = text.split_whitespace().nth(6)?.parse().ok()?;
        Some(sectors.saturating_mul(512))
    }
}

/// The last component of a link's target.
fn name_of_target(link: &Path) -> Option<String> {
    let target: PathBuf = std::fs::read_link(link).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(commit_interval_s: u64, flush_on_commit: bool, tree_log: bool) -> Settings {
        Settings {
            commit_interval_s,
            btrfs: Some(BtrfsSettings {
                flush_on_commit,
                tree_log,
            }),
            zeroing_kib: None,
        }
    }

    fn shown(changes: &[Change]) -> Vec<String> {
        changes.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn only_what_differs_is_changed() {
        let (before, taken) = (settings(5, false, true), settings(30, true, false));
        assert_eq!(
            shown(&taken.changes(&before)),
            ["commit=30", "flushoncommit", "notreelog"]
        );
        assert_eq!(
            shown(&before.changes(&taken)),
            ["commit=5", "noflushoncommit", "treelog"]
        );
        assert!(taken.changes(&taken).is_empty());
        assert_eq!(taken.shown(), ["commit=30", "flushoncommit", "notreelog"]);
    }

    #[test]
    fn what_another_program_has_changed_stays() {
        let (before, taken) = (settings(5, false, true), settings(30, true, false));
        assert_eq!(taken.undone(&before, &taken), before);
        let changed = settings(7, true, false);
        assert_eq!(changed.undone(&before, &taken), settings(7, false, true));
        let zeroing = |kib| Settings {
            zeroing_kib: Some(kib),
            ..settings(5, false, true)
        };
        assert_eq!(zeroing(0).undone(&zeroing(32), &zeroing(0)), zeroing(32));
        assert_eq!(zeroing(8).undone(&zeroing(32), &zeroing(0)), zeroing(8));
    }
}
