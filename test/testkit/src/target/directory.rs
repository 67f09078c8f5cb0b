//! A real directory, used through system calls: of a mounted MobiFS, or of any other filesystem to
//! compare the model with.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use mobifs_base::{DeviceNumber, FileKind, MODE_MASK, Timestamp};
use rustix::fs::{self, AtFlags, FallocateFlags, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;

use super::Target;
use crate::direct_io::{self, AlignedBuffer};
use crate::model::{
    Content, Outcome, UMASK, only_held, only_regular, only_with_user_xattrs, split,
};
use crate::operations::{
    AllocateMode, Answer, FileRef, NodeKind, Operation, RenameMode, Slot, XattrMode,
};
use crate::tree::{Mtime, Tree, TreeNode};

/// Files up to this size are read byte by byte; of larger ones only what
/// `SEEK_DATA` finds.
const READ_WHOLE_BYTES_MAX: u64 = 4 << 20;

/// How many read what is being written with `O_DIRECT`.
const READERS: usize = 2;

/// What MobiFS keeps in the directory that is its store is no part of the tree.
const OWN_DIRECTORY: &str = ".mobifs";

/// A directory that is the root of the tree under test.
#[derive(Debug)]
pub struct DirectoryTarget {
    root: OwnedFd,
    open: BTreeMap<Slot, OwnedFd>,
    /// Open objects other than regular files, and whether they are directories.
    held: BTreeMap<Slot, (OwnedFd, bool)>,
}

/// A name in an open directory.
struct Place<'p> {
    directory: OwnedFd,
    name: &'p str,
}

impl Place<'_> {
    fn kind(&self) -> Result<FileKind, Errno> {
        let stat = fs::statat(&self.directory, self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        FileKind::from_mode(stat.st_mode).ok_or(Errno::INVAL)
    }

    /// A path for the calls that take no directory descriptor.
    fn path(&self) -> String {
        format!("/proc/self/fd/{}/{}", self.directory.as_raw_fd(), self.name)
    }
}

