//! `mobifs run` on filesystems that are steered, and on others. Needs root and loop devices;
//! elsewhere each test says that it is skipped. No daemon steers: the tests promise what one would.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod calls;
mod containers;
mod fixture;
mod kills;
mod lapses;
mod life;
mod program;
mod refusals;
mod rights;
mod supervisors;
