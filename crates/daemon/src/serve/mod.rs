//! Serving a mount, from its beginning to its end.

mod commands;
mod final_commit;
mod history;
mod plan;
mod serving;
mod signals;
mod takeover;

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mobifs_fuse::SessionError;
use mobifs_host::mount_at;
use mobifs_volume::{Arena, OpenOptions, OpenedStore, Volume, fault_point};
use rustix::fs::{Mode, OFlags};
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;

use crate::adapter::VolumeSession;
use crate::bus::{self, BusWatcher};
use crate::config_text::ConfigText;
use crate::control::{ControlServer, check_readers};
use crate::events::{EventTarget, EventWatcher};
use crate::failure::{Code, Failure};
use crate::handover::{self, SupervisorLink};
use crate::launch::Ready;
use crate::predecessor::{Patience, after_predecessor};
use crate::recording::Recording;
use commands::Daemon;
pub use history::{STORE_HISTORY, history_status, why_no_history};
pub use plan::Plan;
use plan::{mount_options, open_options, volume_options};
use serving::{Serving, record_serving};
pub use takeover::TakeoverState;
use takeover::leave_to_another;

/// A power cut loses so much of the totals of a day.
const TOTALS_INTERVAL: Duration = Duration::from_secs(600);

/// What holds for the process from its start on: its name, its heap, its core dumps, and that a
/// panic ends it if a supervisor starts another one.
fn prepare_process(supervisor: &SupervisorLink) {
    // Started as /proc/self/exe, it would be "exe" in lists of processes.
    let _named = rustix::thread::set_name(c"mobifs");
    mobifs_volume::keep_few_heaps();
    keep_out_of_core_dumps();
    if supervisor.is_there() {
        die_of_panics();
    }
}

/// A mount that was taken over is served also without a control socket.
fn without_control<T>(failure: Failure) -> Option<T> {
    tracing::error!(
        %failure,
        "cannot serve the control socket: commands do not reach this daemon"
    );
    None
}

/// Mounts, or takes over from a predecessor, and serves until the mount is
/// ended.
///
/// # Errors
/// [`Failure`]; its code says whether another attempt may succeed.
pub fn serve(
    plan: Plan,
    ready: &Ready,
    supervisor: SupervisorLink,
    takeover_state: Option<TakeoverState>,
) -> Result<(), Failure> {
    prepare_process(&supervisor);
    let mut signals = signals::catch().map_err(no_control)?;
    let is_new = takeover_state.is_none();
    let (serving, control) = begin(&plan, ready, &supervisor, takeover_state, &mut signals)?;
    let Serving {
        opened,
        volume,
        session,
        arena,
        recording,
    } = serving;
    let (handle, restarts) = (session.handle(), session.takeovers());
    let (paths, config_file) = (plan.paths, plan.config_file);
    let daemon = Daemon::new(
        volume,
        handle,
        opened,
        restarts,
        supervisor,
        paths,
        (&plan.config.config, config_file),
    );
    let daemon = Arc::new(daemon.recorded(recording));
    fault_point("control");
    let readers = plan.config.config.status_group.as_deref();
    let control = match start_control(&daemon, control, readers) {
        Err(failure) if is_new => {
            take_away(&session, &daemon);
            return Err(failure);
        }
        control => control.unwrap_or_else(without_control),
    };
    if let Err(error) = signals::watch(Arc::clone(&daemon), signals) {
        if let (false, Some(arena)) = (is_new, &arena) {
            leave_to_another(arena, &error);
        }
        return Err(no_control(error));
    }
    if is_new {
        if let Some(arena) = &arena {
            hand_over(&daemon, &plan.config, arena, &session, control.as_ref());
        }
        log_mounted(&daemon, session.sync_reaches());
    }
    if let Some(control) = &control {
        keep_control(&daemon, control, is_new);
    }
    record_totals_at_times(&daemon);
    let watcher = watch_events(&daemon, &plan.config);
    let bus = watch_bus(&daemon, &plan.config);
    ready.mounted();
    let served = run(session, &daemon);
    if let (Err(error @ SessionError::Spawn(_)), Some(arena)) = (&served, &arena) {
        leave_to_another(arena, error);
    }
    daemon.ended.begin();
    drop(watcher);
    let ended = daemon.finish();
    // Until here sleep and shutdown were delayed.
    drop(bus);
    // Until here `mobifs umount` has waited.
    daemon.ended.set(ended.clone());
    if let Some(control) = control {
        control.wait_for_replies();
    }
    served.map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
    ended
}

