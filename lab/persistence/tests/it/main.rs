//! The readers of journals beside `debugfs` and `dumpe2fs`, on filesystems that the kernel has written.
//!
//! Needs root and loop devices; a test that cannot run prints a line that begins with `SKIPPED`.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

mod bad_input;
mod compare;
mod disk;
mod live;
mod oracle;
