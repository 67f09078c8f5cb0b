//! The times by which promises and notes lapse.
#![allow(unsafe_code)]

use rustix::time::{ClockId, clock_gettime};

/// What a clock shows, in milliseconds.
pub(crate) fn now_ms(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let (seconds, nanoseconds) = (now.tv_sec as u64, now.tv_nsec as u64);
    seconds
        .saturating_mul(1_000)
        .saturating_add(nanoseconds / 1_000_000)
}

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
