//! What the calls of programs have in common: descriptors, and errors as functions of the C library report them.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;

/// A descriptor that a program has passed.
pub(crate) fn borrowed(number: c_int) -> Option<BorrowedFd<'static>> {
    // SAFETY: the program says that it is open for the time of the call; if it is not, the kernel
    // refuses each use.
    (number >= 0).then(|| unsafe { BorrowedFd::borrow_raw(number) })
}

/// The calling thread's errno, which calls that succeed leave as it was.
pub(crate) struct SavedErrno(libc::c_int);

impl SavedErrno {
    pub(crate) fn new() -> Self {
        // SAFETY: the C library gives each thread a place for it.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for SavedErrno {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// Fails as functions of the C library do.
pub(crate) fn fail(error: Errno) -> libc::c_int {
    // SAFETY: the C library gives each thread a place for it.
    unsafe { *libc::__errno_location() = error.raw_os_error() };
    -1
}

/// Makes a call until no signal ends it.
///
/// On local filesystems a signal never ends these calls, and programs do not expect it. It does so on the
/// way to the supervisor, before the call is carried out, if its handler was installed without `SA_RESTART`.
pub(crate) fn uninterrupted(call: impl Fn() -> libc::c_int) -> libc::c_int {
    let before = SavedErrno::new();
    loop {
        let answer = call();
        // SAFETY: the C library gives each thread a place for it.
        let is_interrupted = answer < 0 && unsafe { *libc::__errno_location() } == libc::EINTR;
        if is_interrupted {
            continue;
        }
        if answer < 0 {
            std::mem::forget(before);
        }
        return answer;
    }
}

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// A call that returns at once is a point where the thread can be cancelled, as the call is that it stands for. Callers
/// hold nothing that is to be dropped.
pub(crate) fn cancellation_point() {
    // SAFETY: functions of the library that a thread leaves by this have the ABI "C-unwind".
    unsafe { pthread_testcancel() };
}
