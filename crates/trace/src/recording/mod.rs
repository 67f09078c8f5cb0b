//! What a mount writes while it is recorded, and how a trace is made of it.
//!
//! A Parquet file cannot be read before its end is written, and encoding one takes time that
//! programs want. So a mount appends what it observes to a *log*, as it is: operations with the
//! numbers of objects, and names as they are found and changed. Whatever kills the mount, what
//! it had appended can be read. When the mount ends, the log becomes a trace; names are put
//! together then ([`tree`]), and events are brought into the order in which they began
//! ([`order`]).

mod apps;
mod codec;
mod events;
mod frame;
mod order;
mod read;
#[cfg(test)]
mod tests;
mod tree;

use std::io;

use mobifs_types::{MonotonicNs, ObservedOperation};
use thiserror::Error;

pub(crate) use frame::MAGIC;
pub use frame::{LogPart, apps_frame, part_bytes_max, resume_log, start_log};
pub(crate) use read::read_log_bytes;
pub use read::{Converted, convert, read_log};

use crate::model::{DeviceState, UserOperation};

/// Something that a mount has observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation<'a> {
    /// A program did something.
    Operation {
        /// Its process; 0 if nobody knows.
        process: u32,
        /// What it did.
        observed: ObservedOperation<'a>,
    },
    /// The user did something.
    User {
        /// When.
        at: MonotonicNs,
        /// What.
        operation: UserOperation,
    },
    /// The device's state changed.
    Device {
        /// When.
        at: MonotonicNs,
        /// To what.
        state: DeviceState,
    },
}

impl Observation<'_> {
    /// When it began.
    pub const fn begun_at(&self) -> MonotonicNs {
        match self {
            Self::Operation { observed, .. } => observed.begun_at,
            Self::User { at, .. } | Self::Device { at, .. } => *at,
        }
    }
}

/// What holds for a whole log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogHeader {
    /// The moment that is the trace's start.
    pub started_at: MonotonicNs,
    /// The program that records, with its version.
    pub tool: String,
    /// Which directories are apps: globs over paths relative to the mount; `*` and `?` stay
    /// within one directory.
    pub apps: Vec<String>,
    /// What else a reader should know, a line each.
    pub notes: Vec<String>,
}

/// Why a log is none.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LogError {
    /// It cannot be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It does not begin as one.
    #[error("this is no recording of a mount, or one of another version")]
    NotALog,
    /// What it says of itself makes no sense.
    #[error("the recording's beginning is damaged: {0}")]
    Header(String),
    /// The trace cannot be written.
    #[error(transparent)]
    Write(#[from] crate::WriteError),
}
