//! How a device is to be served, and why it is not.

use std::io;
use std::path::PathBuf;

use mobifs_device_model::{Config, ConfigError};
use mobifs_fuse::{MountError, SessionError, UnmountError};
use thiserror::Error;

use crate::clock::Scale;
use crate::image::ImageError;
use crate::journal::JournalError;

/// What the mount table shows after `fuse.`.
pub const SUBTYPE: &str = "mobifs-device-model";

/// How a device is to be served.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// File with the content.
    pub image: PathBuf,
    /// Size in bytes, to make an image or to make sure of its size.
    pub size_bytes: Option<u64>,
    /// What the device is; none: what the image's device is.
    pub config: Option<Config>,
    /// Seed of the model; none: that of the image's device, or 0.
    pub seed: Option<u64>,
    /// How time is spent.
    pub scale: Scale,
    /// Record everything in this file.
    pub journal: Option<PathBuf>,
    /// Serve NBD on this socket.
    pub nbd: Option<PathBuf>,
    /// Set up a loop device.
    pub loop_device: bool,
    /// Mount the file here.
    pub mountpoint: Option<PathBuf>,
}

/// Why a device is not served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// No way to reach it was asked for.
    #[error("say how the device is to be reached: --loop, --mount DIR or --nbd SOCKET")]
    NoFront,
    /// There is no configuration, and no device that has one.
    #[error(
        "{} was not served before; say what device it is with --preset or --config",
        .0.display()
    )]
    NoConfig(PathBuf),
    /// The image.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The mount.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The mount could not be ended.
    #[error(transparent)]
    Unmount(#[from] UnmountError),
    /// The mount failed while it was served.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The loop device.
    #[error("cannot set up a loop device: {0} (it takes root and /dev/loop-control)")]
    Loop(#[source] io::Error),
    /// The NBD socket.
    #[error("cannot listen at {}: {source}; name another socket", path.display())]
    Nbd {
        /// Where.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Anything else that the system refused.
    #[error("cannot {what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The content of an image cannot be the content of a device.
    #[error("the content of {} cannot be taken over into a device: {reason}", path.display())]
    Adopt {
        /// The image.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The last flush failed.
    #[error("what was in the device's cache could not be written to the image")]
    LastFlush,
}

pub(super) fn system(what: &'static str) -> impl FnOnce(io::Error) -> ServeError {
    move |source| ServeError::System { what, source }
}
