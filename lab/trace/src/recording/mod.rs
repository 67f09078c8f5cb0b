//! A trace of what a mount has recorded.
//!
//! The log has observations (`mobifs_recording`) with the numbers of objects, in the order in which
//! threads wrote them. Names are put together here ([`tree`]), and events are brought into the
//! order in which they began ([`order`]).

mod apps;
mod events;
mod order;
mod read;
#[cfg(test)]
mod tests;
mod tree;

use mobifs_recording::LogError;
use thiserror::Error;

pub(crate) use read::read_log_bytes;
pub use read::{Converted, convert, read_log};

/// Why no trace can be made of a recording.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The trace cannot be written.
    #[error(transparent)]
    Write(#[from] crate::WriteError),
}
