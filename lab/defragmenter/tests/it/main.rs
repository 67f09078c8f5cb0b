//! On filesystems that are mounted, served devices among them.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

mod btrfs;
mod comparison;
mod copying;
mod disk;
mod f2fs;
mod limits;
mod power_cuts;
mod remapping;
mod xfs;
