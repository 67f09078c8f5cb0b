//! How a simulation fails.

use mobifs_device_model::{CommandError, ConfigError};
use mobifs_engine::FsError;
use mobifs_store::StoreError;

/// Why a simulation cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum SimulationError {
    /// The engine refused an operation that succeeded when the trace was recorded.
    #[error("at {} ms the engine refused what the trace says was done: {error}", time_ns / 1_000_000)]
    Refused {
        /// When, in nanoseconds of the trace.
        time_ns: u64,
        /// Why.
        error: FsError,
    },
    /// The store in memory failed.
    #[error("the store in memory failed: {0}")]
    Store(#[from] StoreError),
    /// The device cannot be like that.
    #[error("the flash device: {0}")]
    Device(#[from] ConfigError),
    /// The device refused a command.
    #[error("the flash device refused a command: {0}")]
    Command(#[from] CommandError),
}
