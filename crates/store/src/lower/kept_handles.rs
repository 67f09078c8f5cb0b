//! The lower filesystem as all of the store uses it: handles that may be used again stay open, and
//! where there are no more descriptors they are closed.

use std::io;

use mobifs_base::{ByteRange, SpaceInfo, Xattr};
use parking_lot::MutexGuard;
use rustix::io::Errno;

use crate::locks::{Order, Rank, Ranked, RankedMutex};
use crate::lower::Capabilities;
use crate::lower::handles::Handles;
use crate::lower::{
    Blocks, Create, JournalBuffer, Lower, LowerEntry, LowerStat, SetAttributes, WrittenBack,
};

/// Passes everything on to the lower filesystem, and closes handles that are only kept for later
/// where a call gets no descriptor.
pub struct KeptHandles<L: Lower> {
    lower: L,
    /// Handles on objects that may be used again.
    handles: RankedMutex<Handles<L::Handle>>,
}

impl<L: Lower> KeptHandles<L> {
    pub(crate) fn new(order: Order, lower: L) -> Self {
        let handles = Handles::new(lower.handles_max());
        Self {
            handles: RankedMutex::new(order, Rank::Handles, handles),
            lower,
        }
    }

    /// The lower filesystem itself.
    pub(crate) const fn inner(&self) -> &L {
        &self.lower
    }

    /// The handles that are kept. No call is made while they are locked.
    pub(crate) fn handles(&self) -> Ranked<MutexGuard<'_, Handles<L::Handle>>> {
        self.handles.lock()
    }

    /// Makes a call that may need a descriptor. A call that gets none has done nothing, or
    /// something that may be repeated.
    fn call<T>(&self, mut call: impl FnMut(&L) -> io::Result<T>) -> io::Result<T> {
        loop {
            match call(&self.lower) {
                Err(error) if lacks_descriptors(&error) && self.close_some() => {}
                other => return other,
            }
        }
    }

    /// Makes a call that is not repeated if it fails: data that an fsync failed to write may be
    /// lost although the next fsync succeeds.
    fn once<T>(&self, call: impl FnOnce(&L) -> io::Result<T>) -> io::Result<T> {
        let result = call(&self.lower);
        if result.as_ref().is_err_and(lacks_descriptors) {
            self.close_some();
        }
        result
    }

    /// Closes handles that are not in use; whether there were any.
    fn close_some(&self) -> bool {
        // They are closed when they are dropped here, which takes time, without the lock.
        let closed = self.handles.lock().close_unused();
        !closed.is_empty()
    }
}

fn lacks_descriptors(error: &io::Error) -> bool {
    let lacking = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
    error
        .raw_os_error()
        .is_some_and(|errno| lacking.contains(&errno))
}

impl<L: Lower> Lower for KeptHandles<L> {
    type Handle = L::Handle;

