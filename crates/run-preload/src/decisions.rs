//! What the library knows, set when it is loaded.

use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use mobifs_steered::{Decisions, Directory};
use rustix::io::Errno;

use crate::{mappings, next};

/// Set by `mobifs run --unsafe`.
const UNSAFE_ENVIRONMENT: &str = "MOBIFS_RUN_UNSAFE";

/// Until the library is set up, which may be after the first call.
static STANDARD: Decisions = Decisions::by(Directory::standard());
static UNSAFE: Decisions = Decisions::for_all();
static CHOSEN: AtomicPtr<Decisions> = AtomicPtr::new(null_mut());

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = set_up;

extern "C" fn set_up() {
    next::find_all();
    mappings::set_up();
    let is_unsafe = std::env::var_os(UNSAFE_ENVIRONMENT).is_some_and(|value| value == "1");
    let chosen: &'static Decisions = if is_unsafe {
        &UNSAFE
    } else if std::env::var_os(mobifs_steered::ENVIRONMENT).is_some() {
        Box::leak(Box::new(Decisions::by(Directory::from_environment())))
    } else {
        &STANDARD
    };
    CHOSEN.store(from_ref(chosen).cast_mut(), Ordering::Release);
}

pub(crate) fn decisions() -> &'static Decisions {
    let chosen = CHOSEN.load(Ordering::Acquire);
    // SAFETY: the pointer is null or of a value that is never dropped.
    unsafe { chosen.as_ref() }.unwrap_or(&STANDARD)
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
