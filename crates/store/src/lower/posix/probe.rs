//! Finding out what the filesystem allows, by trying.

use std::io;

use mobifs_base::{DeviceNumber, NAME_BYTES_MAX, SYMLINK_BYTES_MAX, xattr_room_bytes};
use rustix::fs::{self, AtFlags, Gid, StatVfsMountFlags, Uid};
use rustix::io::Errno;
use rustix::process::{Resource, geteuid, getrlimit};

use super::handle::PosixHandle;
use super::magic::{
    BCACHEFS_MAGIC, BTRFS_MAGIC, EXT_MAGIC, F2FS_MAGIC, OVERLAYFS_MAGIC, RAMFS_MAGIC, TMPFS_MAGIC,
    XFS_MAGIC, magic,
};
use super::overlay;
use super::root::PosixLower;
use super::scope::StoreScope;
use crate::lower::Capabilities;
use crate::lower::{Create, Lower};

const PROBE_FILE: &[u8] = b"probe";
const PROBE_NODE: &[u8] = b"probe-node";
const PROBE_LINK: &[u8] = b"probe-link";
const PROBE_XATTR: &[u8] = b"user.mobifs.probe";

/// No filesystem in use has a smaller limit.
const FILE_BYTES_MIN: u64 = 1 << 30;
/// Limits of ext4 with blocks of 4 KiB, tried first: halving takes a hundred calls, for each
/// store that is opened.
const USUAL_FILE_BYTES_MAX: u64 = ((1 << 32) - 1) << 12;
const USUAL_XATTR_VALUE_BYTES_MAX: u64 = 4032;
const XFS_SYMLINK_BYTES_MAX: u64 = 1023;
/// Header and end of ext4's block for extended attributes.
const EXT_XATTR_BLOCK_BYTES: usize = 36;
/// With fewer free blocks than this, the error "no space" is no evidence of a limit.
const ROOM_BLOCKS_MIN: u64 = 64;
/// The most that a namespace (`user.`) adds to what an attribute takes.
const NAMESPACE_BYTES: usize = 8;
/// Room for what overlayfs notes in attributes of its own.
const OVERLAY_XATTR_BYTES: usize = 512;

/// Most links of one file. Trying this out would take seconds, so it is a table (as
/// `pathconf(_PC_LINK_MAX)` is); a filesystem not in it gets what Linux promises for
/// any, 127.
fn links_max(magic: u64) -> u32 {
    match magic {
        EXT_MAGIC => 65_000,
        BTRFS_MAGIC => 65_535,
        XFS_MAGIC => i32::MAX.cast_unsigned(),
        F2FS_MAGIC | TMPFS_MAGIC | RAMFS_MAGIC | BCACHEFS_MAGIC => u32::MAX,
        OVERLAYFS_MAGIC => 65_000,
        _ => 127,
    }
}

/// The largest numbers that a device node can have. XFS keeps them as System V did (14 bits and
/// 18), and its kernel code refuses majors of more than 9 bits; the others keep what Linux knows.
fn device_max(magic: u64) -> DeviceNumber {
    match magic {
        XFS_MAGIC => DeviceNumber::new((1 << 9) - 1, (1 << 18) - 1),
        _ => DeviceNumber::MAX,
    }
}

