//! What commands and signals do to a mount.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::control::{ControlHandler, ErrorKind, Reply, Request};
use crate::handover::CONFIG_NAME;
use crate::mount_paths::MountPaths;
use crate::mount_users::{MountUser, users_of_device};
use mobifs_fuse::{SessionHandle, UnmountError};
use mobifs_host::{Client, MountEntry, mount_at};
use mobifs_volume::{
    AppName, AppSelection, Arena, Config, LastingSettings, OpenedStore, OwnerState, PolicySettings,
    Volume, VolumeError,
};
use parking_lot::{Condvar, Mutex};

use super::plan::RETRY_INTERVAL;
use crate::config_text::ConfigText;
use crate::failure::{Code, Failure};
use crate::handover::SupervisorLink;
use crate::mount_users::describe;
use crate::recording::Recording;
use crate::totals::{TotalsLog, read_totals};
use crate::unmount::unmount_unused;

/// How long the daemon waits for the end of a mount before it counts as still in use.
const LAZY_WAIT: Duration = Duration::from_secs(2);
/// How long the end of a mount is waited for before looking for what delays it.
const END_STEP: Duration = Duration::from_millis(200);
/// How long a filesystem may stay in use after its mount has ended, by users that cannot be seen,
/// before that is reported. Without users the kernel ends it much faster.
const UNSEEN_MOUNTS_WAIT: Duration = Duration::from_secs(10);
/// How long requests under way may take to fail after a power cut.
const CUT_WAIT: Duration = Duration::from_secs(2);
/// How long a reply may take to reach the client.
const LAST_REPLY_WAIT: Duration = Duration::from_millis(300);

/// The outcome of the mount, once there is one.
#[derive(Debug, Default)]
pub(crate) struct Ended {
    outcome: Mutex<Option<Result<(), Failure>>>,
    changed: Condvar,
    /// The kernel has no more requests: the rest is the daemon's work.
    has_begun: AtomicBool,
}

impl Ended {
    /// The filesystem has no mount any more.
    pub(crate) fn begin(&self) {
        self.has_begun.store(true, Ordering::SeqCst);
    }

    fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::SeqCst)
    }

    pub(crate) fn set(&self, outcome: Result<(), Failure>) {
        *self.outcome.lock() = Some(outcome);
        self.changed.notify_all();
    }

    /// Waits for the outcome; none if it takes longer than `timeout`.
    pub(crate) fn wait(&self, timeout: Option<Duration>) -> Option<Result<(), Failure>> {
        let mut outcome = self.outcome.lock();
        while outcome.is_none() {
            match timeout {
                None => self.changed.wait(&mut outcome),
                Some(timeout) => {
                    if self.changed.wait_for(&mut outcome, timeout).timed_out() {
                        break;
                    }
                }
            }
        }
        outcome.clone()
    }
}

/// A mount being served.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) volume: std::sync::Arc<Volume>,
    pub(crate) paths: MountPaths,
    pub(crate) ended: Ended,
    pub(crate) supervisor: SupervisorLink,
    /// How often the mount was taken over.
    restarts: u64,
    pub(crate) recording: Option<Recording>,
    /// Taken by the thread that ends the mount.
    pub(crate) opened: Mutex<Option<OpenedStore>>,
    /// None where nothing may change in the store.
    totals: Option<TotalsLog>,
    handle: SessionHandle,
    config_file: Option<PathBuf>,
    lasting: LastingSettings,
    power_cut: AtomicBool,
    end_now: AtomicBool,
}

