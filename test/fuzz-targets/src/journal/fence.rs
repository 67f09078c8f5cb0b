//! A layer between the store and the lower filesystem that checks that the store accesses nothing
//! outside, and that it ends. Offsets are limited as Linux limits them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mobifs_base::{ByteRange, SpaceInfo, Xattr};
use mobifs_store::Capabilities;
use mobifs_store::lower::{
    Blocks, Create, JournalBuffer, Lower, LowerEntry, LowerStat, SetAttributes, WrittenBack,
};
use rustix::io::Errno;

/// More calls than any journal of a target's size has a use for.
const CALLS_MAX: u64 = 2_000_000;

/// Passes everything on, and panics where a name is not one component of a path.
pub(super) struct Fence<L> {
    below: L,
    calls: AtomicU64,
    changes: Arc<AtomicU64>,
}

impl<L> Fence<L> {
    pub(super) fn new(below: L) -> Self {
        Self {
            below,
            calls: AtomicU64::new(0),
            changes: Arc::default(),
        }
    }

    /// Counts the calls that change something: reads and syncs do not count.
    pub(super) fn changes(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.changes)
    }

    fn pass(&self, names: &[&[u8]]) -> &L {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        assert!(calls < CALLS_MAX, "the store does not come to an end");
        for name in names {
            let is_component = !matches!(*name, b"" | b"." | b"..")
                && !name.iter().any(|byte| matches!(byte, b'/' | 0));
            assert!(is_component, "the store asks for {}", name.escape_ascii());
        }
        &self.below
    }

    /// As [`Fence::pass`], for a call that changes something.
    fn change(&self, names: &[&[u8]]) -> &L {
        self.changes.fetch_add(1, Ordering::Relaxed);
        self.pass(names)
    }
}

/// Fails where an offset is beyond the largest that files have.
fn check_offset(offset: u64) -> io::Result<()> {
    if i64::try_from(offset).is_ok() {
        Ok(())
    } else {
        Err(Errno::INVAL.into())
    }
}

impl<L: Lower> Lower for Fence<L> {
    type Handle = L::Handle;

