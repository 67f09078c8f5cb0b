//! Why a replay stops.

use std::path::PathBuf;

use mobifs_device_model::CommandError;
use mobifs_trace::block::TraceError;
use thiserror::Error;

/// Why a replay stops.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// A trace cannot be read, or has a line that cannot and that is to be an error.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// A request is not for a device of this size.
    #[error(
        "{}: line {line}: the request ends at sector {end}, the device has {device_sectors}",
        path.display()
    )]
    Beyond {
        /// The trace.
        path: PathBuf,
        /// Number of the line.
        line: u64,
        /// First sector after the request.
        end: u64,
        /// Sectors of the device.
        device_sectors: u64,
    },
    /// The device refuses a request.
    #[error("{}: line {line}: the device refused the request: {source}", path.display())]
    Refused {
        /// The trace.
        path: PathBuf,
        /// Number of the line.
        line: u64,
        /// Its answer.
        source: CommandError,
    },
    /// The device cannot be filled.
    #[error("the device cannot be filled: {0}")]
    Fill(CommandError),
}
