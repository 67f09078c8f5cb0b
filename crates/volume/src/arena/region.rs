//! Memory that outlives the process: a memfd or a file, mapped.
//!
//! All unsafe code of the arena is here, and in the few calls that state which bytes have which
//! owner.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

/// A file grows, and is mapped, in multiples of this: a multiple of every page size.
const GROWTH_BYTES: usize = 64 << 10;
/// Growing takes a system call or two, so it is by an eighth of the size, up to this.
const GROWTH_BYTES_MAX: usize = 1 << 20;
/// Addresses that are kept for a file to grow into, the most first: they cost nothing, but a
/// process may be limited in them.
const CAPACITIES_BYTES: [u64; 4] = [1 << 32, 1 << 30, 1 << 28, 1 << 26];

/// A mapped memfd or file. Offsets are bytes from its start.
#[derive(Debug)]
pub(super) struct Region {
    base: NonNull<u8>,
    /// Addresses that are kept for it.
    capacity_bytes: usize,
    /// What of them is memory.
    mapped_bytes: AtomicUsize,
    /// Up to here a file has been grown, and its filesystem has given it room.
    reserved_bytes: AtomicUsize,
    memory: Memory,
    #[cfg(any(test, feature = "kill-points"))]
    kill: super::kill::Kill,
}

#[derive(Debug)]
enum Memory {
    /// All of it can be used: it takes memory where it is written.
    Memfd(OwnedFd),
    /// Memory must be asked for before it is written, because writing where the filesystem has
    /// no room, or past the file's end, would kill the process. No descriptor is kept: a
    /// program may have many databases.
    File(Place),
}

/// A file, by its name.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Place {
    fn new(file: &File, path: PathBuf) -> io::Result<Self> {
        let about = file.metadata()?;
        Ok(Self {
            path,
            device: about.dev(),
            inode: about.ino(),
        })
    }

    fn open(&self) -> io::Result<File> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut options = File::options();
        let options = options.read(true).write(true);
        let file = options
            .custom_flags(flags.bits().cast_signed())
            .open(&self.path)?;
        let about = file.metadata()?;
        if (about.dev(), about.ino()) == (self.device, self.inode) {
            return Ok(file);
        }
        Err(io::Error::other("the file was replaced by another one"))
    }
}