    fn root(&self) -> io::Result<Self::Handle> {
        self.pass(&[]).root()
    }
    fn handles_max(&self) -> usize {
        self.pass(&[]).handles_max()
    }
    fn is_in_scope(&self, name: &[u8]) -> bool {
        self.pass(&[]).is_in_scope(name)
    }
    fn open(&self, directory: &Self::Handle, name: &[u8], write: bool) -> io::Result<Self::Handle> {
        self.pass(&[name]).open(directory, name, write)
    }
    fn stat(&self, object: &Self::Handle) -> io::Result<LowerStat> {
        self.pass(&[]).stat(object)
    }
    fn stat_at(&self, directory: &Self::Handle, name: &[u8]) -> io::Result<LowerStat> {
        self.pass(&[name]).stat_at(directory, name)
    }
    fn list(&self, directory: &Self::Handle) -> io::Result<Vec<LowerEntry>> {
        self.pass(&[]).list(directory)
    }
    fn read_link(&self, directory: &Self::Handle, name: &[u8]) -> io::Result<Vec<u8>> {
        self.pass(&[name]).read_link(directory, name)
    }
    fn create(&self, directory: &Self::Handle, name: &[u8], what: Create<'_>) -> io::Result<()> {
        self.change(&[name]).create(directory, name, what)
    }
    fn link(
        &self,
        directory: &Self::Handle,
        name: &[u8],
        to_directory: &Self::Handle,
        to_name: &[u8],
    ) -> io::Result<()> {
        self.change(&[name, to_name])
            .link(directory, name, to_directory, to_name)
    }
    fn rename(
        &self,
        directory: &Self::Handle,
        name: &[u8],
        to_directory: &Self::Handle,
        to_name: &[u8],
    ) -> io::Result<()> {
        self.change(&[name, to_name])
            .rename(directory, name, to_directory, to_name)
    }
    fn unlink(&self, directory: &Self::Handle, name: &[u8]) -> io::Result<()> {
        self.change(&[name]).unlink(directory, name)
    }
    fn remove_directory(&self, directory: &Self::Handle, name: &[u8]) -> io::Result<()> {
        self.change(&[name]).remove_directory(directory, name)
    }
    fn read_at(&self, file: &Self::Handle, out: &mut [u8], offset: u64) -> io::Result<usize> {
        check_offset(offset.saturating_add(out.len() as u64))?;
        self.pass(&[]).read_at(file, out, offset)
    }
    fn read_cached(&self, file: &Self::Handle, out: &mut [u8], offset: u64) -> io::Result<usize> {
        self.pass(&[]).read_cached(file, out, offset)
    }
    fn write_at(&self, file: &Self::Handle, content: &[u8], offset: u64) -> io::Result<()> {
        check_offset(offset.saturating_add(content.len() as u64))?;
        self.change(&[]).write_at(file, content, offset)
    }
    fn truncate(&self, file: &Self::Handle, size: u64) -> io::Result<()> {
        check_offset(size)?;
        self.change(&[]).truncate(file, size)
    }
    fn zero_range(&self, file: &Self::Handle, range: ByteRange) -> io::Result<()> {
        check_offset(range.end)?;
        self.change(&[]).zero_range(file, range)
    }
    fn preallocate(&self, file: &Self::Handle, range: ByteRange) -> io::Result<()> {
        check_offset(range.end)?;
        self.change(&[]).preallocate(file, range)
    }
    fn device_identity(&self) -> Option<String> {
        self.pass(&[]).device_identity()
    }
    fn keeps_preallocation(&self) -> bool {
        self.pass(&[]).keeps_preallocation()
    }
    fn moves_content(&self) -> bool {
        self.pass(&[]).moves_content()
    }
    fn is_scattered(&self, file: &Self::Handle) -> io::Result<bool> {
        self.pass(&[]).is_scattered(file)
    }
    fn move_content(
        &self,
        own_directory: &Self::Handle,
        file: &Self::Handle,
        content: &[u8],
        room_bytes: u64,
    ) -> io::Result<Option<Self::Handle>> {
        self.pass(&[])
            .move_content(own_directory, file, content, room_bytes)
    }
    fn move_back(&self, file: &Self::Handle, donor: &Self::Handle) -> io::Result<()> {
        self.pass(&[]).move_back(file, donor)
    }
    fn allocated_after(&self, file: &Self::Handle, offset: u64) -> io::Result<Option<u64>> {
        self.pass(&[]).allocated_after(file, offset)
    }
    fn is_in_place(
        &self,
        file: &Self::Handle,
        range: ByteRange,
        counted: Blocks,
    ) -> io::Result<bool> {
        self.pass(&[]).is_in_place(file, range, counted)
    }
    fn seek_data(&self, file: &Self::Handle, offset: u64) -> io::Result<Option<u64>> {
        self.pass(&[]).seek_data(file, offset)
    }
    fn seek_hole(&self, file: &Self::Handle, offset: u64) -> io::Result<Option<u64>> {
        self.pass(&[]).seek_hole(file, offset)
    }
    fn set_attributes(&self, object: &Self::Handle, attributes: &SetAttributes) -> io::Result<()> {
        self.change(&[]).set_attributes(object, attributes)
    }
    fn xattrs(&self, object: &Self::Handle) -> io::Result<Vec<Xattr>> {
        self.pass(&[]).xattrs(object)
    }
    fn set_xattr(
        &self,
        object: &Self::Handle,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> io::Result<()> {
        self.change(&[]).set_xattr(object, name, value)
    }
    fn sync(&self, object: &Self::Handle) -> io::Result<()> {
        self.pass(&[]).sync(object)
    }
    fn sync_content(&self, file: &Self::Handle) -> io::Result<()> {
        self.pass(&[]).sync_content(file)
    }
    fn write_back(&self, file: &Self::Handle, until: WrittenBack) -> io::Result<()> {
        self.pass(&[]).write_back(file, until)
    }
    fn sync_all(&self) -> io::Result<()> {
        self.pass(&[]).sync_all()
    }
    fn space(&self) -> io::Result<SpaceInfo> {
        self.pass(&[]).space()
    }
    fn capabilities(&self, scratch_directory: &Self::Handle) -> io::Result<Capabilities> {
        self.pass(&[]).capabilities(scratch_directory)
    }
    fn open_journal(
        &self,
        directory: &Self::Handle,
        name: &[u8],
    ) -> io::Result<(Self::Handle, bool)> {
        self.pass(&[name]).open_journal(directory, name)
    }
    fn journal_write(
        &self,
        journal: &Self::Handle,
        blocks: &JournalBuffer,
        offset: u64,
        durable: bool,
    ) -> io::Result<()> {
        self.change(&[])
            .journal_write(journal, blocks, offset, durable)
    }
    fn journal_flush(&self, journal: &Self::Handle) -> io::Result<()> {
        self.pass(&[]).journal_flush(journal)
    }
}
