//! Tests of the real `mobifs` binary on real mounts.
//!
//! What any POSIX filesystem must do is written once and run twice: on the bare disk, which
//! shows that the check itself is right, and on a MobiFS mount over that disk. Tests that
//! need what is not there (root, `/dev/fuse`, a tool) print a line that begins with `SKIPPED`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

mod crash_image;
mod files;
mod harness;
mod permissions;
mod sharing;
mod space;
mod sqlite;
mod tree;
