//! The time by which promises lapse.
#![allow(unsafe_code)]

/// Seconds since the machine was started, without those that it slept.
pub(crate) fn monotonic_s() -> u32 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // By the C library, in which the preloaded library's programs run: it needs no system call, and
    // valgrind can follow it.
    // SAFETY: the call writes one structure, which lives here.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut now) };
    // Without a clock nothing is promised any more.
    if code == 0 {
        u32::try_from(now.tv_sec).unwrap_or(u32::MAX)
    } else {
        u32::MAX
    }
}
