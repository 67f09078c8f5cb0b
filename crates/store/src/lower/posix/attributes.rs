//! Attributes and extended attributes.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use mobifs_base::{DeviceNumber, FileKind, MODE_MASK, Timestamp, Xattr};
use rustix::fs::{
    self, AtFlags, Gid, Mode, Statx, StatxAttributes, StatxFlags, StatxTimestamp, Timespec,
    Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::access::change_mode;
use super::handle::PosixHandle;
use super::root::PosixLower;
use super::scope::StoreScope;
use crate::lower::{LowerStat, SetAttributes};

/// Unit of `stx_blocks`.
const STAT_BLOCK_BYTES: u64 = 512;
/// The kernel drops this attribute when a file's owner changes, even to the same one.
const FILE_CAPABILITIES: &[u8] = b"security.capability";

const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

pub(super) fn statx_at(directory: BorrowedFd<'_>, name: &[u8]) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    fs::statx(directory, name, flags, WANTED)
}

pub(super) fn stat(object: &PosixHandle) -> io::Result<LowerStat> {
    to_lower_stat(&fs::statx(object.fd(), "", AtFlags::EMPTY_PATH, WANTED)?)
}

fn timestamp(time: &StatxTimestamp) -> Timestamp {
    Timestamp::new(time.tv_sec, time.tv_nsec)
}

pub(super) fn to_lower_stat(found: &Statx) -> io::Result<LowerStat> {
    let kind = FileKind::from_mode(u32::from(found.stx_mode))
        .ok_or_else(|| io::Error::other("the filesystem names an unknown file type"))?;
    Ok(LowerStat {
        device: fs::makedev(found.stx_dev_major, found.stx_dev_minor),
        inode: found.stx_ino,
        born: StatxFlags::from_bits_retain(found.stx_mask)
            .contains(StatxFlags::BTIME)
            .then(|| timestamp(&found.stx_btime)),
        kind,
        mode: found.stx_mode & MODE_MASK,
        uid: found.stx_uid,
        gid: found.stx_gid,
        rdev: DeviceNumber::new(found.stx_rdev_major, found.stx_rdev_minor),
        size: found.stx_size,
        allocated_bytes: found.stx_blocks.saturating_mul(STAT_BLOCK_BYTES),
        nlink: found.stx_nlink,
        immutable: found
            .stx_attributes
            .intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND),
        atime: timestamp(&found.stx_atime),
        mtime: timestamp(&found.stx_mtime),
        ctime: timestamp(&found.stx_ctime),
    })
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec {
        tv_sec: time.seconds,
        tv_nsec: i64::from(time.nanoseconds),
    }
}

const NOW: Timestamps = Timestamps {
    last_access: AT_ONCE,
    last_modification: AT_ONCE,
};
const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: fs::UTIME_NOW,
};

fn change_times(object: &PosixHandle, times: &Timestamps) -> Result<(), Errno> {
    if object.is_reference() {
        fs::utimensat(fs::CWD, object.path().as_str(), times, AtFlags::empty())
    } else {
        fs::futimens(object.fd(), times)
    }
}

impl PosixLower {
    pub(super) fn apply_attributes(
        &self,
        object: &PosixHandle,
        wanted: &SetAttributes,
    ) -> io::Result<()> {
        if object.is_root && matches!(self.scope, StoreScope::File(_)) {
            // The directory around a file belongs to its owner and keeps its attributes.
            return Ok(());
        }
        let _stable = self.modes.read();
        let current = stat(object)?;
        // Owner first: a change of owner clears set-id bits. Only when it differs: an
        // unprivileged daemon may not call it, and it costs file capabilities.
        let is_given_away = (current.uid, current.gid) != (wanted.uid, wanted.gid);
        if is_given_away {
            match change_owner(object, wanted.uid, wanted.gid) {
                // In a directory that gives its group to what is made there, or after the user
                // has left the group: only its members may give a file to a group.
                Err(error) if is_refused(&error) && current.uid == wanted.uid => tracing::warn!(
                    gid = wanted.gid,
                    inode = current.inode,
                    "the group of a file stays as it is in the lower filesystem: mobifs is not \
                     in the other one"
                ),
                other => other?,
            }
        }
        let mode_differs = current.mode != wanted.mode & MODE_MASK;
        if object.kind != FileKind::Symlink && (is_given_away || mode_differs) {
            change_mode(
                object,
                Mode::from_raw_mode(u32::from(wanted.mode & MODE_MASK)),
            )?;
        }
        let times = Timestamps {
            last_access: timespec(wanted.atime),
            last_modification: timespec(wanted.mtime),
        };
        match change_times(object, &times) {
            // Another user's object that this process may write: only the current time may be set.
            Err(Errno::PERM) => Ok(change_times(object, &NOW)?),
            other => Ok(other?),
        }
    }

