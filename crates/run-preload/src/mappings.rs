//! Mappings by which the program changes files.
//!
//! Stores into them need calls for durability that wait (`Decisions::may_store` says why). Looking for
//! such mappings at each call would take longer than the call, so that is done only by processes that
//! have mapped a file which they can write, as few do, and by all once the supervisor has seen one do so.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd as _;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use mobifs_steered::{MAPPING_FLAG_ENVIRONMENT, MappedFiles, MappingFlag, is_order_kept};
use rustix::fs::{OFlags, fcntl_getfl, readlinkat_raw};
use rustix::io::Errno;

use crate::call::{SavedErrno, borrowed, fail};
use crate::decisions::decisions;

/// `MAP_SHARED`, and the bit that `MAP_SHARED_VALIDATE` has as well.
const SHARED: c_int = libc::MAP_SHARED;
const NAME_BYTES_MAX: usize = 4096;

/// The process has mapped a file that it can write. A child that it forks knows that, too.
static HAS_MAPPED: AtomicBool = AtomicBool::new(false);

/// The supervisor's flag, which tells of mappings that are made by direct system calls.
static FLAG: AtomicPtr<MappingFlag> = AtomicPtr::new(null_mut());

/// Finds the supervisor's flag, if there is a supervisor. Where the flag cannot be seen, as in another
/// root or by another user, each call looks for mappings.
pub(crate) fn set_up() {
    let Some(address) = std::env::var_os(MAPPING_FLAG_ENVIRONMENT) else {
        return;
    };
    match address.to_str().and_then(MappingFlag::open) {
        Some(flag) => FLAG.store(Box::leak(Box::new(flag)), Ordering::Release),
        None => HAS_MAPPED.store(true, Ordering::Release),
    }
}

/// Whether the process can change files of steered filesystems by storing into memory.
pub(crate) fn may_store() -> bool {
    // SAFETY: the pointer is null or of a value that is never dropped.
    let flag = unsafe { FLAG.load(Ordering::Acquire).as_ref() };
    let may_have = HAS_MAPPED.load(Ordering::Acquire) || flag.is_some_and(MappingFlag::is_set);
    may_have && decisions().may_store(MappedFiles::own())
}

/// Whether what is mapped so may change a file whose order matters. Protection is not looked at: it
/// can change later.
fn may_change_file(flags: c_int, number: c_int) -> bool {
    if flags & SHARED == 0 || flags & libc::MAP_ANONYMOUS != 0 {
        return false;
    }
    let Some(file) = borrowed(number) else {
        return false;
    };
    let Ok(access) = fcntl_getfl(file) else {
        return false;
    };
    if access & OFlags::RWMODE == OFlags::RDONLY {
        return false;
    }
    let mut room = [0_u8; NAME_BYTES_MAX];
    let mut link = [0_u8; 32];
    let length = link_of(file.as_raw_fd(), &mut link)
        .and_then(|link| readlinkat_raw(rustix::fs::CWD, link, &mut room[..]).ok());
    let name = length.and_then(|length| room.get(..length));
    name.is_none_or(is_order_kept)
}

/// `/proc/self/fd/NUMBER`, without memory of its own.
fn link_of(number: c_int, room: &mut [u8; 32]) -> Option<&std::ffi::CStr> {
    use std::io::Write as _;
    let mut rest = &mut room[..];
    write!(rest, "/proc/self/fd/{number}\0").ok()?;
    std::ffi::CStr::from_bytes_until_nul(room).ok()
}

/// To be called before a mapping is there: another thread may store into it at once.
fn note(flags: c_int, number: c_int) {
    let _saved = SavedErrno::new();
    if !HAS_MAPPED.load(Ordering::Acquire) && may_change_file(flags, number) {
        HAS_MAPPED.store(true, Ordering::Release);
    }
}

/// The system call, and not the C library's function, for which the loader would have to be asked:
/// allocators call `mmap` before anything can be.
///
/// # Safety
/// As of mmap(2): with `MAP_FIXED` the range must belong to the caller.
unsafe fn map(
    address: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    number: c_int,
    offset: i64,
) -> *mut c_void {
    note(flags, number);
    let Some((call, offset)) = call_with(offset) else {
        fail(Errno::INVAL);
        return libc::MAP_FAILED;
    };
    let before = SavedErrno::new();
    loop {
        // SAFETY: a call of the program.
        let answer =
            unsafe { libc::syscall(call, address, bytes, protection, flags, number, offset) };
        // SAFETY: the C library gives each thread a place for it.
        let is_interrupted = answer == -1 && unsafe { *libc::__errno_location() } == libc::EINTR;
        // No signal ends this call but on the way to the supervisor, before it is carried out.
        if is_interrupted {
            continue;
        }
        if answer == -1 {
            std::mem::forget(before);
        }
        return std::ptr::with_exposed_provenance_mut(answer as usize);
    }
}

#[cfg(target_pointer_width = "64")]
const fn call_with(offset: i64) -> Option<(libc::c_long, libc::c_long)> {
    Some((libc::SYS_mmap, offset))
}

/// `mmap2` counts in units of 4096 bytes.
#[cfg(target_pointer_width = "32")]
fn call_with(offset: i64) -> Option<(libc::c_long, libc::c_long)> {
    const UNIT: i64 = 4096;
    let unit = u32::try_from(offset / UNIT).ok()?;
    (offset % UNIT == 0).then_some((libc::SYS_mmap2, unit as libc::c_long))
}

/// As in POSIX.
///
/// # Safety
/// As in POSIX.
#[allow(
    clippy::useless_conversion,
    reason = "off_t is shorter on 32-bit machines"
)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    number: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { map(address, bytes, protection, flags, number, offset.into()) }
}

/// As in glibc.
///
/// # Safety
/// As in POSIX.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    number: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the caller's.
    unsafe { map(address, bytes, protection, flags, number, offset) }
}