impl DirectoryTarget {
    /// Opens the directory and sets the process's file creation mask to [`UMASK`].
    ///
    /// # Errors
    /// What opening it answers.
    pub fn new(root: &Path) -> Result<Self, Errno> {
        rustix::process::umask(Mode::from_raw_mode(u32::from(UMASK)));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            root: fs::open(root, flags, Mode::empty())?,
            open: BTreeMap::new(),
            held: BTreeMap::new(),
        })
    }

    /// Closes all files, for instance because the mount goes.
    pub fn close_all(&mut self) {
        self.open.clear();
        self.held.clear();
    }

    fn directory(&self, path: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut at = fs::openat(&self.root, ".", flags, Mode::empty())?;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = fs::openat(&at, name, flags, Mode::empty())?;
        }
        Ok(at)
    }

    /// Where an entry is made or removed.
    fn place<'p>(&self, path: &'p str) -> Result<Place<'p>, Errno> {
        let (parent, name) = split(path)?;
        Ok(Place {
            directory: self.directory(parent)?,
            name,
        })
    }

    /// An object that may be the root.
    fn object<'p>(&self, path: &'p str) -> Result<Place<'p>, Errno> {
        if path.is_empty() {
            return Ok(Place {
                directory: self.directory("")?,
                name: ".",
            });
        }
        self.place(path)
    }

    fn with_file<T>(
        &self,
        file: &FileRef,
        act: impl FnOnce(BorrowedFd<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        use std::os::fd::AsFd;
        match file {
            FileRef::Handle(slot) => act(self.open.get(slot).ok_or(Errno::BADF)?.as_fd()),
            FileRef::Path(path) => act(self.open_file(path)?.as_fd()),
        }
    }

    fn open_file(&self, path: &str) -> Result<OwnedFd, Errno> {
        let place = self.object(path)?;
        only_regular(place.kind()?)?;
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        fs::openat(&place.directory, place.name, flags, Mode::empty())
    }

    fn make(&self, operation: &Operation) -> Result<(), Errno> {
        use Operation as Op;
        match operation {
            Op::CreateFile { path, mode } => {
                let place = self.place(path)?;
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                fs::openat(&place.directory, place.name, flags, bits(*mode)).map(drop)
            }
            Op::MakeDirectory { path, mode } => {
                let place = self.place(path)?;
                // mkdir(2) ignores the set-id bits.
                fs::mkdirat(&place.directory, place.name, bits(*mode))
            }
            Op::MakeSymlink { path, target } => {
                let place = self.place(path)?;
                fs::symlinkat(target.as_str(), &place.directory, place.name)
            }
            Op::MakeNode { path, mode, kind } => {
                let place = self.place(path)?;
                let (kind, major, minor) = match *kind {
                    NodeKind::Fifo => (fs::FileType::Fifo, 0, 0),
                    NodeKind::Socket => (fs::FileType::Socket, 0, 0),
                    NodeKind::CharDevice(major, minor) => {
                        (fs::FileType::CharacterDevice, major, minor)
                    }
                    NodeKind::BlockDevice(major, minor) => {
                        (fs::FileType::BlockDevice, major, minor)
                    }
                };
                let device = fs::makedev(major, minor);
                fs::mknodat(&place.directory, place.name, kind, bits(*mode), device)
            }
            other => unreachable!("{other:?} makes no object"),
        }
    }

    fn change_names(&self, operation: &Operation) -> Result<(), Errno> {
        use Operation as Op;
        match operation {
            Op::Link { from, to } => {
                let from = self.object(from)?;
                from.kind()?;
                let to = self.place(to)?;
                let flags = AtFlags::empty();
                fs::linkat(&from.directory, from.name, &to.directory, to.name, flags)
            }
            Op::LinkHandle { slot, to } => {
                let file = self.open.get(slot).ok_or(Errno::BADF)?;
                let to = self.place(to)?;
                fs::linkat(file, "", &to.directory, to.name, AtFlags::EMPTY_PATH)
            }
            Op::Unlink { path } => {
                let place = self.place(path)?;
                fs::unlinkat(&place.directory, place.name, AtFlags::empty())
            }
            Op::RemoveDirectory { path } => {
                let place = self.place(path)?;
                fs::unlinkat(&place.directory, place.name, AtFlags::REMOVEDIR)
            }
            Op::Rename { from, to, mode } => {
                let (from, to) = (self.place(from)?, self.place(to)?);
                let flags = match mode {
                    RenameMode::Replace => RenameFlags::empty(),
                    RenameMode::NoReplace => RenameFlags::NOREPLACE,
                    RenameMode::Exchange => RenameFlags::EXCHANGE,
                    RenameMode::Whiteout => RenameFlags::WHITEOUT,
                };
                fs::renameat_with(&from.directory, from.name, &to.directory, to.name, flags)
            }
            other => unreachable!("{other:?} changes no names"),
        }
    }

    fn change_attributes(&self, operation: &Operation) -> Result<(), Errno> {
        use Operation as Op;
        match operation {
            Op::SetMode { path, mode } => {
                let place = self.object(path)?;
                if place.kind()? == FileKind::Symlink {
                    return Err(Errno::OPNOTSUPP);
                }
                fs::chmodat(&place.directory, place.name, bits(*mode), AtFlags::empty())
            }
            Op::SetOwner { path, uid, gid } => {
                let place = self.object(path)?;
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                fs::chownat(&place.directory, place.name, uid, gid, flags)
            }
            Op::SetMtime { path, mtime } => {
                let place = self.object(path)?;
                let last_modification = mtime.map_or(
                    fs::Timespec {
                        tv_sec: 0,
                        tv_nsec: fs::UTIME_NOW as _,
                    },
                    |time| fs::Timespec {
                        tv_sec: time.seconds,
                        tv_nsec: i64::from(time.nanoseconds),
                    },
                );
                let last_access = fs::Timespec {
                    tv_sec: 0,
                    tv_nsec: fs::UTIME_OMIT as _,
                };
                let times = fs::Timestamps {
                    last_access,
                    last_modification,
                };
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                fs::utimensat(&place.directory, place.name, &times, flags)
            }
            Op::SetXattr {
                path,
                name,
                value,
                mode,
            } => {
                let place = self.object(path)?;
                only_with_user_xattrs(place.kind()?)?;
                let flags = match mode {
                    XattrMode::Any => fs::XattrFlags::empty(),
                    XattrMode::Create => fs::XattrFlags::CREATE,
                    XattrMode::Replace => fs::XattrFlags::REPLACE,
                };
                fs::lsetxattr(place.path(), name.as_str(), &value.bytes(), flags)
            }
            Op::RemoveXattr { path, name } => {
                let place = self.object(path)?;
                only_with_user_xattrs(place.kind()?)?;
                fs::lremovexattr(place.path(), name.as_str())
            }
            other => unreachable!("{other:?} changes no attributes"),
        }
    }

    #[expect(
        clippy::too_many_lines,
        reason = "one arm for each operation on a file"
    )]
    fn use_file(&self, operation: &Operation) -> Outcome {
        use Operation as Op;
        match operation {
            Op::Write { file, offset, data } => self
                .with_file(file, |fd| rustix::io::pwrite(fd, &data.bytes(), *offset))
                .map(|count| Answer::Count(count as u64)),
            Op::Append { file, data } => self.with_file(file, |fd| {
                let flags = fs::fcntl_getfl(fd)?;
                fs::fcntl_setfl(fd, flags | OFlags::APPEND)?;
                let written = rustix::io::write(fd, &data.bytes());
                fs::fcntl_setfl(fd, flags)?;
                Ok(Answer::Count(written? as u64))
            }),
            Op::Read {
                file,
                offset,
                length,
            } => self
                .with_file(file, |fd| read_fully(fd, *offset, u64::from(*length)))
                .map(Answer::Data),
            Op::WriteDirect { file, offset, data } => self
                .with_file(file, |fd| write_direct(fd, *offset, &data.bytes()))
                .map(Answer::Count),
            Op::ReadDirect {
                file,
                offset,
                length,
            } => self
                .with_file(file, |fd| {
                    direct_io::read(direct_io::reopen(fd)?, *offset, *length as usize)
                })
                .map(Answer::Data),
            Op::Truncate { file, size } => self
                .with_file(file, |fd| fs::ftruncate(fd, *size))
                .map(|()| Answer::Done),
            Op::Allocate {
                file,
                mode,
                offset,
                length,
            } => {
                let flags = match mode {
                    AllocateMode::Allocate { keep_size: false } => FallocateFlags::empty(),
                    AllocateMode::Allocate { keep_size: true } => FallocateFlags::KEEP_SIZE,
                    AllocateMode::PunchHole => {
                        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE
                    }
                    AllocateMode::ZeroRange { keep_size: false } => FallocateFlags::ZERO_RANGE,
                    AllocateMode::ZeroRange { keep_size: true } => {
                        FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE
                    }
                };
                self.with_file(file, |fd| fs::fallocate(fd, flags, *offset, *length))
                    .map(|()| Answer::Done)
            }
            Op::CopyRange {
                from,
                from_offset,
                to,
                to_offset,
                length,
            } => self
                .with_file(from, |from| {
                    self.with_file(to, |to| {
                        copy_fully(from, *from_offset, to, *to_offset, *length as usize)
                    })
                })
                .map(Answer::Count),
            Op::Fsync { file } => self
                .with_file(file, |fd| fs::fsync(fd))
                .map(|()| Answer::Done),
            other => unreachable!("{other:?} uses no file"),
        }
    }

    fn read_node(&self, place: &Place<'_>) -> Result<TreeNode, Errno> {
        let stat = fs::statat(&place.directory, place.name, AtFlags::SYMLINK_NOFOLLOW)?;
        let kind = FileKind::from_mode(stat.st_mode).ok_or(Errno::INVAL)?;
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let has_xattrs = only_with_user_xattrs(kind).is_ok();
        Ok(TreeNode {
            identity: stat.st_ino,
            kind,
            mode: stat.st_mode as u16 & MODE_MASK,
            uid: stat.st_uid,
            gid: stat.st_gid,
            nlink: stat.st_nlink as u32,
            mtime: Mtime::Exact(Timestamp::new(
                stat.st_mtime as i64,
                stat.st_mtime_nsec as u32,
            )),
            rdev: if is_device {
                DeviceNumber::new(fs::major(stat.st_rdev), fs::minor(stat.st_rdev))
            } else {
                DeviceNumber(0)
            },
            content: if kind == FileKind::Regular {
                let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = fs::openat(&place.directory, place.name, flags, Mode::empty())?;
                read_content(&file, stat.st_size as u64)?
            } else {
                Content::default()
            },
            target: if kind == FileKind::Symlink {
                let target = fs::readlinkat(&place.directory, place.name, Vec::new())?;
                target.to_string_lossy().into_owned()
            } else {
                String::new()
            },
            xattrs: if has_xattrs {
                read_xattrs(&place.path())?
            } else {
                BTreeMap::new()
            },
        })
    }
}

