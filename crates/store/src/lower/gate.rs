//! A lower filesystem whose power can be cut.

use std::io;

use mobifs_base::{ByteRange, SpaceInfo, Xattr};
use parking_lot::RwLock;

use crate::lower::Capabilities;
use crate::lower::{
    Blocks, Create, JournalBuffer, Lower, LowerEntry, LowerStat, SetAttributes, WrittenBack,
};

/// Passes every call to the lower filesystem until the power is cut; from then on none that could
/// change it.
///
/// Every [`Store`](crate::Store) is over a gate, because a drill must be able to stop it: the code
/// that opens a store puts the gate over the lower filesystem.
#[derive(Debug)]
pub struct Gate<L: Lower> {
    lower: L,
    /// Read-held during every change, so that a power cut waits for those under way.
    cut: RwLock<bool>,
}

impl<L: Lower> Gate<L> {
    /// Over this lower filesystem; the power is on.
    pub const fn new(lower: L) -> Self {
        Self {
            lower,
            cut: RwLock::new(false),
        }
    }

    /// From the return of this call on, nothing changes in the lower filesystem.
    pub fn cut_power(&self) {
        *self.cut.write() = true;
    }

    fn change<T>(&self, change: impl FnOnce(&L) -> io::Result<T>) -> io::Result<T> {
        let cut = self.cut.read();
        if *cut {
            return Err(io::Error::other("the power was cut by request"));
        }
        change(&self.lower)
    }
}

impl<L: Lower> Lower for Gate<L> {
    type Handle = L::Handle;