    pub(super) fn list_xattrs(&self, object: &PosixHandle) -> io::Result<Vec<Xattr>> {
        let names = match read_growing(|out| list_names(object, out)) {
            Err(Errno::NOTSUP) => return Ok(Vec::new()),
            other => other?,
        };
        let mut found = Vec::new();
        for name in names
            .split(|&byte| byte == 0)
            .filter(|name| !name.is_empty())
        {
            let value = self.with_access(&[object], || {
                read_growing(|out| get_value(object, name, out))
            });
            match value {
                Ok(value) => found.push((Arc::from(name), Arc::from(value))),
                // Removed since the listing, or shown without being readable.
                Err(Errno::NODATA | Errno::NOTSUP) => {}
                Err(other) => return Err(other.into()),
            }
        }
        Ok(found)
    }

    pub(super) fn change_xattr(
        &self,
        object: &PosixHandle,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> io::Result<()> {
        let changed = self.with_access(&[object], || match value {
            Some(value) => set_value(object, name, value),
            None => remove_value(object, name),
        });
        match changed {
            Err(Errno::NODATA) if value.is_none() => Ok(()),
            other => Ok(other?),
        }
    }
}

fn is_refused(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::PERM.raw_os_error())
}

fn change_owner(object: &PosixHandle, uid: u32, gid: u32) -> io::Result<()> {
    if uid == u32::MAX || gid == u32::MAX {
        // These numbers mean "leave it" to the system call.
        return Err(Errno::INVAL.into());
    }
    let capabilities = if object.kind == FileKind::Regular {
        read_growing(|out| get_value(object, FILE_CAPABILITIES, out)).ok()
    } else {
        None
    };
    let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
    fs::chownat(object.fd(), "", uid, gid, AtFlags::EMPTY_PATH)?;
    if let Some(value) = capabilities {
        set_value(object, FILE_CAPABILITIES, &value)?;
    }
    Ok(())
}

/// Calls `read` with a growing buffer until its answer fits.
fn read_growing(mut read: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 256];
    loop {
        match read(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            // 64 KiB is the kernel's limit for both lists and values.
            Err(Errno::RANGE) if buffer.len() < 1 << 17 => buffer.resize(buffer.len() * 8, 0),
            Err(other) => return Err(other),
        }
    }
}

// The path below leads to the object itself, so the calls that follow symlinks are
// the right ones: the kernel does not follow further from there.

fn list_names(object: &PosixHandle, out: &mut [u8]) -> Result<usize, Errno> {
    if object.is_reference() {
        fs::listxattr(object.path().as_str(), out)
    } else {
        fs::flistxattr(object.fd(), out)
    }
}

fn get_value(object: &PosixHandle, name: &[u8], out: &mut [u8]) -> Result<usize, Errno> {
    if object.is_reference() {
        fs::getxattr(object.path().as_str(), name, out)
    } else {
        fs::fgetxattr(object.fd(), name, out)
    }
}

fn set_value(object: &PosixHandle, name: &[u8], value: &[u8]) -> Result<(), Errno> {
    let flags = XattrFlags::empty();
    if object.is_reference() {
        fs::setxattr(object.path().as_str(), name, value, flags)
    } else {
        fs::fsetxattr(object.fd(), name, value, flags)
    }
}

fn remove_value(object: &PosixHandle, name: &[u8]) -> Result<(), Errno> {
    if object.is_reference() {
        fs::removexattr(object.path().as_str(), name)
    } else {
        fs::fremovexattr(object.fd(), name)
    }
}