impl Daemon {
    pub(crate) fn new(
        volume: std::sync::Arc<Volume>,
        handle: SessionHandle,
        opened: OpenedStore,
        restarts: u64,
        supervisor: SupervisorLink,
        paths: MountPaths,
        (config, config_file): (&Config, Option<PathBuf>),
    ) -> Self {
        let status = volume.status();
        let totals = (!status.read_only).then(|| TotalsLog::start(&paths.store, &status));
        let totals = totals.and_then(|started| {
            let failed = |error: &std::io::Error| {
                tracing::warn!(%error, "no totals by day are kept for this mount");
            };
            started.inspect_err(failed).ok()
        });
        Self {
            totals,
            supervisor,
            recording: None,
            restarts,
            volume,
            paths,
            ended: Ended::default(),
            opened: Mutex::new(Some(opened)),
            handle,
            config_file,
            lasting: LastingSettings::of_mount(config),
            power_cut: AtomicBool::new(false),
            end_now: AtomicBool::new(false),
        }
    }

    /// These commands, with the recording of the mount.
    pub(crate) fn recorded(mut self, recording: Option<Recording>) -> Self {
        self.recording = recording;
        self
    }

    pub(crate) fn is_power_cut(&self) -> bool {
        self.power_cut.load(Ordering::SeqCst)
    }

    /// Whether the process was signalled twice to end.
    pub(crate) fn must_end_now(&self) -> bool {
        self.end_now.load(Ordering::SeqCst)
    }

    /// SIGTERM, SIGINT: commit everything and unmount; if the mount is in use, take it out of the
    /// tree and end with its last user.
    pub(crate) fn terminate(&self) {
        if let Err(error) = self.volume.sync_app(None, true) {
            tracing::error!(
                %error,
                "the daemon could not commit everything, so it goes on and tries again; a second \
                 signal ends it nevertheless"
            );
            return;
        }
        let mount = mount_at(&self.paths.mountpoint).ok().flatten();
        match self.unmount_unused() {
            Ok(()) => {
                if let Reply::Detached { used_by } = self.wait_for_end(false, mount.as_ref()) {
                    tracing::warn!(
                        by = used_by.join(", "),
                        "unmounted, but the filesystem is in use elsewhere: everything is \
                         committed, and it ends with its last user; a second signal ends it at once"
                    );
                }
            }
            Err((UnmountError::Busy(path), users)) => {
                tracing::warn!(
                    mountpoint = %path.display(),
                    by = describe(&users),
                    "in use: everything is committed, the mount leaves the tree and ends with its \
                     last user; a second signal ends it at once"
                );
                self.detach();
            }
            // It is unmounted already: serving ends by itself.
            Err((UnmountError::NotMounted(_), _)) => {}
            Err((error, _)) => {
                tracing::error!(
                    %error,
                    "the daemon cannot unmount; a second signal ends the mount at once"
                );
            }
        }
    }

    /// A second SIGTERM or SIGINT: commit what can be committed and end, even if the mount is in
    /// use.
    pub(crate) fn terminate_now(&self) {
        self.end_now.store(true, Ordering::SeqCst);
        if let Err(error) = self.handle.abort() {
            tracing::debug!(%error, "the mount is out of the tree already");
        }
        if self.ended.wait(Some(LAZY_WAIT)).is_some() {
            return;
        }
        // A mount that is out of the tree cannot be aborted from outside: it ends with
        // its daemon, which therefore does here what it does after serving.
        let code = match self.finish() {
            Ok(()) => 0,
            Err(failure) => {
                tracing::error!(%failure, "the mount ended with an error");
                i32::from(failure.code.number())
            }
        };
        std::process::exit(code)
    }

    fn unmount_unused(&self) -> Result<(), (UnmountError, Vec<MountUser>)> {
        unmount_unused(&self.paths.mountpoint, || self.handle.unmount(false))
    }

    fn detach(&self) {
        if let Err(error) = self.handle.unmount(true) {
            tracing::error!(%error, "the daemon cannot take the mount out of the tree");
        }
    }