impl Target for DirectoryTarget {
    fn execute(&mut self, operation: &Operation) -> Outcome {
        use Operation as Op;
        match operation {
            Op::CreateFile { .. }
            | Op::MakeDirectory { .. }
            | Op::MakeSymlink { .. }
            | Op::MakeNode { .. } => self.make(operation)?,
            Op::Link { .. }
            | Op::LinkHandle { .. }
            | Op::Unlink { .. }
            | Op::RemoveDirectory { .. }
            | Op::Rename { .. } => self.change_names(operation)?,
            Op::SetMode { .. }
            | Op::SetOwner { .. }
            | Op::SetMtime { .. }
            | Op::SetXattr { .. }
            | Op::RemoveXattr { .. } => self.change_attributes(operation)?,
            Op::Open { slot, path } => {
                self.open.remove(slot);
                let file = self.open_file(path)?;
                self.open.insert(*slot, file);
            }
            Op::OpenUnnamed {
                slot,
                directory,
                mode,
            } => {
                self.open.remove(slot);
                let directory = self.directory(directory)?;
                let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
                let file = fs::openat(&directory, ".", flags, bits(*mode))?;
                self.open.insert(*slot, file);
            }
            Op::Close { slot } => drop(self.open.remove(slot).ok_or(Errno::BADF)?),
            Op::FsyncDirectory { path } => fs::fsync(self.readable_directory(path)?)?,
            Op::Hold { slot, path } => {
                self.held.remove(slot);
                let held = self.open_held(path)?;
                self.held.insert(*slot, held);
            }
            Op::FsyncHeld { slot } => match self.held.get(slot) {
                Some((directory, true)) => fs::fsync(directory)?,
                _ => return Err(Errno::BADF),
            },
            Op::CloseHeld { slot } => drop(self.held.remove(slot).ok_or(Errno::BADF)?),
            _ => return self.use_file(operation),
        }
        Ok(Answer::Done)
    }

