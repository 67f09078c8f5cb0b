//! What a file has beside its content.

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use rustix::fs::{
    AtFlags, Gid, IFlags, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat,
    ioctl_getflags, ioctl_setflags, lgetxattr, llistxattr, lsetxattr, utimensat,
};
use rustix::io::Errno;

/// The flags of `chattr` that content and entries depend on.
const BEFORE_CONTENT: IFlags = IFlags::NOCOW.union(IFlags::COMPRESSED);
/// Those that are set when the file is whole. (Immutable and append-only would keep the copy from
/// being finished, and are not kept.)
const AFTER_CONTENT: IFlags = IFlags::NOATIME
    .union(IFlags::NODUMP)
    .union(IFlags::SYNC)
    .union(IFlags::DIRSYNC);
/// What `chattr` calls them.
const FLAGS: [(IFlags, char); 6] = [
    (IFlags::NOCOW, 'C'),
    (IFlags::COMPRESSED, 'c'),
    (IFlags::NOATIME, 'A'),
    (IFlags::NODUMP, 'd'),
    (IFlags::SYNC, 'S'),
    (IFlags::DIRSYNC, 'D'),
];

/// Attributes and flags that the target does not take, with the reason.
pub(super) type Refused = Vec<(String, Errno)>;

/// A file by its directory and name, whatever it is: no name is followed, and paths may be deep.
#[derive(Clone, Copy)]
pub(super) struct Entry<'a, D> {
    pub(super) directory: &'a D,
    pub(super) name: &'a CStr,
}

impl<D: AsFd> Entry<'_, D> {
    /// For calls that take paths only.
    fn path(&self) -> PathBuf {
        let directory = format!("/proc/self/fd/{}", self.directory.as_fd().as_raw_fd());
        PathBuf::from(directory).join(OsStr::from_bytes(self.name.to_bytes()))
    }
}

/// Owner, mode, extended attributes and times, in the order in which none undoes another. Returns
/// attributes that the target does not take, with the reason.
pub(super) fn copy<S: AsFd, T: AsFd>(
    source: Entry<'_, S>,
    stat: &Stat,
    target: Entry<'_, T>,
) -> Result<Refused, Errno> {
    let is_link = stat.st_mode & libc_mode::KIND == libc_mode::LINK;
    let (user, group) = (Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid));
    chownat(
        target.directory,
        target.name,
        Some(user),
        Some(group),
        AtFlags::SYMLINK_NOFOLLOW,
    )?;
    if !is_link {
        let mode = Mode::from_raw_mode(stat.st_mode & 0o7777);
        chmodat(target.directory, target.name, mode, AtFlags::empty())?;
    }
    let refused = copy_attributes(&source.path(), &target.path())?;
    let time = |seconds: i64, nanoseconds: u64| Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds.try_into().unwrap_or(0),
    };
    let times = Timestamps {
        last_access: time(stat.st_atime as _, stat.st_atime_nsec as _),
        last_modification: time(stat.st_mtime as _, stat.st_mtime_nsec as _),
    };
    utimensat(
        target.directory,
        target.name,
        &times,
        AtFlags::SYMLINK_NOFOLLOW,
    )?;
    Ok(refused)
}

fn copy_attributes(source: &std::path::Path, target: &std::path::Path) -> Result<Refused, Errno> {
    let mut refused = Refused::new();
    let names = match grown(|buffer| llistxattr(source, buffer)) {
        Ok(names) => names,
        Err(Errno::OPNOTSUPP) => return Ok(refused),
        Err(errno) => return Err(errno),
    };
    for name in names.split_inclusive(|&byte| byte == 0) {
        let Ok(name) = CStr::from_bytes_with_nul(name) else {
            continue;
        };
        let value = grown(|buffer| lgetxattr(source, name, buffer))?;
        match lsetxattr(target, name, &value, XattrFlags::empty()) {
            Ok(()) => {}
            // The target's filesystem has none of this kind, or not so much room for them.
            Err(errno @ (Errno::OPNOTSUPP | Errno::PERM | Errno::INVAL | Errno::NOSPC)) => {
                refused.push((name.to_string_lossy().into_owned(), errno));
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(refused)
}

/// The answer to a call that fills a buffer.
fn grown(mut call: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; 1024];
    loop {
        match call(&mut buffer) {
            Ok(length) => {
                buffer.truncate(length);
                return Ok(buffer);
            }
            Err(Errno::RANGE) if buffer.len() < 1 << 20 => buffer.resize(buffer.len() * 4, 0),
            Err(errno) => return Err(errno),
        }
    }
}

/// Flags that a file has to have before its content, and a directory before its entries.
pub(super) fn copy_flags_before(source: impl AsFd, target: impl AsFd) -> Refused {
    copy_flags(source, target, BEFORE_CONTENT)
}

/// The others.
pub(super) fn copy_flags_after(source: impl AsFd, target: impl AsFd) -> Refused {
    copy_flags(source, target, AFTER_CONTENT)
}

/// Gives a file these of the flags, and takes away those that it has of its directory only. One at
/// a time: a filesystem that does not have one of them would take none.
fn copy_flags(source: impl AsFd, target: impl AsFd, which: IFlags) -> Refused {
    let Ok(flags) = ioctl_getflags(source) else {
        // A filesystem without flags has none to keep.
        return Refused::new();
    };
    let wanted = flags.intersection(which);
    let all = FLAGS.iter().filter(|(flag, _)| which.contains(*flag));
    let (surplus, missing): (Vec<_>, Vec<_>) = match ioctl_getflags(&target) {
        Ok(own) => all
            .filter(|(flag, _)| own.contains(*flag) != wanted.contains(*flag))
            .partition(|(flag, _)| own.contains(*flag)),
        Err(_) => all
            .filter(|(flag, _)| wanted.contains(*flag))
            .partition(|_| false),
    };
    // What is surplus may exclude what is missing.
    let changes = surplus.into_iter().chain(missing);
    let refused = changes.filter_map(|&(flag, letter)| {
        let errno = set_flag(&target, flag, wanted.contains(flag)).err()?;
        Some((format!("flag {letter}"), errno))
    });
    refused.collect()
}

fn set_flag(file: impl AsFd, flag: IFlags, value: bool) -> Result<(), Errno> {
    let none = |errno| match errno {
        Errno::NOTTY | Errno::NOSYS => Errno::OPNOTSUPP,
        errno => errno,
    };
    let mut flags = ioctl_getflags(&file).map_err(none)?;
    flags.set(flag, value);
    ioctl_setflags(&file, flags).map_err(none)?;
    // Some filesystems pass over what they do not have.
    let is_set = ioctl_getflags(&file).map_err(none)?.contains(flag);
    if is_set == value {
        Ok(())
    } else {
        Err(Errno::OPNOTSUPP)
    }
}

/// Kinds of files in a mode.
pub(super) mod libc_mode {
    pub(in super::super) const KIND: u32 = 0o170_000;
    pub(in super::super) const DIRECTORY: u32 = 0o040_000;
    pub(in super::super) const PLAIN: u32 = 0o100_000;
    pub(in super::super) const LINK: u32 = 0o120_000;
}