    /// SIGHUP: load the configuration again; whether that changes anything, and the keys that wait for the next mount.
    pub(crate) fn reload(
        &self,
        other: Option<&Path>,
    ) -> Result<(bool, Vec<&'static str>), Failure> {
        let text = ConfigText::load(other.or(self.config_file.as_deref()))?;
        let has_changed = self.volume.reload(&text.config)?;
        if let Some(recording) = &self.recording {
            recording.apps_changed(&text.config.rules);
        }
        match text.copy() {
            Ok(copy) => self.supervisor.replace(CONFIG_NAME, copy.as_fd()),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "cannot hand the new configuration over: a successor would use the old one"
                )
            }
        }
        let wanted = LastingSettings::of_mount(&text.config);
        let waiting = self.lasting.different_in(&wanted);
        tracing::info!(
            has_changed,
            waits_for_next_mount = waiting.join(", "),
            "configuration reloaded"
        );
        Ok((has_changed, waiting))
    }

    fn status(&self, select: &AppSelection) -> Reply {
        let mut status = self.volume.status();
        if let Err(fault) = select.apply(&mut status) {
            return Reply::error(ErrorKind::Usage, fault);
        }
        // Without everything in the arena no successor could go on.
        let outlives = self.volume.arena().is_some_and(Arena::is_complete);
        let supervisor = self.supervisor.name().filter(|_| outlives);
        status.supervised_by = supervisor.map(str::to_owned);
        status.restarts = self.restarts;
        status.recording = self.recording.as_ref().map(Recording::status);
        status.mountpoint = Some(self.paths.mountpoint.to_string_lossy().into_owned());
        status.store.path = Some(self.paths.store.to_string_lossy().into_owned());
        Reply::Status {
            status: Box::new(status),
        }
    }

    /// Records what was written and saved since the last time, unless nothing may change in the store.
    pub(crate) fn record_totals(&self) {
        let Some(totals) = &self.totals else {
            return;
        };
        if let Err(error) = totals.record(&self.volume.status()) {
            tracing::debug!(%error, "cannot record the totals of this day");
        }
    }

    fn totals(&self) -> Reply {
        self.record_totals();
        let days = match &self.totals {
            Some(totals) => totals.days(),
            None => read_totals(&self.paths.store),
        };
        match days {
            Ok(days) => Reply::Totals { days },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Reply::Totals { days: Vec::new() }
            }
            Err(error) => Reply::error(
                ErrorKind::Failed,
                format!("cannot read the totals of the store: {error}"),
            ),
        }
    }

    fn unmount(&self, lazy: bool, mount_id: Option<u64>) -> Reply {
        let mount = mount_at(&self.paths.mountpoint).ok().flatten();
        let own_id = mount.as_ref().map(|mount| mount.id);
        if mount_id.is_some() && mount_id != own_id {
            return Reply::AnotherMount;
        }
        // First of all, because after the unmount no user could do anything about a
        // failure any more.
        let kept = self.volume.sync_app(None, true).err();
        if let Some(error) = kept.as_ref().filter(|_| !lazy) {
            let message = format!(
                "not unmounted: {}; then unmount again. If that is impossible, `mobifs drill \
                 power-cut --yes {}` ends the mount, and what is not committed is lost",
                self.with_what_to_do(error),
                self.paths.mountpoint.display()
            );
            return Reply::error(ErrorKind::Failed, message);
        }
        let unmounted = if lazy {
            let detached = self.handle.unmount(true);
            detached.map_err(|error| (error, Vec::new()))
        } else {
            self.unmount_unused()
        };
        match unmounted {
            Ok(()) => {}
            Err((UnmountError::Busy(path), users)) => {
                let (path, users) = (path.display(), describe(&users));
                return Reply::error(
                    ErrorKind::Busy,
                    format!(
                        "{path} is in use by {users}; everything is committed. Close what uses \
                         it, or unmount with --lazy"
                    ),
                );
            }
            Err((UnmountError::NotMounted(_), _)) => {}
            Err((error, _)) => return Reply::error(ErrorKind::Failed, error.to_string()),
        }
        if let Some(error) = kept {
            let path = self.paths.mountpoint.display();
            return Reply::error(
                ErrorKind::Failed,
                format!(
                    "{path} is out of the tree, but not everything is in the store: {error}; the \
                     daemon tries again until that is possible, and ends without it at a second \
                     SIGTERM"
                ),
            );
        }
        self.wait_for_end(lazy, mount.as_ref())
    }

    /// Waits until the mount, which is out of the tree, has ended. Its filesystem is served further
    /// as long as it is mounted elsewhere, which must not keep the requester waiting.
    fn wait_for_end(&self, lazy: bool, mount: Option<&MountEntry>) -> Reply {
        let start = Instant::now();
        loop {
            if let Some(outcome) = self.ended.wait(Some(END_STEP)) {
                return reply(outcome);
            }
            let mut used_by = Vec::new();
            let waited = start.elapsed();
            if lazy {
                if waited < LAZY_WAIT {
                    continue;
                }
            } else if self.ended.has_begun() {
                continue;
            } else {
                let users =
                    mount.map(|mount| users_of_device(mount.device_major, mount.device_minor));
                used_by.extend(users.iter().flatten().map(ToString::to_string));
                if used_by.is_empty() && waited < UNSEEN_MOUNTS_WAIT {
                    continue;
                }
            }
            return Reply::Detached { used_by };
        }
    }

    fn cut_power(&self) -> Reply {
        // Otherwise a new daemon could bring back what the cut is to take.
        self.supervisor.withdraw("power cut");
        self.power_cut.store(true, Ordering::SeqCst);
        self.volume.cut_power();
        if let Err(error) = self.handle.abort() {
            tracing::warn!(
                %error,
                "the daemon aborted the mount, but cannot take it out of the tree"
            );
        }
        match self.ended.wait(Some(CUT_WAIT)) {
            Some(outcome) => reply(outcome),
            None => {
                // A process uses the mount, and it could not be aborted. It ends with this daemon:
                // nothing is written any more.
                tracing::warn!("the aborted mount is still in use; the daemon ends now");
                let outcome = self.finish();
                end_soon();
                reply(outcome)
            }
        }
    }

    fn set(&self, app: &AppName, settings: &PolicySettings) -> Reply {
        let change = match settings.change() {
            Ok(change) => change,
            Err(fault) => return Reply::error(ErrorKind::Usage, fault.to_string()),
        };
        // Shells complete names of directories with a slash.
        let path = app.as_bytes();
        let path = path.strip_suffix(b"/").unwrap_or(path);
        match self.volume.set_app(path, change) {
            Ok(()) => {
                tracing::info!(%app, %settings, "settings changed");
                Reply::Done
            }
            Err(error) => self.refused(&error),
        }
    }

    /// A failure of the volume, and what the user can do about it.
    fn refused(&self, error: &VolumeError) -> Reply {
        Reply::error(kind_of(error), self.with_advice(error))
    }

    /// As [`Self::with_advice`], where nothing else is done before.
    fn with_what_to_do(&self, error: &VolumeError) -> String {
        match error.is_full() {
            true => self.with_advice(error),
            false => format!("{error}: mend that"),
        }
    }

    /// What the user can do where there was no room.
    fn with_advice(&self, error: &VolumeError) -> String {
        if error.is_full() {
            let advice = self.volume.room_advice();
            format!("{error}: {advice}, or delete files in the mount")
        } else {
            error.to_string()
        }
    }
}

