//! The lower filesystem through Linux system calls.
//!
//! Needs `/proc` (objects held by `O_PATH` descriptors are reached through
//! `/proc/self/fd`), which [`PosixLower::open`] checks.

mod access;
mod attributes;
mod content;
mod device;
#[expect(unsafe_code, reason = "a system call that no crate wraps")]
mod extents;
mod flagged;
mod handle;
mod journal;
mod magic;
#[expect(unsafe_code, reason = "a system call that no crate wraps")]
mod metadata;
mod moved;
mod namespace;
mod overlay;
mod probe;
mod root;
mod scope;
mod suitable;
#[cfg(test)]
mod tests;
#[expect(unsafe_code, reason = "a system call that no crate wraps")]
mod write_back;
#[expect(unsafe_code, reason = "a system call that no crate wraps")]
mod xfs;

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use mobifs_base::{ByteRange, SpaceInfo, Xattr};
use parking_lot::RwLock;
use rustix::fs::{self, OFlags};
use rustix::io::{Errno, retry_on_intr};

use super::{
    Blocks, Create, JournalBuffer, Lower, LowerEntry, LowerStat, SetAttributes, WrittenBack,
};
use crate::StoreError;
use crate::lower::Capabilities;

pub use handle::PosixHandle;
pub use root::PosixLower;
pub use scope::StoreScope;

/// Whether what lies at `path` is in memory only, so that a reboot takes it; false where that cannot
/// be found out.
#[must_use]
pub fn is_in_memory(path: &Path) -> bool {
    fs::statfs(path).is_ok_and(|about| magic::is_memory_filesystem(about.f_type))
}

/// Whether `path` is on a filesystem of the kernel's own interfaces, as /proc and /sys are, which keeps
/// no files; false where that cannot be found out.
#[must_use]
pub fn is_of_the_kernel(path: &Path) -> bool {
    fs::statfs(path).is_ok_and(|about| magic::is_of_the_kernel(about.f_type))
}

impl PosixLower {
    /// Opens the directory at `path` as the root of a store that is all of it.
    ///
    /// # Errors
    /// [`StoreError::Unsuitable`] with a sentence for the user if `path` is no
    /// directory or cannot be entered, [`StoreError::Lower`] for other failures.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_scoped(path, StoreScope::Tree)
    }

    /// As [`PosixLower::open`], of a store that may be only a part of the directory.
    ///
    /// # Errors
    /// As [`PosixLower::open`].
    pub fn open_scoped(path: &Path, scope: StoreScope) -> Result<Self, StoreError> {
        let shown = path.display();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = fs::open(path, flags, fs::Mode::empty()).map_err(|errno| match errno {
            Errno::NOTDIR => StoreError::Unsuitable(format!(
                "{shown} is not a directory; a store is a directory"
            )),
            Errno::NOENT => StoreError::Unsuitable(format!("{shown} does not exist")),
            Errno::ACCESS => {
                StoreError::Unsuitable(format!("{shown} may not be entered by this user"))
            }
            other => StoreError::lower(format!("opening {shown}"))(other.into()),
        })?;
        fs::stat(handle::proc_path(&root).as_str()).map_err(|errno| {
            StoreError::Unsuitable(format!(
                "/proc/self/fd cannot be used ({errno}); mobifs needs a mounted /proc"
            ))
        })?;
        let apart = suitable::check(&root, path)?;
        if scope == StoreScope::Tree {
            suitable::check_tree(&root, path)?;
        }
        Ok(Self {
            root: Arc::new(File::from(root)),
            scope,
            file: None,
            apart,
            modes: RwLock::new(()),
            removals: xfs::Removals::default(),
            moves_content: OnceLock::new(),
        })
    }

    /// Uses `file`, open for reading and writing, for the content of a store of one file, if it is
    /// that file: then no other descriptor of it is opened.
    #[must_use]
    pub fn with_file(mut self, file: Arc<File>) -> Self {
        self.file = Some(file);
        self
    }

    /// A store of one file keeps no descriptors but those that it needs all the time.
    fn frugal(
        &self,
        handle: PosixHandle,
        directory: &PosixHandle,
        name: &[u8],
    ) -> io::Result<PosixHandle> {
        let StoreScope::File(own) = &self.scope else {
            return Ok(handle);
        };
        if directory.is_root && name == own.as_bytes() {
            return Ok(match &self.file {
                Some(file) if handle.is_same(file)? => PosixHandle::shared(file),
                _ => handle,
            });
        }
        let in_root = self.scope.name_in_root(name);
        let name = in_root
            .as_deref()
            .filter(|_| directory.is_root)
            .unwrap_or(name);
        handle.dormant(&self.root, directory, name)
    }
}

