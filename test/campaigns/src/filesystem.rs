//! The lower filesystems: how they are made, recovered after a cut, and checked.

use std::path::Path;
use std::process::Command;

use clap::ValueEnum;
use mobifs_testkit::mount::{printed, succeed};
use mobifs_testkit::random::Random;

use crate::trouble::Trouble;

/// A kernel filesystem under MobiFS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Filesystem {
    /// ext4 with its journal.
    Ext4,
    /// btrfs.
    Btrfs,
    /// XFS.
    Xfs,
    /// f2fs.
    F2fs,
}

impl Filesystem {
    /// As mount(8) spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Btrfs => "btrfs",
            Self::Xfs => "xfs",
            Self::F2fs => "f2fs",
        }
    }

    /// Programs that a campaign on it needs.
    pub const fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Ext4 => &["mkfs.ext4", "e2fsck"],
            Self::Btrfs => &["mkfs.btrfs", "btrfs"],
            Self::Xfs => &["mkfs.xfs", "xfs_repair"],
            Self::F2fs => &["mkfs.f2fs", "fsck.f2fs"],
        }
    }

    /// Smallest device for its usual layout: mkfs.xfs accepts no smaller one.
    pub const fn mebibytes_min(self) -> u64 {
        match self {
            Self::Ext4 => 192,
            Self::Btrfs => 256,
            Self::Xfs => 320,
            Self::F2fs => 256,
        }
    }

    /// Whether a directory's link count is 2 and one for each directory in it.
    pub const fn counts_links_of_directories(self) -> bool {
        !matches!(self, Self::Btrfs)
    }

    /// Makes it anew, with these additional options.
    ///
    /// # Errors
    /// What mkfs says.
    pub fn make(self, device: &Path, options: &[&str]) -> Result<(), Trouble> {
        let quiet: &[&str] = match self {
            Self::Ext4 => &["-q", "-F"],
            Self::Btrfs => &["-q", "-f"],
            // Discarding the whole device first takes time and tests nothing.
            Self::Xfs => &["-q", "-f", "-K"],
            Self::F2fs => &["-q", "-f", "-t", "0"],
        };
        let mut command = Command::new(format!("mkfs.{}", self.name()));
        succeed(command.args(quiet).args(options).arg(device))?;
        Ok(())
    }

    /// Mounts it.
    ///
    /// # Errors
    /// What mount says.
    pub fn mount(self, device: &Path, at: &Path) -> Result<(), Trouble> {
        let mut command = Command::new("mount");
        succeed(command.args(["-t", self.name()]).arg(device).arg(at))?;
        Ok(())
    }

    /// Recovers it after a power cut with its own tools, and then demands that their check finds no
    /// problem. It is unmounted before and after.
    ///
    /// # Errors
    /// What its check says.
    pub fn recover(self, device: &Path, at: &Path, random: &mut Random) -> Result<(), Trouble> {
        if self == Self::Ext4 && random.chance(50) {
            let mut command = Command::new("e2fsck");
            command.args(["-f", "-p"]).arg(device);
            let output = command.output().map_err(|error| error.to_string())?;
            if !matches!(output.status.code(), Some(0 | 1)) {
                return Err(Trouble::Violation(format!(
                    "e2fsck -p after the cut: {}",
                    printed(&output)
                )));
            }
        } else {
            let mounted = self.mount(device, at);
            mounted.map_err(|trouble| self.name_known_loss(device, trouble))?;
            unmount(at)?;
        }
        self.check(device)
    }

    /// A btrfs whose superblock is torn cannot be mounted: it takes 4 KiB as written whole,
    /// which the modelled device promises for FUA writes only, and a loop device has none. The
    /// copies of the superblock do not have what was fsynced since the last commit.
    fn name_known_loss(self, device: &Path, trouble: Trouble) -> Trouble {
        let mut dump = Command::new("btrfs");
        dump.args(["inspect-internal", "dump-super"]).arg(device);
        let is_torn = |dumped: String| dumped.contains("DON'T MATCH");
        if self == Self::Btrfs && succeed(&mut dump).is_ok_and(is_torn) {
            return Trouble::LowerLost("the superblock of btrfs is torn".to_owned());
        }
        trouble
    }

    /// Demands that its check finds no problem. It is unmounted and its journal empty.
    ///
    /// # Errors
    /// What its check says.
    pub fn check(self, device: &Path) -> Result<(), Trouble> {
        let (program, arguments): (_, &[&str]) = match self {
            Self::Ext4 => ("e2fsck", &["-f", "-n"]),
            Self::Btrfs => ("btrfs", &["check", "--readonly"]),
            Self::Xfs => ("xfs_repair", &["-n"]),
            Self::F2fs => ("fsck.f2fs", &["-f", "--dry-run"]),
        };
        succeed(Command::new(program).args(arguments).arg(device))
            .map(drop)
            .map_err(Trouble::Violation)
    }
}

/// Unmounts a directory.
///
/// # Errors
/// What umount says.
pub(crate) fn unmount(at: &Path) -> Result<(), String> {
    succeed(Command::new("umount").arg(at)).map(drop)
}
