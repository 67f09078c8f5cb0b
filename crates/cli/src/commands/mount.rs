//! `mobifs mount`

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use mobifs_daemon::control::{find_mount, remove_stale_sockets};
use mobifs_daemon::launch::{Ready, start_in_background};
use mobifs_daemon::{
    Code, ConfigText, Failure, Inherited, MountPaths, PathOptions, Plan, SupervisorLink,
    TakeoverState, check_store, logging, raise_limits, serve, why_no_history,
};
use mobifs_fuse::{AccessTimes, MountOptions};
use mobifs_host::{absolute_without_touching, log_directives, runtime_directory};
use rustix::mount::MountFlags;

use crate::arguments::MountArguments;
use crate::mount_options::Options;

pub(crate) fn run(arguments: &MountArguments) -> Result<(), Failure> {
    let ready = Ready::new(arguments.background_child);
    let result = start(arguments, &ready);
    if let Err(failure) = &result {
        ready.failed(failure);
    }
    result
}

fn start(arguments: &MountArguments, ready: &Ready) -> Result<(), Failure> {
    // Before anything is opened.
    let inherited = if arguments.foreground {
        Inherited::take()
    } else {
        Inherited::default()
    };
    let limits = raise_limits();
    let options = Options::parse(&arguments.options, arguments.sloppy)?;
    if options.remount {
        return remount(&arguments.mountpoint, &options.mount);
    }
    super::refuse_under_run("mount")?;
    let log = arguments.log.clone().or_else(|| options.log.clone());
    let mut takeover_state = None;
    let mut supervisor = SupervisorLink::none();
    if arguments.foreground {
        // The parent has made the log file our standard error already.
        let file = log.as_deref().filter(|_| !arguments.background_child);
        logging::start(file, "info")?;
        mobifs_daemon::namespace_keeper::start();
        supervisor = SupervisorLink::from_environment()?;
        let mountpoint = if inherited.is_empty() {
            without_touching(&arguments.mountpoint)?
        } else {
            last_mountpoint(arguments)
        };
        takeover_state = TakeoverState::find(inherited, &supervisor, &mountpoint);
    }
    let config_file = arguments.config.clone().or_else(|| options.config.clone());
    let config = match takeover_state.as_mut().and_then(TakeoverState::config) {
        Some(config) => config,
        None => ConfigText::load(config_file.as_deref())?,
    };
    let path_options = PathOptions {
        read_only: options.mount.read_only,
        nonempty: options.nonempty,
    };
    let paths = if let Some(state) = &mut takeover_state {
        if let Err(error) = limits {
            tracing::warn!(%error, "continuing the takeover with a limit that is too low");
        }
        taken_over(arguments, state.store())?
    } else {
        limits?;
        let paths = MountPaths::check(&arguments.store, &arguments.mountpoint, path_options)?;
        // Before the directory is made a store.
        mobifs_fuse::check_permitted()?;
        paths
    };
    // The daemon's working directory is another one.
    let record = arguments.record.as_ref().or(options.record.as_ref());
    let record = record.map(std::path::absolute).transpose();
    let record = record.map_err(|error| Failure::new(Code::Usage, error.to_string()))?;
    if !arguments.background_child {
        remove_stale_files();
    }
    if !arguments.foreground {
        let words = words_of_daemon(arguments, &paths, config_file.as_deref(), record.as_deref());
        let words = words.map_err(cannot_start)?;
        return in_background(&words, &paths, &config, !options.unsupervised, log);
    }
    if takeover_state.is_none() {
        warn(&paths.store, &config, |warning| tracing::warn!("{warning}"));
    }
    let plan = Plan {
        paths,
        mount: options.mount,
        has_source_name: options.has_source_name,
        wait: options.wait,
        config,
        config_file,
        record,
    };
    serve(plan, ready, supervisor, takeover_state)
}

fn in_background(
    words: &[OsString],
    paths: &MountPaths,
    config: &ConfigText,
    is_supervised: bool,
    log: Option<PathBuf>,
) -> Result<(), Failure> {
    // The daemon could only say so in its log.
    log_directives("info").map_err(|error| Failure::new(Code::Usage, error.to_string()))?;
    let log = logging::of_daemon(log.as_deref(), &paths.mountpoint)?;
    start_in_background(words, is_supervised, log)?;
    warn(&paths.store, config, super::tell);
    Ok(())
}