// SAFETY: the mapping belongs to the region and lives as long as it does; words are
// atomic, and the users of other bytes promise exclusion (`bytes`, `bytes_mut`).
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// New memory of this size, all zeros. It takes room only where it is written.
    pub(super) fn create(bytes: usize) -> io::Result<Self> {
        let memory = rustix::fs::memfd_create("mobifs-arena", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&memory, bytes as u64)?;
        Self::over_memfd(memory, bytes)
    }

    /// A memfd that was made before.
    pub(super) fn attach(memory: OwnedFd) -> io::Result<Self> {
        let bytes = size_of_file(&memory)?;
        Self::over_memfd(memory, bytes)
    }

    fn over_memfd(memory: OwnedFd, bytes: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &memory,
                0,
            )?
        };
        Self::over(base, bytes, bytes, Memory::Memfd(memory))
    }

    /// New memory in the empty file at `path`, as little as can be; it can grow.
    pub(super) fn create_in(file: &File, path: PathBuf) -> io::Result<Self> {
        let region = Self::keep_addresses(Memory::File(Place::new(file, path)?))?;
        region.reserve_in(file, 0, GROWTH_BYTES)?;
        region.reserved_bytes.store(GROWTH_BYTES, Ordering::Release);
        Ok(region)
    }

    /// The memory of the file at `path`, whatever size it has; it can grow.
    pub(super) fn of_file(file: &File, path: PathBuf) -> io::Result<Self> {
        let bytes = size_of_file(file)?;
        let region = Self::keep_addresses(Memory::File(Place::new(file, path)?))?;
        if bytes > region.capacity_bytes {
            return Err(io::Error::other("the file is larger than can be mapped"));
        }
        region.map_up_to(file, bytes)?;
        Ok(region)
    }

    /// A region without memory, which can get it.
    fn keep_addresses(memory: Memory) -> io::Result<Self> {
        let mut last = io::Error::from(Errno::NOMEM);
        for capacity in CAPACITIES_BYTES {
            // Addresses of 32 bits have room for less.
            let Ok(capacity) = usize::try_from(capacity) else {
                continue;
            };
            // SAFETY: a new mapping at an address of the kernel's choice.
            let kept = unsafe {
                rustix::mm::mmap_anonymous(
                    std::ptr::null_mut(),
                    capacity,
                    ProtFlags::empty(),
                    MapFlags::PRIVATE | MapFlags::NORESERVE,
                )
            };
            match kept {
                Ok(base) => return Self::over(base, capacity, 0, memory),
                Err(errno) => last = errno.into(),
            }
        }
        Err(last)
    }

    fn over(
        base: *mut std::ffi::c_void,
        capacity_bytes: usize,
        mapped_bytes: usize,
        memory: Memory,
    ) -> io::Result<Self> {
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped nowhere"))?;
        Ok(Self {
            base,
            capacity_bytes,
            mapped_bytes: AtomicUsize::new(mapped_bytes),
            reserved_bytes: AtomicUsize::new(0),
            memory,
            #[cfg(any(test, feature = "kill-points"))]
            kill: super::kill::Kill::default(),
        })
    }

    /// Maps what a file has up to `end`. One thread at a time grows a region.
    fn map_up_to(&self, file: &File, end: usize) -> io::Result<()> {
        let mapped = self.mapped_bytes.load(Ordering::Acquire);
        // A rest that is not a multiple was not reserved by this type, and is not used.
        let end = end - end % GROWTH_BYTES;
        if end <= mapped {
            return Ok(());
        }
        assert!(end <= self.capacity_bytes, "it grows into addresses kept");
        // SAFETY: the addresses are kept for this region, and nothing uses them yet.
        unsafe {
            rustix::mm::mmap(
                self.base.as_ptr().add(mapped).cast(),
                end - mapped,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED,
                file,
                mapped as u64,
            )?;
        }
        self.mapped_bytes.store(end, Ordering::Release);
        Ok(())
    }

    /// What can be used now, in bytes.
    pub(super) fn mapped_bytes(&self) -> usize {
        self.mapped_bytes.load(Ordering::Acquire)
    }

    /// What it can grow to, in bytes.
    pub(super) const fn capacity_bytes(&self) -> usize {
        self.capacity_bytes
    }

    /// For handing memory over that has no name.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.memory {
            Memory::Memfd(memory) => memory.as_fd(),
            Memory::File(_) => unreachable!("an arena in a file is found by its name"),
        }
    }

    /// Whether it is a file's.
    pub(super) const fn is_file(&self) -> bool {
        matches!(self.memory, Memory::File(_))
    }

    fn check(&self, offset: usize, length: usize) {
        let end = offset.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= self.mapped_bytes()),
            "{length} bytes at {offset} are not in an arena of {}",
            self.mapped_bytes()
        );
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        self.check(offset, 8);
        assert!(offset.is_multiple_of(8), "a word is aligned");
        // SAFETY: inside the mapping and aligned; words are only used as atomics.
        unsafe { &*self.base.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// Reads a word, and sees all that was written before it was stored.
    pub(super) fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// Stores a word after all that was written before: this is what publishes.
    pub(super) fn store(&self, offset: usize, value: u64) {
        #[cfg(any(test, feature = "kill-points"))]
        if !self.kill.lives() {
            return;
        }
        self.word(offset).store(value, Ordering::Release);
    }

    /// Bytes to read.
    ///
    /// # Safety
    /// These bytes are not written as long as the slice is used.
    pub(super) unsafe fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        self.check(offset, length);
        // SAFETY: inside the mapping; the caller promises that they are not written.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset), length) }
    }

    /// Bytes to use in any way.
    ///
    /// # Safety
    /// Only the slice reads or writes these bytes as long as it is used.
    #[expect(
        clippy::mut_from_ref,
        reason = "the memory is shared; the caller promises exclusion"
    )]
    pub(super) unsafe fn bytes_mut(&self, offset: usize, length: usize) -> &mut [u8] {
        self.check(offset, length);
        // SAFETY: inside the mapping; the caller promises exclusion.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(offset), length) }
    }

    /// Writes bytes that are not read before a later word says that they are there.
    ///
    /// # Safety
    /// As [`Region::bytes_mut`], for the time of the call.
    pub(super) unsafe fn write(&self, offset: usize, content: &[u8]) {
        #[cfg(any(test, feature = "kill-points"))]
        let content = self.kill.part_of(content);
        // SAFETY: as the caller promises.
        unsafe { self.bytes_mut(offset, content.len()) }.copy_from_slice(content);
    }

    /// Makes sure that there is room for a range before it is written, also where it was
    /// [discarded](Region::discard).
    pub(super) fn reserve(&self, offset: usize, length: usize) -> io::Result<()> {
        match &self.memory {
            Memory::Memfd(_) => self.require_capacity(offset + length),
            Memory::File(place) => self.reserve_in(&place.open()?, offset, offset + length),
        }
    }

    /// Reserves memory for a range after all that were reserved before.
    pub(super) fn reserve_next(&self, offset: usize, length: usize) -> io::Result<()> {
        let end = offset + length;
        let place = match &self.memory {
            Memory::Memfd(_) => return self.require_capacity(end),
            Memory::File(_) if end <= self.reserved_bytes.load(Ordering::Acquire) => return Ok(()),
            Memory::File(place) => place,
        };
        let file = place.open()?;
        let ahead = end.saturating_add((end / 8).min(GROWTH_BYTES_MAX));
        let reserved = match ahead.min(self.end_max()) {
            ahead if ahead > end => self.reserve_in(&file, offset, ahead).map(|()| ahead),
            _ => Err(io::Error::from(Errno::FBIG)),
        };
        let reserved = reserved.or_else(|_| self.reserve_in(&file, offset, end).map(|()| end))?;
        self.reserved_bytes.store(reserved, Ordering::Release);
        Ok(())
    }

    fn require_capacity(&self, end: usize) -> io::Result<()> {
        if end > self.capacity_bytes {
            return Err(Errno::NOSPC.into());
        }
        Ok(())
    }

    /// How large a file may become. The limit of the process (`ulimit -f`) is looked at each time:
    /// passing it would end the process by a signal.
    fn end_max(&self) -> usize {
        let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let end = limit.min(self.capacity_bytes);
        end - end % GROWTH_BYTES
    }

    fn reserve_in(&self, file: &File, offset: usize, end: usize) -> io::Result<()> {
        self.require_capacity(end)?;
        let mapped = self.mapped_bytes();
        let grown = end.next_multiple_of(GROWTH_BYTES);
        if end > mapped {
            if grown > self.end_max() {
                return Err(Errno::FBIG.into());
            }
            rustix::fs::ftruncate(file, grown as u64)?;
        }
        // It may not be backed by memory as a whole, so the room is reserved here.
        let length = (end - offset) as u64;
        rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, offset as u64, length)?;
        self.map_up_to(file, grown)
    }

    /// Zeroes a range and gives its memory back.
    pub(super) fn discard(&self, offset: usize, length: usize) -> io::Result<()> {
        #[cfg(any(test, feature = "kill-points"))]
        if !self.kill.lives() {
            return Ok(());
        }
        self.check(offset, length);
        if let Memory::Memfd(memory) = &self.memory {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(memory, flags, offset as u64, length as u64)?;
            return Ok(());
        }
        // SAFETY: inside the mapping, and the caller is its only user.
        let removed = unsafe {
            let address = self.base.as_ptr().add(offset);
            rustix::mm::madvise(address.cast(), length, Advice::LinuxRemove)
        };
        if removed.is_err() {
            // With larger pages, or a filesystem without holes, the memory stays.
            // SAFETY: as above.
            unsafe { self.bytes_mut(offset, length) }.fill(0);
        }
        Ok(())
    }

    /// Makes sure that using a range cannot fault; where the limit of locked memory is
    /// too low, that it is in memory now.
    pub(super) fn populate(&self, offset: usize, length: usize) {
        self.check(offset, length);
        // SAFETY: inside the mapping.
        let address = unsafe { self.base.as_ptr().add(offset) };
        // SAFETY: advises and locks pages of our own mapping; contents stay.
        unsafe {
            let populate = rustix::mm::Advice::LinuxPopulateWrite;
            let _before_5_14 = rustix::mm::madvise(address.cast(), length, populate);
            let _limited = rustix::mm::mlock(address.cast(), length);
        }
    }

    #[cfg(any(test, feature = "kill-points"))]
    pub(super) const fn kill(&self) -> &super::kill::Kill {
        &self.kill
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which is not used any more.
        let unmapped =
            unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.capacity_bytes) };
        if let Err(errno) = unmapped {
            tracing::warn!(%errno, "cannot unmap the arena");
        }
    }
}

fn size_of_file(memory: impl AsFd) -> io::Result<usize> {
    let bytes = usize::try_from(rustix::fs::fstat(memory)?.st_size)
        .map_err(|_| io::Error::other("the memory is larger than can be mapped"))?;
    if bytes == 0 {
        return Err(io::Error::other("the memory is empty"));
    }
    Ok(bytes)
}
