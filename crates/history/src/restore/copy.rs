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

use mobifs_host::Descent;

use super::error::RestoreError;
use super::metadata::{self, Entry, Refused, libc_mode};
use super::removal::c_name;
use crate::btrfs::EMPTY_SUBVOLUME_INODE;

/// Copied at a time where content cannot be shared.
const PIECE_BYTES: usize = 1 << 20;
/// Most files that a report names.
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

/// A directory whose copy is under way, in the original and in the copy.
struct Open {
    source: Descent,
    target: Descent,
    /// The directories from the top, which has no name, to this one.
    levels: Vec<Level>,
}

/// One of them.
struct Level {
    name: CString,
    /// What is still to be copied, taken from the end.
    entries: Vec<CString>,
}

impl Open {
    /// The path from the top.
    fn path(&self) -> PathBuf {
        let names = self.levels.iter().skip(1);
        names
            .map(|level| OsStr::from_bytes(level.name.to_bytes()))
            .collect()
    }

    /// Goes into a directory that is there in both.
    fn enter(&mut self, name: CString) -> Result<(), Errno> {
        self.source.enter(&name)?;
        self.target.enter(&name)?;
        let entries = entries_of(self.source.directory())?;
        self.levels.push(Level { name, entries });
        Ok(())
    }

    /// Goes back to the one above; `false` at the top.
    fn leave(&mut self) -> Result<bool, Errno> {
        self.levels.pop();
        Ok(self.source.leave()? && self.target.leave()?)
    }
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
    let top = Path::new(".");
    let again = |directory: &OwnedFd| {
        let opened = openat(directory, c".", directory_flags(), Mode::empty());
        opened.map_err(|errno| failed("open", top, errno))
    };
    let mut entries = entries_of(source).map_err(|errno| failed("read", top, errno))?;
    if let Some(without) = without {
        entries.retain(|name| name.to_bytes() != without.as_bytes());
    }
    copy.begin_directory(source, target, top);
    let mut open = Open {
        source: Descent::new(again(source)?),
        target: Descent::new(again(target)?),
        levels: vec![Level {
            name: CString::default(),
            entries,
        }],
    };
    while let Some(level) = open.levels.last_mut() {
        if let Some(name) = level.entries.pop() {
            copy.entry(&mut open, name)?;
            continue;
        }
        // Its times are those of the snapshot when nothing is put into it any more.
        let path = open.path();
        copy.finish_directory(&open, &path)?;
        let left = open
            .leave()
            .map_err(|errno| failed("go back from", &path, errno))?;
        if !left {
            break;
        }
    }
    Ok(copy.report)
}

/// The names in a directory, the last one first.
fn entries_of(directory: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            entries.push(entry.file_name().to_owned());
        }
    }
    entries.sort_unstable_by(|one, other| other.cmp(one));
    Ok(entries)
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW
}

fn failed(what: &'static str, path: &Path, errno: Errno) -> RestoreError {
    RestoreError::of(what, path, errno)
}

struct Copy<'a> {
    root: &'a OwnedFd,
    /// Where the first name of a file with several is, by its inode.
    links: HashMap<u64, PathBuf>,
    report: Report,
}

impl Copy<'_> {
    /// What is made in a directory takes after it.
    fn begin_directory(&mut self, source: &OwnedFd, target: &OwnedFd, path: &Path) {
        self.report.entries += 1;
        self.refuse(path, metadata::copy_flags_before(source, target));
    }

    /// Copies an entry; of a directory what is in it comes next.
    fn entry(&mut self, open: &mut Open, name: CString) -> Result<(), RestoreError> {
        let path = open.path().join(OsStr::from_bytes(name.to_bytes()));
        let (source, target) = (open.source.directory(), open.target.directory());
        let stat = statat(source, &name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|errno| failed("examine", &path, errno))?;
        if stat.st_mode & libc_mode::KIND != libc_mode::DIRECTORY {
            return self.single((source, target), &name, &stat, &path);
        }
        if stat.st_ino == EMPTY_SUBVOLUME_INODE {
            self.report.nested.push(path);
            return Ok(());
        }
        let made = mkdirat(target, &name, Mode::RWXU).and_then(|()| open.enter(name));
        made.map_err(|errno| failed("copy", &path, errno))?;
        self.begin_directory(open.source.directory(), open.target.directory(), &path);
        Ok(())
    }

    /// Everything but directories.
    fn single(
        &mut self,
        (source, target): (&OwnedFd, &OwnedFd),
        name: &CStr,
        stat: &Stat,
        path: &Path,
    ) -> Result<(), RestoreError> {
        self.report.entries += 1;
        if stat.st_nlink > 1 {
            if let Some(first) = self.links.get(&stat.st_ino) {
                return self
                    .link(first, target, name)
                    .map_err(|errno| failed("link", path, errno));
            }
            self.links.insert(stat.st_ino, path.to_owned());
        }
        let done = if stat.st_mode & libc_mode::KIND == libc_mode::PLAIN {
            self.file((source, target), name, stat, path)
        } else {
            other(source, target, name, stat)
        };
        done.map_err(|errno| failed("copy", path, errno))?;
        self.metadata(source, target, name, stat, path)
    }

    /// Another name for a file whose first name is at this path, which may be longer than the kernel
    /// takes.
    fn link(&self, first: &Path, target: &OwnedFd, name: &CStr) -> Result<(), Errno> {
        let mut place = Descent::new(openat(self.root, c".", directory_flags(), Mode::empty())?);
        for part in first.parent().into_iter().flatten() {
            place.enter(&c_name(part)?)?;
        }
        let own = first.file_name().ok_or(Errno::INVAL)?;
        linkat(place.directory(), own, target, name, AtFlags::empty())
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

    fn finish_directory(&mut self, open: &Open, path: &Path) -> Result<(), RestoreError> {
        let (source, target) = (open.source.directory(), open.target.directory());
        let stat = fstat(source).map_err(|errno| failed("examine", path, errno))?;
        self.refuse(path, metadata::copy_flags_after(source, target));
        self.metadata(source, target, c".", &stat, path)
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