    fn tree(&mut self) -> Result<Tree, Errno> {
        let mut tree = Tree::default();
        let mut waiting = vec![String::new()];
        while let Some(path) = waiting.pop() {
            let node = self.read_node(&self.object(&path)?)?;
            if node.kind == FileKind::Directory {
                for entry in fs::Dir::read_from(self.readable_directory(&path)?)? {
                    let entry = entry?;
                    let name = entry.file_name().to_string_lossy();
                    let is_top = path.is_empty();
                    let is_own = is_top && name == OWN_DIRECTORY;
                    if name != "." && name != ".." && !is_own {
                        waiting.push(if is_top {
                            name.into()
                        } else {
                            format!("{path}/{name}")
                        });
                    }
                }
            }
            tree.0.insert(path, node);
        }
        Ok(tree)
    }
}

impl DirectoryTarget {
    fn open_held(&self, path: &str) -> Result<(OwnedFd, bool), Errno> {
        let place = self.object(path)?;
        let kind = place.kind()?;
        only_held(kind)?;
        let is_directory = kind == FileKind::Directory;
        let how = if is_directory {
            OFlags::RDONLY | OFlags::DIRECTORY
        } else {
            OFlags::PATH
        };
        let flags = how | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = fs::openat(&place.directory, place.name, flags, Mode::empty())?;
        Ok((opened, is_directory))
    }

