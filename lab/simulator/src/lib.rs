//! Side-by-side benches of MobiFS, and experiments with its flash device model.
//!
//! The workloads know nothing of MobiFS. They get a directory, do the work of a real
//! program in it through ordinary system calls, and measure themselves, so that one
//! binary compares a mount, the disk below it, tmpfs and a disk with fsync taken away.
//! System calls go through libc's functions on purpose (the standard library and SQLite
//! do), because that is where `LD_PRELOAD` of libeatmydata takes the fsync away.
//!
//! The experiments in [`flash`] run in virtual time and need neither a filesystem nor
//! SQLite; without the feature `workloads` they are all that is built.

#[cfg(feature = "workloads")]
pub mod engine_write;
pub mod figures;
pub mod flash;
#[cfg(feature = "workloads")]
pub mod outlive;
mod plot;
#[cfg(feature = "workloads")]
pub mod policy_cost;
pub mod random;
pub mod sim;
#[cfg(feature = "workloads")]
pub mod workload;
