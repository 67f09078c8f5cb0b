//! The process that steers a filesystem, from its beginning to its end.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mobifs_daemon::control::ControlServer;
use mobifs_daemon::launch::Ready;
use mobifs_daemon::{AroundWatcher, Code, ConfigText, EventTarget, Failure};
use mobifs_engine::Class;
use mobifs_host::MountEntry;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::check::{Obstacle, examine_only};
use crate::filesystem::Filesystem;
use crate::frozen::FrozenError;
use crate::only::OnlyError;
use crate::order::ORDER_NOTE;
use crate::stale_state::StaleStateError;
use crate::steering::{Steering, SteeringError};
use crate::takeover::TakeoverError;
use mobifs_steered::PublishError;

/// A filesystem that can be steered, and how.
#[derive(Debug)]
pub struct Plan {
    /// The mount.
    pub mount: MountEntry,
    filesystem: Filesystem,
    /// The directories that alone are steered; none: all of it.
    pub only: Vec<PathBuf>,
    config: ConfigText,
    config_file: Option<PathBuf>,
}

/// Looks whether the filesystem that is mounted there can be steered as the configuration says.
///
/// # Errors
/// The first reason why not. Nothing is changed.
pub fn prepare(
    mountpoint: &Path,
    only: &[PathBuf],
    config: ConfigText,
    config_file: Option<PathBuf>,
) -> Result<Plan, Failure> {
    let policy = config.config.rules.policy_of_all();
    let examination = examine_only(mountpoint, only, &policy, true).map_err(refusal)?;
    if let Some(obstacle) = examination.obstacles.into_iter().next() {
        return Err(refusal(obstacle));
    }
    for note in &examination.notes {
        tracing::info!("{note}");
    }
    match (examination.mount, examination.filesystem) {
        (Some(mount), Some(filesystem)) => Ok(Plan {
            mount,
            filesystem,
            only: examination.only,
            config,
            config_file,
        }),
        _ => Err(Failure::new(
            Code::Failed,
            format!("{} is not mounted", mountpoint.display()),
        )),
    }
}

impl Plan {
    /// What the user has to know of before it is steered.
    pub fn warning(&self) -> Option<&'static str> {
        if !self.filesystem.keeps_order() {
            return Some(ORDER_NOTE);
        }
        let config = &self.config.config;
        if config.rules.policy_of_all().class == Class::Durable {
            return Some(
                "the configuration has durable apps, and a filesystem is committed as a whole: calls for \
                 durability wait, those of all programs; leave the class away here and start the durable \
                 ones with `mobifs run --class durable`, or without `mobifs run`",
            );
        }
        let has_snapshots = matches!(self.filesystem, Filesystem::Btrfs(_));
        (config.history.is_on() && !has_snapshots).then_some(
            "the configuration has [history], and no history is kept here: only btrfs has snapshots",
        )
    }
}

fn refusal(obstacle: Obstacle) -> Failure {
    let code = match obstacle {
        Obstacle::AlreadySteered { .. }
        | Obstacle::SteeredOutOfReach { .. }
        | Obstacle::Ending { .. } => Code::InUse,
        _ if obstacle.is_of_configuration() => Code::Usage,
        _ => Code::Failed,
    };
    Failure::new(code, obstacle.to_string())
}

impl From<SteeringError> for Failure {
    fn from(error: SteeringError) -> Self {
        let code = match error {
            SteeringError::Publish(PublishError::AlreadySteered { .. }) => Code::InUse,
            _ => Code::Failed,
        };
        Self::new(code, error.to_string())
    }
}

impl From<OnlyError> for Failure {
    fn from(error: OnlyError) -> Self {
        Self::new(Code::Failed, error.to_string())
    }
}

impl From<FrozenError> for Failure {
    fn from(error: FrozenError) -> Self {
        Self::new(Code::Failed, error.to_string())
    }
}

impl From<StaleStateError> for Failure {
    fn from(error: StaleStateError) -> Self {
        Self::new(Code::Failed, error.to_string())
    }
}

impl From<TakeoverError> for Failure {
    fn from(error: TakeoverError) -> Self {
        let code = match error {
            TakeoverError::NotSteered { .. } => Code::NotMounted,
            _ => Code::Failed,
        };
        Self::new(code, error.to_string())
    }
}

/// Steers a filesystem until that is ended.
///
/// # Errors
/// Why it is not steered, or why its mount options could not be restored.
pub fn serve(plan: Plan, ready: &Ready) -> Result<(), Failure> {
    // Started as /proc/self/exe, it would be "exe" in lists of processes.
    let _named = rustix::thread::set_name(c"mobifs");
    let failed =
        |error: std::io::Error| Failure::new(Code::Failed, format!("cannot start: {error}"));
    let signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(failed)?;
    let Plan {
        mount,
        filesystem,
        only,
        config,
        config_file,
    } = plan;
    mobifs_daemon::control::check_readers(config.config.status_group.as_deref())
        .map_err(|error| Failure::new(Code::Usage, format!("status_group: {error}")))?;
    let steering = Steering::begin(&mount, &filesystem, &only, &config.config, config_file)?;
    let steering = Arc::new(steering);
    let readers = config.config.status_group.as_deref();
    let control = ControlServer::start(&mount, Arc::clone(&steering) as Arc<_>, readers)
        .inspect_err(|_| end(&steering))
        .map_err(failed)?;
    let kept = Arc::downgrade(&steering);
    let look = move || {
        if let Some(steering) = kept.upgrade() {
            steering.keep_notes();
        }
    };
    if let Err(error) = control.keep(|_| {}, look) {
        tracing::warn!(%error, "the control socket is not made again if it is removed");
    }
    watch_signals(Arc::clone(&steering), signals)
        .inspect_err(|_| end(&steering))
        .map_err(failed)?;
    let target = Arc::clone(&steering) as Arc<dyn EventTarget>;
    let around = AroundWatcher::start(&target, &config.config.events);
    tracing::info!(
        mountpoint = ?mount.mountpoint,
        filesystem = filesystem.kind(),
        "steered"
    );
    ready.in_force(&format!("steers {}", mount.mountpoint.display()));
    let ran = steering.run();
    drop(around);
    if ran.is_err() {
        end(&steering);
    }
    control.wait_for_replies();
    tracing::info!(mountpoint = ?mount.mountpoint, "no longer steered");
    ran.map_err(Failure::from)
}

fn end(steering: &Steering) {
    if let Err(error) = steering.end() {
        tracing::error!(%error, "the daemon could not leave everything as it was");
    }
}

/// SIGTERM and SIGINT end it, SIGHUP loads the configuration again.
fn watch_signals(steering: Arc<Steering>, mut signals: Signals) -> std::io::Result<()> {
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in &mut signals {
                if signal != SIGHUP {
                    end(&steering);
                } else if let Err(error) = steering.reload(None) {
                    tracing::error!(
                        %error,
                        "cannot reload the configuration; the old one stays in force"
                    );
                }
            }
        })?;
    Ok(())
}