    fn readable_directory(&self, path: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        fs::openat(self.directory(path)?, ".", flags, Mode::empty())
    }
}

const fn bits(mode: u16) -> Mode {
    Mode::from_bits_retain(mode as u32)
}

/// Writes past the cache while other threads read the range through it: stale pages that they bring
/// into the cache must not stay.
fn write_direct(file: BorrowedFd<'_>, offset: u64, data: &[u8]) -> Result<u64, Errno> {
    let direct = direct_io::reopen(file)?;
    let data = AlignedBuffer::holding(data);
    let is_written = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| {
                let mut found = vec![0; data.bytes().len()];
                while !is_written.load(Ordering::SeqCst) {
                    // What it reads is old or new; only that it reads matters.
                    let _read = rustix::io::pread(file, &mut found, offset);
                }
            });
        }
        let written = direct_io::write_together(&direct, offset, &data);
        is_written.store(true, Ordering::SeqCst);
        written
    })
}

fn read_fully(file: BorrowedFd<'_>, offset: u64, length: u64) -> Result<Vec<u8>, Errno> {
    let mut out = vec![0; length as usize];
    let mut filled = 0;
    while filled < out.len() {
        let count = rustix::io::pread(file, &mut out[filled..], offset + filled as u64)?;
        if count == 0 {
            break;
        }
        filled += count;
    }
    out.truncate(filled);
    Ok(out)
}

/// The call may copy less than asked for, so it is repeated up to where the source
/// ended at the start (the copy may make it longer).
fn copy_fully(
    from: BorrowedFd<'_>,
    mut from_offset: u64,
    to: BorrowedFd<'_>,
    mut to_offset: u64,
    length: usize,
) -> Result<u64, Errno> {
    let available = (fs::fstat(from)?.st_size as u64).saturating_sub(from_offset);
    let length = length.min(available as usize);
    let mut copied = 0;
    while copied < length {
        let (source, target) = (Some(&mut from_offset), Some(&mut to_offset));
        match fs::copy_file_range(from, source, to, target, length - copied)? {
            0 => break,
            count => copied += count,
        }
    }
    Ok(copied as u64)
}

fn read_content(file: &OwnedFd, size: u64) -> Result<Content, Errno> {
    use std::os::fd::AsFd;
    let mut content = Content::default();
    content.truncate(size);
    if size <= READ_WHOLE_BYTES_MAX {
        let bytes = read_fully(file.as_fd(), 0, size)?;
        if bytes.len() as u64 != size {
            return Err(Errno::IO);
        }
        content.write(0, &bytes);
        return Ok(content);
    }
    let mut at = 0;
    loop {
        let start = match fs::seek(file, fs::SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(content),
            Err(error) => return Err(error),
        };
        at = fs::seek(file, fs::SeekFrom::Hole(start))?;
        content.write(start, &read_fully(file.as_fd(), start, at - start)?);
    }
}

fn read_xattrs(path: &str) -> Result<BTreeMap<String, Vec<u8>>, Errno> {
    let mut names = vec![0; 1 << 16];
    let count = fs::llistxattr(path, &mut names[..])?;
    let mut found = BTreeMap::new();
    for name in names[..count]
        .split(|&byte| byte == 0)
        .filter(|name| name.starts_with(b"user."))
    {
        let mut value = vec![0; 1 << 16];
        let count = fs::lgetxattr(path, name, &mut value[..])?;
        value.truncate(count);
        found.insert(String::from_utf8_lossy(name).into_owned(), value);
    }
    Ok(found)
}
