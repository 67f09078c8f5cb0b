//! The lower filesystem as the journal store uses it.
//!
//! Every operation names its target by an open directory and *one* path component,
//! never by a path with several, so a symlink or a `..` planted in the store cannot
//! lead outside it. [`PosixLower`] is the real thing; tests put a simulated
//! filesystem here whose unsynced effects land, vanish or tear.

mod capabilities;
pub(crate) mod directories;
mod examined;
mod gate;
pub(crate) mod handles;
pub(crate) mod kept_handles;
mod posix;

use std::io;

use mobifs_base::{ByteRange, DeviceNumber, FileKind, SpaceInfo, Timestamp, Xattr};

pub use capabilities::Capabilities;
pub use examined::{ExaminedLower, examined};
pub use gate::Gate;
pub use posix::{PosixHandle, PosixLower, StoreScope, is_in_memory, is_of_the_kernel};

/// What `stat` says of a lower object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LowerStat {
    /// Device, to notice other filesystems mounted inside the tree.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// When it was made, where the filesystem reports it.
    pub born: Option<Timestamp>,
    /// Kind.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: DeviceNumber,
    /// Size in bytes.
    pub size: u64,
    /// Bytes allocated.
    pub allocated_bytes: u64,
    /// Number of links.
    pub nlink: u32,
    /// The object may not be changed (`chattr +i`, and `+a`: what is only appended is not how changes
    /// are applied).
    pub immutable: bool,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
    /// Last change.
    pub ctime: Timestamp,
}

/// One directory entry as the lower filesystem lists it (without `.` and `..`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LowerEntry {
    /// The entry's name: any bytes the lower filesystem gives.
    pub name: Vec<u8>,
    /// Inode number.
    pub inode: u64,
    /// Kind, if the listing has it.
    pub kind: Option<FileKind>,
}

/// Which blocks of a file count in [`Lower::is_in_place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// Those that were written.
    Written,
    /// Also those that were allocated and never written: the filesystem may need a few more
    /// for noting that they are.
    Allocated,
}

/// What [`Lower::create`] makes.
#[derive(Clone, Debug)]
pub enum Create<'a> {
    /// An empty regular file.
    Regular,
    /// An empty directory.
    Directory,
    /// A symlink with this target.
    Symlink(&'a [u8]),
    /// A named pipe.
    Fifo,
    /// A socket node.
    Socket,
    /// A character device.
    CharDevice(DeviceNumber),
    /// A block device.
    BlockDevice(DeviceNumber),
}

/// Attributes to set on a lower object. All of them are final states.
#[derive(Clone, Copy, Debug)]
pub struct SetAttributes {
    /// Permission bits; ignored for symlinks.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of content.
    pub mtime: Timestamp,
}

/// How far content is brought to the device ([`Lower::write_back`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WrittenBack {
    /// It is on its way.
    Begun,
    /// The device has it.
    Ended,
}

/// The lower filesystem: what the journal store is over.
///
/// Nothing is durable before a `sync_*` call returns, except what
/// [`Lower::journal_write`] is asked to make durable. What is assumed of a real one
/// (and granted by the simulated one) is written in
/// `docs/DESIGN.md#assumptions-about-the-lower-filesystem-and-the-device`: a rename is atomic, a
/// sector is not torn, everything else may be reordered.
pub trait Lower: Send + Sync {
    /// An open object. Directories and regular files are opened for use; other kinds
    /// only by reference (`O_PATH`). Dropping closes.
    type Handle: Send + Sync;

