//! The reference model: what every MobiFS test compares against.
//!
//! It is a filesystem in memory, written to be obviously correct and not to be fast, and it answers
//! what Linux answers on ext4 to a privileged caller; a test compares it with a real directory. It
//! has no apps and no commits: [`crate::timeline`] adds them.

mod content;
mod data;
mod names;
mod state;

pub use content::Content;
pub use state::{Body, Inode, InodeNumber, NAME_BYTES_MAX, State, split};

use std::collections::BTreeMap;

use rustix::io::Errno;

use crate::operations::{Answer, FileRef, Operation, Slot};
use crate::tree::{Mtime, Tree};

/// What a call answers; errors are those of the system call.
pub type Outcome = Result<Answer, Errno>;

/// Bits that the process's file creation mask takes away, in all tests.
pub const UMASK: u16 = 0o022;

/// The model: a [`State`] and the open files of the test program.
#[derive(Clone, Debug)]
pub struct Model {
    state: State,
    open: BTreeMap<Slot, InodeNumber>,
    /// Open objects other than regular files.
    held: BTreeMap<Slot, InodeNumber>,
    file_bytes_max: u64,
}

impl Default for Model {
    fn default() -> Self {
        Self::new(State::default())
    }
}

impl Model {
    /// Largest file of ext4 with 4 KiB blocks, in bytes.
    pub const EXT4_FILE_BYTES_MAX: u64 = (1 << 44) - 4096;

    /// A filesystem in the given state with no file open.
    pub const fn new(state: State) -> Self {
        Self {
            state,
            open: BTreeMap::new(),
            held: BTreeMap::new(),
            file_bytes_max: Self::EXT4_FILE_BYTES_MAX,
        }
    }

    /// This model with another limit on the size of a file.
    #[must_use]
    pub const fn with_file_bytes_max(mut self, file_bytes_max: u64) -> Self {
        self.file_bytes_max = file_bytes_max;
        self
    }

    /// What the filesystem holds now.
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// The tree as a walk finds it.
    pub fn tree(&self) -> Tree {
        self.state.tree()
    }

