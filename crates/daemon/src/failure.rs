//! How a command fails: an exit code and one sentence.

use std::fmt;

use crate::adapter::VolumeMountError;
use crate::control::{ControlError, ErrorKind};
use crate::limits::LimitError;
use crate::mount_paths::PathError;
use crate::store_owner::mount_of;
use mobifs_fuse::{MountError, OptionError, UnmountError};
use mobifs_store::StoreError;
use mobifs_volume::{ConfigError, VolumeError};
use serde::{Deserialize, Serialize};

/// Exit codes; documented in `mobifs --help`, relied on by other programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Code {
    /// It could not be done.
    Failed,
    /// The command line or the configuration is wrong.
    Usage,
    /// The store or the mount is in use.
    InUse,
    /// The store is damaged, or of a newer format.
    Damaged,
    /// There is no MobiFS mount, or its daemon is gone.
    NotMounted,
    /// A daemon could not take over from its predecessor; another attempt may succeed.
    TryAgain,
}

impl Code {
    /// Every one.
    pub const ALL: [Self; 6] = [
        Self::Failed,
        Self::Usage,
        Self::InUse,
        Self::Damaged,
        Self::NotMounted,
        Self::TryAgain,
    ];

    /// As the process returns it.
    pub const fn number(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::InUse => 3,
            Self::Damaged => 4,
            Self::NotMounted => 5,
            Self::TryAgain => 6,
        }
    }
}

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The exit code.
    pub code: Code,
    /// One sentence: what failed, why, and what can be done.
    pub message: String,
}

impl Failure {
    /// A failure with this exit code.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::new(Code::Usage, error.to_string())
    }
}

impl From<OptionError> for Failure {
    fn from(error: OptionError) -> Self {
        Self::new(
            Code::Usage,
            format!("{error}; `mobifs mount --help` lists what there is"),
        )
    }
}

impl From<LimitError> for Failure {
    fn from(error: LimitError) -> Self {
        Self::new(Code::Failed, error.to_string())
    }
}

impl From<PathError> for Failure {
    fn from(error: PathError) -> Self {
        let code = match error {
            PathError::AlreadyMounted(_)
            | PathError::StoresNested { .. }
            | PathError::MountpointInStore { .. }
            | PathError::MountpointHidesStore { .. } => Code::InUse,
            _ => Code::Failed,
        };
        Self::new(code, error.to_string())
    }
}

impl Failure {
    /// Parts of a store, as a shell takes their paths.
    pub fn as_words(store: &std::path::Path, names: &[&str]) -> String {
        let words = names
            .iter()
            .map(|name| mobifs_host::shell_path(store.join(name)));
        words.collect::<Vec<String>>().join(" ")
    }

    /// A failure of the store in the directory `path`.
    pub fn of_store(store: &std::path::Path, error: &StoreError) -> Self {
        let path = store.display();
        match error {
            StoreError::InUse { pid: 0 } => Self::new(
                Code::InUse,
                format!("the store {path} is in use by another process"),
            ),
            StoreError::InUse { pid } => {
                let message = match mount_of(store) {
                    Some(mount) => format!(
                        "the store {path} is in use by process {pid}, which serves the mount {mount}: \
                         unmount that (`mobifs umount {word}`)",
                        mount = mount.mountpoint.display(),
                        word = mobifs_host::shell_path(&mount.mountpoint)
                    ),
                    None => format!(
                        "the store {path} is in use by process {pid}: unmount what it serves \
                         (`mobifs umount MOUNTPOINT`; \
                         /proc/mounts lists mounts and bind mounts), or end it"
                    ),
                };
                Self::new(Code::InUse, message)
            }
            StoreError::Corrupt { .. } => Self::new(
                Code::Damaged,
                format!(
                    "the store {path} cannot be used: {error}; nothing was changed. `mobifs recover \
                     --salvage --dry-run {path}` shows what is certain and what would be lost"
                ),
            ),
            StoreError::NewerFormat { .. } => Self::new(Code::Damaged, format!("{path}: {error}")),
            StoreError::Unsuitable(reason) => Self::new(
                Code::Failed,
                format!("the store {path} cannot be used: {reason}"),
            ),
            StoreError::Immutable { names } => Self::new(
                Code::Failed,
                format!(
                    "no mount can write to the store {path}, because parts of it are immutable or append-only: `chattr -i -a {}`",
                    Self::as_words(store, names)
                ),
            ),
            _ => Self::new(Code::Failed, format!("the store {path}: {error}")),
        }
    }
}

impl From<VolumeError> for Failure {
    fn from(error: VolumeError) -> Self {
        let code = match error {
            VolumeError::UnknownApp { .. } | VolumeError::Setting(_) => Code::Usage,
            _ => Code::Failed,
        };
        Self::new(code, error.to_string())
    }
}

impl From<MountError> for Failure {
    fn from(error: MountError) -> Self {
        match error {
            MountError::Option(error) => error.into(),
            MountError::AlreadyMounted(_) => Self::new(Code::InUse, error.to_string()),
            _ => Self::new(Code::Failed, error.to_string()),
        }
    }
}

impl From<VolumeMountError> for Failure {
    fn from(error: VolumeMountError) -> Self {
        match error {
            VolumeMountError::Mount(error) => error.into(),
            VolumeMountError::Arena(error) => Self::new(Code::Failed, error.to_string()),
        }
    }
}

impl From<UnmountError> for Failure {
    fn from(error: UnmountError) -> Self {
        let code = match error {
            UnmountError::Busy(_) => Code::InUse,
            UnmountError::NotMounted(_) => Code::NotMounted,
            _ => Code::Failed,
        };
        Self::new(code, error.to_string())
    }
}

impl From<ControlError> for Failure {
    fn from(error: ControlError) -> Self {
        let code = match error {
            ControlError::NotMounted { .. }
            | ControlError::Covered { .. }
            | ControlError::SteeringGone { .. }
            | ControlError::OutOfReach { .. }
            | ControlError::Missing { .. }
            | ControlError::InsideMount { .. }
            | ControlError::Store { .. }
            | ControlError::InsideSteered { .. }
            | ControlError::DaemonGone { .. } => Code::NotMounted,
            _ => Code::Failed,
        };
        Self::new(code, error.to_string())
    }
}

impl From<ErrorKind> for Code {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Busy => Self::InUse,
            ErrorKind::Usage => Self::Usage,
            ErrorKind::NotPermitted | ErrorKind::Failed => Self::Failed,
        }
    }
}
