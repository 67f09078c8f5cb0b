//! The history of a subvolume of btrfs: read-only snapshots, of each of which is known whether it is
//! one point in time, and the way back to one.
//!
//! An [`Archive`] takes, lists and removes snapshots, [`Retention`] says which are kept, [`At`] which
//! one is meant, and [`restore`] makes files of one.
#![deny(unsafe_code)]

mod archive;
mod at;
mod btrfs;
mod keeper;
mod records;
pub mod restore;
mod retention;
mod snapshot;
mod time;

pub use archive::{Archive, ArchiveError, NoStandstill, Standstill, Taken};
pub use at::{At, AtError};
pub use btrfs::Subvolume;
pub use keeper::{Done, KeepRules, Keeper};
pub use retention::Retention;
pub use snapshot::Snapshot;
pub use time::{Age, AgeError, WallTime};
