//! Goes through a directory, however deep, without following links and without leaving its
//! filesystem.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use mobifs_host::Descent;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat2, statat};
use rustix::io::Errno;

use crate::collector::Collector;
use crate::error::MeasureError;

/// Neither links nor mounts lead out of the tree.
pub(crate) const RESOLVE: ResolveFlags = ResolveFlags::NO_SYMLINKS.union(ResolveFlags::NO_XDEV);

/// What is done with what is found.
pub(crate) trait Visitor<'w> {
    /// Where everything is counted.
    fn collector(&mut self) -> &mut Collector<'w>;
    /// A regular file in an open directory. `path` is for people.
    fn file(&mut self, directory: &OwnedFd, name: &CStr, path: &[u8]) -> Result<(), MeasureError>;
    /// Whether a directory is measured on its own account, being another path of the command.
    fn is_other_target(&self, device: u64, inode: u64) -> bool;
}

/// Names of directories that are still to be entered, each with a zero byte at its end.
#[derive(Debug, Default)]
struct Names(Vec<u8>);

impl Names {
    fn push(&mut self, name: &CStr) {
        self.0.extend_from_slice(name.to_bytes_with_nul());
    }

    fn pop(&mut self) -> Option<CString> {
        let end = self.0.len().checked_sub(1)?;
        let start = self.0[..end].iter().rposition(|&byte| byte == 0);
        let name = self.0.split_off(start.map_or(0, |before| before + 1));
        CString::from_vec_with_nul(name).ok()
    }
}

/// Visits all files below a directory.
pub(crate) fn walk<'w>(top: &Path, visitor: &mut impl Visitor<'w>) -> Result<(), MeasureError> {
    let at_top = |errno: Errno| MeasureError::at(top, errno);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, top, flags, Mode::empty()).map_err(at_top)?;
    let device = device_and_inode(&directory).map_err(at_top)?.0;
    let mut tree = Descent::with(directory, RESOLVE);
    let mut path = top.as_os_str().as_bytes().to_vec();
    // For each directory that the walk is in: the length of its path, and what is to be entered.
    let mut levels = vec![(path.len(), read(&tree, &mut path, visitor)?)];
    while let Some((length, names)) = levels.last_mut() {
        path.truncate(*length);
        let Some(name) = names.pop() else {
            levels.pop();
            match tree.leave() {
                Ok(_) => continue,
                Err(_) => {
                    visitor.collector().left_out.moved_directories += 1;
                    return Ok(());
                }
            }
        };
        push_name(&mut path, &name);
        match enter(&mut tree, &name, device, visitor) {
            Ok(true) => {
                let length = path.len();
                let names = read(&tree, &mut path, visitor)?;
                levels.push((length, names));
            }
            Ok(false) => {}
            Err(Errno::XDEV) => visitor.collector().left_out.other_filesystems += 1,
            // What was a directory when it was listed is none any more.
            Err(Errno::LOOP | Errno::NOTDIR) => visitor.collector().left_out.vanished += 1,
            Err(Errno::STALE) => {
                visitor.collector().left_out.moved_directories += 1;
                return Ok(());
            }
            Err(errno) => visitor.collector().failed(&path, &errno.into()),
        }
    }
    Ok(())
}

/// Enters a directory, unless it belongs to something else.
fn enter<'w>(
    tree: &mut Descent,
    name: &CStr,
    device: u64,
    visitor: &mut impl Visitor<'w>,
) -> Result<bool, Errno> {
    tree.enter(name)?;
    let (own_device, inode) = device_and_inode(tree.directory())?;
    if visitor.is_other_target(own_device, inode) {
        tree.leave()?;
        return Ok(false);
    }
    if own_device != device {
        tree.leave()?;
        visitor.collector().left_out.subvolumes += 1;
        return Ok(false);
    }
    Ok(true)
}

/// Visits the files of a directory, and returns the names of its directories.
fn read<'w>(
    tree: &Descent,
    path: &mut Vec<u8>,
    visitor: &mut impl Visitor<'w>,
) -> Result<Names, MeasureError> {
    let mut names = Names::default();
    let length = path.len();
    let entries = match Dir::read_from(tree.directory()) {
        Ok(entries) => entries,
        Err(errno) => {
            visitor.collector().failed(path, &errno.into());
            return Ok(names);
        }
    };
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(errno) => {
                visitor.collector().failed(path, &errno.into());
                break;
            }
        };
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => kind_of(tree.directory(), name),
            kind => Ok(kind),
        };
        push_name(path, name);
        match kind {
            Ok(FileType::Directory) => names.push(name),
            Ok(FileType::RegularFile) => visitor.file(tree.directory(), name, path)?,
            Ok(_) => visitor.collector().left_out.no_files += 1,
            Err(errno) => visitor.collector().failed(path, &errno.into()),
        }
        path.truncate(length);
    }
    Ok(names)
}

fn kind_of(directory: &OwnedFd, name: &CStr) -> Result<FileType, Errno> {
    let about = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(about.st_mode))
}

fn push_name(path: &mut Vec<u8>, name: &CStr) {
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name.to_bytes());
}

fn device_and_inode(file: &OwnedFd) -> Result<(u64, u64), Errno> {
    let about = fstat(file)?;
    // Their types differ between machines.
    #[allow(clippy::unnecessary_cast, reason = "narrower on 32-bit machines")]
    Ok((about.st_dev as u64, about.st_ino as u64))
}

/// Opens a file for reading without changing when it was read, where this user may ask for that.
pub(crate) fn open_file(directory: &OwnedFd, name: &CStr) -> io::Result<OwnedFd> {
    let flags =
        OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let open = |more| openat2(directory, name, flags | more, Mode::empty(), RESOLVE);
    Ok(open(OFlags::NOATIME).or_else(|errno| match errno {
        Errno::PERM => open(OFlags::empty()),
        errno => Err(errno),
    })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_in_reverse() {
        let mut names = Names::default();
        assert_eq!(names.pop(), None);
        for name in [c"a", c"bc", c"\xff\n"] {
            names.push(name);
        }
        let back: Vec<_> = std::iter::from_fn(|| names.pop()).collect();
        assert_eq!(
            back,
            [c"\xff\n".to_owned(), c"bc".to_owned(), c"a".to_owned()]
        );
    }
}
