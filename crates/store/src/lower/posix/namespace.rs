//! Entries of directories.

use std::borrow::Cow;
use std::io;

use mobifs_base::FileKind;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, RenameFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::lower::OWN_DIRECTORY;
use crate::lower::posix::handle::PosixHandle;
use crate::lower::posix::handle::{Access, reopen_directory};
use crate::lower::posix::root::PosixLower;
use crate::lower::posix::{attributes, suitable};
use crate::lower::{Create, LowerEntry, LowerStat};

/// Refuses everything that is not one component of a path. Longer names than usual
/// are left to the filesystem.
fn check_name(name: &[u8]) -> io::Result<&[u8]> {
    if matches!(name, b"" | b"." | b"..") || name.iter().any(|b| matches!(b, b'/' | 0)) {
        return Err(Errno::INVAL.into());
    }
    Ok(name)
}

fn kind_of(file_type: FileType) -> Option<FileKind> {
    Some(match file_type {
        FileType::RegularFile => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        _ => return None,
    })
}

impl PosixLower {
    /// What an entry is called in the lower filesystem. Entries outside the store's scope do not
    /// exist for it.
    fn lower_name<'a>(
        &'a self,
        directory: &PosixHandle,
        name: &'a [u8],
    ) -> io::Result<Cow<'a, [u8]>> {
        let name = check_name(name)?;
        Ok(match directory.is_root {
            true => self.scope.name_in_root(name).ok_or(Errno::NOENT)?,
            false => Cow::Borrowed(name),
        })
    }

    pub(super) fn open_entry(
        &self,
        directory: &PosixHandle,
        name: &[u8],
        write: bool,
    ) -> io::Result<PosixHandle> {
        let name = &*self.lower_name(directory, name)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let reference = self.with_access(&[directory], || {
            fs::openat(directory.fd(), name, flags, Mode::empty())
        })?;
        let mode = fs::fstat(&reference)?.st_mode;
        let kind = FileKind::from_mode(mode).ok_or(Errno::INVAL)?;
        PosixHandle::from_reference(reference, kind, write)
    }

    pub(super) fn stat_entry(&self, directory: &PosixHandle, name: &[u8]) -> io::Result<LowerStat> {
        let name = &*self.lower_name(directory, name)?;
        let look = || attributes::statx_at(directory.fd(), name);
        let found = {
            let _stable = self.modes.read();
            look()
        };
        let found = match found {
            Err(Errno::ACCESS) => self.with_access(&[directory], look)?,
            other => other?,
        };
        attributes::to_lower_stat(&found)
    }

    pub(super) fn list_entries(&self, directory: &PosixHandle) -> io::Result<Vec<LowerEntry>> {
        let own = self.with_access(&[directory], || reopen_directory(directory.fd()))?;
        if let Some(obstacle) = suitable::obstacle(&own, self.apart) {
            return Err(obstacle);
        }
        let mut entries = Vec::new();
        for entry in fs::Dir::new(own)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let name = match directory.is_root {
                true => self.scope.name_for_store(name),
                false => Some(name),
            };
            let Some(name) = name.filter(|name| !matches!(*name, b"." | b"..")) else {
                continue;
            };
            entries.push(LowerEntry {
                name: name.to_vec(),
                inode: entry.ino(),
                kind: kind_of(entry.file_type()),
            });
        }
        Ok(entries)
    }

    pub(super) fn read_link_entry(
        &self,
        directory: &PosixHandle,
        name: &[u8],
    ) -> io::Result<Vec<u8>> {
        let name = &*self.lower_name(directory, name)?;
        let target = self.with_access(&[directory], || {
            fs::readlinkat(directory.fd(), name, Vec::new())
        })?;
        Ok(target.into_bytes())
    }

    pub(super) fn create_entry(
        &self,
        directory: &PosixHandle,
        name: &[u8],
        what: &Create<'_>,
    ) -> io::Result<()> {
        let name = &*self.lower_name(directory, name)?;
        let private = Mode::RUSR | Mode::WUSR;
        self.with_access(&[directory], || {
            let node = |kind, device| fs::mknodat(directory.fd(), name, kind, private, device);
            match *what {
                Create::Regular => node(FileType::RegularFile, 0),
                Create::Directory => fs::mkdirat(directory.fd(), name, Mode::RWXU),
                Create::Symlink(target) => fs::symlinkat(target, directory.fd(), name),
                Create::Fifo => node(FileType::Fifo, 0),
                Create::Socket => node(FileType::Socket, 0),
                Create::CharDevice(device) => node(
                    FileType::CharacterDevice,
                    fs::makedev(device.major(), device.minor()),
                ),
                Create::BlockDevice(device) => node(
                    FileType::BlockDevice,
                    fs::makedev(device.major(), device.minor()),
                ),
            }
        })?;
        Ok(())
    }

    pub(super) fn link_entry(
        &self,
        directory: &PosixHandle,
        name: &[u8],
        to_directory: &PosixHandle,
        to_name: &[u8],
    ) -> io::Result<()> {
        let name = &*self.lower_name(directory, name)?;
        let to_name = &*self.lower_name(to_directory, to_name)?;
        // Without AT_SYMLINK_FOLLOW a symlink itself gets the link.
        self.with_access(&[directory, to_directory], || {
            fs::linkat(
                directory.fd(),
                name,
                to_directory.fd(),
                to_name,
                AtFlags::empty(),
            )
        })?;
        Ok(())
    }

    /// `renameat2` with `RENAME_NOREPLACE`. Where the filesystem does not know the flag (it answers
    /// `EINVAL`) the target is looked for first; another process that makes it between the two
    /// calls would lose it.
    pub(super) fn rename_entry(
        &self,
        directory: &PosixHandle,
        name: &[u8],
        to_directory: &PosixHandle,
        to_name: &[u8],
    ) -> io::Result<()> {
        let name = &*self.lower_name(directory, name)?;
        let to_name = &*self.lower_name(to_directory, to_name)?;
        let (from, to) = (directory.fd(), to_directory.fd());
        self.with_access(&[directory, to_directory], || {
            match fs::renameat_with(from, name, to, to_name, RenameFlags::NOREPLACE) {
                // EINVAL also says "a directory into itself": the plain call repeats
                // that answer.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    match fs::statat(to, to_name, AtFlags::SYMLINK_NOFOLLOW) {
                        Ok(_) => Err(Errno::EXIST),
                        Err(Errno::NOENT) => fs::renameat(from, name, to, to_name),
                        Err(other) => Err(other),
                    }
                }
                other => other,
            }
        })?;
        Ok(())
    }

    pub(super) fn remove_entry(
        &self,
        directory: &PosixHandle,
        name: &[u8],
        flags: AtFlags,
    ) -> io::Result<()> {
        let name = &*self.lower_name(directory, name)?;
        self.with_access(&[directory], || fs::unlinkat(directory.fd(), name, flags))?;
        self.removals.record();
        Ok(())
    }

    pub(super) fn sync_object(&self, object: &PosixHandle) -> io::Result<()> {
        match object.kind {
            FileKind::Regular | FileKind::Directory => {
                let fd = self.usable(object, Access::Read)?;
                Ok(retry_on_intr(|| fs::fsync(fd))?)
            }
            // Symlinks and nodes cannot be opened, hence not synced one by one.
            _ => Ok(retry_on_intr(|| fs::syncfs(&self.root))?),
        }
    }

    /// Makes everything of a store durable that has few objects: each file, and after
    /// them the directories that name them.
    pub(super) fn sync_each(&self) -> io::Result<()> {
        let root = PosixHandle::root(&self.root);
        let own = self.open_entry(&root, OWN_DIRECTORY, false)?;
        let mut directories = vec![root];
        for entry in self.list_entries(&own)? {
            if entry.kind == Some(FileKind::Directory) {
                directories.push(self.open_entry(&own, &entry.name, false)?);
            }
        }
        for directory in &directories {
            for entry in self.list_entries(directory)? {
                if entry.kind == Some(FileKind::Regular) {
                    self.sync_object(&self.open_entry(directory, &entry.name, false)?)?;
                }
            }
        }
        directories.push(own);
        directories
            .iter()
            .try_for_each(|directory| self.sync_object(directory))
    }
}
