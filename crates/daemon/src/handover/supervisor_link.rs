//! The daemon's side of being supervised: what is handed over, and when it is taken back.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::{NAMES, Notifier, SUPERVISOR_VARIABLE, supervisor_pid};

use crate::failure::{Code, Failure};

/// How long the supervisor may take to act upon a message.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a process that takes over may be silent between two signs of life.
const SIGN_OF_LIFE_WITHIN: Duration = Duration::from_secs(300);

/// The connection with the supervisor (`mobifs supervise` or systemd), which holds what must
/// outlive this process; or none, if the daemon is unsupervised.
#[derive(Debug)]
pub struct SupervisorLink {
    notifier: Option<Notifier>,
}

impl SupervisorLink {
    /// The daemon is unsupervised.
    pub const fn none() -> Self {
        Self { notifier: None }
    }

    /// The supervisor that the environment names, if any.
    pub fn from_environment() -> Result<Self, Failure> {
        let notifier = Notifier::from_environment().map_err(|error| {
            let message = format!("cannot reach the supervisor of this daemon: {error}");
            // Ours makes a socket that was removed anew for the next process, and with any other code would end
            // the mount.
            let is_ours = supervisor_pid().is_some();
            Failure::new(
                if is_ours {
                    Code::TryAgain
                } else {
                    Code::Failed
                },
                message,
            )
        })?;
        Ok(Self { notifier })
    }

    /// Whether a supervisor would start a new daemon if this one died.
    pub const fn is_there(&self) -> bool {
        self.notifier.is_some()
    }

    /// `mobifs` or `systemd`; none if the daemon is unsupervised.
    pub fn name(&self) -> Option<&'static str> {
        self.notifier.as_ref()?;
        if std::env::var_os(SUPERVISOR_VARIABLE).is_some() {
            // The supervisor itself may have been killed.
            return supervisor_pid().map(|_| "mobifs");
        }
        Some("systemd")
    }

    /// Hands descriptors over to the supervisor; when this returns, a successor would get them.
    pub fn keep(&self, descriptors: &[(&str, BorrowedFd<'_>)]) {
        let Some(notifier) = &self.notifier else {
            return;
        };
        let kept = descriptors
            .iter()
            .try_for_each(|(name, descriptor)| notifier.keep(name, *descriptor))
            .and_then(|()| notifier.wait(PATIENCE));
        match kept {
            Ok(true) => {}
            Ok(false) => tracing::warn!("the supervisor of this daemon does not answer"),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "the supervisor got no descriptors: if this daemon dies, uncommitted changes \
                     are lost"
                )
            }
        }
    }

    /// Hands a descriptor over in place of the one that had its name.
    pub fn replace(&self, name: &str, descriptor: BorrowedFd<'_>) {
        if let Some(notifier) = &self.notifier
            && let Err(error) = notifier.drop_kept(name)
        {
            tracing::debug!(%error, "this daemon is not supervised any more");
        }
        self.keep(&[(name, descriptor)]);
    }

    /// From now on no successor is started; when this returns, only this process holds
    /// what was handed over.
    pub fn withdraw(&self, why: &str) {
        let Some(notifier) = &self.notifier else {
            return;
        };
        let withdrawn = notifier
            .stopping(why)
            .and_then(|()| NAMES.iter().try_for_each(|name| notifier.drop_kept(name)))
            .and_then(|()| notifier.wait(PATIENCE));
        match withdrawn {
            Ok(true) => {}
            Ok(false) => tracing::warn!("the supervisor of this daemon does not answer"),
            Err(error) => tracing::debug!(%error, "this daemon is not supervised any more"),
        }
    }

    /// Sends a report: another one, or the message that the mount is ready, follows in time.
    pub fn alive(&self) {
        if let Some(notifier) = &self.notifier
            && let Err(error) = notifier.alive(SIGN_OF_LIFE_WITHIN)
        {
            tracing::debug!(%error, "this daemon is not supervised any more");
        }
    }

    /// The mount is usable.
    pub fn ready(&self, status: &str) {
        if let Some(notifier) = &self.notifier
            && let Err(error) = notifier.ready(status)
        {
            tracing::debug!(%error, "this daemon is not supervised any more");
        }
    }
}
