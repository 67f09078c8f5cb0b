//! A record in memory that the file's writer changes.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::record::{RECORD_BYTES, Record};

/// A mapping of one record.
#[derive(Debug)]
pub(crate) struct MappedRecord {
    record: NonNull<Record>,
}

// SAFETY: the mapping is read only, and what changes in it is an atomic word.
unsafe impl Send for MappedRecord {}
// SAFETY: as above.
unsafe impl Sync for MappedRecord {}

impl MappedRecord {
    /// Maps the record at the start of a file that has one, and that nothing truncates.
    pub(crate) fn new(file: BorrowedFd<'_>) -> Result<Self, Errno> {
        // SAFETY: a new mapping, where the kernel finds room; the file is as long as a record, as
        // the caller has checked, and stays so, as it belongs to a daemon that this process trusts.
        let start = unsafe {
            mmap(
                null_mut(),
                RECORD_BYTES,
                ProtFlags::READ,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        let record = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { record })
    }

    pub(crate) fn get(&self) -> &Record {
        // SAFETY: the mapping lives as long as this value, is aligned to pages, and any bytes are a
        // record; the word that changes is an atomic one.
        unsafe { self.record.as_ref() }
    }

    /// Keeps the mapping for as long as the process lives.
    pub(crate) fn leak(self) -> &'static Record {
        let record = self.record;
        std::mem::forget(self);
        // SAFETY: as in `get`; nothing takes the mapping away any more.
        unsafe { record.as_ref() }
    }
}

impl Drop for MappedRecord {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no reference outlives it.
        let _gone = unsafe { munmap(self.record.as_ptr().cast(), RECORD_BYTES) };
    }
}
