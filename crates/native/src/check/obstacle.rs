//! Why a filesystem cannot be steered, and what to do about it.

use std::path::PathBuf;

use mobifs_host::shell_path;

use super::remedy::{how_to_add_a_journal, unmounted};
use crate::only::OnlyObstacle;

/// One reason. Each is one sentence: what, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// No such place.
    #[error("cannot examine {path}: {reason}", path = path.display())]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A place in a filesystem.
    #[error(
        "{path} lies in the filesystem that is mounted at {mountpoint}, and a filesystem is steered \
         as a whole: name {mountpoint}",
        path = path.display(), mountpoint = mountpoint.display()
    )]
    NotMountpoint {
        /// The path.
        path: PathBuf,
        /// The mount that it lies in.
        mountpoint: PathBuf,
    },
    /// A daemon steers it of which nothing else is seen here.
    #[error(
        "{path} is steered already, by a daemon that runs where /run is another one, as in a container: \
         stop it there",
        path = path.display()
    )]
    SteeredOutOfReach {
        /// The mount point.
        path: PathBuf,
    },
    /// Its daemon ends.
    #[error(
        "the daemon that steers {path} is ending and commits what there is: run this command again when it has \
         ended",
        path = path.display()
    )]
    Ending {
        /// The mount point.
        path: PathBuf,
    },
    /// A bind mount of a part.
    #[error(
        "{path} is a bind mount of {root}, which is a part of its filesystem, and a filesystem is \
         steered as a whole: {advice}",
        path = path.display(), root = root.display(),
        advice = whole.as_ref().map_or_else(
            || "mount it somewhere as a whole, and name that".to_owned(),
            |whole| format!("name {}", whole.display())
        )
    )]
    Part {
        /// The bind mount.
        path: PathBuf,
        /// What it shows.
        root: PathBuf,
        /// A mount of the whole filesystem, if there is one.
        whole: Option<PathBuf>,
    },
    /// A filesystem of another type.
    #[error("{path} is {kind}: {why}", path = path.display())]
    Kind {
        /// The mount point.
        path: PathBuf,
        /// Its type.
        kind: String,
        /// Why it cannot be steered, and what can be done.
        why: &'static str,
    },
    /// ext4 without a journal.
    #[error(
        "the ext4 at {path} has no journal: {advice}",
        path = path.display(), advice = how_to_add_a_journal(path, device, *mib)
    )]
    NoJournal {
        /// The mount point.
        path: PathBuf,
        /// Its device.
        device: String,
        /// How large the journal should be, in MiB.
        mib: u64,
    },
    /// ext4 without room for a journal.
    #[error(
        "the ext4 at {path} has {mib} MiB, of which a journal of {journal_mib} MiB, the smallest that is worth \
         steering, would take more than a quarter: steer a larger filesystem",
        path = path.display()
    )]
    TooSmall {
        /// The mount point.
        path: PathBuf,
        /// Its size, in MiB.
        mib: u64,
        /// The journal, in MiB.
        journal_mib: u64,
    },
    /// ext4 that journals names and sizes only.
    #[error(
        "the ext4 at {path} is mounted with data={mode}, so that its journal has names and sizes but \
         no content, and no remount can change that: {advice}",
        path = path.display()
    )]
    DataMode {
        /// The mount point.
        path: PathBuf,
        /// `ordered` or `writeback`.
        mode: String,
        /// How to get the other.
        advice: String,
    },
    /// Content is overwritten in place.
    #[error(
        "the btrfs at {path} is mounted with nodatacow, so that content is overwritten in place at any \
         moment: `mount -o remount,datacow,datasum {word}` (without datasum, checksums stay off), and remove the option where it comes from",
        path = path.display(), word = shell_path(path)
    )]
    NoCow {
        /// The mount point.
        path: PathBuf,
    },
    /// Nothing keeps the order on the device.
    #[error(
        "the {kind} at {path} is mounted without barriers, so that a power cut takes what was \
         committed, too: `mount -o remount,barrier {word}`, and remove the option where it comes from",
        path = path.display(), word = shell_path(path)
    )]
    NoBarriers {
        /// The mount point.
        path: PathBuf,
        /// The type of the filesystem.
        kind: &'static str,
    },
    /// A mount that cannot be written.
    #[error("{path} is mounted read-only: there is nothing to steer", path = path.display())]
    ReadOnly {
        /// The mount point.
        path: PathBuf,
    },
    /// A journal that has no room for a transaction worth waiting for.
    #[error(
        "the journal of the ext4 at {path} takes transactions of {largest_kib} KiB at the most, less \
         than the {least_kib} KiB that are worth steering: {unmounted}, `tune2fs -O ^has_journal \
         {device}` and `tune2fs -J size={mib} {device}`",
        path = path.display(), unmounted = unmounted(path)
    )]
    JournalTooSmall {
        /// The mount point.
        path: PathBuf,
        /// Its device.
        device: String,
        /// The largest transaction, in KiB.
        largest_kib: u64,
        /// What it should be at the least, in KiB.
        least_kib: u64,
        /// How large the journal should be, in MiB.
        mib: u64,
    },
    /// An age that the kernel cannot keep to.
    #[error(
        "the configuration wants changes committed at an age of {age_max_ms} ms, and the kernel, which \
         has to keep that promise where the daemon is dead, counts in seconds: age_max_ms must be at \
         least 1000, for every app"
    )]
    AgeTooShort {
        /// The shortest `age_max_ms`.
        age_max_ms: u64,
    },
    /// An age that is no commit interval.
    #[error(
        "changes are to be committed at an age of {age_max_ms} ms, and the kernel, which has to keep that \
         promise where the daemon is dead, takes no longer commit interval than {limit_ms} ms: age_max_ms \
         of at least one app, or of [defaults], must be at most {limit_ms}"
    )]
    AgeTooLong {
        /// The shortest `age_max_ms`.
        age_max_ms: u64,
        /// The longest that the kernel takes.
        limit_ms: u64,
    },
    /// Another daemon.
    #[error(
        "the filesystem at {path} is steered already, by process {pid}: `mobifs steer --stop {word}` \
         ends that",
        path = path.display(), word = shell_path(path)
    )]
    AlreadySteered {
        /// The mount point.
        path: PathBuf,
        /// The daemon.
        pid: u32,
    },
    /// Some directories alone.
    #[error(transparent)]
    Only(#[from] OnlyObstacle),
    /// Not root.
    #[error(
        "only a process with CAP_SYS_ADMIN can change the mount options of {path}: run this as root",
        path = path.display()
    )]
    NotPermitted {
        /// The mount point.
        path: PathBuf,
    },
}

