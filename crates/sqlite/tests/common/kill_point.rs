//! Ends this process at a chosen instant of SQLite's work: before or after one of its calls that
//! open or delete a file. A kill after a random time nearly never comes between the few calls with
//! which a transaction over several databases commits.
#![allow(unsafe_code, reason = "SQLite's C interface")]

use std::ffi::{c_char, c_int};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::ffi::{sqlite3_file, sqlite3_vfs, sqlite3_vfs_find};

type Open = unsafe extern "C" fn(
    *mut sqlite3_vfs,
    *const c_char,
    *mut sqlite3_file,
    c_int,
    *mut c_int,
) -> c_int;
type Delete = unsafe extern "C" fn(*mut sqlite3_vfs, *const c_char, c_int) -> c_int;

/// Instants until the end; 0: none was chosen.
static LEFT: AtomicU64 = AtomicU64::new(0);
static METHODS: OnceLock<(Open, Delete)> = OnceLock::new();

fn instant() {
    let passed = LEFT.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
        left.checked_sub(1)
    });
    if passed == Ok(1) {
        std::process::abort();
    }
}

unsafe extern "C" fn open(
    vfs: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    instant();
    // SAFETY: SQLite's own arguments, to the method that was there.
    let code = unsafe { METHODS.get().unwrap().0(vfs, name, file, flags, out_flags) };
    instant();
    code
}

unsafe extern "C" fn delete(vfs: *mut sqlite3_vfs, name: *const c_char, sync: c_int) -> c_int {
    instant();
    // SAFETY: as above.
    let code = unsafe { METHODS.get().unwrap().1(vfs, name, sync) };
    instant();
    code
}

/// The process ends at the instant of this number, from 1 on; 0: it does not.
pub fn end_at(number: u64) {
    METHODS.get_or_init(|| {
        // SAFETY: the VFS is registered, and no other thread uses it yet.
        unsafe {
            let vfs = sqlite3_vfs_find(c"mobifs".as_ptr());
            let methods = ((*vfs).xOpen.unwrap(), (*vfs).xDelete.unwrap());
            (*vfs).xOpen = Some(open);
            (*vfs).xDelete = Some(delete);
            methods
        }
    });
    LEFT.store(number, Ordering::SeqCst);
}
