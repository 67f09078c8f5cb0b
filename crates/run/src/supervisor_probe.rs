//! How a process finds out that it runs under the supervisor.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

/// `fsync` of this number, which no descriptor has, succeeds under the supervisor. The kernel knows no
/// such descriptor.
pub(crate) const PROBE_DESCRIPTOR: RawFd = -0x4d6f_6246;
const _: () = assert!(PROBE_DESCRIPTOR < 0, "it is no descriptor");

/// Whether the supervisor of a `mobifs run` answers this process's calls for durability. A program
/// that others rely on must not be started so: what it makes durable for them would not be.
#[must_use]
pub fn is_supervised() -> bool {
    // SAFETY: the kernel takes a number; there is no such descriptor.
    unsafe { libc::syscall(libc::SYS_fsync, PROBE_DESCRIPTOR) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_runs_without_a_supervisor() {
        assert!(!is_supervised());
    }
}