/// Makes the mount, or takes it over: then with the control socket of the predecessor, if it had one.
fn begin(
    plan: &Plan,
    ready: &Ready,
    supervisor: &SupervisorLink,
    takeover_state: Option<TakeoverState>,
    signals: &mut Signals,
) -> Result<(Serving, Option<OwnedFd>), Failure> {
    if let Some(mut takeover_state) = takeover_state {
        let control = takeover_state.control.take();
        return Ok((takeover_state.take_over(plan, supervisor)?, control));
    }
    check_readers(plan.config.config.status_group.as_deref()).map_err(no_readers)?;
    let mut patience = Patience {
        limit: plan.wait,
        option: "-o wait=SECONDS",
        report: &|why| ready.waiting(why),
        must_end: &mut || signals.pending().any(|signal| signal != SIGHUP),
    };
    Ok((mount_recorded(plan, supervisor, &mut patience)?, None))
}

/// Ends a mount that was not reported as usable yet. Its connection is aborted first: nothing answers requests, and an
/// unmount makes one.
fn take_away(session: &VolumeSession, daemon: &Daemon) {
    if let Err(error) = session.handle().abort() {
        tracing::error!(%error, "the daemon cannot unmount after a failed start");
    }
    if let Some(recording) = &daemon.recording {
        recording.discard();
    }
}

fn run(session: VolumeSession, daemon: &Arc<Daemon>) -> Result<(), SessionError> {
    let ready_daemon = Arc::clone(daemon);
    fault_point("answer");
    let served = session.run_and_report(move || {
        ready_daemon.supervisor.ready("mounted");
        fault_point("ready");
    });
    if let Err(error) = &served {
        tracing::error!(%error, "the daemon stopped serving the mount");
    }
    served
}

/// Makes a new mount, recorded if that is wanted.
fn mount_recorded(
    plan: &Plan,
    supervisor: &SupervisorLink,
    patience: &mut Patience<'_>,
) -> Result<Serving, Failure> {
    let recording = plan.record.as_deref();
    let rules = &plan.config.config.rules;
    let recording = recording.map(|file| Recording::start(file, &plan.paths, rules));
    let recording = recording.transpose()?;
    match mount(plan, supervisor, recording.as_ref(), patience) {
        Ok(serving) => Ok(Serving {
            recording,
            ..serving
        }),
        Err(failure) => {
            if let Some(recording) = recording {
                recording.discard();
            }
            Err(failure)
        }
    }
}

fn mount(
    plan: &Plan,
    supervisor: &SupervisorLink,
    recording: Option<&Recording>,
    patience: &mut Patience<'_>,
) -> Result<Serving, Failure> {
    let store = &plan.paths.store;
    let arena = match supervisor.is_there().then(Arena::create).transpose() {
        Ok(arena) => arena,
        Err(error) => {
            tracing::warn!(
                %error,
                "no memory outlives this daemon: if it dies, uncommitted changes are lost"
            );
            None
        }
    };
    let options = OpenOptions {
        arena: arena.as_ref(),
        ..open_options(plan)
    };
    let opened = after_predecessor(store, patience, || OpenedStore::open(store, &options))?;
    log_recovery(&opened);
    let volume = Volume::start(opened.store(), volume_options(plan, arena.as_ref()))?;
    let session = VolumeSession::mount(
        Arc::clone(&volume),
        &plan.paths.mountpoint,
        &mount_options(plan),
        arena.as_ref(),
        recording.map(Recording::operations),
    )?;
    record_serving(&opened, &plan.paths.mountpoint);
    Ok(Serving {
        opened,
        volume,
        session,
        arena,
        recording: None,
    })
}

/// Hands over what a successor needs. The connection with the kernel comes last: a supervisor that
/// has it has everything.
fn hand_over(
    daemon: &Daemon,
    config: &ConfigText,
    arena: &Arena,
    session: &VolumeSession,
    control: Option<&ControlServer>,
) {
    let opened = daemon.opened.lock();
    let lock = opened.as_ref().and_then(OpenedStore::lock_descriptor);
    let copy = config.copy();
    let listener = control.and_then(ControlServer::listener);
    let mut descriptors = Vec::new();
    match &copy {
        Ok(copy) => descriptors.push((handover::CONFIG_NAME, copy.as_fd())),
        Err(error) => {
            tracing::warn!(
                %error,
                "cannot hand the configuration over: a successor will read its file"
            )
        }
    }
    // The path may lead elsewhere when a successor needs it.
    let store = open_directory(&daemon.paths.store);
    match &store {
        Ok(store) => descriptors.push((handover::STORE_NAME, store.as_fd())),
        Err(error) => {
            tracing::warn!(%error, "cannot hand the store's directory over: a successor will look for its path");
        }
    }
    descriptors.extend(lock.map(|lock| (handover::LOCK_NAME, lock)));
    descriptors.extend(
        listener
            .as_ref()
            .map(|socket| (handover::CONTROL_NAME, socket.as_fd())),
    );
    descriptors.push((handover::ARENA_NAME, arena.descriptor()));
    descriptors.push((handover::DEVICE_NAME, session.device()));
    daemon.supervisor.keep(&descriptors);
}