impl Obstacle {
    /// Whether it lies in the configuration, and not in the filesystem or this process.
    pub const fn is_of_configuration(&self) -> bool {
        matches!(self, Self::AgeTooShort { .. } | Self::AgeTooLong { .. })
    }
}

/// The longest commit interval, in seconds: ext4 counts it in ticks of the clock, in 31 bits, and kernels
/// are built with up to 1000 ticks a second.
pub const COMMIT_INTERVAL_MAX_S: u64 = i32::MAX as u64 / 1000;

/// The kernel's commit interval for the shortest age of all apps, in seconds.
///
/// # Errors
/// [`Obstacle::AgeTooShort`], [`Obstacle::AgeTooLong`].
pub fn commit_interval_s(age_max_ms: u64) -> Result<u64, Obstacle> {
    match age_max_ms / 1000 {
        0 => Err(Obstacle::AgeTooShort { age_max_ms }),
        interval_s if interval_s > COMMIT_INTERVAL_MAX_S => Err(Obstacle::AgeTooLong {
            age_max_ms,
            limit_ms: COMMIT_INTERVAL_MAX_S * 1000,
        }),
        interval_s => Ok(interval_s),
    }
}

/// Why a filesystem of this type cannot be steered.
pub(super) fn why_not(kind: &str) -> &'static str {
    match kind {
        "xfs" => {
            "its journal has names and sizes but never content, so after a power cut each file is of \
             another moment; a MobiFS mount over it (`mobifs mount`) has one point in time for each app"
        }
        "f2fs" => {
            "its checkpoints take content only where it was written before, and with \
             checkpoint=disable it keeps one point in time but cannot be told to take the next one \
             without a gap; a MobiFS mount over it (`mobifs mount`) has one point in time for each app"
        }
        "ext2" => {
            "it has no journal; `tune2fs -j` on the unmounted device makes it an ext3, which can be \
             mounted with data=journal"
        }
        "proc" | "sysfs" | "cgroup" | "cgroup2" | "debugfs" | "tracefs" | "securityfs"
        | "configfs" | "devpts" | "bpf" | "efivarfs" | "pstore" | "binfmt_misc" | "mqueue"
        | "fusectl" | "nsfs" | "selinuxfs" => {
            "it is the kernel's own interface, and keeps no files"
        }
        "tmpfs" | "ramfs" | "devtmpfs" => {
            "it lies in memory, and a power cut takes all of it whenever it is committed"
        }
        "overlay" => "its files lie on other filesystems: steer the one that has its upper layer",
        "fuse.mobifs" | "fuseblk.mobifs" => {
            "it is a MobiFS mount, which commits by the policies already"
        }
        "nfs" | "nfs4" | "cifs" | "smb3" | "9p" | "virtiofs" | "ceph" => {
            "another machine decides when it is committed: steer the filesystem there"
        }
        _ => {
            "it has no transactions over all files that can be committed at a chosen moment; ext4 with \
             data=journal has"
        }
    }
}
