//! Copying a tree as it is: content shared with the original where the filesystem can, hard links,
//! holes, and everything that files have beside their content.

use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat, fstat, ftruncate, ioctl_ficlone, linkat,
    mkdirat, mknodat, openat, readlinkat, seek, statat, symlinkat,
};
use rustix::io::{Errno, pread, pwrite, retry_on_intr};

use super::RestoreError;
use super::metadata::{self, Entry, Refused, libc_mode};
use crate::btrfs::EMPTY_SUBVOLUME_INODE;

/// Copied at a time where content cannot be shared.
const PIECE_BYTES: usize = 1 << 20;
/// So many are named in a report.
const NAMED_MAX: usize = 10;

/// What was copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Files, directories and everything else, hard links counted each.
    pub entries: u64,
    /// Bytes of content that are shared with the snapshot.
    pub shared_bytes: u64,
    /// Bytes of content that were copied.
    pub copied_bytes: u64,
    /// Directories that stand for a nested subvolume, which a snapshot does not have.
    pub nested: Vec<PathBuf>,
    /// Extended attributes and flags that the target does not take; no more than ten are named.
    pub refused: Vec<String>,
    /// How many of these there are.
    pub refused_count: u64,
}

/// A directory whose copy is under way.
struct Open {
    source: OwnedFd,
    target: OwnedFd,
    entries: Vec<CString>,
    path: PathBuf,
}

/// Copies what is in a directory, and what the directory has beside that, to an empty one.
/// Without the entry of this name in the directory itself.
///
/// # Errors
/// [`RestoreError::File`].
pub(super) fn copy_tree(
    source: &OwnedFd,
    target: &OwnedFd,
    without: Option<&OsStr>,
) -> Result<Report, RestoreError> {
    let mut copy = Copy {
        root: target,
        links: HashMap::new(),
        report: Report::default(),
    };
    let again = |directory: &OwnedFd| {
        open_directory(directory, c".").map_err(|errno| failed("open", Path::new("."), errno))
    };
    copy.refuse(Path::new("."), metadata::copy_flags_before(source, target));
    let mut open = vec![copy.open(again(source)?, again(target)?, PathBuf::new())?];
    if let (Some(top), Some(without)) = (open.first_mut(), without) {
        top.entries
            .retain(|name| name.to_bytes() != without.as_bytes());
    }
    while let Some(directory) = open.last_mut() {
        if let Some(name) = directory.entries.pop() {
            let path = directory.path.join(OsStr::from_bytes(name.to_bytes()));
            if let Some((source, target)) = copy.entry(directory, &name, &path)? {
                open.push(copy.open(source, target, path)?);
            }
            continue;
        }
        // Its times are those of the snapshot when nothing is put into it any more.
        if let Some(whole) = open.pop() {
            let stat =
                fstat(&whole.source).map_err(|errno| failed("examine", &whole.path, errno))?;
            copy.finish_directory(&whole, &stat)?;
        }
    }
    Ok(copy.report)
}

fn failed(what: &'static str, path: &Path, errno: Errno) -> RestoreError {
    RestoreError::of(what, path, errno)
}

fn open_directory(directory: &OwnedFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    openat(directory, name, flags, Mode::empty())
}

struct Copy<'a> {
    root: &'a OwnedFd,
    /// Where the first name of a file with several is, by its inode.
    links: HashMap<u64, PathBuf>,
    report: Report,
}

