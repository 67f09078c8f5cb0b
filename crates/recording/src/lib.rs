//! The log that a mount writes while it is recorded.
//!
//! A trace for analysis cannot be read before its end is written, and encoding one takes time that
//! programs want. So a mount appends what it observes to a *log*, as it is: operations with the
//! numbers of objects, and names as they are found and changed. Whatever kills the mount, what
//! it had appended can be read. When the mount has ended, the laboratory makes a trace of the log.
#![forbid(unsafe_code)]

mod codec;
mod frame;
#[cfg(test)]
mod tests;

use std::io;

use mobifs_base::{DeviceState, MonotonicNs, ObservedOperation, UserOperation};
use thiserror::Error;

pub use codec::Decoder;
pub use frame::{
    FrameHead, FrameKind, Frames, LogPart, MAGIC, apps_frame, parse_header, part_bytes_max,
    resume_log, start_log,
};

/// Something that a mount has observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation<'a> {
    /// A program did something.
    Operation {
        /// Its process; 0 if it is not known.
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

/// Why a log cannot be read or written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LogError {
    /// The file cannot be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file does not begin as a log.
    #[error("this is no recording of a mount, or one of another version")]
    NotALog,
    /// What the log says of itself makes no sense.
    #[error("the recording's beginning is damaged: {0}")]
    Header(String),
}
