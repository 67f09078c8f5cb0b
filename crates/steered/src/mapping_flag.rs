//! A flag that the supervisor shows to the library in the programs that it supervises: one of them has
//! mapped a file that it can write.
//!
//! The library knows of mappings that are made through the C library only. The supervisor sees all of
//! them, and sets the flag before a mapping is there. It lies in memory that only the supervisor has
//! open; the library finds it in `/proc` by an address in its environment, with a number that tells it
//! from what another process may have under that name.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{MemfdFlags, Mode, OFlags, fstat, ftruncate, memfd_create, open};
use rustix::io::{Errno, pwrite};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The environment variable with the address.
pub const MAPPING_FLAG_ENVIRONMENT: &str = "MOBIFS_RUN_MAPPINGS";

#[derive(Debug)]
#[repr(C)]
struct Page {
    token: [u8; TOKEN_BYTES],
    is_set: AtomicU32,
}

const TOKEN_BYTES: usize = 16;
const BYTES: usize = size_of::<Page>();

/// The flag, mapped.
#[derive(Debug)]
pub struct MappingFlag {
    page: NonNull<Page>,
}

// SAFETY: what changes in the mapping is an atomic word.
unsafe impl Send for MappingFlag {}
// SAFETY: as above.
unsafe impl Sync for MappingFlag {}

impl MappingFlag {
    /// A new one that is not set, and its address, for as long as this process has what is returned.
    ///
    /// # Errors
    /// There is no memory, or no descriptor, for it.
    pub fn create() -> Result<(Self, OwnedFd, String), Errno> {
        let mut token = [0; TOKEN_BYTES];
        let random = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut token));
        random.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let file = memfd_create("mobifs-run", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, BYTES as u64)?;
        pwrite(&file, &token, 0)?;
        let flag = Self::map(file.as_fd(), ProtFlags::READ | ProtFlags::WRITE)?;
        let token = token.iter().map(|byte| format!("{byte:02x}"));
        let token: String = token.collect();
        let address = format!(
            "/proc/{}/fd/{}:{token}",
            std::process::id(),
            file.as_raw_fd()
        );
        Ok((flag, file, address))
    }

    /// The one at an address; `None` if it cannot be seen from here.
    pub fn open(address: &str) -> Option<Self> {
        let (path, token) = address.rsplit_once(':')?;
        let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        if fstat(&file).ok()?.st_size != BYTES as i64 {
            return None;
        }
        let flag = Self::map(file.as_fd(), ProtFlags::READ).ok()?;
        let shown = flag.page().token.iter().flat_map(|byte| {
            [byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)])
        });
        shown.eq(token.bytes()).then_some(flag)
    }

    fn map(file: BorrowedFd<'_>, protection: ProtFlags) -> Result<Self, Errno> {
        // SAFETY: a new mapping, where the kernel finds room; the file is as long as a page of this
        // type, and only its maker changes its length.
        let start = unsafe { mmap(null_mut(), BYTES, protection, MapFlags::SHARED, file, 0) }?;
        let page = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { page })
    }

    fn page(&self) -> &Page {
        // SAFETY: the mapping lives as long as this value, is aligned to pages, and any bytes are one;
        // the word that changes is an atomic one.
        unsafe { self.page.as_ref() }
    }

    /// Sets it, for good. Only of one that was [created](Self::create) here.
    pub fn set(&self) {
        self.page().is_set.store(1, Ordering::Release);
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        self.page().is_set.load(Ordering::Acquire) != 0
    }
}

impl Drop for MappingFlag {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no reference outlives it.
        let _gone = unsafe { munmap(self.page.as_ptr().cast(), BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_seen_where_its_address_is_known() {
        let (flag, file, address) = MappingFlag::create().unwrap();
        let seen = MappingFlag::open(&address).unwrap();
        assert!(!seen.is_set());
        flag.set();
        assert!(seen.is_set() && flag.is_set());
        let (path, _) = address.rsplit_once(':').unwrap();
        let wrong = "0".repeat(2 * TOKEN_BYTES);
        for other in [
            "",
            "/proc",
            &format!("{path}:{wrong}"),
            &format!("/dev/null:{wrong}"),
        ] {
            assert!(MappingFlag::open(other).is_none(), "{other}");
        }
        drop(file);
        assert!(MappingFlag::open(&address).is_none());
        assert!(seen.is_set(), "what is mapped stays");
    }
}