    fn root(&self) -> io::Result<Self::Handle> {
        self.call(Lower::root)
    }
    fn handles_max(&self) -> usize {
        self.lower.handles_max()
    }
    fn is_in_scope(&self, name: &[u8]) -> bool {
        self.lower.is_in_scope(name)
    }
    fn open(&self, directory: &Self::Handle, name: &[u8], write: bool) -> io::Result<Self::Handle> {
        self.call(|lower| lower.open(directory, name, write))
    }
    fn stat(&self, object: &Self::Handle) -> io::Result<LowerStat> {
        self.call(|lower| lower.stat(object))
    }
    fn stat_at(&self, directory: &Self::Handle, name: &[u8]) -> io::Result<LowerStat> {
        self.call(|lower| lower.stat_at(directory, name))
    }
    fn list(&self, directory: &Self::Handle) -> io::Result<Vec<LowerEntry>> {
        self.call(|lower| lower.list(directory))
    }
    fn read_link(&self, directory: &Self::Handle, name: &[u8]) -> io::Result<Vec<u8>> {
        self.call(|lower| lower.read_link(directory, name))
    }
    fn create(&self, directory: &Self::Handle, name: &[u8], what: Create<'_>) -> io::Result<()> {
        self.call(|lower| lower.create(directory, name, what.clone()))
    }
    fn link(
        &self,
        directory: &Self::Handle,
        name: &[u8],
        to_directory: &Self::Handle,
        to_name: &[u8],
    ) -> io::Result<()> {
        self.call(|lower| lower.link(directory, name, to_directory, to_name))
    }
    fn rename(
        &self,
        directory: &Self::Handle,
        name: &[u8],
        to_directory: &Self::Handle,
        to_name: &[u8],
    ) -> io::Result<()> {
        self.call(|lower| lower.rename(directory, name, to_directory, to_name))
    }
    fn unlink(&self, directory: &Self::Handle, name: &[u8]) -> io::Result<()> {
        self.call(|lower| lower.unlink(directory, name))
    }
    fn remove_directory(&self, directory: &Self::Handle, name: &[u8]) -> io::Result<()> {
        self.call(|lower| lower.remove_directory(directory, name))
    }
    fn read_at(&self, file: &Self::Handle, out: &mut [u8], offset: u64) -> io::Result<usize> {
        self.call(|lower| lower.read_at(file, out, offset))
    }
    fn read_cached(&self, file: &Self::Handle, out: &mut [u8], offset: u64) -> io::Result<usize> {
        self.call(|lower| lower.read_cached(file, out, offset))
    }
    fn write_at(&self, file: &Self::Handle, content: &[u8], offset: u64) -> io::Result<()> {
        self.call(|lower| lower.write_at(file, content, offset))
    }
    fn truncate(&self, file: &Self::Handle, size: u64) -> io::Result<()> {
        self.call(|lower| lower.truncate(file, size))
    }
    fn zero_range(&self, file: &Self::Handle, range: ByteRange) -> io::Result<()> {
        self.call(|lower| lower.zero_range(file, range))
    }
    fn preallocate(&self, file: &Self::Handle, range: ByteRange) -> io::Result<()> {
        self.call(|lower| lower.preallocate(file, range))
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
        self.call(|lower| lower.is_scattered(file))
    }
    fn move_content(
        &self,
        own_directory: &Self::Handle,
        file: &Self::Handle,
        content: &[u8],
        room_bytes: u64,
    ) -> io::Result<Option<Self::Handle>> {
        self.call(|lower| lower.move_content(own_directory, file, content, room_bytes))
    }
    fn move_back(&self, file: &Self::Handle, donor: &Self::Handle) -> io::Result<()> {
        self.call(|lower| lower.move_back(file, donor))
    }
    fn allocated_after(&self, file: &Self::Handle, offset: u64) -> io::Result<Option<u64>> {
        self.call(|lower| lower.allocated_after(file, offset))
    }
    fn is_in_place(
        &self,
        file: &Self::Handle,
        range: ByteRange,
        counted: Blocks,
    ) -> io::Result<bool> {
        self.call(|lower| lower.is_in_place(file, range, counted))
    }
    fn seek_data(&self, file: &Self::Handle, offset: u64) -> io::Result<Option<u64>> {
        self.call(|lower| lower.seek_data(file, offset))
    }
    fn seek_hole(&self, file: &Self::Handle, offset: u64) -> io::Result<Option<u64>> {
        self.call(|lower| lower.seek_hole(file, offset))
    }
    fn set_attributes(&self, object: &Self::Handle, attributes: &SetAttributes) -> io::Result<()> {
        self.call(|lower| lower.set_attributes(object, attributes))
    }
    fn xattrs(&self, object: &Self::Handle) -> io::Result<Vec<Xattr>> {
        self.call(|lower| lower.xattrs(object))
    }
    fn set_xattr(
        &self,
        object: &Self::Handle,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> io::Result<()> {
        self.call(|lower| lower.set_xattr(object, name, value))
    }
    fn sync(&self, object: &Self::Handle) -> io::Result<()> {
        self.once(|lower| lower.sync(object))
    }
    fn sync_content(&self, file: &Self::Handle) -> io::Result<()> {
        self.once(|lower| lower.sync_content(file))
    }
    fn write_back(&self, file: &Self::Handle, until: WrittenBack) -> io::Result<()> {
        self.once(|lower| lower.write_back(file, until))
    }
    fn sync_all(&self) -> io::Result<()> {
        self.once(Lower::sync_all)
    }
    fn space(&self) -> io::Result<SpaceInfo> {
        self.call(Lower::space)
    }
    fn capabilities(&self, scratch_directory: &Self::Handle) -> io::Result<Capabilities> {
        self.call(|lower| lower.capabilities(scratch_directory))
    }
    fn open_journal(
        &self,
        directory: &Self::Handle,
        name: &[u8],
    ) -> io::Result<(Self::Handle, bool)> {
        self.call(|lower| lower.open_journal(directory, name))
    }
    fn journal_write(
        &self,
        journal: &Self::Handle,
        blocks: &JournalBuffer,
        offset: u64,
        durable: bool,
    ) -> io::Result<()> {
        self.once(|lower| lower.journal_write(journal, blocks, offset, durable))
    }
    fn journal_flush(&self, journal: &Self::Handle) -> io::Result<()> {
        self.once(|lower| lower.journal_flush(journal))
    }
}
