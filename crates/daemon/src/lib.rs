//! The daemon of a mount: what a process needs that serves a volume to the kernel and hands over to
//! a successor when it dies.
//!
//! [`serve`] mounts a store, or takes over the mount of a daemon that died, and serves it until it
//! ends. [`launch`] starts that in a process of its own, under a [`supervisor`]. The commands of
//! the `mobifs` program reach a daemon through [`control`].
#![deny(unsafe_code)]

mod adapter;
mod bus;
mod config_text;
pub mod control;
mod daemon_end;
mod events;
mod failure;
#[doc(hidden)]
pub mod fuzzing;
mod handover;
mod journal;
mod kernel_users;
pub mod laboratory;
pub mod launch;
mod limits;
mod linked_files;
mod lock_table;
pub mod logging;
mod mount_paths;
mod mount_users;
pub mod namespace_keeper;
mod nested_stores;
mod overlay_users;
pub mod predecessor;
mod process_state;
mod process_views;
mod rate_limit;
mod recording;
mod serve;
mod store_owner;
pub mod supervisor;
mod totals;
mod unmount;

pub use adapter::{
    OperationObserver, TakeoverError, VolumeMountError, VolumeSession, begin_takeover,
    observation_clock, postpone_takeover,
};
pub use config_text::ConfigText;
pub use daemon_end::DaemonEnd;
pub use events::{AroundWatcher, EventTarget};
pub use failure::{Code, Failure};
pub use handover::{Inherited, SupervisorLink};
pub use limits::{LimitError, raise_limits};
pub use mount_paths::{MountPaths, PathError, PathOptions, check_store};
pub use mount_users::{
    MountUser, describe, mounts_elsewhere, users_of, users_of_device, users_of_directory,
};
pub use process_state::reset_inherited;
pub use serve::{Plan, STORE_HISTORY, TakeoverState, history_status, serve, why_no_history};
pub use store_owner::mount_of as mount_of_store;
pub use totals::{DayTotals, STORE_TOTALS, parse_totals, read_totals};
pub use unmount::unmount_unused;
