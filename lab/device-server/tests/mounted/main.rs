//! A served device under a real ext4, SQLite and NBD clients, its power cut in the middle.
//!
//! Needs root, `/dev/fuse` and loop devices, and the programs that a test names; a test that
//! cannot run prints a line that begins with `SKIPPED`. `MOBIFS_FLASH_CUTS` says how many
//! power cuts the campaign makes, `MOBIFS_FLASH_SEED` where its randomness comes from.

#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

mod campaign;
mod crash_states;
mod disk;
mod ext4;
mod nbd;
mod overwriter;
mod sqlite_vfs;
mod transactions;
