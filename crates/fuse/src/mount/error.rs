//! What can go wrong with mounts.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use thiserror::Error;

use crate::options::OptionError;

/// Why a mount could not be made.
#[derive(Debug, Error)]
pub enum MountError {
    /// A mount option is wrong.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The mount point does not exist.
    #[error("mount point {} does not exist", .0.display())]
    MountpointMissing(PathBuf),
    /// The mount point is not a directory.
    #[error("mount point {} is not a directory", .0.display())]
    MountpointNotDirectory(PathBuf),
    /// The mount point holds a mount whose daemon is gone.
    #[error("mount point {} holds a mount whose daemon is gone; unmount it first", .0.display())]
    MountpointDead(PathBuf),
    /// There is such a mount already.
    #[error("{} is already a mount of this filesystem", .0.display())]
    AlreadyMounted(PathBuf),
    /// The mount point cannot be used for another reason.
    #[error("cannot use mount point {}: {source}", path.display())]
    Mountpoint {
        /// The mount point.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The kernel has no FUSE, or this process may not use it.
    #[error("cannot open /dev/fuse: {0} (is the 'fuse' kernel module loaded?)")]
    Device(#[source] io::Error),
    /// The kernel's FUSE is too old.
    #[error("this kernel is too old: FUSE 7.31 (Linux 5.4) or newer is needed")]
    KernelTooOld,
    /// Not allowed to mount.
    #[error("not permitted to mount at {}", .0.display())]
    NotPermitted(PathBuf),
    /// The helper that mounts for ordinary users is not installed.
    #[error(
        "only root can mount without the program 'fusermount3', which is not installed \
         (package 'fuse3')"
    )]
    FusermountMissing,
    /// The helper cannot mount for ordinary users.
    #[error(
        "only root can mount: {path} runs without root's rights here (it has no set-user-ID bit; \
         root can give it with `chmod u+s {path}`)",
        path = .0.display()
    )]
    FusermountPowerless(PathBuf),
    /// An ordinary user may not use the kernel's FUSE.
    #[error(
        "this user may not open /dev/fuse, which has mode {mode:o}: root can allow it with \
         `chmod 666 /dev/fuse`, and permanently with a udev rule"
    )]
    DeviceNotPermitted {
        /// The device's permission bits.
        mode: u32,
    },
    /// The helper refused.
    #[error("fusermount3 refused to mount: {0}")]
    FusermountRefused(String),
    /// `syncfs=on` was asked for and cannot be had.
    #[error("cannot mount so that sync(2) reaches the mount: {reason}")]
    SyncFsNotPossible {
        /// Why not.
        reason: String,
    },
    /// `mount(2)` failed for another reason.
    #[error("cannot mount at {}: {errno}", path.display())]
    Refused {
        /// The mount point.
        path: PathBuf,
        /// The reason.
        errno: Errno,
    },
    /// The first exchange with the kernel failed.
    #[error("the kernel ended the connection before it was established: {0}")]
    Handshake(Errno),
}

impl MountError {
    pub(crate) fn from_errno(path: &Path, errno: Errno) -> Self {
        match errno {
            Errno::PERM | Errno::ACCESS => Self::NotPermitted(path.to_owned()),
            _ => Self::Refused {
                path: path.to_owned(),
                errno,
            },
        }
    }
}

/// Why a mount could not be ended.
#[derive(Debug, Error)]
pub enum UnmountError {
    /// Files are open or it is the working directory of a process.
    #[error("{} is in use", .0.display())]
    Busy(PathBuf),
    /// Nothing is mounted there.
    #[error("{} is not a mount point", .0.display())]
    NotMounted(PathBuf),
    /// Not allowed.
    #[error("not permitted to unmount {}", .0.display())]
    NotPermitted(PathBuf),
    /// The helper that unmounts for ordinary users is not installed.
    #[error("only root can unmount without the program 'fusermount3', which is not installed")]
    FusermountMissing,
    /// The helper refused.
    #[error("fusermount3 refused to unmount: {0}")]
    FusermountRefused(String),
    /// Another reason.
    #[error("cannot unmount {}: {errno}", path.display())]
    Refused {
        /// The mount point.
        path: PathBuf,
        /// The reason.
        errno: Errno,
    },
}

impl UnmountError {
    pub(crate) fn from_errno(path: &Path, errno: Errno) -> Self {
        let path = path.to_owned();
        match errno {
            Errno::BUSY => Self::Busy(path),
            Errno::INVAL | Errno::NOENT => Self::NotMounted(path),
            Errno::PERM => Self::NotPermitted(path),
            _ => Self::Refused { path, errno },
        }
    }
}