impl ControlHandler for Daemon {
    fn handle(&self, request: Request, _client: &Client<'_>) -> Reply {
        match request {
            Request::Status { select } => self.status(&select),
            Request::Sync { app, apply } => {
                let app = app.as_ref().map(AppName::as_bytes);
                match self.volume.sync_path(app, apply) {
                    Ok(()) => Reply::Done,
                    Err(error) => self.refused(&error),
                }
            }
            Request::Unmount { lazy, mount_id } => self.unmount(lazy, mount_id),
            Request::StopSteering => Reply::error(
                ErrorKind::Usage,
                format!(
                    "{path} is a MobiFS mount and not a steered filesystem: `mobifs umount {word}` \
                     ends it",
                    path = self.paths.mountpoint.display(),
                    word = mobifs_host::shell_path(&self.paths.mountpoint)
                ),
            ),
            Request::PowerCut => self.cut_power(),
            Request::Touch => {
                self.volume.user_event();
                if let Some(recording) = &self.recording {
                    recording.touched();
                }
                Reply::Done
            }
            Request::Screen { on } => {
                if let Some(recording) = &self.recording {
                    recording.screen_changed(on);
                }
                match self.volume.set_screen(on) {
                    Ok(()) => Reply::Done,
                    Err(error) => self.refused(&error),
                }
            }
            Request::Reload { config } => match self.reload(config.as_deref().map(Path::new)) {
                Ok((has_changed, waiting)) => Reply::reloaded(has_changed, &waiting),
                Err(failure) => Reply::error(ErrorKind::Usage, failure.message),
            },
            Request::Set { app, settings } => self.set(&app, &settings),
            Request::Totals => self.totals(),
            Request::Calibrate => match self.volume.calibrate() {
                Ok(measured) => Reply::Calibration {
                    calibration: (&measured).into(),
                },
                Err(error) => self.refused(&error),
            },
        }
    }
}

