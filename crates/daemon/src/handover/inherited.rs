//! Descriptors of a predecessor, which the supervisor passes on.
#![allow(
    unsafe_code,
    reason = "descriptors that a process is started with have no owner yet"
)]

use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{FdFlags, fcntl_setfd};

use super::{
    ARENA_NAME, CONFIG_NAME, CONTROL_NAME, DEVICE_NAME, LISTEN_COUNT_VARIABLE,
    LISTEN_NAMES_VARIABLE, LISTEN_PID_VARIABLE, LOCK_NAME, STORE_NAME, supervisor_pid,
};

/// The first descriptor after the standard streams.
const FIRST: RawFd = 3;
/// More than any supervisor holds for a mount.
const COUNT_MAX: RawFd = 64;

/// The descriptors of a predecessor.
#[derive(Debug, Default)]
pub struct Inherited {
    /// The connection with the kernel.
    pub device: Option<OwnedFd>,
    /// The arena.
    pub arena: Option<OwnedFd>,
    /// The lock of the store, held.
    pub lock: Option<OwnedFd>,
    /// The store's directory.
    pub store: Option<OwnedFd>,
    /// The control socket, listening.
    pub control: Option<OwnedFd>,
    /// The text of the configuration in force.
    pub config: Option<OwnedFd>,
}

impl Inherited {
    /// Takes what this process was started with. The first call in a process returns it, later ones
    /// return nothing. later ones find nothing.
    pub fn take() -> Self {
        static TAKEN: AtomicBool = AtomicBool::new(false);
        let mut inherited = Self::default();
        if !is_meant_for_us() || TAKEN.swap(true, Ordering::SeqCst) {
            return inherited;
        }
        let names = variable(LISTEN_NAMES_VARIABLE).unwrap_or_default();
        let count: RawFd = variable(LISTEN_COUNT_VARIABLE)
            .and_then(|count| count.parse().ok())
            .unwrap_or(0);
        for (number, name) in (FIRST..FIRST + count.clamp(0, COUNT_MAX)).zip(names.split(':')) {
            // SAFETY: the process that started this one states that it has passed this descriptor
            // on. Nothing in it owns the number: this runs once, before the process has opened
            // anything, and each number comes once.
            let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
            // Children do not inherit it. It fails if the descriptor is not open after all.
            if fcntl_setfd(&descriptor, FdFlags::CLOEXEC).is_err() {
                // It may belong to other code of this process by now.
                std::mem::forget(descriptor);
                continue;
            }
            match name {
                DEVICE_NAME => inherited.device = Some(descriptor),
                ARENA_NAME => inherited.arena = Some(descriptor),
                LOCK_NAME => inherited.lock = Some(descriptor),
                STORE_NAME => inherited.store = Some(descriptor),
                CONTROL_NAME => inherited.control = Some(descriptor),
                CONFIG_NAME => inherited.config = Some(descriptor),
                // Another version's, perhaps: closed here.
                _ => {}
            }
        }
        inherited
    }

    /// Whether there is anything.
    pub const fn is_empty(&self) -> bool {
        self.device.is_none()
            && self.arena.is_none()
            && self.lock.is_none()
            && self.store.is_none()
            && self.control.is_none()
            && self.config.is_none()
    }
}

/// systemd names the process that it means; our own supervisor is this one's parent.
fn is_meant_for_us() -> bool {
    match variable(LISTEN_PID_VARIABLE) {
        Some(pid) => pid.parse() == Ok(std::process::id()),
        None => supervisor_pid().is_some(),
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
