//! Defragments mounted filesystems: plans once which pieces go where, then moves them by copying, or
//! on a served flash device by remapping. `docs/FRAGMENTATION-REFERENCE.md` says what is moved and when.
#![deny(unsafe_code)]

mod btrfs;
mod device;
mod donor;
mod dry_run;
mod error;
mod ext4;
mod hot;
mod ioctls;
mod moved;
mod mover;
mod options;
mod pace;
mod place;
pub mod plan;
mod pool;
mod report;
mod run;
mod scan;
mod space;
mod work;
mod xfs;

pub use error::DefragError;
pub use hot::Hot;
pub use options::{Mode, Options};
pub use report::{
    DeviceFigures, FreeRun, Limit, Planned, PlannedFile, Report, SCHEMA, State, Stopped, table,
};
pub use run::defragment;
pub use space::Space;
