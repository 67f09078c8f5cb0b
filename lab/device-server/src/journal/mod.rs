//! A journal of everything that reached a device, and the crash states that it allows.
//!
//! A crash state lies between two *boundaries*: moments at which content becomes durable: the end
//! of a flush or a power cut. Requests that ended before the start of the last flush are durable.
//! Of the others, those that were submitted before the crash may be on the medium completely, in
//! part or not at all; only completed durable writes (FUA) are there in any case.

mod commands;
pub(crate) mod fuzzing;
mod materialise;
mod reader;
mod record;
#[cfg(test)]
mod tests;
mod writer;

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

pub use commands::{Command, CommandKind};
pub use materialise::{CrashState, CrashStates, Materialised, Survival, materialise};
pub use reader::{BoundaryKind, Interval, Journal};
pub(crate) use record::{Kind, Record};
pub(crate) use writer::JournalWriter;

/// What can be wrong with a journal.
#[derive(Debug, Error)]
pub enum JournalError {
    /// There is a file already.
    #[error(
        "the journal {} exists already; name another file or remove it",
        .0.display()
    )]
    Exists(PathBuf),
    /// The file is no journal.
    #[error("{} is not a journal of a flash device", .0.display())]
    NotAJournal(PathBuf),
    /// A newer version wrote it.
    #[error("the journal {} has format {found}, this version reads up to {supported}", path.display())]
    NewerFormat {
        /// The journal.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest known.
        supported: u32,
    },
    /// A record in the middle is damaged.
    #[error("the journal {} is damaged at byte {offset}", path.display())]
    Damaged {
        /// The journal.
        path: PathBuf,
        /// Where.
        offset: u64,
    },
    /// There are not so many states.
    #[error("the journal has the states 0 to {last}, there is no state {asked}")]
    NoSuchState {
        /// Which was asked for.
        asked: usize,
        /// The last one.
        last: usize,
    },
    /// The base image is not of the device's size.
    #[error(
        "the base image {} has {found} bytes, the device of the journal has {expected}; take the \
         image as it was when the journal began",
        path.display()
    )]
    WrongBase {
        /// The image.
        path: PathBuf,
        /// Its size.
        found: u64,
        /// The device's size.
        expected: u64,
    },
    /// The image to make exists already.
    #[error("{} exists already; name another file or remove it", .0.display())]
    OutputExists(PathBuf),
    /// A file failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl JournalError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}
