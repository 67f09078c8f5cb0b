//! Calls that make durable what was written.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::BorrowedFd;

use mobifs_steered::MappedFiles;
use rustix::io::Errno;

use crate::call::{SavedErrno, borrowed, cancellation_point, fail, uninterrupted};
use crate::decisions::decisions;
use crate::mappings::may_store;
use crate::next::{self, Next};

const MOUNT_TABLE: &std::ffi::CStr = c"/proc/self/mountinfo";
const DURABLE_WRITE: c_int = libc::RWF_DSYNC | libc::RWF_SYNC;
const RANGE_FLAGS: c_uint = 7;

/// What a call for durability answers at once, if it does.
fn answer(number: c_int) -> Option<c_int> {
    answer_by(number, |file| decisions().answer(file, MOUNT_TABLE))
}

/// The answer to a call that is about the whole filesystem.
fn answer_whole(number: c_int) -> Option<c_int> {
    answer_by(number, |file| decisions().answer_whole(file, MOUNT_TABLE))
}

fn answer_by(
    number: c_int,
    decide: impl FnOnce(BorrowedFd<'_>) -> Option<Result<(), Errno>>,
) -> Option<c_int> {
    let saved = SavedErrno::new();
    if may_store() {
        return None;
    }
    let answer = decide(borrowed(number)?)?;
    drop(saved);
    Some(answer.map_or_else(fail, |()| 0))
}

/// Whether what is written to a descriptor need not be durable at once.
pub(crate) fn is_relaxed(number: c_int) -> bool {
    let _saved = SavedErrno::new();
    !may_store() && borrowed(number).is_some_and(|file| decisions().is_relaxed(file, MOUNT_TABLE))
}

fn sync_descriptor(number: c_int, answer: Option<c_int>, next: &Next) -> c_int {
    if let Some(answer) = answer {
        cancellation_point();
        return answer;
    }
    // SAFETY: the three functions that this is called with have this signature.
    match unsafe { next.get::<unsafe extern "C" fn(c_int) -> c_int>() } {
        // SAFETY: a call of the program.
        Some(function) => uninterrupted(|| unsafe { function(number) }),
        None => fail(Errno::NOSYS),
    }
}

/// As in POSIX.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fsync(number: c_int) -> c_int {
    sync_descriptor(number, answer(number), &next::FSYNC)
}

/// As in POSIX.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fdatasync(number: c_int) -> c_int {
    sync_descriptor(number, answer(number), &next::FDATASYNC)
}

/// As in Linux.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn syncfs(number: c_int) -> c_int {
    sync_descriptor(number, answer_whole(number), &next::SYNCFS)
}

/// As in POSIX; the supervisor passes over filesystems that are steered.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sync() {
    if decisions().is_unsafe() {
        return;
    }
    // SAFETY: a call of the program. Not the C library's function, which cannot say that it failed.
    let done = unsafe { libc::syscall(libc::SYS_sync) };
    if done != 0 {
        const MESSAGE: &[u8] = b"mobifs run: the supervisor was killed, so sync cannot be made\n";
        // SAFETY: the message is as long; a signal that ends the process concerns no memory.
        unsafe {
            libc::write(2, MESSAGE.as_ptr().cast(), MESSAGE.len());
            libc::raise(libc::SIGSYS);
        }
    }
}

/// As in Linux.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sync_file_range(
    number: c_int,
    offset: i64,
    bytes: i64,
    flags: c_uint,
) -> c_int {
    let is_valid = flags & !RANGE_FLAGS == 0
        && offset >= 0
        && bytes >= 0
        && offset.checked_add(bytes).is_some();
    if let Some(answer) = is_valid.then(|| answer(number)).flatten() {
        cancellation_point();
        return answer;
    }
    type Function = unsafe extern "C" fn(c_int, i64, i64, c_uint) -> c_int;
    // SAFETY: the function's signature.
    match unsafe { next::SYNC_FILE_RANGE.get::<Function>() } {
        // SAFETY: a call of the program.
        Some(function) => uninterrupted(|| unsafe { function(number, offset, bytes, flags) }),
        None => fail(Errno::NOSYS),
    }
}

/// As in POSIX.
///
/// # Safety
/// As in POSIX.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn msync(address: *mut c_void, bytes: usize, flags: c_int) -> c_int {
    if flags == libc::MS_SYNC && is_range_relaxed(address as u64, bytes as u64) {
        cancellation_point();
        return 0;
    }
    type Function = unsafe extern "C" fn(*mut c_void, usize, c_int) -> c_int;
    // SAFETY: the function's signature.
    match unsafe { next::MSYNC.get::<Function>() } {
        // SAFETY: a call of the program.
        Some(function) => uninterrupted(|| unsafe { function(address, bytes, flags) }),
        None => fail(Errno::NOSYS),
    }
}

fn is_range_relaxed(address: u64, bytes: u64) -> bool {
    let _saved = SavedErrno::new();
    let page = rustix::param::page_size() as u64;
    let end = address
        .checked_add(bytes)
        .and_then(|end| end.checked_next_multiple_of(page));
    let Some(end) = end.filter(|_| bytes > 0 && address.is_multiple_of(page)) else {
        return false;
    };
    let mapped = MappedFiles::own();
    mapped.is_ok_and(|mapped| decisions().are_relaxed(&mapped, &(address..end)))
}

/// The flags of a write, without what makes it durable if it need not be.
fn flags_of(number: c_int, flags: c_int) -> c_int {
    if flags & DURABLE_WRITE != 0 && is_relaxed(number) {
        flags & !DURABLE_WRITE
    } else {
        flags
    }
}

/// As in glibc.
///
/// # Safety
/// As in glibc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev2(
    number: c_int,
    vector: *const libc::iovec,
    count: c_int,
    offset: libc::off_t,
    flags: c_int,
) -> isize {
    type Function =
        unsafe extern "C" fn(c_int, *const libc::iovec, c_int, libc::off_t, c_int) -> isize;
    // SAFETY: the function's signature.
    match unsafe { next::PWRITEV2.get::<Function>() } {
        // SAFETY: a call of the program.
        Some(function) => unsafe {
            function(number, vector, count, offset, flags_of(number, flags))
        },
        None => fail(Errno::NOSYS) as isize,
    }
}

/// As in glibc.
///
/// # Safety
/// As in glibc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev64v2(
    number: c_int,
    vector: *const libc::iovec,
    count: c_int,
    offset: i64,
    flags: c_int,
) -> isize {
    type Function = unsafe extern "C" fn(c_int, *const libc::iovec, c_int, i64, c_int) -> isize;
    // SAFETY: the function's signature.
    match unsafe { next::PWRITEV64V2.get::<Function>() } {
        // SAFETY: a call of the program.
        Some(function) => unsafe {
            function(number, vector, count, offset, flags_of(number, flags))
        },
        None => fail(Errno::NOSYS) as isize,
    }
}
