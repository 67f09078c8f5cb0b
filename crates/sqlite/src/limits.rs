//! The process's limit of file sizes (`ulimit -f`): the VFS keeps its own files within it, and
//! never has the process ended by the signal that passing it brings.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{Resource, getrlimit};

/// With a limit below this the database is left to SQLite's own VFS: a transaction, and what the
/// store writes for it, could not be kept within it. Twice the smallest memory budget.
pub(crate) const FILE_BYTES_MIN: u64 = 8 << 20;

/// A limit was found when a database was opened.
static IS_LIMITED: AtomicBool = AtomicBool::new(false);

/// The limit now; none if there is none.
pub(crate) fn file_bytes_max() -> Option<u64> {
    let limit = getrlimit(Resource::Fsize).current;
    if limit.is_some() {
        IS_LIMITED.store(true, Ordering::Relaxed);
    }
    limit
}

/// The limit, if it leaves no room for a database.
pub(crate) fn file_bytes_max_too_low() -> Option<u64> {
    file_bytes_max().filter(|&bytes| bytes < FILE_BYTES_MIN)
}

/// Keeps the signal of this limit from this thread, and from those that it starts: a write that
/// passes the limit fails with an error instead. Costs nothing where there is no limit.
pub(crate) struct SignalHeldBack {
    before: libc::sigset_t,
}

impl SignalHeldBack {
    /// None where there is no limit, or the signal is held back anyway.
    pub(crate) fn new() -> Option<Self> {
        if !IS_LIMITED.load(Ordering::Relaxed) {
            return None;
        }
        let before = change_mask(libc::SIG_BLOCK, &only_file_size())?;
        (!contains(&before) && !is_pending()).then_some(Self { before })
    }
}

impl Drop for SignalHeldBack {
    fn drop(&mut self) {
        if is_pending() {
            take_pending();
        }
        let _restored = change_mask(libc::SIG_SETMASK, &self.before);
    }
}

#[expect(unsafe_code, reason = "rustix has no signal masks")]
fn only_file_size() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: the first call initializes the set, the second adds a signal that there is.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGXFSZ);
        set.assume_init()
    }
}

/// Changes this thread's mask; the one before, or none if that was refused.
#[expect(unsafe_code, reason = "rustix has no signal masks")]
fn change_mask(how: libc::c_int, set: &libc::sigset_t) -> Option<libc::sigset_t> {
    let mut before = MaybeUninit::uninit();
    // SAFETY: two sets; on success the second is initialized.
    unsafe {
        (libc::pthread_sigmask(how, set, before.as_mut_ptr()) == 0).then(|| before.assume_init())
    }
}

#[expect(unsafe_code, reason = "rustix has no signal masks")]
fn contains(set: &libc::sigset_t) -> bool {
    // SAFETY: an initialized set.
    unsafe { libc::sigismember(set, libc::SIGXFSZ) == 1 }
}

#[expect(unsafe_code, reason = "rustix has no signal masks")]
fn is_pending() -> bool {
    let mut set = MaybeUninit::uninit();
    // SAFETY: on success the set is initialized.
    unsafe { libc::sigpending(set.as_mut_ptr()) == 0 && contains(&set.assume_init()) }
}

/// Consumes the pending signal, which was blocked by this module.
#[expect(unsafe_code, reason = "rustix has no signal masks")]
fn take_pending() {
    let at_once = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a set, and a time that outlives the call; what the signal says is not asked for.
    let _taken =
        unsafe { libc::sigtimedwait(&only_file_size(), std::ptr::null_mut(), &raw const at_once) };
}