/// Ends the process when the reply under way is sent.
fn end_soon() {
    let ender = || {
        std::thread::sleep(LAST_REPLY_WAIT);
        std::process::exit(0)
    };
    if std::thread::Builder::new().spawn(ender).is_err() {
        std::process::exit(0)
    }
}

fn reply(outcome: Result<(), Failure>) -> Reply {
    match outcome {
        Ok(()) => Reply::Done,
        Err(failure) => Reply::error(ErrorKind::Failed, failure.message),
    }
}

fn kind_of(error: &VolumeError) -> ErrorKind {
    match error {
        VolumeError::UnknownApp { .. } | VolumeError::Setting(_) => ErrorKind::Usage,
        _ => ErrorKind::Failed,
    }
}

/// The end.
impl Daemon {
    /// After serving: commits and applies everything, and ends the recording.
    pub(super) fn finish(&self) -> Result<(), Failure> {
        let ended = self.finish_store();
        if let Some(recording) = &self.recording {
            recording.finish();
        }
        ended
    }

    /// Commits and applies everything, unless the power was cut. What cannot be committed is tried
    /// again until the process is asked to end, because what is in memory is lost with it.
    fn finish_store(&self) -> Result<(), Failure> {
        // The thread that comes second finds that the first is finishing the store, and waits for its
        // end.
        let Some(opened) = self.opened.lock().take() else {
            return self.ended.wait(None).unwrap_or(Ok(()));
        };
        if self.is_power_cut() {
            // A drill writes nothing any more, not even whether this process is about to end.
            opened.abandon();
            tracing::warn!("a drill simulated a power cut: uncommitted changes are discarded");
            return Ok(());
        }
        opened.set_owner_state(OwnerState::Finishing);
        while let Err(error) = self.volume.shutdown() {
            tracing::error!(%error, "the daemon could not commit everything");
            if self.must_end_now() {
                self.supervisor.withdraw("ended by two signals");
                let is_committed = self.volume.sync_app(None, false).is_ok();
                opened.abandon();
                let what = if is_committed {
                    "everything is committed, but could not be applied, which the next mount tries \
                     again"
                } else {
                    "changes that could not be committed are lost"
                };
                return Err(Failure::new(Code::Failed, format!("{what}: {error}")));
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
        self.record_totals();
        // From here on a successor has nothing to do that the next mount does not do.
        self.supervisor.withdraw("unmounted");
        let path = self.paths.store.clone();
        opened
            .close()
            .map_err(|error| Failure::of_store(&path, &error))?;
        tracing::info!(store = %path.display(), "unmounted");
        Ok(())
    }
}