impl Lower for PosixLower {
    type Handle = PosixHandle;

    fn root(&self) -> io::Result<PosixHandle> {
        Ok(PosixHandle::root(&self.root))
    }

    fn handles_max(&self) -> usize {
        handle::kept_max()
    }

    fn is_in_scope(&self, name: &[u8]) -> bool {
        self.scope.name_in_root(name).is_some()
    }

    fn open(&self, directory: &PosixHandle, name: &[u8], write: bool) -> io::Result<PosixHandle> {
        let handle = self.open_entry(&*directory.opened()?, name, write)?;
        self.frugal(handle, directory, name)
    }

    fn stat(&self, object: &PosixHandle) -> io::Result<LowerStat> {
        let _stable = self.modes.read();
        attributes::stat(&*object.opened()?)
    }

    fn stat_at(&self, directory: &PosixHandle, name: &[u8]) -> io::Result<LowerStat> {
        self.stat_entry(&*directory.opened()?, name)
    }

    fn list(&self, directory: &PosixHandle) -> io::Result<Vec<LowerEntry>> {
        self.list_entries(&*directory.opened()?)
    }

    fn read_link(&self, directory: &PosixHandle, name: &[u8]) -> io::Result<Vec<u8>> {
        self.read_link_entry(&*directory.opened()?, name)
    }

    fn create(&self, directory: &PosixHandle, name: &[u8], what: Create<'_>) -> io::Result<()> {
        self.create_entry(&*directory.opened()?, name, &what)
    }

    fn link(
        &self,
        directory: &PosixHandle,
        name: &[u8],
        to_directory: &PosixHandle,
        to_name: &[u8],
    ) -> io::Result<()> {
        self.link_entry(
            &*directory.opened()?,
            name,
            &*to_directory.opened()?,
            to_name,
        )
    }

    fn rename(
        &self,
        directory: &PosixHandle,
        name: &[u8],
        to_directory: &PosixHandle,
        to_name: &[u8],
    ) -> io::Result<()> {
        self.rename_entry(
            &*directory.opened()?,
            name,
            &*to_directory.opened()?,
            to_name,
        )
    }

    fn unlink(&self, directory: &PosixHandle, name: &[u8]) -> io::Result<()> {
        self.remove_entry(&*directory.opened()?, name, fs::AtFlags::empty())
    }

    fn remove_directory(&self, directory: &PosixHandle, name: &[u8]) -> io::Result<()> {
        self.remove_entry(&*directory.opened()?, name, fs::AtFlags::REMOVEDIR)
    }

    fn read_at(&self, file: &PosixHandle, out: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_content(file, out, offset)
    }

    fn read_cached(&self, file: &PosixHandle, out: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_content_cached(file, out, offset)
    }

    fn write_at(&self, file: &PosixHandle, content: &[u8], offset: u64) -> io::Result<()> {
        self.write_content(file, content, offset)
    }

    fn truncate(&self, file: &PosixHandle, size: u64) -> io::Result<()> {
        self.set_size(file, size)
    }

    fn zero_range(&self, file: &PosixHandle, range: ByteRange) -> io::Result<()> {
        self.zero_content(file, range)
    }

    fn preallocate(&self, file: &PosixHandle, range: ByteRange) -> io::Result<()> {
        self.allocate_content(file, range)
    }

    fn keeps_preallocation(&self) -> bool {
        fs::fstatfs(&self.root).is_ok_and(|about| magic::keeps_preallocation(about.f_type))
    }

    fn allocated_after(&self, file: &PosixHandle, offset: u64) -> io::Result<Option<u64>> {
        self.last_block_after(file, offset)
    }

    fn moves_content(&self) -> bool {
        *self.moves_content.get_or_init(|| moved::moves(&self.root))
    }

    fn is_scattered(&self, file: &PosixHandle) -> io::Result<bool> {
        self.has_several_pieces(file)
    }

    fn move_content(
        &self,
        own_directory: &PosixHandle,
        file: &PosixHandle,
        content: &[u8],
        room_bytes: u64,
    ) -> io::Result<Option<PosixHandle>> {
        self.move_to_one_place(&*own_directory.opened()?, file, content, room_bytes)
    }