fn open_directory(path: &Path) -> std::io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn no_readers(error: mobifs_host::GroupError) -> Failure {
    Failure::new(Code::Usage, format!("status_group: {error}"))
}

fn no_control(error: std::io::Error) -> Failure {
    Failure::new(
        Code::Failed,
        format!("cannot make the control socket: {error}"),
    )
}

/// Lets commands reach the mount: over a predecessor's socket, if there is one. None if
/// the mount is out of the tree, so that no command can name it.
fn start_control(
    daemon: &Arc<Daemon>,
    inherited: Option<OwnedFd>,
    readers: Option<&str>,
) -> Result<Option<ControlServer>, Failure> {
    let mount = mount_at(&daemon.paths.mountpoint).map_err(no_control)?;
    let handler = Arc::clone(daemon) as Arc<_>;
    let control = match (mount, inherited) {
        (Some(mount), None) => ControlServer::start(&mount, handler, readers),
        (mount, Some(socket)) => {
            ControlServer::resume(mount.as_ref(), socket.into(), handler, readers)
        }
        (None, None) => return Ok(None),
    };
    control.map(Some).map_err(no_control)
}

/// Makes the control socket again whenever it was removed. A successor gets the one that there is.
fn keep_control(daemon: &Arc<Daemon>, control: &ControlServer, is_new: bool) {
    if !is_new
        && control.is_made()
        && let Some(listener) = control.listener()
    {
        let supervisor = &daemon.supervisor;
        supervisor.replace(handover::CONTROL_NAME, listener.as_fd());
    }
    let daemon = Arc::downgrade(daemon);
    let made = move |listener: std::os::fd::BorrowedFd<'_>| {
        if let Some(daemon) = daemon.upgrade() {
            daemon.supervisor.replace(handover::CONTROL_NAME, listener);
        }
    };
    if let Err(error) = control.keep(made, || {}) {
        tracing::warn!(%error, "the control socket is not made again if it is removed");
    }
}

/// Notes the totals of the day from time to time, as long as there is a daemon.
fn record_totals_at_times(daemon: &Arc<Daemon>) {
    let daemon = Arc::downgrade(daemon);
    let note = move || {
        loop {
            std::thread::sleep(TOTALS_INTERVAL);
            let Some(daemon) = daemon.upgrade() else {
                return;
            };
            if !daemon.is_power_cut() {
                daemon.record_totals();
            }
        }
    };
    let thread = std::thread::Builder::new().name("totals".into());
    if let Err(error) = thread.spawn(note) {
        tracing::warn!(%error, "totals by day are written only at unmount");
    }
}

/// None if events cannot be watched.
fn watch_bus(daemon: &Daemon, config: &ConfigText) -> Option<BusWatcher> {
    let observer = daemon.recording.as_ref().map(Recording::events);
    let target = Arc::clone(&daemon.volume) as Arc<dyn EventTarget>;
    bus::watch(&target, &config.config.events, observer)
}

fn watch_events(daemon: &Daemon, config: &ConfigText) -> Option<EventWatcher> {
    let observer = daemon.recording.as_ref().map(Recording::events);
    let target = Arc::clone(&daemon.volume) as Arc<dyn EventTarget>;
    EventWatcher::start(target, &config.config.events, observer)
        .inspect_err(|error| {
            tracing::warn!(
                %error,
                "cannot watch for events; the mount is served without them"
            )
        })
        .ok()
}

fn log_mounted(daemon: &Daemon, sync_reaches: bool) {
    let (store, mountpoint) = (&daemon.paths.store, &daemon.paths.mountpoint);
    tracing::info!(?store, ?mountpoint, sync_reaches, "mounted");
}

fn log_recovery(opened: &OpenedStore) {
    let report = opened.report();
    if !report.clean {
        tracing::info!(
            transactions = report.transactions,
            bytes = report.bytes,
            discarded_tail_bytes = report.discarded_tail_bytes,
            applied = report.applied,
            copied = report.copied,
            "the store was not properly closed and was recovered"
        );
    }
    if !report.lost.is_empty() {
        tracing::warn!(
            names = ?report.lost,
            "other programs created files in the store while it was mounted; they are kept in \
             .mobifs/lost"
        );
    }
}

/// A panic of any thread ends the process. Without the thread that commits, for one, the mount
/// would go on, and nothing would reach the store any more; a successor has all threads again.
fn die_of_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

/// What users wrote is in our memory; a core dump may lie where others can read it. So it
/// gets no memory at all, only registers and the list of mappings (core(5)).
fn keep_out_of_core_dumps() {
    if let Err(error) = std::fs::write("/proc/self/coredump_filter", "0") {
        tracing::debug!(%error, "a core dump of this process will contain the arena");
    }
}