impl Copy<'_> {
    fn open(
        &mut self,
        source: OwnedFd,
        target: OwnedFd,
        path: PathBuf,
    ) -> Result<Open, RestoreError> {
        let unreadable = |errno| failed("read", &path, errno);
        let mut entries = Vec::new();
        for entry in Dir::read_from(&source).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                entries.push(entry.file_name().to_owned());
            }
        }
        // They are taken from the end.
        entries.sort_unstable_by(|one, other| other.cmp(one));
        self.report.entries += 1;
        Ok(Open {
            source,
            target,
            entries,
            path,
        })
    }

    /// Copies an entry; a directory is still to be filled.
    fn entry(
        &mut self,
        directory: &Open,
        name: &CStr,
        path: &Path,
    ) -> Result<Option<(OwnedFd, OwnedFd)>, RestoreError> {
        let (source, target) = (&directory.source, &directory.target);
        let stat = statat(source, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| failed("examine", path, errno))?;
        let kind = stat.st_mode & libc_mode::KIND;
        if kind == libc_mode::DIRECTORY {
            if stat.st_ino == EMPTY_SUBVOLUME_INODE {
                self.report.nested.push(path.to_owned());
                return Ok(None);
            }
            let made = mkdirat(target, name, Mode::RWXU)
                .and_then(|()| Ok((open_directory(source, name)?, open_directory(target, name)?)));
            let (source, target) = made.map_err(|errno| failed("copy", path, errno))?;
            // What is made in it takes after it.
            self.refuse(path, metadata::copy_flags_before(&source, &target));
            return Ok(Some((source, target)));
        }
        self.report.entries += 1;
        if stat.st_nlink > 1 {
            if let Some(first) = self.links.get(&stat.st_ino) {
                linkat(self.root, first, target, name, AtFlags::empty())
                    .map_err(|errno| failed("link", path, errno))?;
                return Ok(None);
            }
            self.links.insert(stat.st_ino, path.to_owned());
        }
        let done = if kind == libc_mode::PLAIN {
            self.file((source, target), name, &stat, path)
        } else {
            other(source, target, name, &stat)
        };
        done.map_err(|errno| failed("copy", path, errno))?;
        self.metadata(source, target, name, &stat, path)?;
        Ok(None)
    }

    fn file(
        &mut self,
        (source, target): (&OwnedFd, &OwnedFd),
        name: &CStr,
        stat: &Stat,
        path: &Path,
    ) -> Result<(), Errno> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let from = openat(source, name, flags, Mode::empty())?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let to = openat(target, name, flags, Mode::RUSR | Mode::WUSR)?;
        self.refuse(path, metadata::copy_flags_before(&from, &to));
        let length = u64::try_from(stat.st_size).unwrap_or(0);
        if length > 0 {
            match ioctl_ficlone(&to, &from) {
                Ok(()) => self.report.shared_bytes += length,
                // Another filesystem, or one that shares nothing.
                Err(Errno::XDEV | Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL) => {
                    self.report.copied_bytes += copy_content(&from, &to, length)?;
                }
                Err(errno) => return Err(errno),
            }
        }
        self.refuse(path, metadata::copy_flags_after(&from, &to));
        Ok(())
    }

    fn finish_directory(&mut self, whole: &Open, stat: &Stat) -> Result<(), RestoreError> {
        let refused = metadata::copy_flags_after(&whole.source, &whole.target);
        self.refuse(&whole.path, refused);
        self.metadata(&whole.source, &whole.target, c".", stat, &whole.path)
    }

    fn metadata(
        &mut self,
        source: &OwnedFd,
        target: &OwnedFd,
        name: &CStr,
        stat: &Stat,
        path: &Path,
    ) -> Result<(), RestoreError> {
        let of = |directory| Entry { directory, name };
        let refused = metadata::copy(of(source), stat, of(target))
            .map_err(|errno| failed("give owner, mode, attributes and times to", path, errno))?;
        self.refuse(path, refused);
        Ok(())
    }

    /// Notes what the target does not take.
    fn refuse(&mut self, path: &Path, refused: Refused) {
        let is_root = path.as_os_str().is_empty();
        let path = if is_root { Path::new(".") } else { path }.display();
        for (name, errno) in refused {
            self.report.refused_count += 1;
            if self.report.refused.len() < NAMED_MAX {
                self.report.refused.push(format!("{path}: {name}: {errno}"));
            }
        }
    }
}

/// A symbolic link, a pipe, a socket or a device.
fn other(source: &OwnedFd, target: &OwnedFd, name: &CStr, stat: &Stat) -> Result<(), Errno> {
    if stat.st_mode & libc_mode::KIND == libc_mode::LINK {
        let content = readlinkat(source, name, Vec::new())?;
        return symlinkat(content, target, name);
    }
    let kind = FileType::from_raw_mode(stat.st_mode);
    mknodat(target, name, kind, Mode::RUSR | Mode::WUSR, stat.st_rdev)
}

/// Copies what is no hole, and returns how much that was.
fn copy_content(from: &OwnedFd, to: &OwnedFd, length: u64) -> Result<u64, Errno> {
    let mut buffer = vec![0; PIECE_BYTES];
    let (mut at, mut copied) = (0, 0);
    while at < length {
        let start = match seek(from, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Only a hole is left.
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno),
        };
        let end = seek(from, SeekFrom::Hole(start))?.min(length);
        at = start;
        while at < end {
            let rest = usize::try_from(end - at).unwrap_or(usize::MAX);
            let piece = buffer.get_mut(..rest.min(PIECE_BYTES)).unwrap_or_default();
            let count = retry_on_intr(|| pread(from, &mut *piece, at))?;
            if count == 0 {
                return Err(Errno::IO);
            }
            let mut written = 0;
            while written < count {
                let rest = piece.get(written..count).unwrap_or_default();
                written += retry_on_intr(|| pwrite(to, rest, at + written as u64))?;
            }
            at += count as u64;
            copied += count as u64;
        }
    }
    ftruncate(to, length)?;
    Ok(copied)
}
