//! Why a study cannot be made.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use mobifs_charts::PlotError;
use mobifs_device_model::ConfigError;
use mobifs_device_server::{ControlError, JournalError, ServeError};
use mobifs_store::StoreError;
use mobifs_workloads::workload::WorkloadError;
use thiserror::Error;

/// Why a study cannot be made. Nothing stays mounted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PersistError {
    /// Neither an image of ext4 nor a journal.
    #[error("it is neither an image of ext3 or ext4, nor a journal of JBD2 or MobiFS")]
    NotAJournal,
    /// Not what has content at places.
    #[error("it is neither a regular file nor a block device")]
    NotAFile,
    /// A directory without a store.
    #[error("the directory has no store of MobiFS: there is no .mobifs/journal in it")]
    NoStore,
    /// The filesystem has none.
    #[error("the filesystem has no journal")]
    NoJournal,
    /// The journal is on another device.
    #[error(
        "the filesystem's journal is on another device (UUID {0}), which is not read; give a filesystem with an \
         internal journal"
    )]
    External(String),
    /// The device is the journal of others.
    #[error(
        "it is the external journal of other filesystems, which is not read; give a filesystem with an internal journal"
    )]
    JournalDevice,
    /// Its content is encrypted.
    #[error("{0} is encrypted; open it and give the device that has the plain content")]
    Encrypted(&'static str),
    /// A format that is not known.
    #[error("the journal has features that this version does not know (incompatible bits {0:#x})")]
    NewerFormat(u32),
    /// A format of ext4 that is not known.
    #[error(
        "the filesystem has features that this version does not know (incompatible bits {0:#x})"
    )]
    NewerFilesystem(u32),
    /// Something in it makes no sense.
    #[error("damaged: {0}")]
    Damaged(String),
    /// A journal of MobiFS that makes no sense.
    #[error("it is a damaged journal of MobiFS: {0}; `mobifs check` of its store tells more")]
    DamagedStore(String),
    /// The user is not root.
    #[error("it makes a filesystem and mounts it over a loop device, which takes root")]
    NotRoot,
    /// A file or directory.
    #[error("{}: {error}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A program is not installed.
    #[error("{program} is not installed; {hint}")]
    NoProgram {
        /// Which.
        program: String,
        /// What has it.
        hint: &'static str,
    },
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
    /// The disk may become full on the way.
    #[error(
        "{}: {free_bytes} bytes are free, and a filesystem that is made there may take {wanted_bytes}; \
         give a directory of a disk with more room",
        path.display()
    )]
    NoRoom {
        /// Where.
        path: PathBuf,
        /// What is there.
        free_bytes: u64,
        /// What each filesystem has.
        wanted_bytes: u64,
    },
    /// The served device answered something else.
    #[error("the served device gave an answer that is not understood: {0}")]
    Unexpected(String),
    /// It was asked to stop.
    #[error("interrupted; what was mounted is unmounted")]
    Interrupted,
    /// The configuration of the device.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The served device.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// Its control socket.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The log of its commands.
    #[error(transparent)]
    Commands(#[from] JournalError),
    /// A journal of MobiFS.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A workload.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A chart.
    #[error(transparent)]
    Plot(#[from] PlotError),
}

impl PersistError {
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |error| Self::Io { path, error }
    }
}