/// Most that the entries of one directory may take. Those of ext4 have an index of two levels (of
/// three with the feature `large_dir`, which the kernel does not report), and where it is full no
/// more names can be made, although there is room on the disk. Blocks of the index and of entries
/// that are split stay at least half full, so a quarter of the capacity always fits.
fn directory_bytes_max(magic: u64, block_bytes: u64) -> u64 {
    const INDEX_ENTRY_BYTES: u64 = 8;
    /// What else is in the first block of an index, in the others, and in a block of entries.
    const ROOT_BYTES: u64 = 40;
    const NODE_BYTES: u64 = 16;
    const LEAF_BYTES: u64 = 12;
    const SURE_SHARE: u64 = 4;
    if magic != EXT_MAGIC {
        return u64::MAX;
    }
    let entries = |used: u64| block_bytes.saturating_sub(used) / INDEX_ENTRY_BYTES;
    let leaves = entries(ROOT_BYTES).saturating_mul(entries(NODE_BYTES));
    leaves.saturating_mul(block_bytes.saturating_sub(LEAF_BYTES)) / SURE_SHARE
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

pub(super) fn capabilities(lower: &PosixLower, scratch: &PosixHandle) -> io::Result<Capabilities> {
    let magic = magic(fs::fstatfs(scratch.fd())?.f_type);
    let mut found = Capabilities {
        xattr_bytes_max: 0,
        file_bytes_max: FILE_BYTES_MIN,
        name_bytes_max: name_bytes_max(scratch)?,
        symlink_bytes_max: 0,
        directory_bytes_max: directory_bytes_max(magic, fs::fstatvfs(scratch.fd())?.f_bsize),
        links_max: links_max(magic),
        device_max: device_max(magic),
        privileged: false,
        owner_uid: geteuid().as_raw(),
        read_only: fs::fstatvfs(scratch.fd())?
            .f_flag
            .contains(StatVfsMountFlags::RDONLY),
    };
    if found.read_only {
        return Ok(found);
    }
    if magic == OVERLAYFS_MAGIC && lower.scope == StoreScope::Tree {
        overlay::mark(scratch.fd())?;
    }
    remove_probes(lower, scratch)?;
    match lower.create(scratch, PROBE_FILE, Create::Regular) {
        Err(error) if is(&error, Errno::ROFS) => {
            found.read_only = true;
            return Ok(found);
        }
        // Nothing can be tried, and a full disk must not keep the store from being mounted.
        Err(error) if is_full(&error) => {
            found.privileged = geteuid().is_root();
            assume(magic, scratch, &mut found)?;
            return Ok(found);
        }
        other => other?,
    }
    let measured =
        check_case(lower, scratch).and_then(|()| measure(lower, scratch, magic, &mut found));
    remove_probes(lower, scratch)?;
    match measured {
        Err(error) if !is_full(&error) => Err(error),
        done => {
            let stat = fs::fstatvfs(scratch.fd())?;
            if done.is_err() || stat.f_bavail < ROOM_BLOCKS_MIN {
                // What was refused may have been refused for want of room.
                assume(magic, scratch, &mut found)?;
            }
            Ok(found)
        }
    }
}

/// Limits of a filesystem that has no room for trying them out: the lower bounds.
fn assume(magic: u64, scratch: &PosixHandle, found: &mut Capabilities) -> io::Result<()> {
    let block_bytes = usize::try_from(fs::fstatvfs(scratch.fd())?.f_bsize).unwrap_or(0);
    let (xattr_bytes, symlink_bytes, file_bytes) = match magic {
        EXT_MAGIC => (
            block_bytes.saturating_sub(EXT_XATTR_BLOCK_BYTES),
            block_bytes.saturating_sub(1).min(SYMLINK_BYTES_MAX),
            (block_bytes as u64).saturating_mul(u64::from(u32::MAX)),
        ),
        XFS_MAGIC => (60 << 10, 1023, i64::MAX as u64),
        BTRFS_MAGIC => (3500, 3500, i64::MAX as u64),
        F2FS_MAGIC => (3500, 3500, 1 << 40),
        _ => (255, 255, FILE_BYTES_MIN),
    };
    found.xattr_bytes_max = found.xattr_bytes_max.max(xattr_bytes);
    found.symlink_bytes_max = found.symlink_bytes_max.max(symlink_bytes);
    if found.file_bytes_max == FILE_BYTES_MIN {
        // Passing the limit of the process would end it by a signal.
        let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        found.file_bytes_max = file_bytes.min(limit);
    }
    Ok(())
}

fn is_full(error: &io::Error) -> bool {
    is(error, Errno::NOSPC) || is(error, Errno::DQUOT)
}

fn remove_probes(lower: &PosixLower, scratch: &PosixHandle) -> io::Result<()> {
    for name in [PROBE_FILE, PROBE_NODE, PROBE_LINK] {
        match lower.unlink(scratch, name) {
            Err(error) if !is(&error, Errno::NOENT) && !is(&error, Errno::ROFS) => {
                return Err(error);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Two files whose names differ in case only must be two.
fn check_case(lower: &PosixLower, scratch: &PosixHandle) -> io::Result<()> {
    let other_case = PROBE_FILE.to_ascii_uppercase();
    match lower.stat_at(scratch, &other_case) {
        Err(error) if is(&error, Errno::NOENT) => Ok(()),
        Err(error) => Err(error),
        Ok(_) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "names that differ in upper and lower case only are the same there; a store needs a \
             filesystem that distinguishes them",
        )),
    }
}

fn measure(
    lower: &PosixLower,
    scratch: &PosixHandle,
    magic: u64,
    found: &mut Capabilities,
) -> io::Result<()> {
    let file = lower.open(scratch, PROBE_FILE, true)?;
    found.xattr_bytes_max = xattr_bytes_max(lower, &file, magic)?;
    found.file_bytes_max = file_bytes_max(lower, &file)?;
    found.symlink_bytes_max = symlink_bytes_max(lower, scratch)?;
    found.privileged = is_privileged(lower, scratch, &file)?;
    Ok(())
}

/// What the largest single attribute takes that can be set, found by halving.
///
/// The room is per object on ext4 and f2fs and per attribute elsewhere, so it is a safe bound for
/// the sum. The namespace at the front of a name takes none on ext4 and f2fs: the bytes that it may
/// have saved the probed attribute are subtracted.
fn xattr_bytes_max(lower: &PosixLower, file: &PosixHandle, magic: u64) -> io::Result<usize> {
    let value = vec![0x5a; 65_536];
    let try_bytes = |bytes: usize| -> io::Result<bool> {
        match lower.set_xattr(file, PROBE_XATTR, Some(&value[..bytes])) {
            Ok(()) => Ok(true),
            Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(
                    Errno::NOSPC
                    | Errno::TOOBIG
                    | Errno::RANGE
                    | Errno::NOTSUP
                    | Errno::INVAL
                    | Errno::DQUOT
                    | Errno::PERM
                    | Errno::NAMETOOLONG,
                ) => Ok(false),
                _ => Err(error),
            },
        }
    };
    if !try_bytes(0)? {
        return Ok(0);
    }
    let all = value.len() as u64;
    let fits = largest((0, all), USUAL_XATTR_VALUE_BYTES_MAX, |bytes| {
        try_bytes(usize::try_from(bytes).unwrap_or(usize::MAX))
    })?;
    lower.set_xattr(file, PROBE_XATTR, None)?;
    let fits = usize::try_from(fits).unwrap_or(0);
    let room = xattr_room_bytes(PROBE_XATTR.len(), fits) - NAMESPACE_BYTES;
    Ok(match magic {
        // With the feature `ea_inode`, a value may be longer than the block; names may not.
        EXT_MAGIC => {
            let block_bytes = usize::try_from(fs::fstatvfs(file.fd())?.f_bsize).unwrap_or(0);
            room.min(block_bytes.saturating_sub(EXT_XATTR_BLOCK_BYTES))
        }
        OVERLAYFS_MAGIC => room.saturating_sub(OVERLAY_XATTR_BYTES),
        _ => room,
    })
}

fn name_bytes_max(scratch: &PosixHandle) -> io::Result<usize> {
    let reported = usize::try_from(fs::fstatvfs(scratch.fd())?.f_namemax).unwrap_or(0);
    // A filesystem that reports nothing is taken to be like all others.
    Ok(match reported {
        0 => NAME_BYTES_MAX,
        reported => reported.min(NAME_BYTES_MAX),
    })
}

/// The longest target that a symlink can be given, which ext4 keeps in one block.
fn symlink_bytes_max(lower: &PosixLower, scratch: &PosixHandle) -> io::Result<usize> {
    let target = [b'x'; SYMLINK_BYTES_MAX];
    let fits = largest(
        (0, SYMLINK_BYTES_MAX as u64),
        XFS_SYMLINK_BYTES_MAX,
        |bytes| {
            let target = &target[..usize::try_from(bytes).unwrap_or(0)];
            match lower.create(scratch, PROBE_LINK, Create::Symlink(target)) {
                Ok(()) => lower.unlink(scratch, PROBE_LINK).map(|()| true),
                Err(error)
                    if [Errno::NAMETOOLONG, Errno::INVAL, Errno::NOSPC]
                        .iter()
                        .any(|errno| is(&error, *errno)) =>
                {
                    Ok(false)
                }
                // No symlinks at all.
                Err(error) if is(&error, Errno::PERM) || is(&error, Errno::NOTSUP) => Ok(false),
                Err(error) => Err(error),
            }
        },
    )?;
    Ok(usize::try_from(fits).unwrap_or(0))
}

/// The largest size that a sparse file can be given.
fn file_bytes_max(lower: &PosixLower, file: &PosixHandle) -> io::Result<u64> {
    // Passing the limit of the process would end it by a signal.
    let limit = getrlimit(Resource::Fsize)
        .current
        .unwrap_or(u64::MAX)
        .min(i64::MAX as u64);
    if limit <= FILE_BYTES_MIN {
        return Ok(limit);
    }
    let found = largest(
        (FILE_BYTES_MIN, limit),
        USUAL_FILE_BYTES_MAX,
        |size| match lower.truncate(file, size) {
            Ok(()) => Ok(true),
            Err(error) => match error.raw_os_error().map(Errno::from_raw_os_error) {
                Some(
                    Errno::FBIG | Errno::INVAL | Errno::NOSPC | Errno::OVERFLOW | Errno::DQUOT,
                ) => Ok(false),
                _ => Err(error),
            },
        },
    )?;
    lower.truncate(file, 0)?;
    Ok(found)
}

/// The largest number in `low..=high` that `fits`, given that `low` does and that
/// everything below a fitting number fits; quickly found if it is `usual`.
fn largest(
    (mut low, high): (u64, u64),
    usual: u64,
    mut fits: impl FnMut(u64) -> io::Result<bool>,
) -> io::Result<u64> {
    if fits(high)? {
        return Ok(high);
    }
    let mut too_big = high;
    let mut guesses = [usual, usual + 1].into_iter();
    while too_big - low > 1 {
        let middle = low + (too_big - low) / 2;
        let is_open = |guess: &u64| (low + 1..too_big).contains(guess);
        let tried = guesses.find(is_open).unwrap_or(middle);
        if fits(tried)? {
            low = tried
        } else {
            too_big = tried
        }
    }
    Ok(low)
}

/// Tries the two things that need privileges: capabilities alone do not decide, since
/// a user namespace has them all and still may not make devices.
fn is_privileged(
    lower: &PosixLower,
    scratch: &PosixHandle,
    file: &PosixHandle,
) -> io::Result<bool> {
    const OTHER_USER: u32 = 1;
    let (uid, gid) = (Uid::from_raw(OTHER_USER), Gid::from_raw(OTHER_USER));
    match fs::chownat(file.fd(), "", Some(uid), Some(gid), AtFlags::EMPTY_PATH) {
        Ok(()) => {}
        Err(Errno::PERM | Errno::INVAL | Errno::NOTSUP) => return Ok(false),
        Err(other) => return Err(other.into()),
    }
    // Not 0:0, which any user may make.
    let null = DeviceNumber::new(1, 3);
    match lower.create(scratch, PROBE_NODE, Create::CharDevice(null)) {
        Ok(()) => Ok(true),
        Err(error) if is(&error, Errno::PERM) || is(&error, Errno::NOTSUP) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_found_whatever_was_expected() {
        for limit in [1, 2, 99, 100, 101, 102, 500, 999, 1000] {
            for usual in [0, 1, 100, 101, 999, 1000, 5000] {
                let mut tries = 0;
                let found = largest((1, 1000), usual, |number| {
                    assert!((2..=1000).contains(&number), "{number}");
                    tries += 1;
                    Ok(number <= limit)
                });
                assert_eq!(found.unwrap(), limit);
                assert!(tries <= 13, "{tries}");
                assert!(limit != usual || tries <= 3, "{limit}: {tries}");
            }
        }
    }
}
