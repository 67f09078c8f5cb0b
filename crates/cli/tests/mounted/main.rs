//! The real program on real mounts. Needs root and `/dev/fuse`; elsewhere each test
//! says that it is skipped.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod adopt;
mod adopt_standing;
mod again;
mod alone;
mod bad_calls;
mod bad_input;
mod binds;
mod calibrate;
mod crashes;
mod deep;
mod device_numbers;
mod doctor;
mod durable;
mod filesystems;
mod fixture;
mod full;
mod helpers;
mod hostile;
mod inherited;
mod kills;
mod life;
mod loads;
mod monitoring;
mod moved;
mod names;
mod namespaces;
mod overlay;
mod poison;
mod preallocation;
mod reads;
mod recording;
mod rollback;
mod room;
mod runtime_directory;
mod salvage;
mod shapes;
mod steer;
mod stopped;
mod store_history;
mod systemd;
mod threads;
mod unprivileged;
mod users;
