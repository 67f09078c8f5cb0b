//! Workloads of real programs on any filesystem, and benches of the engine.
//!
//! The [`workload`]s know nothing of MobiFS. They get a directory, do the work of a real
//! program in it through ordinary system calls, and measure themselves, so that one
//! binary compares a mount, the disk that holds its store, tmpfs and a disk with fsync taken
//! away. System calls go through libc's functions on purpose (the standard library and SQLite
//! do), because that is where `LD_PRELOAD` of libeatmydata takes the fsync away.
//!
//! A [`bench`] measures one part of MobiFS inside this process, without a kernel or a device.

pub mod bench;
pub mod workload;
