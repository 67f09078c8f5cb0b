//! Native mode: a filesystem of the kernel whose transactions hold all files, and whose commits the
//! policies of MobiFS decide about.
//!
//! ext4 with `data=journal` has what a MobiFS mount builds for itself: transactions over all files,
//! in order, that arrive whole or not at all. A btrfs with `flushoncommit` commits everything, but
//! not as of one point in time ([`Filesystem::keeps_order`]), so nothing is promised there. [`check`] says
//! whether a filesystem can be steered and what is missing, [`Takeover`] changes its mount options
//! and restores them, [`Steering`] commits when the policy says so, and [`serve`] is the process
//! that does all this.
#![deny(unsafe_code)]

mod changes;
pub mod check;
mod control;
mod counters;
mod errors;
mod events;
pub mod filesystem;
mod frozen;
pub mod history;
pub mod mount_options;
mod note;
mod only;
mod order;
mod registered;
mod reports;
mod serve;
mod stale_state;
mod status;
pub mod steering;
mod takeover;

pub use check::{Examination, Obstacle, examine, examine_only, is_left_steered};
pub use filesystem::Filesystem;
pub use frozen::{FrozenError, run_freeze_probe, wait_until_writable};
pub use mobifs_engine::AppPolicy;
pub use note::NoteError;
pub use only::{OnlyError, OnlyObstacle, unmark_after_daemon};
pub use order::ORDER_NOTE;
pub use registered::is_steered;
pub use serve::{Plan, prepare, serve};
pub use stale_state::{StaleState, StaleStateError};
pub use steering::Steering;
pub use takeover::{
    Difference, Takeover, TakeoverError, commit_after_daemon, left_elsewhere, restore_after_daemon,
};
