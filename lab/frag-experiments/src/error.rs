//! Why an experiment cannot be made.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use mobifs_ageing::AgeError;
use mobifs_charts::PlotError;
use mobifs_defragmenter::DefragError;
use mobifs_device_model::ConfigError;
use mobifs_device_server::{ControlError, ServeError};
use mobifs_fragmentation::MeasureError;
use mobifs_workloads::workload::WorkloadError;
use thiserror::Error;

/// Why an experiment cannot be made. Nothing stays mounted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FragError {
    /// The user is not root.
    #[error("experiments make filesystems and mount them over loop devices, which takes root")]
    NotRoot,
    /// It was asked to stop.
    #[error("interrupted; what was mounted is unmounted")]
    Interrupted,
    /// A file or directory.
    #[error("{}: {error}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// An image that is used otherwise.
    #[error("{} is in use ({by}); unmount or detach it first", image.display())]
    InUse {
        /// Which.
        image: PathBuf,
        /// By what.
        by: String,
    },
    /// A program is not installed.
    #[error(
        "{0} is not installed; install the package that has it (e2fsprogs, xfsprogs, btrfs-progs)"
    )]
    NoProgram(String),
    /// A program failed.
    #[error("{program} failed ({status}): {said}")]
    Program {
        /// Which.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// Its last line.
        said: String,
    },
    /// A filesystem could not be mounted.
    #[error("{what} cannot be mounted: {error}")]
    Mount {
        /// Filesystem and device.
        what: String,
        /// What the system said.
        error: io::Error,
    },
    /// The served device has no loop device.
    #[error("the served device has no loop device")]
    NoLoopDevice,
    /// The served device answered something else.
    #[error("the served device gave an answer that is not understood: {0}")]
    Unexpected(String),
    /// There is nothing to compute from.
    #[error("the experiment measured nothing that a result can be made of: {0}")]
    NoResult(&'static str),
    /// Files could not be defragmented.
    #[error(transparent)]
    Defrag(#[from] DefragError),
    /// The configuration of the device.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The served device.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Its control socket.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// Measuring fragmentation.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// Ageing.
    #[error(transparent)]
    Age(#[from] AgeError),
    /// A workload.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// SQLite.
    #[error("SQLite: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// A chart.
    #[error(transparent)]
    Plot(#[from] PlotError),
}

impl FragError {
    pub(crate) fn io(path: &Path, error: io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            error,
        }
    }
}
