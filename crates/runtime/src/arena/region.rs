//! Memory that outlives the process: a memfd or a file, mapped.
//!
//! All unsafe code of the arena is here, and in the few calls that say which bytes are
//! whose.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// A mapped memfd or file. Offsets are bytes from its start.
#[derive(Debug)]
pub(super) struct Region {
    base: NonNull<u8>,
    bytes: usize,
    memory: OwnedFd,
    /// Memory must be asked for before it is written: it is a file's, and writing where its
    /// filesystem has no room would kill the process.
    is_file: bool,
    #[cfg(any(test, feature = "kill-points"))]
    kill: super::kill::Kill,
}

// SAFETY: the mapping belongs to the region and lives as long as it does; words are
// atomic, and who uses other bytes promises exclusion (`bytes`, `bytes_mut`).
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// New memory of this size, all zeros. It takes room only where it is written.
    pub(super) fn create(bytes: usize) -> io::Result<Self> {
        let memory = rustix::fs::memfd_create("mobifs-arena", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&memory, bytes as u64)?;
        Self::map(memory, bytes, false)
    }

    /// As [`Region::create`], in an empty file.
    pub(super) fn create_in(file: OwnedFd, bytes: usize) -> io::Result<Self> {
        rustix::fs::ftruncate(&file, bytes as u64)?;
        Self::map(file, bytes, true)
    }

    /// Memory that somebody made before.
    pub(super) fn attach(memory: OwnedFd, is_file: bool) -> io::Result<Self> {
        let bytes = usize::try_from(rustix::fs::fstat(&memory)?.st_size)
            .map_err(|_| io::Error::other("the memory is larger than can be mapped"))?;
        Self::map(memory, bytes, is_file)
    }

    fn map(memory: OwnedFd, bytes: usize, is_file: bool) -> io::Result<Self> {
        if bytes == 0 {
            return Err(io::Error::other("the memory is empty"));
        }
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
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped nowhere"))?;
        Ok(Self {
            base,
            bytes,
            memory,
            is_file,
            #[cfg(any(test, feature = "kill-points"))]
            kill: super::kill::Kill::default(),
        })
    }

    pub(super) const fn size_bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    fn check(&self, offset: usize, length: usize) {
        let end = offset.checked_add(length);
        assert!(
            end.is_some_and(|end| end <= self.bytes),
            "{length} bytes at {offset} are not in an arena of {}",
            self.bytes
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

    /// Stores a word behind all that was written before: this is what publishes.
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
    /// Nobody writes these bytes as long as the slice is used.
    pub(super) unsafe fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        self.check(offset, length);
        // SAFETY: inside the mapping; the caller promises that nobody writes.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset), length) }
    }

    /// Bytes to use in any way.
    ///
    /// # Safety
    /// Nobody else reads or writes these bytes as long as the slice is used.
    #[expect(
        clippy::mut_from_ref,
        reason = "the memory is shared; who calls promises exclusion"
    )]
    pub(super) unsafe fn bytes_mut(&self, offset: usize, length: usize) -> &mut [u8] {
        self.check(offset, length);
        // SAFETY: inside the mapping; the caller promises exclusion.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(offset), length) }
    }

    /// Writes bytes that nobody looks at before a later word says that they are there.
    ///
    /// # Safety
    /// As [`Region::bytes_mut`], for the time of the call.
    pub(super) unsafe fn write(&self, offset: usize, content: &[u8]) {
        #[cfg(any(test, feature = "kill-points"))]
        let content = self.kill.part_of(content);
        // SAFETY: as the caller promises.
        unsafe { self.bytes_mut(offset, content.len()) }.copy_from_slice(content);
    }

    /// Makes sure that there is room for a range before it is written.
    pub(super) fn reserve(&self, offset: usize, length: usize) -> io::Result<()> {
        self.check(offset, length);
        if self.is_file {
            let flags = FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(&self.memory, flags, offset as u64, length as u64)?;
        }
        Ok(())
    }

    /// Zeroes a range and gives its memory back.
    pub(super) fn discard(&self, offset: usize, length: usize) -> io::Result<()> {
        #[cfg(any(test, feature = "kill-points"))]
        if !self.kill.lives() {
            return Ok(());
        }
        self.check(offset, length);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.memory, flags, offset as u64, length as u64)?;
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
        // SAFETY: our own mapping, which nobody uses any more.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        if let Err(errno) = unmapped {
            tracing::warn!(%errno, "the arena stays mapped");
        }
    }
}
