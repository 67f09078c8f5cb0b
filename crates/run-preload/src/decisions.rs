//! Which filesystems are steered, as far as the library asks; chosen when it is loaded.

use std::ptr::{from_ref, null_mut};
use std::sync::atomic::{AtomicPtr, Ordering};

use mobifs_steered::{Decisions, Directory};

/// Set by `mobifs run --unsafe`.
const UNSAFE_ENVIRONMENT: &str = "MOBIFS_RUN_UNSAFE";

/// Until the library is set up, which may be after the first call.
static STANDARD: Decisions = Decisions::by(Directory::standard());
static UNSAFE: Decisions = Decisions::for_all();
static CHOSEN: AtomicPtr<Decisions> = AtomicPtr::new(null_mut());

/// Chooses by the environment of the process.
pub(crate) fn choose() {
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
