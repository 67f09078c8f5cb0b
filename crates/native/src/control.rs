//! What commands do to a steered filesystem.

use std::path::Path;

use mobifs_daemon::control::{ControlHandler, ErrorKind, Reply, Request};
use mobifs_host::Client;
use mobifs_volume::{AppName, AppSelection, PolicySettings};
use parking_lot::MutexGuard;

use crate::steering::{SettingsError, Steering, SteeringError};

impl ControlHandler for Steering {
    fn handle(&self, request: Request, client: &Client<'_>) -> Reply {
        let path = self.mount().mountpoint.display();
        let _turn = self.wait_for_turn(&request);
        if client.has_gone() {
            tracing::info!("a command was dropped: it has ended while it waited for its turn");
            return Reply::error(ErrorKind::Failed, "the client that asked for this has gone");
        }
        match request {
            Request::Status { select } => self.selected(&select),
            Request::Sync { app, apply } => match app {
                Some(app) if app.as_bytes() != b"." => no_apps(&app),
                _ => done(self.commit(apply)),
            },
            Request::Touch => {
                self.user_acted();
                Reply::Done
            }
            Request::Screen { on } => done(self.screen_switched(on)),
            Request::Reload { config } => match self.reload(config.as_deref().map(Path::new)) {
                Ok((has_changed, waiting)) => Reply::reloaded(has_changed, &waiting),
                Err(error) => changed(Err(error)),
            },
            Request::Set { app, settings } => self.change(&app, &settings),
            Request::StopSteering => done(self.end()),
            Request::Unmount { .. } => Reply::error(
                ErrorKind::Usage,
                format!(
                    "{path} is a steered filesystem and not a MobiFS mount: `mobifs steer --stop \
                     {path}` ends that, and umount(8) unmounts it"
                ),
            ),
            Request::Totals => Reply::error(
                ErrorKind::Usage,
                "totals by day are kept in the store of a mount, and a steered filesystem has none: \
                 `mobifs status` shows what the device wrote since it is steered",
            ),
            Request::Calibrate => Reply::error(
                ErrorKind::Usage,
                format!(
                    "{path} is a steered filesystem: its journal is the kernel's, which decides how \
                     it is made durable"
                ),
            ),
            Request::PowerCut => Reply::error(
                ErrorKind::Usage,
                format!(
                    "{path} is a steered filesystem: what it has in memory is the kernel's, which no \
                     drill can take from it"
                ),
            ),
        }
    }
}

impl Steering {
    /// What holds a request up may take as long as the filesystem is frozen.
    fn wait_for_turn(&self, request: &Request) -> Option<MutexGuard<'_, ()>> {
        match request {
            Request::Sync { .. } | Request::Screen { .. } | Request::StopSteering => {
                Some(self.turn_to_commit())
            }
            Request::Set { .. } | Request::Reload { .. } => {
                drop(self.state());
                None
            }
            _ => None,
        }
    }

    fn selected(&self, select: &AppSelection) -> Reply {
        let mut status = self.status();
        match select.apply(&mut status) {
            Ok(()) => Reply::Status {
                status: Box::new(status),
            },
            Err(fault) => Reply::error(ErrorKind::Usage, fault),
        }
    }

    fn change(&self, app: &AppName, settings: &PolicySettings) -> Reply {
        let change = match settings.change() {
            Ok(change) => change,
            Err(fault) => return Reply::error(ErrorKind::Usage, fault.to_string()),
        };
        let set = self.set(app.as_bytes(), change);
        if set.is_ok() {
            tracing::info!(%settings, "settings changed");
        }
        changed(set)
    }
}

fn done(outcome: Result<(), SteeringError>) -> Reply {
    match outcome {
        Ok(()) => Reply::Done,
        Err(error) => Reply::error(ErrorKind::Failed, error.to_string()),
    }
}

fn changed(outcome: Result<(), SettingsError>) -> Reply {
    match outcome {
        Ok(()) => Reply::Done,
        Err(error) if error.is_usage() => Reply::error(ErrorKind::Usage, error.to_string()),
        Err(error) => Reply::error(ErrorKind::Failed, error.to_string()),
    }
}

fn no_apps(app: &AppName) -> Reply {
    let error = SettingsError::NoApps {
        app: app.to_string(),
    };
    Reply::error(ErrorKind::Usage, error.to_string())
}
