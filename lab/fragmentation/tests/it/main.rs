//! Measurements of real filesystems, on loop devices, held against what `filefrag` reports.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

mod disk;
mod image;
mod mounted;
mod trees;