/// Says what the user may expect of this store and will not get.
fn warn(store: &Path, config: &ConfigText, mut report: impl FnMut(&str)) {
    // Tests and containers have such stores; others should not.
    if mobifs_store::is_in_memory(store) {
        report(&format!(
            "warning: the store {} is in memory (tmpfs or ramfs), so a reboot takes it with all that \
             is in it; choose a directory on a disk to keep it",
            store.display()
        ));
    }
    if let Some(why) = why_no_history(store, &config.config.history) {
        report(&why);
    }
}

fn cannot_start(error: io::Error) -> Failure {
    Failure::new(Code::Failed, format!("cannot start: {error}"))
}

/// The arguments of this program that make it serve the mount as these arguments want it.
fn words_of_daemon(
    arguments: &MountArguments,
    paths: &MountPaths,
    config_file: Option<&Path>,
    record: Option<&Path>,
) -> io::Result<Vec<OsString>> {
    let mut words: Vec<OsString> = ["mount", "--foreground", "--background-child"]
        .map(OsString::from)
        .into();
    if arguments.sloppy {
        words.push("--sloppy".into());
    }
    if let Some(path) = config_file {
        words.extend(["--config".into(), std::path::absolute(path)?.into()]);
    }
    if let Some(path) = record {
        words.extend(["--record".into(), path.into()]);
    }
    for list in &arguments.options {
        words.extend(["-o".into(), list.into()]);
    }
    words.extend([
        "--".into(),
        paths.store.clone().into(),
        paths.mountpoint.clone().into(),
    ]);
    Ok(words)
}

/// Removes sockets and logs of ended mounts from the runtime directory. A mount does not need it.
fn remove_stale_files() {
    let removed = runtime_directory().and_then(|directory| {
        remove_stale_sockets(&directory)?;
        logging::remove_old(&directory)
    });
    if let Err(error) = removed {
        tracing::debug!(%error, "cannot remove old sockets and logs");
    }
}

/// The paths of a mount that is there: until it is served, looking into it would block. `store`: where the store's
/// directory is, if it was handed over.
fn taken_over(arguments: &MountArguments, store: Option<PathBuf>) -> Result<MountPaths, Failure> {
    let store = match store {
        Some(store) => store,
        None => check_store(&arguments.store, true)?,
    };
    let mountpoint = last_mountpoint(arguments);
    Ok(MountPaths { store, mountpoint })
}

/// Where the mount was made. A directory above may have another name by now; the mount is served all the same.
fn last_mountpoint(arguments: &MountArguments) -> PathBuf {
    without_touching(&arguments.mountpoint).unwrap_or_else(|failure| {
        tracing::warn!(%failure, "the mount point has moved");
        arguments.mountpoint.clone()
    })
}

fn without_touching(path: &Path) -> Result<PathBuf, Failure> {
    absolute_without_touching(path).map_err(|error| {
        let path = path.display();
        Failure::new(Code::Failed, format!("cannot examine {path}: {error}"))
    })
}

/// `mount -o remount,…`: changes the flags that the kernel keeps for a mount.
fn remount(mountpoint: &Path, options: &MountOptions) -> Result<(), Failure> {
    let mount = find_mount(mountpoint)?;
    rustix::mount::mount_remount(&mount.mountpoint, flags(options), "").map_err(|errno| {
        let path = mount.mountpoint.display();
        Failure::new(
            Code::Failed,
            format!("cannot change the options of the mount {path}: {errno}"),
        )
    })
}

fn flags(options: &MountOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.read_only);
    flags.set(MountFlags::NOSUID, options.no_suid);
    flags.set(MountFlags::NODEV, options.no_dev);
    flags.set(MountFlags::NOEXEC, options.no_exec);
    flags.set(MountFlags::SYNCHRONOUS, options.synchronous);
    flags.set(MountFlags::DIRSYNC, options.synchronous_directories);
    flags.set(MountFlags::NODIRATIME, options.no_directory_access_times);
    match options.access_times {
        AccessTimes::Relative => flags.insert(MountFlags::RELATIME),
        AccessTimes::Never => flags.insert(MountFlags::NOATIME),
        AccessTimes::Strict => flags.insert(MountFlags::STRICTATIME),
    }
    flags
}
