//! How an adopted directory is mounted when the machine or the session starts.

use std::path::{Path, PathBuf};

use mobifs_daemon::{Code, Failure};
use serde::{Deserialize, Serialize};

use crate::adopt_arguments::BootChoice;

/// What mounts it when the machine or the session starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Boot {
    /// A unit of systemd.
    SystemUnit,
    /// A unit of the user's own systemd.
    UserUnit,
    /// A file for `dist/init/S50mobifs`.
    InitFile,
    /// Nothing.
    Nothing,
}

impl Boot {
    /// What fits this machine and this user, unless the user says otherwise.
    ///
    /// # Errors
    /// What the user says cannot be.
    pub(super) fn choose(choice: BootChoice) -> Result<Self, Failure> {
        let is_root = rustix::process::geteuid().is_root();
        let has_systemd = if is_root {
            Path::new("/run/systemd/system").is_dir()
        } else {
            user_runtime().is_some_and(|runtime| runtime.join("systemd/private").exists())
        };
        match choice {
            BootChoice::None => Ok(Self::Nothing),
            BootChoice::Init if is_root => Ok(Self::InitFile),
            BootChoice::Auto if !has_systemd && is_root => Ok(Self::InitFile),
            BootChoice::Auto if !has_systemd => Ok(Self::Nothing),
            BootChoice::Auto | BootChoice::Systemd if has_systemd => Ok(if is_root {
                Self::SystemUnit
            } else {
                Self::UserUnit
            }),
            BootChoice::Init => Err(Failure::new(
                Code::Usage,
                "--boot init is for root: scripts of init mount as root. Use --boot none, and mount where your \
                 session begins",
            )),
            BootChoice::Auto | BootChoice::Systemd => Err(Failure::new(
                Code::Failed,
                if is_root {
                    "--boot systemd: systemd does not run here; use --boot init or --boot none"
                } else {
                    "--boot systemd: your systemd does not run here (systemctl --user); log in as a session, \
                     or use --boot none"
                },
            )),
        }
    }

    /// Whether systemd does it.
    pub(super) const fn is_unit(self) -> bool {
        matches!(self, Self::SystemUnit | Self::UserUnit)
    }
}

/// Where the sockets of the user's own systemd are.
pub(super) fn user_runtime() -> Option<PathBuf> {
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let usual = || PathBuf::from(format!("/run/user/{}", rustix::process::geteuid().as_raw()));
    let runtime = given
        .filter(|path| path.is_absolute())
        .unwrap_or_else(usual);
    runtime.is_dir().then_some(runtime)
}
