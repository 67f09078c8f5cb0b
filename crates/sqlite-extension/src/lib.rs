//! The MobiFS VFS for SQLite, as SQLite loads it: `.load mobifs`,
//! `SELECT load_extension('mobifs')`, or linked with a C program (`include/mobifs.h`).

use std::ffi::{c_char, c_int, c_void};

use mobifs_sqlite::{Host, forget_last_error, last_error, load_extension, register_with};

/// Entry point: makes the VFS `mobifs` known, and the function `mobifs_last_error()`.
///
/// # Safety
/// SQLite calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_mobifs_init(
    connection: *mut c_void,
    message: *mut *mut c_char,
    routines: *const c_void,
) -> c_int {
    // SAFETY: SQLite's own arguments.
    unsafe { load_extension(connection, message, routines, false) }
}

/// Entry point: the same, and every database that is opened from now on without the name of
/// a VFS is opened through `mobifs`.
///
/// # Safety
/// SQLite calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_mobifs_default_init(
    connection: *mut c_void,
    message: *mut *mut c_char,
    routines: *const c_void,
) -> c_int {
    // SAFETY: SQLite's own arguments.
    unsafe { load_extension(connection, message, routines, true) }
}

/// For C programs that link SQLite and this library: registers the VFS with that SQLite,
/// and makes it the default one if `make_default` is not 0. Returns 0, or 1 if SQLite is too
/// old or refuses.
///
/// # Safety
/// `host` is what `mobifs.h` builds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mobifs_register_with(host: *const Host, make_default: c_int) -> c_int {
    // SAFETY: the caller's.
    let host = unsafe { host.read() };
    c_int::from(register_with(host, make_default != 0).is_err())
}

/// What went wrong last in a call of SQLite's from this thread, in words. Writes it to `out` as
/// a C string, cut to `room` bytes with its end, and returns its whole length in bytes without
/// the end; 0 if nothing has gone wrong.
///
/// # Safety
/// `out` has `room` bytes; it may be null if `room` is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mobifs_last_error(out: *mut c_char, room: usize) -> usize {
    let message = last_error().unwrap_or_default();
    if let Some(text_room) = room.checked_sub(1) {
        let mut length = text_room.min(message.len());
        while !message.is_char_boundary(length) {
            length -= 1;
        }
        // SAFETY: the caller's: the text and its end fit.
        unsafe {
            out.cast::<u8>()
                .copy_from_nonoverlapping(message.as_ptr(), length);
            out.add(length).write(0);
        }
    }
    message.len()
}

/// Clears that error, so that after the next call `mobifs_last_error` returns the error of that
/// call or none.
#[unsafe(no_mangle)]
pub extern "C" fn mobifs_forget_last_error() {
    forget_last_error();
}
