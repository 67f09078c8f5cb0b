//! The experiments. Each is a pure function of a configuration, a seed and parameters, and its
//! criteria state what the publication that it repeats has found.

pub mod calibration;
pub mod dispersion;
pub mod fragmentation;
pub mod persistence;

use mobifs_device_model::{CommandError, ConfigError, SaveError};
use thiserror::Error;

/// Quiet time after preparing a device: enough for all background work to end.
const REST_NS: u64 = 60_000_000_000;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const PAGE_BYTES: u64 = mobifs_device_model::PAGE_BYTES as u64;

/// Why an experiment cannot be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The device refuses a command of the experiment.
    #[error("the device refused a command of the experiment: {0}")]
    Command(#[from] CommandError),
    /// A prepared device could not be kept for several runs.
    #[error("a prepared device could not be saved and loaded again: {0}")]
    Save(#[from] SaveError),
    /// Parameters with which there is nothing to measure.
    #[error("the experiment cannot be made: {0}")]
    Parameters(&'static str),
}