    /// The store's root directory.
    ///
    /// # Errors
    /// As `open(2)`; the same holds for all calls below with their system calls.
    fn root(&self) -> io::Result<Self::Handle>;
    /// How many handles may be kept open for later, besides those in use.
    fn handles_max(&self) -> usize;
    /// Whether the store may have an entry of this name in the root, which may have others that do
    /// not belong to it.
    fn is_in_scope(&self, name: &[u8]) -> bool;
    /// Opens `name` in `directory` without following a symlink. Regular files are
    /// opened for reading, and for writing too where permitted and `write` is set.
    fn open(&self, directory: &Self::Handle, name: &[u8], write: bool) -> io::Result<Self::Handle>;
    /// Attributes of an open object.
    fn stat(&self, object: &Self::Handle) -> io::Result<LowerStat>;
    /// Attributes of `name` in `directory`, not following a symlink.
    fn stat_at(&self, directory: &Self::Handle, name: &[u8]) -> io::Result<LowerStat>;
    /// All entries of a directory.
    fn list(&self, directory: &Self::Handle) -> io::Result<Vec<LowerEntry>>;
    /// Target of a symlink.
    fn read_link(&self, directory: &Self::Handle, name: &[u8]) -> io::Result<Vec<u8>>;
    /// Creates an object; fails with `EEXIST` if the name is taken. Its mode is 0600
    /// (directories 0700) until attributes are set.
    fn create(&self, directory: &Self::Handle, name: &[u8], what: Create<'_>) -> io::Result<()>;
    /// Another link `to_name` for `name`; fails with `EEXIST`.
    fn link(
        &self,
        directory: &Self::Handle,
        name: &[u8],
        to_directory: &Self::Handle,
        to_name: &[u8],
    ) -> io::Result<()>;
    /// Renames; fails with `EEXIST` if the target exists.
    fn rename(
        &self,
        directory: &Self::Handle,
        name: &[u8],
        to_directory: &Self::Handle,
        to_name: &[u8],
    ) -> io::Result<()>;
    /// Removes an entry that is not a directory.
    fn unlink(&self, directory: &Self::Handle, name: &[u8]) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_directory(&self, directory: &Self::Handle, name: &[u8]) -> io::Result<()>;

    /// Reads from a regular file; short only at its end.
    fn read_at(&self, file: &Self::Handle, out: &mut [u8], offset: u64) -> io::Result<usize>;
    /// As [`Lower::read_at`], but only from memory: `WouldBlock` where the device
    /// would have to be asked.
    fn read_cached(&self, file: &Self::Handle, out: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes all of `content`.
    fn write_at(&self, file: &Self::Handle, content: &[u8], offset: u64) -> io::Result<()>;
    /// Sets the size.
    fn truncate(&self, file: &Self::Handle, size: u64) -> io::Result<()>;
    /// Makes a range read as zero without changing the size (punches a hole, or
    /// writes zeros where holes are not supported).
    fn zero_range(&self, file: &Self::Handle, range: ByteRange) -> io::Result<()>;
    /// Allocates room without changing size or content; `Unsupported` is no error for
    /// callers that only want fewer fragments.
    fn preallocate(&self, file: &Self::Handle, range: ByteRange) -> io::Result<()>;
    /// Whether blocks that are allocated beyond the end of a file stay where they are, and cost
    /// nothing else, until the file grows into them.
    fn keeps_preallocation(&self) -> bool;
    /// Where the last blocks of a file end that it has from this offset on; none if it has none
    /// there. `Unsupported` where the filesystem does not say.
    fn allocated_after(&self, file: &Self::Handle, offset: u64) -> io::Result<Option<u64>>;
    /// Whether the filesystem moves content to other blocks ([`Lower::move_content`]), and lays what is written
    /// at the end of a file after its last block where that is free.
    fn moves_content(&self) -> bool;
    /// Whether the blocks of a file lie in more than one piece, all of which could be moved. What was written and
    /// has no blocks yet gets them first, which does not make it durable.
    fn is_scattered(&self, file: &Self::Handle) -> io::Result<bool>;
    /// Moves all content of a file, which is this, to one place in which there is room for so many bytes. The place has
    /// it before the file has the place. None if there is no such place, or the file is one that stays. The room after
    /// the content is free once the file is synced.
    ///
    /// A cut at any instant finds the content as it was; what is not durable stays that. Size and times stay, and
    /// so do descriptors and mappings. Only where [`Lower::moves_content`].
    ///
    /// Returns the donor, a file without a name whose size is how much has moved. It has the blocks of before, which
    /// are given to others after it is closed: it stays open until the file is synced. A sync that fails may
    /// leave content that was durable only in memory, and memory may drop it.
    fn move_content(
        &self,
        own_directory: &Self::Handle,
        file: &Self::Handle,
        content: &[u8],
        room_bytes: u64,
    ) -> io::Result<Option<Self::Handle>>;
    /// Gives a file that has moved the blocks of before, and has all content that memory has of them written there
    /// by the next sync.
    fn move_back(&self, file: &Self::Handle, donor: &Self::Handle) -> io::Result<()>;
    /// Whether the file has blocks for all of this range, of its own, in which it is
    /// overwritten: writing there takes no room.
    fn is_in_place(
        &self,
        file: &Self::Handle,
        range: ByteRange,
        counted: Blocks,
    ) -> io::Result<bool>;
    /// `lseek` with `SEEK_DATA`; none after the last data.
    fn seek_data(&self, file: &Self::Handle, offset: u64) -> io::Result<Option<u64>>;
    /// `lseek` with `SEEK_HOLE`; none after the end.
    fn seek_hole(&self, file: &Self::Handle, offset: u64) -> io::Result<Option<u64>>;

    /// Sets owner, mode and times of an open object.
    fn set_attributes(&self, object: &Self::Handle, attributes: &SetAttributes) -> io::Result<()>;
    /// All extended attributes.
    fn xattrs(&self, object: &Self::Handle) -> io::Result<Vec<Xattr>>;
    /// Sets (or with none removes, if present) one extended attribute.
    fn set_xattr(&self, object: &Self::Handle, name: &[u8], value: Option<&[u8]>)
    -> io::Result<()>;

    /// Makes content and attributes of one file durable, or the entries of one
    /// directory.
    fn sync(&self, object: &Self::Handle) -> io::Result<()>;
    /// Makes content and size of one file durable, and nothing else of it: where its room was
    /// there before, filesystems with a journal of their own need not commit that.
    fn sync_content(&self, file: &Self::Handle) -> io::Result<()>;
    /// Brings content of one file to the device, which may keep it in its cache: a cut may lose it.
    /// Filesystems that allocate late have given it its blocks when this returns.
    fn write_back(&self, file: &Self::Handle, until: WrittenBack) -> io::Result<()>;
    /// Makes everything in the filesystem durable.
    fn sync_all(&self) -> io::Result<()>;
    /// Which device the filesystem is on, in words for people, and another one for each device; none
    /// where that cannot be known.
    fn device_identity(&self) -> Option<String>;
    /// Room.
    fn space(&self) -> io::Result<SpaceInfo>;
    /// What the filesystem allows, found by trying in `scratch_directory` where no
    /// table can know; nothing remains there.
    fn capabilities(&self, scratch_directory: &Self::Handle) -> io::Result<Capabilities>;

    /// Opens (or creates) a journal file for direct, aligned I/O. Says whether direct
    /// I/O is really in effect.
    fn open_journal(
        &self,
        directory: &Self::Handle,
        name: &[u8],
    ) -> io::Result<(Self::Handle, bool)>;
    /// Writes whole 4 KiB blocks at a block-aligned offset. With `durable` the write
    /// is on the medium when the call returns (one FUA write where the device has
    /// it); blocks may still tear in a crash before that.
    fn journal_write(
        &self,
        journal: &Self::Handle,
        blocks: &JournalBuffer,
        offset: u64,
        durable: bool,
    ) -> io::Result<()>;
    /// Makes earlier [`Lower::journal_write`] calls durable.
    fn journal_flush(&self, journal: &Self::Handle) -> io::Result<()>;
}

/// Size and alignment of journal I/O.
pub const JOURNAL_BLOCK_BYTES: usize = 4096;

/// A buffer whose content starts at a [`JOURNAL_BLOCK_BYTES`] boundary, as direct I/O
/// needs it.
#[derive(Debug, Default)]
pub struct JournalBuffer {
    storage: Vec<Block>,
}

#[derive(Clone, Copy, Debug, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
#[repr(C, align(4096))]
struct Block([u8; JOURNAL_BLOCK_BYTES]);

impl JournalBuffer {
    /// A zeroed buffer with room for `bytes`, rounded up to whole blocks.
    pub fn zeroed(bytes: usize) -> Self {
        let blocks = bytes.div_ceil(JOURNAL_BLOCK_BYTES);
        Self {
            storage: vec![Block([0; JOURNAL_BLOCK_BYTES]); blocks],
        }
    }

    /// Gives the buffer room for `bytes`, rounded up to whole blocks. Blocks that it
    /// had keep their content, new ones are zero; memory is not given back.
    pub fn resize(&mut self, bytes: usize) {
        let blocks = bytes.div_ceil(JOURNAL_BLOCK_BYTES);
        self.storage.resize(blocks, Block([0; JOURNAL_BLOCK_BYTES]));
    }

    /// The content.
    pub fn as_bytes(&self) -> &[u8] {
        zerocopy::IntoBytes::as_bytes(self.storage.as_slice())
    }

    /// The content, to be filled.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        zerocopy::IntoBytes::as_mut_bytes(self.storage.as_mut_slice())
    }
}

/// Name of the store's own directory in its root.
pub(crate) const OWN_DIRECTORY: &[u8] = b".mobifs";

/// None for "not there", the error for everything else.
pub(crate) fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
