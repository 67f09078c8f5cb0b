//! The daemon that is asked.

use std::path::{Path, PathBuf};
use std::time::Duration;

use mobifs_daemon::control::{AnswerPatience, ControlClient, Reply, Request, own_mounts};
use mobifs_daemon::{Code, Failure};
use mobifs_volume::{AppSelection, Status};

/// More apps than a screen has lines, so that those with the most at risk are among them.
const APPS_MAX: u64 = 100_000;

/// The mount that is shown.
pub(crate) struct Mount {
    path: PathBuf,
}

impl Mount {
    /// The one that is named, or the only one.
    pub(crate) fn find(named: Option<&Path>) -> Result<Self, Failure> {
        if let Some(path) = named {
            return Ok(Self {
                path: path.to_owned(),
            });
        }
        let all = own_mounts().map_err(|error| {
            let message = format!("cannot read the table of mounts: {error}");
            Failure::new(Code::Failed, message)
        })?;
        match all.as_slice() {
            [only] => Ok(Self {
                path: only.mountpoint.clone(),
            }),
            [] => Err(Failure::new(
                Code::NotMounted,
                "nothing is mounted or steered here; `mobifs doctor` says what can be",
            )),
            several => {
                let names = several
                    .iter()
                    .map(|mount| mount.mountpoint.display().to_string());
                let names = names.collect::<Vec<_>>().join(", ");
                let message = format!("there are several mounts, name one of them: {names}");
                Err(Failure::new(Code::Usage, message))
            }
        }
    }

    fn ask(&self, request: &Request, limit: Duration) -> Result<Reply, Failure> {
        let patience = AnswerPatience {
            limit: Some(limit),
            report: |_| {},
        };
        let mut client = ControlClient::connect(&self.path)?;
        match client.ask(request, &patience)? {
            Reply::Error { kind, message } => Err(Failure::new(kind.into(), message)),
            reply => Ok(reply),
        }
    }

    pub(crate) fn status(&self) -> Result<Status, Failure> {
        let select = AppSelection {
            limit: Some(APPS_MAX),
            ..AppSelection::default()
        };
        match self.ask(&Request::Status { select }, Duration::from_secs(2))? {
            Reply::Status { status } => Ok(*status),
            other => Err(Failure::new(
                Code::Failed,
                format!(
                    "the daemon gave an answer that this version does not understand: {other:?}"
                ),
            )),
        }
    }

    /// Has the daemon do something; the outcome as a sentence.
    pub(crate) fn carry_out(&self, request: &Request, what: &str) -> String {
        match self.ask(request, Duration::from_secs(60)) {
            Ok(_) => format!("{what}: done"),
            Err(failure) => format!("{what}: {failure}"),
        }
    }
}