    fn move_back(&self, file: &PosixHandle, donor: &PosixHandle) -> io::Result<()> {
        self.return_blocks(file, donor)
    }

    fn is_in_place(
        &self,
        file: &PosixHandle,
        range: ByteRange,
        counted: Blocks,
    ) -> io::Result<bool> {
        self.has_blocks(file, range, counted)
    }

    fn seek_data(&self, file: &PosixHandle, offset: u64) -> io::Result<Option<u64>> {
        self.seek_content(file, offset, fs::SeekFrom::Data(offset))
    }

    fn seek_hole(&self, file: &PosixHandle, offset: u64) -> io::Result<Option<u64>> {
        self.seek_content(file, offset, fs::SeekFrom::Hole(offset))
    }

    fn set_attributes(&self, object: &PosixHandle, wanted: &SetAttributes) -> io::Result<()> {
        self.apply_attributes(&*object.opened()?, wanted)
    }

    fn xattrs(&self, object: &PosixHandle) -> io::Result<Vec<Xattr>> {
        self.list_xattrs(&*object.opened()?)
    }

    fn set_xattr(&self, object: &PosixHandle, name: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        self.change_xattr(&*object.opened()?, name, value)
    }

    fn sync(&self, object: &PosixHandle) -> io::Result<()> {
        self.sync_object(&*object.opened()?)
    }

    fn sync_content(&self, file: &PosixHandle) -> io::Result<()> {
        let fd = self.usable(file, handle::Access::Read)?;
        Ok(retry_on_intr(|| fs::fdatasync(fd))?)
    }

    fn write_back(&self, file: &PosixHandle, until: WrittenBack) -> io::Result<()> {
        write_back::write_back(self.usable(file, handle::Access::Read)?, until)
    }

    fn sync_all(&self) -> io::Result<()> {
        match self.scope {
            StoreScope::Tree => Ok(retry_on_intr(|| fs::syncfs(&self.root))?),
            // Only this store's files, not the whole filesystem.
            StoreScope::File(_) => self.sync_each(),
        }
    }

    fn device_identity(&self) -> Option<String> {
        device::identity(&self.root)
    }

    fn space(&self) -> io::Result<SpaceInfo> {
        let mut found = fs::fstatvfs(&self.root)?;
        let unit = found.f_frsize;
        let total_bytes = found.f_blocks.saturating_mul(unit);
        let magic = magic::magic(fs::fstatfs(&self.root)?.f_type);
        let mut shown_bytes = found.f_bavail.saturating_mul(unit);
        if magic == magic::XFS_MAGIC
            && self
                .removals
                .free(self.root.as_fd(), shown_bytes, total_bytes)
        {
            found = fs::fstatvfs(&self.root)?;
            shown_bytes = found.f_bavail.saturating_mul(unit);
        }
        let room = if magic == magic::BTRFS_MAGIC {
            metadata::btrfs_room(self.root.as_fd(), total_bytes, shown_bytes)
        } else {
            None
        };
        let unseen_bytes = room.map_or(0, |room| room.unseen_bytes);
        Ok(SpaceInfo {
            block_bytes: unit,
            total_bytes,
            free_bytes: found
                .f_bfree
                .saturating_mul(unit)
                .saturating_sub(unseen_bytes),
            available_bytes: shown_bytes.saturating_sub(unseen_bytes),
            metadata_bytes: room.map(|room| room.metadata_bytes),
            total_inodes: found.f_files,
            free_inodes: found.f_ffree,
        })
    }

    fn capabilities(&self, scratch_directory: &PosixHandle) -> io::Result<Capabilities> {
        probe::capabilities(self, &*scratch_directory.opened()?)
    }

    fn open_journal(
        &self,
        directory: &PosixHandle,
        name: &[u8],
    ) -> io::Result<(PosixHandle, bool)> {
        self.open_journal_file(&*directory.opened()?, name)
    }

    fn journal_write(
        &self,
        journal: &PosixHandle,
        blocks: &JournalBuffer,
        offset: u64,
        durable: bool,
    ) -> io::Result<()> {
        journal::write(journal, blocks, offset, durable)
    }

    fn journal_flush(&self, journal: &PosixHandle) -> io::Result<()> {
        journal::flush(journal)
    }
}
