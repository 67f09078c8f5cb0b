//! The process that serves a mount.

mod background;
mod control;
mod signals;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use mobifs_fuse::{AccessTimes, Session};
use mobifs_runtime::{
    Config, ControlServer, MountEntry, OpenedStore, Places, Volume, VolumeOptions, mount_at,
};

use crate::failure::{Code, Failure};
use crate::mount_options::Options;
pub(crate) use background::{Ready, start_in_background};
use control::Daemon;

/// How long to wait before trying again to commit what could not be committed.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Files that the daemon may have open; the store alone keeps hundreds.
const OPEN_FILES: u64 = 65_536;

/// Everything that a mount needs to know.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) places: Places,
    pub(crate) options: Options,
    pub(crate) config: Config,
    pub(crate) config_file: Option<PathBuf>,
    pub(crate) log: Option<PathBuf>,
}

/// Mounts and serves until the mount is ended.
pub(crate) fn serve(plan: Plan, ready: &Ready) -> Result<(), Failure> {
    allow_many_files();
    keep_out_of_core_dumps();
    let Plan {
        places,
        options,
        config,
        config_file,
        ..
    } = plan;
    let store_failed = |error| Failure::of_store(&places.store, &error);
    let read_only = options.mount.read_only;
    let opened = OpenedStore::open(&places.store, &config, read_only).map_err(store_failed)?;
    log_recovery(&opened);
    let volume_options = VolumeOptions {
        read_only,
        no_access_time: options.mount.access_times == AccessTimes::Never,
        ..VolumeOptions::new(&config)
    };
    let volume = Volume::start(opened.store(), volume_options)?;
    let mut mount_options = options.mount;
    if !options.has_source_name {
        mount_options.source_name = places.store.to_string_lossy().into_owned();
    }
    let session = Session::mount(Arc::clone(&volume), &places.mountpoint, &mount_options)?;
    let handle = session.handle();
    let daemon = Arc::new(Daemon::new(volume, handle, opened, places, config_file));
    let control = match start_control(&daemon) {
        Ok(control) => control,
        Err(failure) => {
            // Nothing was acknowledged to anybody yet.
            if let Err(error) = session.handle().unmount(true) {
                tracing::error!(%error, "cannot take the mount away again");
            }
            return Err(failure);
        }
    };
    tracing::info!(
        store = %daemon.places.store.display(),
        mountpoint = %daemon.places.mountpoint.display(),
        sync_reaches = session.sync_reaches(),
        "mounted"
    );
    ready.mounted();
    let served = session.run();
    if let Err(error) = &served {
        tracing::error!(%error, "the mount ended");
    }
    let ended = finish(&daemon);
    // Until here `mobifs umount` has waited.
    daemon.ended.set(ended.clone());
    control.wait_for_replies();
    drop(control);
    served.map_err(|error| Failure::new(Code::Failed, error.to_string()))?;
    ended
}

/// Lets commands and signals reach the mount.
fn start_control(daemon: &Arc<Daemon>) -> Result<ControlServer, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(
            Code::Failed,
            format!("cannot make the control socket: {error}"),
        )
    };
    let mount: MountEntry = mount_at(&daemon.places.mountpoint)
        .and_then(|mount| mount.ok_or_else(|| std::io::Error::other("the mount is gone already")))
        .map_err(failed)?;
    let control = ControlServer::start(&mount, Arc::clone(daemon) as Arc<_>).map_err(failed)?;
    signals::watch(Arc::clone(daemon)).map_err(failed)?;
    Ok(control)
}

/// When nobody is served any more: brings everything to the store, unless the power
/// was cut. What cannot be committed is tried again until somebody tells the process to
/// end, because with it goes what is in memory.
fn finish(daemon: &Daemon) -> Result<(), Failure> {
    // Whoever comes second finds that the first is at it, and waits for the end.
    let Some(opened) = daemon.opened.lock().take() else {
        return daemon.ended.wait(None).unwrap_or(Ok(()));
    };
    if daemon.is_power_cut() {
        opened.abandon();
        tracing::warn!("the power was cut by a drill");
        return Ok(());
    }
    while let Err(error) = daemon.volume.shutdown() {
        tracing::error!(%error, "not everything could be committed");
        if daemon.must_end_now() {
            opened.abandon();
            return Err(Failure::new(
                Code::Failed,
                format!("changes that could not be committed are lost: {error}"),
            ));
        }
        std::thread::sleep(RETRY_INTERVAL);
    }
    let path = daemon.places.store.clone();
    opened
        .close()
        .map_err(|error| Failure::of_store(&path, &error))?;
    tracing::info!(store = %path.display(), "unmounted");
    Ok(())
}

fn log_recovery(opened: &OpenedStore) {
    let report = opened.report();
    if !report.clean {
        tracing::info!(
            transactions = report.transactions,
            bytes = report.bytes,
            discarded_tail_bytes = report.discarded_tail_bytes,
            "the store was not properly closed and was recovered"
        );
    }
    if !report.lost.is_empty() {
        tracing::warn!(
            names = ?report.lost,
            "files that appeared behind the mount's back are kept in .mobifs/lost"
        );
    }
}

/// What users wrote is in our memory; a core dump may lie where others can read it. So it
/// gets no memory at all, only registers and the list of mappings (core(5)).
fn keep_out_of_core_dumps() {
    if let Err(error) = std::fs::write("/proc/self/coredump_filter", "0") {
        tracing::debug!(%error, "a core dump of this process will have its memory");
    }
}

/// Raises the limit of open files as far as the system lets us.
fn allow_many_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    let wanted = limit
        .maximum
        .map_or(OPEN_FILES, |maximum| maximum.min(OPEN_FILES));
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = Some(wanted);
        if let Err(errno) = setrlimit(Resource::Nofile, limit) {
            tracing::debug!(%errno, "the limit of open files stays as it is");
        }
    }
}