    /// The slots that hold an open file.
    pub fn open_slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.open.keys().copied()
    }

    /// The slots that hold anything else.
    pub fn held_slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.held.keys().copied()
    }

    /// The object that an `fsync` makes durable; none if the operation is none, or fails.
    pub fn synced_by(&self, operation: &Operation) -> Option<InodeNumber> {
        match operation {
            Operation::Fsync { file } => self.file(file).ok(),
            Operation::FsyncDirectory { path } => self.directory(path).ok(),
            Operation::FsyncHeld { slot } => self.held_directory(*slot).ok(),
            _ => None,
        }
    }

    /// Size of a regular file; none if there is none.
    pub fn size(&self, file: &FileRef) -> Option<u64> {
        self.file(file)
            .ok()
            .map(|file| self.state.content(file).size())
    }

    /// Executes one call of a program.
    ///
    /// # Errors
    /// The error that the system call would return; nothing has changed then.
    pub fn execute(&mut self, operation: &Operation) -> Outcome {
        use Operation as Op;
        let state = &mut self.state;
        match operation {
            Op::CreateFile { path, mode } => {
                state.create(path, mode & !UMASK, Body::Regular(Content::default()))
            }
            Op::MakeDirectory { path, mode } => {
                state.create(path, mode & !UMASK, Body::Directory(BTreeMap::new()))
            }
            Op::MakeSymlink { path, target } => {
                state.create(path, 0o777, Body::Symlink(target.clone()))
            }
            Op::MakeNode { path, mode, kind } => {
                state.create(path, mode & !UMASK, Body::Special(*kind))
            }
            Op::Link { from, to } => state.link(from, to),
            Op::Unlink { path } => state.unlink(path).map(|ino| self.drop_if_unused(ino)),
            Op::RemoveDirectory { path } => state
                .remove_directory(path)
                .map(|ino| self.drop_if_unused(ino)),
            Op::Rename { from, to, mode } => state.rename(from, to, *mode).map(|replaced| {
                replaced
                    .into_iter()
                    .for_each(|ino| self.drop_if_unused(ino))
            }),
            Op::SetMode { path, mode } => state.set_mode(path, *mode),
            Op::SetOwner { path, uid, gid } => state.set_owner(path, *uid, *gid),
            Op::SetMtime { path, mtime } => {
                state.set_mtime(path, mtime.map_or(Mtime::Recent, Mtime::Exact))
            }
            Op::SetXattr {
                path,
                name,
                value,
                mode,
            } => state.set_xattr(path, name, value.bytes(), *mode),
            Op::RemoveXattr { path, name } => state.remove_xattr(path, name),
            _ => return self.execute_on_file(operation),
        }
        .map(|()| Answer::Done)
    }

    fn execute_on_file(&mut self, operation: &Operation) -> Outcome {
        use Operation as Op;
        match operation {
            Op::Write { file, offset, data } | Op::WriteDirect { file, offset, data } => {
                let file = self.file(file)?;
                self.state
                    .write(file, *offset, &data.bytes(), self.file_bytes_max)
            }
            Op::Append { file, data } => {
                let file = self.file(file)?;
                let end = self.state.content(file).size();
                self.state
                    .write(file, end, &data.bytes(), self.file_bytes_max)
            }
            Op::Read {
                file,
                offset,
                length,
            }
            | Op::ReadDirect {
                file,
                offset,
                length,
            } => {
                let file = self.file(file)?;
                Ok(Answer::Data(
                    self.state.content(file).read(*offset, *length as usize),
                ))
            }
            Op::Truncate { file, size } => {
                let file = self.file(file)?;
                self.state.truncate(file, *size, self.file_bytes_max)
            }
            Op::Allocate {
                file,
                mode,
                offset,
                length,
            } => {
                let file = self.file(file)?;
                self.state
                    .allocate(file, *mode, *offset, *length, self.file_bytes_max)
            }
            Op::CopyRange {
                from,
                from_offset,
                to,
                to_offset,
                length,
            } => {
                let (from, to) = (self.file(from)?, self.file(to)?);
                self.state
                    .copy_range(from, *from_offset, to, *to_offset, u64::from(*length))
            }
            Op::Fsync { file } => self.file(file).map(|_| Answer::Done),
            Op::FsyncDirectory { path } => self.directory(path).map(|_| Answer::Done),
            Op::FsyncHeld { slot } => self.held_directory(*slot).map(|_| Answer::Done),
            _ => self.execute_on_slot(operation),
        }
    }

    fn execute_on_slot(&mut self, operation: &Operation) -> Outcome {
        use Operation as Op;
        match operation {
            Op::Open { slot, path } => {
                self.close(*slot);
                let file = self.file(&FileRef::Path(path.clone()))?;
                self.open.insert(*slot, file);
            }
            Op::OpenUnnamed {
                slot,
                directory,
                mode,
            } => {
                self.close(*slot);
                let file = self.state.create_unnamed(directory, mode & !UMASK)?;
                self.open.insert(*slot, file);
            }
            Op::LinkHandle { slot, to } => {
                let file = *self.open.get(slot).ok_or(Errno::BADF)?;
                self.state.link_object(file, to)?;
            }
            Op::Close { slot } => {
                if !self.open.contains_key(slot) {
                    return Err(Errno::BADF);
                }
                self.close(*slot);
            }
            Op::Hold { slot, path } => {
                self.close_held(*slot);
                let number = self.state.walk(path)?;
                only_held(self.state.inode(number).kind())?;
                self.held.insert(*slot, number);
            }
            Op::CloseHeld { slot } => {
                if !self.held.contains_key(slot) {
                    return Err(Errno::BADF);
                }
                self.close_held(*slot);
            }
            other => unreachable!("{other:?} is executed elsewhere"),
        }
        Ok(Answer::Done)
    }

    /// The regular file that is meant.
    fn file(&self, file: &FileRef) -> Result<InodeNumber, Errno> {
        match file {
            FileRef::Handle(slot) => self.open.get(slot).copied().ok_or(Errno::BADF),
            FileRef::Path(path) => {
                let number = self.state.walk(path)?;
                only_regular(self.state.inode(number).kind())?;
                Ok(number)
            }
        }
    }

    fn directory(&self, path: &str) -> Result<InodeNumber, Errno> {
        let number = self.state.walk(path)?;
        self.state.entries(number)?;
        Ok(number)
    }

    fn held_directory(&self, slot: Slot) -> Result<InodeNumber, Errno> {
        let number = *self.held.get(&slot).ok_or(Errno::BADF)?;
        // An `O_PATH` descriptor can only hold its object.
        self.state.entries(number).map_err(|_| Errno::BADF)?;
        Ok(number)
    }

    fn close_held(&mut self, slot: Slot) {
        if let Some(number) = self.held.remove(&slot) {
            self.drop_if_unused(number);
        }
    }

    fn close(&mut self, slot: Slot) {
        if let Some(number) = self.open.remove(&slot) {
            self.drop_if_unused(number);
        }
    }

    fn drop_if_unused(&mut self, number: InodeNumber) {
        let mut all_open = self.open.values().chain(self.held.values());
        let is_open = all_open.any(|&open| open == number);
        if !is_open {
            self.state.drop_without_links(number);
        }
    }
}

/// What opening an object for reading and writing answers when it is not a regular
/// file. The kernel answers before any filesystem is asked, so every target uses
/// this; special files answer differently by kind and are all `EINVAL` here.
///
/// # Errors
/// `EISDIR`, `ELOOP` (symlinks are not followed), `EINVAL`.
pub const fn only_regular(kind: mobifs_base::FileKind) -> Result<(), Errno> {
    use mobifs_base::FileKind;
    match kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Errno::ISDIR),
        FileKind::Symlink => Err(Errno::LOOP),
        _ => Err(Errno::INVAL),
    }
}

/// What holding an object answers that is a regular file: these are opened.
///
/// # Errors
/// `EINVAL`.
pub const fn only_held(kind: mobifs_base::FileKind) -> Result<(), Errno> {
    match kind {
        mobifs_base::FileKind::Regular => Err(Errno::INVAL),
        _ => Ok(()),
    }
}

/// What changing a `user.` attribute answers where there can be none. The kernel
/// answers this itself.
///
/// # Errors
/// `EPERM`.
pub const fn only_with_user_xattrs(kind: mobifs_base::FileKind) -> Result<(), Errno> {
    use mobifs_base::FileKind;
    match kind {
        FileKind::Regular | FileKind::Directory => Ok(()),
        _ => Err(Errno::PERM),
    }
}
