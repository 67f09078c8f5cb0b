//! Locks of open file descriptions, which libraries do not wrap.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd as _};

use rustix::io::Errno;

fn whole_file(kind: libc::c_int) -> libc::flock {
    // SAFETY: a structure of numbers, for which zeros are values: from the start to the end.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}

fn ask(file: impl AsFd, command: libc::c_int, lock: &mut libc::flock) -> Result<(), Errno> {
    // SAFETY: the descriptor is open and the structure a local variable of the caller, which the
    // kernel may change.
    let answer = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, &raw mut *lock) };
    if answer == 0 {
        Ok(())
    } else {
        Err(last_error())
    }
}

pub(crate) fn last_error() -> Errno {
    // SAFETY: the C library gives each thread a place for its error.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

/// Waits for the lock; it goes with the last descriptor of the open file description.
pub(crate) fn lock(file: impl AsFd) -> Result<(), Errno> {
    loop {
        match ask(&file, libc::F_OFD_SETLKW, &mut whole_file(libc::F_WRLCK)) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Whether an open file description has the file locked for writing.
pub(crate) fn is_locked(file: impl AsFd) -> bool {
    let mut found = whole_file(libc::F_RDLCK);
    ask(file, libc::F_OFD_GETLK, &mut found).is_ok()
        && libc::c_int::from(found.l_type) == libc::F_WRLCK
}

fn byte(kind: libc::c_int, at: i64) -> libc::flock {
    let mut lock = whole_file(kind);
    lock.l_start = at as libc::off_t;
    lock.l_len = 1;
    lock
}

/// Takes the lock of one byte, which others may take as well. It works on directories, too.
pub(crate) fn share_byte(file: impl AsFd, at: i64) -> Result<(), Errno> {
    ask(file, libc::F_OFD_SETLK, &mut byte(libc::F_RDLCK, at))
}

/// Whether another open file description has the lock of one byte.
pub(crate) fn is_byte_locked(file: impl AsFd, at: i64) -> bool {
    let mut found = byte(libc::F_WRLCK, at);
    ask(file, libc::F_OFD_GETLK, &mut found).is_ok()
        && libc::c_int::from(found.l_type) != libc::F_UNLCK
}
