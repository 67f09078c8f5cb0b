//! Opening files with `O_SYNC` or `O_DSYNC`.
//!
//! The C library opens the file as the program has asked, with all that this may do. If it is on a
//! steered filesystem, the descriptor is then made to stand for another open file description, without
//! those flags.

use std::ffi::{c_char, c_int, c_uint};
use std::io::Write as _;
use std::os::fd::BorrowedFd;

use rustix::fs::{Mode, OFlags, fcntl_getfl, open as open_by};
use rustix::io::{DupFlags, Errno, dup3};

use crate::descriptors::{borrowed, is_relaxed};
use crate::next::{self, Next};
use crate::state::{SavedErrno, fail};

const SYNCHRONOUS: c_int = libc::O_SYNC | libc::O_DSYNC;
/// What has been done, and is not to be done again.
const DONE: c_int = libc::O_CREAT
    | libc::O_EXCL
    | libc::O_TRUNC
    | libc::O_NOFOLLOW
    | libc::O_DIRECTORY
    | libc::O_TMPFILE;

/// The descriptor that a call has returned, without the flags if they need not be.
fn relaxed(opened: c_int, flags: c_int) -> c_int {
    if opened >= 0 && flags & SYNCHRONOUS != 0 && flags & libc::O_PATH == 0 && is_relaxed(opened) {
        let _saved = SavedErrno::new();
        if let Some(file) = borrowed(opened) {
            // Else it stays slower than it could be.
            let _done = open_again(file, opened, flags);
        }
    }
    opened
}

fn open_again(file: BorrowedFd<'_>, number: c_int, flags: c_int) -> Result<(), Errno> {
    let has_flags = fcntl_getfl(file)?.bits() & SYNCHRONOUS as c_uint != 0;
    if !has_flags {
        // The supervisor has done it.
        return Ok(());
    }
    let mut path = [0; 32];
    write!(&mut path[..31], "/proc/self/fd/{number}").map_err(|_| Errno::NAMETOOLONG)?;
    let path = std::ffi::CStr::from_bytes_until_nul(&path).map_err(|_| Errno::NAMETOOLONG)?;
    let again = flags & !(SYNCHRONOUS | DONE);
    let again = OFlags::from_bits_retain(again as c_uint) | OFlags::CLOEXEC | OFlags::NOCTTY;
    let new = open_by(path, again, Mode::empty())?;
    let dup = if flags & libc::O_CLOEXEC == 0 {
        DupFlags::empty()
    } else {
        DupFlags::CLOEXEC
    };
    // SAFETY: the program learns the number when this call returns; the value is given back below.
    let mut same = unsafe { std::os::fd::FromRawFd::from_raw_fd(number) };
    let result = dup3(&new, &mut same, dup);
    let _number = std::os::fd::IntoRawFd::into_raw_fd(same);
    result
}

type Open = unsafe extern "C" fn(*const c_char, c_int, c_uint) -> c_int;
type OpenAt = unsafe extern "C" fn(c_int, *const c_char, c_int, c_uint) -> c_int;
type OpenChecked = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
type OpenAtChecked = unsafe extern "C" fn(c_int, *const c_char, c_int) -> c_int;

unsafe fn open_with(next: &Next, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the signature of the functions that this is called with; C passes an optional mode
    // where it passes one that is declared.
    match unsafe { next.get::<Open>() } {
        // SAFETY: a call of the program.
        Some(function) => relaxed(unsafe { function(path, flags, mode) }, flags),
        None => fail(Errno::NOSYS),
    }
}

unsafe fn open_at_with(
    next: &Next,
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mode: c_uint,
) -> c_int {
    // SAFETY: as above.
    match unsafe { next.get::<OpenAt>() } {
        // SAFETY: a call of the program.
        Some(function) => relaxed(unsafe { function(directory, path, flags, mode) }, flags),
        None => fail(Errno::NOSYS),
    }
}

unsafe fn open_checked(next: &Next, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: the signature of the functions that this is called with.
    match unsafe { next.get::<OpenChecked>() } {
        // SAFETY: a call of the program.
        Some(function) => relaxed(unsafe { function(path, flags) }, flags),
        None => fail(Errno::NOSYS),
    }
}

unsafe fn open_at_checked(
    next: &Next,
    directory: c_int,
    path: *const c_char,
    flags: c_int,
) -> c_int {
    // SAFETY: the signature of the functions that this is called with.
    match unsafe { next.get::<OpenAtChecked>() } {
        // SAFETY: a call of the program.
        Some(function) => relaxed(unsafe { function(directory, path, flags) }, flags),
        None => fail(Errno::NOSYS),
    }
}

macro_rules! open_functions {
    ($($name:ident by $next:ident),*) => {
        $(
            /// As in POSIX.
            ///
            /// # Safety
            /// As in POSIX.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
                // SAFETY: the caller's.
                unsafe { open_with(&next::$next, path, flags, mode) }
            }
        )*
    };
}

macro_rules! open_at_functions {
    ($($name:ident by $next:ident),*) => {
        $(
            /// As in POSIX.
            ///
            /// # Safety
            /// As in POSIX.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                directory: c_int,
                path: *const c_char,
                flags: c_int,
                mode: c_uint,
            ) -> c_int {
                // SAFETY: the caller's.
                unsafe { open_at_with(&next::$next, directory, path, flags, mode) }
            }
        )*
    };
}

macro_rules! checked_functions {
    ($($name:ident by $next:ident, $at_name:ident by $at_next:ident);*) => {
        $(
            /// What compilers make of `open` without a mode.
            ///
            /// # Safety
            /// As in POSIX.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int) -> c_int {
                // SAFETY: the caller's.
                unsafe { open_checked(&next::$next, path, flags) }
            }

            /// What compilers make of `openat` without a mode.
            ///
            /// # Safety
            /// As in POSIX.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $at_name(
                directory: c_int,
                path: *const c_char,
                flags: c_int,
            ) -> c_int {
                // SAFETY: the caller's.
                unsafe { open_at_checked(&next::$at_next, directory, path, flags) }
            }
        )*
    };
}

open_functions!(open by OPEN, open64 by OPEN64);
open_at_functions!(openat by OPENAT, openat64 by OPENAT64);
checked_functions!(
    __open_2 by OPEN_CHECKED, __openat_2 by OPENAT_CHECKED;
    __open64_2 by OPEN64_CHECKED, __openat64_2 by OPENAT64_CHECKED
);
