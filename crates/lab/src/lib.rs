//! Side-by-side benches of MobiFS: workloads that run the same way on every filesystem.
//!
//! The workloads know nothing of MobiFS. They get a directory, do the work of a real
//! program in it through ordinary system calls, and measure themselves, so that one
//! binary compares a mount, the disk below it, tmpfs and a disk with fsync taken away.
//! System calls go through libc's functions on purpose (the standard library and SQLite
//! do), because that is where `LD_PRELOAD` of libeatmydata takes the fsync away.

pub mod engine_write;
pub mod workload;
