//! What making data durable costs: a study after S3 and S2 (see `docs/PERSISTENCE.md`).
//!
//! [`at_rest`] reads the journal of an ext4 (JBD2) or of MobiFS as it lies in an image. [`live`] serves the
//! flash device model, runs a program on it, and reads the same from the log of the device's commands, where
//! no transaction is missing, the earlier version of each block is known, and each command has its times.
#![forbid(unsafe_code)]

pub mod at_rest;
mod bytes;
pub mod commands;
pub mod compare;
mod disk;
mod distribution;
mod error;
mod ext4;
mod figures;
#[doc(hidden)]
pub mod fuzzing;
pub mod jbd2;
mod kind;
pub mod live;
mod mobifs_log;
mod mobifs_mount;
mod model_time;
mod published;
mod report;
mod tool;

pub use bytes::ReadAt;
pub use compare::text_of;
pub use disk::{DeviceCounts, DiskOptions, Under};
pub use distribution::Distribution;
pub use error::PersistError;
pub use ext4::Layout;
pub use figures::{
    CallFigures, Characterisation, CommitTimes, DeviceFigures, Jbd2Figures, KindFigures,
    MobifsFigures, Modification, SCHEMA,
};
pub use kind::Kind;
pub use report::{Section, overview, page, section, text};