    fn root(&self) -> io::Result<Self::Handle> {
        self.lower.root()
    }
    fn handles_max(&self) -> usize {
        self.lower.handles_max()
    }
    fn is_in_scope(&self, name: &[u8]) -> bool {
        self.lower.is_in_scope(name)
    }
    fn open(&self, directory: &Self::Handle, name: &[u8], write: bool) -> io::Result<Self::Handle> {
        self.lower.open(directory, name, write)
    }
    fn stat(&self, object: &Self::Handle) -> io::Result<LowerStat> {
        self.lower.stat(object)
    }
    fn stat_at(&self, directory: &Self::Handle, name: &[u8]) -> io::Result<LowerStat> {
        self.lower.stat_at(directory, name)
    }
    fn list(&self, directory: &Self::Handle) -> io::Result<Vec<LowerEntry>> {
        self.lower.list(directory)
    }
    fn read_link(&self, directory: &Self::Handle, name: &[u8]) -> io::Result<Vec<u8>> {
        self.lower.read_link(directory, name)
    }
    fn create(&self, directory: &Self::Handle, name: &[u8], what: Create<'_>) -> io::Result<()> {
        self.change(|lower| lower.create(directory, name, what))
    }
    fn link(
        &self,
        directory: &Self::Handle,
        name: &[u8],
        to_directory: &Self::Handle,
        to_name: &[u8],
    ) -> io::Result<()> {
        self.change(|lower| lower.link(directory, name, to_directory, to_name))
    }
    fn rename(
        &self,
        directory: &Self::Handle,
        name: &[u8],
        to_directory: &Self::Handle,
        to_name: &[u8],
    ) -> io::Result<()> {
        self.change(|lower| lower.rename(directory, name, to_directory, to_name))
    }
    fn unlink(&self, directory: &Self::Handle, name: &[u8]) -> io::Result<()> {
        self.change(|lower| lower.unlink(directory, name))
    }
    fn remove_directory(&self, directory: &Self::Handle, name: &[u8]) -> io::Result<()> {
        self.change(|lower| lower.remove_directory(directory, name))
    }
    fn read_at(&self, file: &Self::Handle, out: &mut [u8], offset: u64) -> io::Result<usize> {
        self.lower.read_at(file, out, offset)
    }
    fn read_cached(&self, file: &Self::Handle, out: &mut [u8], offset: u64) -> io::Result<usize> {
        self.lower.read_cached(file, out, offset)
    }
    fn write_at(&self, file: &Self::Handle, content: &[u8], offset: u64) -> io::Result<()> {
        self.change(|lower| lower.write_at(file, content, offset))
    }
    fn truncate(&self, file: &Self::Handle, size: u64) -> io::Result<()> {
        self.change(|lower| lower.truncate(file, size))
    }
    fn zero_range(&self, file: &Self::Handle, range: ByteRange) -> io::Result<()> {
        self.change(|lower| lower.zero_range(file, range))
    }
    fn preallocate(&self, file: &Self::Handle, range: ByteRange) -> io::Result<()> {
        self.change(|lower| lower.preallocate(file, range))
    }
    fn device_identity(&self) -> Option<String> {
        self.lower.device_identity()
    }
    fn keeps_preallocation(&self) -> bool {
        self.lower.keeps_preallocation()
    }
    fn moves_content(&self) -> bool {
        self.lower.moves_content()
    }
    fn is_scattered(&self, file: &Self::Handle) -> io::Result<bool> {
        self.change(|lower| lower.is_scattered(file))
    }
    fn move_content(
        &self,
        own_directory: &Self::Handle,
        file: &Self::Handle,
        content: &[u8],
        room_bytes: u64,
    ) -> io::Result<Option<Self::Handle>> {
        self.change(|lower| lower.move_content(own_directory, file, content, room_bytes))
    }
    fn move_back(&self, file: &Self::Handle, donor: &Self::Handle) -> io::Result<()> {
        self.change(|lower| lower.move_back(file, donor))
    }
    fn allocated_after(&self, file: &Self::Handle, offset: u64) -> io::Result<Option<u64>> {
        self.lower.allocated_after(file, offset)
    }
    fn is_in_place(
        &self,
        file: &Self::Handle,
        range: ByteRange,
        counted: Blocks,
    ) -> io::Result<bool> {
        self.lower.is_in_place(file, range, counted)
    }
    fn seek_data(&self, file: &Self::Handle, offset: u64) -> io::Result<Option<u64>> {
        self.lower.seek_data(file, offset)
    }
    fn seek_hole(&self, file: &Self::Handle, offset: u64) -> io::Result<Option<u64>> {
        self.lower.seek_hole(file, offset)
    }
    fn set_attributes(&self, object: &Self::Handle, attributes: &SetAttributes) -> io::Result<()> {
        self.change(|lower| lower.set_attributes(object, attributes))
    }
    fn xattrs(&self, object: &Self::Handle) -> io::Result<Vec<Xattr>> {
        self.lower.xattrs(object)
    }
    fn set_xattr(
        &self,
        object: &Self::Handle,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> io::Result<()> {
        self.change(|lower| lower.set_xattr(object, name, value))
    }
    fn sync(&self, object: &Self::Handle) -> io::Result<()> {
        self.change(|lower| lower.sync(object))
    }
    fn sync_content(&self, file: &Self::Handle) -> io::Result<()> {
        self.change(|lower| lower.sync_content(file))
    }
    fn write_back(&self, file: &Self::Handle, until: WrittenBack) -> io::Result<()> {
        self.change(|lower| lower.write_back(file, until))
    }
    fn sync_all(&self) -> io::Result<()> {
        self.change(Lower::sync_all)
    }
    fn space(&self) -> io::Result<SpaceInfo> {
        self.lower.space()
    }
    fn capabilities(&self, scratch_directory: &Self::Handle) -> io::Result<Capabilities> {
        self.change(|lower| lower.capabilities(scratch_directory))
    }
    fn open_journal(
        &self,
        directory: &Self::Handle,
        name: &[u8],
    ) -> io::Result<(Self::Handle, bool)> {
        self.change(|lower| lower.open_journal(directory, name))
    }
    fn journal_write(
        &self,
        journal: &Self::Handle,
        blocks: &JournalBuffer,
        offset: u64,
        durable: bool,
    ) -> io::Result<()> {
        self.change(|lower| lower.journal_write(journal, blocks, offset, durable))
    }
    fn journal_flush(&self, journal: &Self::Handle) -> io::Result<()> {
        self.change(|lower| lower.journal_flush(journal))
    }
}
