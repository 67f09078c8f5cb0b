//! Making and ending mounts.

mod block;
mod direct;
mod error;
mod fusermount;
mod loop_device;
mod table;
mod unmount;

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount as unmount_syscall};

use unmount::unmount_elsewhere;

pub use error::{MountError, UnmountError};
pub use loop_device::LoopDevice;
pub(crate) use table::connection_at;
pub use table::is_mounted;

use crate::options::{MountOptions, SyncFsMode};
use crate::transport::DeviceTransport;

/// A mount just made: the kernel's INIT is waiting to be read.
#[derive(Debug)]
pub(crate) struct Mounted {
    /// The connection with the kernel.
    pub(crate) transport: DeviceTransport,
    /// Absolute path of the mount point.
    pub(crate) mountpoint: PathBuf,
    /// Whether the mount is of the kind that `sync(2)` and `syncfs(2)` reach.
    pub(crate) sync_reaches: bool,
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether this process may mount at all, as far as can be seen before it tries.
///
/// # Errors
/// [`MountError`]: why not, and what can be done about it.
pub fn check_permitted() -> Result<(), MountError> {
    if is_root() {
        DeviceTransport::open().map_err(MountError::Device)?;
        return Ok(());
    }
    fusermount::check()
}

/// Mounts at `mountpoint`.
pub(crate) fn mount(mountpoint: &Path, options: &MountOptions) -> Result<Mounted, MountError> {
    let mountpoint = check_mountpoint(mountpoint, options)?;
    if !is_root() {
        if options.sync_fs == SyncFsMode::On {
            return Err(MountError::SyncFsNotPossible {
                reason: "it takes root to mount in a way that sync(2) reaches".to_owned(),
            });
        }
        let transport = fusermount::mount(&mountpoint, options)?;
        return Ok(Mounted {
            transport,
            mountpoint,
            sync_reaches: false,
        });
    }
    if options.sync_fs != SyncFsMode::Off {
        match block::mount(&mountpoint, options) {
            Ok(transport) => {
                return Ok(Mounted {
                    transport,
                    mountpoint,
                    sync_reaches: true,
                });
            }
            Err(reason) if options.sync_fs == SyncFsMode::On => {
                return Err(MountError::SyncFsNotPossible {
                    reason: reason.to_string(),
                });
            }
            Err(reason) => tracing::warn!(
                %reason,
                "sync(2) and syncfs(2) will not reach this mount; use 'mobifs sync'"
            ),
        }
    }
    let transport = direct::mount(&mountpoint, options)?;
    Ok(Mounted {
        transport,
        mountpoint,
        sync_reaches: false,
    })
}

/// The absolute path of a directory that can be mounted over.
fn check_mountpoint(path: &Path, options: &MountOptions) -> Result<PathBuf, MountError> {
    let mountpoint = path.canonicalize().map_err(|source| {
        match source.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT) => MountError::MountpointMissing(path.to_owned()),
            Some(Errno::NOTDIR) => MountError::MountpointNotDirectory(path.to_owned()),
            Some(Errno::NOTCONN) => MountError::MountpointDead(path.to_owned()),
            _ => MountError::Mountpoint {
                path: path.to_owned(),
                source,
            },
        }
    })?;
    if table::find(&mountpoint).is_some_and(|entry| entry.has_subtype(&options.subtype)) {
        return Err(MountError::AlreadyMounted(mountpoint));
    }
    if !mountpoint.is_dir() {
        return Err(MountError::MountpointNotDirectory(mountpoint));
    }
    Ok(mountpoint)
}

/// Ends the mount at `mountpoint`. `lazy`: take it out of the tree now and let the
/// programs that use it finish.
///
/// # Errors
/// [`UnmountError`].
pub fn unmount(mountpoint: &Path, lazy: bool) -> Result<(), UnmountError> {
    if !is_root() {
        return fusermount::unmount(mountpoint, lazy);
    }
    let flags = if lazy {
        UnmountFlags::DETACH
    } else {
        UnmountFlags::empty()
    };
    unmount_elsewhere(mountpoint, flags | UnmountFlags::NOFOLLOW)
        .map_err(|errno| UnmountError::from_errno(mountpoint, errno))
}

/// Ends the mount now: every program that uses it gets errors, nothing more is sent to the
/// daemon. If that is not possible, at least takes it out of the tree.
///
/// # Errors
/// [`UnmountError`]: if it could not be taken out of the tree.
pub fn abort(mountpoint: &Path) -> Result<(), UnmountError> {
    if is_root() {
        // FORCE aborts the connection before anything else is looked at; DETACH then detaches the
        // mount even though it is in use.
        let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
        return unmount_syscall(mountpoint, flags)
            .map_err(|errno| UnmountError::from_errno(mountpoint, errno));
    }
    if let Some(entry) = table::find(mountpoint) {
        let control = format!(
            "/sys/fs/fuse/connections/{}/abort",
            entry.connection_number()
        );
        if let Err(error) = std::fs::write(&control, "1") {
            tracing::warn!(%error, control, "cannot abort the connection");
        }
    }
    fusermount::unmount(mountpoint, true)
}
