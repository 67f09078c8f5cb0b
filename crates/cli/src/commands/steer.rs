//! `mobifs steer`

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mobifs_daemon::control::{ControlClient, ControlError, Reply, Request};
use mobifs_daemon::launch::{Ready, start_in_background};
use mobifs_daemon::{Code, ConfigText, Failure, logging};
use mobifs_host::{MountEntry, absolute_without_touching, mount_at, printable, shell_path};
use mobifs_native::{
    Examination, Obstacle, Plan, StaleState, TakeoverError, commit_after_daemon, examine_only,
    left_elsewhere, prepare, restore_after_daemon, serve, unmark_after_daemon, wait_until_writable,
};

use super::{AS_LONG_AS_IT_TAKES, print, refuse_under_run, tell, unexpected};
use crate::arguments::SteerArguments;

pub(crate) fn run(arguments: &SteerArguments) -> Result<(), Failure> {
    // Messages are read elsewhere, too, as in the journal of a service. A path that leads nowhere is refused as it is.
    let absolute = absolute_without_touching(&arguments.mountpoint);
    let arguments = &SteerArguments {
        mountpoint: absolute.unwrap_or_else(|_| arguments.mountpoint.clone()),
        ..arguments.clone()
    };
    if arguments.stop {
        logging::start(None, "warn")?;
        return stop(&arguments.mountpoint);
    }
    if arguments.check {
        return check(arguments);
    }
    let ready = Ready::new(arguments.background_child);
    let result = start(arguments, &ready);
    if let Err(failure) = &result {
        ready.failed(failure);
    }
    result
}

fn start(arguments: &SteerArguments, ready: &Ready) -> Result<(), Failure> {
    refuse_under_run("steer")?;
    if arguments.foreground {
        // The parent has made the log file our standard error already.
        let file = arguments.log.as_deref();
        logging::start(file.filter(|_| !arguments.background_child), "info")?;
    } else {
        logging::start(None, "warn")?;
    }
    let config = ConfigText::load(arguments.config.as_deref())?;
    let config_file = arguments.config.as_ref().map(std::path::absolute);
    let config_file = config_file.transpose().map_err(cannot_start)?;
    wait_until_writable(&arguments.mountpoint, &tell)?;
    let plan = prepare(&arguments.mountpoint, &arguments.only, config, config_file)?;
    if arguments.foreground {
        return serve(plan, ready);
    }
    if let Some(warning) = plan.warning() {
        tell(&format!("warning: {warning}"));
    }
    let log = logging::of_daemon(arguments.log.as_deref(), &plan.mount.mountpoint)?;
    let words = words_of_daemon(arguments, &plan).map_err(cannot_start)?;
    start_in_background(&words, false, log)
}

fn cannot_start(error: io::Error) -> Failure {
    Failure::new(Code::Failed, format!("cannot start: {error}"))
}

/// The arguments of this program that make it steer as these arguments want it.
fn words_of_daemon(arguments: &SteerArguments, plan: &Plan) -> io::Result<Vec<OsString>> {
    let mut words: Vec<OsString> = ["steer", "--foreground", "--background-child"]
        .map(OsString::from)
        .into();
    if let Some(path) = &arguments.config {
        words.extend(["--config".into(), std::path::absolute(path)?.into()]);
    }
    for directory in &plan.only {
        words.extend(["--only".into(), directory.into()]);
    }
    words.extend(["--".into(), (&plan.mount.mountpoint).into()]);
    Ok(words)
}

/// Says whether the filesystem of a directory can be steered, and what is missing; of one that is
/// steered, what another configuration would change.
fn check(arguments: &SteerArguments) -> Result<(), Failure> {
    logging::start(None, "warn")?;
    let config = ConfigText::load(arguments.config.as_deref())?;
    let policy = config.config.rules.policy_of_all();
    wait_until_writable(&arguments.mountpoint, &tell)?;
    let found = examine_only(&arguments.mountpoint, &arguments.only, &policy, false)
        .map_err(|obstacle| Failure::new(Code::Failed, obstacle.to_string()))?;
    let is_missing = |obstacle: &&Obstacle| !matches!(obstacle, Obstacle::AlreadySteered { .. });
    let missing: Vec<_> = found.obstacles.iter().filter(is_missing).collect();
    let is_steered = missing.len() < found.obstacles.len();
    let mountpoint = found.mount.as_ref().map(|mount| &mount.mountpoint);
    let shown = mountpoint.unwrap_or(&arguments.mountpoint).display();
    let word = shell_path(mountpoint.unwrap_or(&arguments.mountpoint));
    let steered = format!("{shown} is steered already: `mobifs status {word}`");
    if is_steered && arguments.config.is_none() && arguments.only.is_empty() {
        let steered = printable(&steered);
        return print(&format!(
            "{steered}; with --config FILE this command says what another configuration would change.\n"
        ));
    }
    let mut lines: Vec<_> = missing
        .iter()
        .map(|one| format!("Missing: {one}."))
        .collect();
    lines.extend(found.notes.iter().cloned());
    let rules = &config.config.history;
    let mount = found.mount.as_ref();
    lines.extend(mount.and_then(|mount| mobifs_native::history::check(mount, rules)));
    if is_steered {
        lines.push(format!("{steered}."));
    }
    let is_possible = missing.is_empty();
    if is_possible {
        let shown = shown.to_string();
        lines.push(how_to_go_on(arguments, &found, &shown, &word, is_steered));
    }
    // A path may have a line break.
    let lines: Vec<_> = lines.iter().map(|line| printable(line)).collect();
    print(&(lines.join("\n") + "\n"))?;
    if is_possible {
        return Ok(());
    }
    let message = if is_steered {
        format!("{shown} cannot be steered as this configuration wants it")
    } else {
        format!("{shown} cannot be steered as it is")
    };
    // As `mobifs steer` ends: the configuration is wrong, and nothing else is in the way.
    let is_configuration = missing.iter().all(|one| one.is_of_configuration());
    let code = if is_configuration {
        Code::Usage
    } else {
        Code::Failed
    };
    Err(Failure::new(code, message))
}

/// The command that does what was looked at.
fn how_to_go_on(
    arguments: &SteerArguments,
    found: &Examination,
    shown: &str,
    word: &str,
    is_steered: bool,
) -> String {
    let config = arguments.config.as_ref();
    let config = config.map(shell_path);
    if let Some(config) = config.as_ref().filter(|_| is_steered) {
        return format!(
            "`mobifs reload --config {config} {word}` puts this configuration in force."
        );
    }
    let config = config.map_or_else(String::new, |config| format!("--config {config} "));
    let only = found.only.iter();
    let only: String = only
        .map(|directory| format!("--only {} ", shell_path(directory)))
        .collect();
    format!("{shown} can be steered: `mobifs steer {config}{only}{word}`.")
}

/// How often, and after which pause, a daemon that has begun to steer and does not answer yet is
/// asked again.
const START_TRIES: u32 = 200;
const START_PAUSE: Duration = Duration::from_millis(50);

/// For a process that logs already.
pub(super) fn stop(mountpoint: &Path) -> Result<(), Failure> {
    // A daemon that lives goes on steering it: it could not restore its options.
    wait_until_writable(mountpoint, &tell)?;
    let mut tries = 0;
    let mut client = loop {
        match ControlClient::connect(mountpoint) {
            Ok(client) => break client,
            // Also where another program has unmounted it: what the daemon has left is there.
            Err(
                error @ (ControlError::SteeringGone { .. }
                | ControlError::NotMounted { .. }
                | ControlError::Covered { .. }
                | ControlError::InsideMount { .. }
                | ControlError::InsideSteered { .. }
                | ControlError::Missing { .. }),
            ) => {
                if !is_steered(mountpoint)? {
                    return restore(mountpoint, error);
                }
            }
            Err(error @ (ControlError::OutOfReach { .. } | ControlError::SocketGone { .. })) => {
                // One that begins marks the filesystem before it can be asked.
                if !is_steered(mountpoint)? || tries + 1 == START_TRIES {
                    return Err(error.into());
                }
            }
            Err(error) => return Err(error.into()),
        }
        // It changes the mount options when it begins: they must not be restored before.
        tries += 1;
        if tries == START_TRIES {
            let path = mountpoint.display();
            return Err(Failure::new(
                Code::Failed,
                format!("the daemon that steers {path} is starting and does not answer: try again"),
            ));
        }
        std::thread::sleep(START_PAUSE);
    };
    match client.ask(&Request::StopSteering, &AS_LONG_AS_IT_TAKES) {
        Ok(Reply::Done) => {
            client.wait_for_end(&AS_LONG_AS_IT_TAKES);
            Ok(())
        }
        Ok(Reply::Error { kind, message }) => Err(Failure::new(kind.into(), message)),
        Ok(other) => Err(unexpected(&other)),
        // It was killed before this, or is while it answers: its lock goes a moment later.
        Err(error @ ControlError::SteeringGone { .. }) => {
            for _ in 0..START_TRIES {
                if !is_steered(mountpoint)? {
                    break;
                }
                std::thread::sleep(START_PAUSE);
            }
            restore(mountpoint, error)
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether a daemon lives that steers the filesystem.
fn is_steered(mountpoint: &Path) -> Result<bool, Failure> {
    let mount = mount_of(mountpoint)?;
    Ok(mount.is_some_and(|mount| mobifs_native::is_steered(&mount).is_some()))
}

/// Restores what a daemon has left that was killed, and says what that was. `unasked`: why no daemon
/// could be asked.
fn restore(mountpoint: &Path, unasked: ControlError) -> Result<(), Failure> {
    let mount = mount_of(mountpoint)?;
    if let Some(mount) = mount.as_ref().filter(|mount| covers_steered(mount)) {
        let path = mount.mountpoint.clone();
        return Err(TakeoverError::Covered { path }.into());
    }
    let mut left = StaleState::default();
    let mut committed = Ok(());
    let is_restored = match &mount {
        Some(mount) => restore_mount(mount, &mut left, &mut committed)?,
        None => false,
    };
    // What was mounted here may be mounted elsewhere still, with the options of steering.
    let elsewhere = match is_restored {
        true => None,
        false => left_elsewhere(&absolute(mountpoint)?)?,
    };
    if let Some(other) = &elsewhere {
        restore_mount(other, &mut left, &mut committed)?;
    }
    left.forget_ended_mounts_at(&absolute(mountpoint)?)?;
    let path = mountpoint.display();
    if !is_restored && elsewhere.is_none() && left.is_empty() {
        return Err(match (mount, unasked) {
            (Some(mount), _) => TakeoverError::NotSteered {
                path: mount.mountpoint,
            }
            .into(),
            (None, ControlError::NotMounted { .. }) => {
                Failure::new(Code::NotMounted, format!("{path} is not a mount point"))
            }
            (None, unasked) => unasked.into(),
        });
    }
    let options = match (mount, elsewhere) {
        (_, Some(other)) => format!(
            "its filesystem is still mounted at {}, and has its mount options again",
            other.mountpoint.display()
        ),
        (Some(_), None) if is_restored => "its mount options are restored".to_owned(),
        (Some(_), None) => "it has noted no options of this mount to restore".to_owned(),
        (None, None) => "nothing is mounted there now".to_owned(),
    };
    let mut sentence = format!("the daemon that steered {path} is gone; {options}");
    if !left.is_empty() {
        sentence += &format!(", and what it had left is removed: {left}");
    }
    tell(&sentence);
    if left.is_in_use_elsewhere() {
        tell(&format!(
            "the filesystem is in use where this process does not see it, as in a container, with the mount options of \
             steering: mount it here again and run `mobifs steer --stop {}`",
            shell_path(mountpoint)
        ));
    }
    for directory in left.marked() {
        tell(&format!(
            "files in {} may still have the flag `+j`: steer it once more with --only, and stop that",
            directory.display()
        ));
    }
    Ok(committed?)
}

/// Whether a daemon steers a filesystem over which this one is mounted.
fn covers_steered(mount: &MountEntry) -> bool {
    let covered = |other: &MountEntry| {
        other.mountpoint == mount.mountpoint
            && (other.device_major, other.device_minor) != (mount.device_major, mount.device_minor)
            && mobifs_native::is_steered(other).is_some()
    };
    mobifs_host::mounts().is_ok_and(|table| table.iter().any(covered))
}

/// Restores the options of the mount that is there, and commits what the daemon would have committed; whether its
/// options were to be restored.
fn restore_mount(
    mount: &MountEntry,
    left: &mut StaleState,
    committed: &mut Result<(), TakeoverError>,
) -> Result<bool, Failure> {
    left.withdraw(mount)?;
    let restored = restore_after_daemon(mount);
    if restored.is_ok() {
        *committed = commit_after_daemon(mount);
    }
    // One that could not be restored is still known by the socket, to be tried again.
    match &restored {
        Ok(()) => unmark_after_daemon(mount)?,
        Err(TakeoverError::NotSteered { .. }) => {}
        Err(_) => return restored.map(|()| true).map_err(Failure::from),
    }
    left.forget(mount)?;
    Ok(restored.is_ok())
}

fn absolute(mountpoint: &Path) -> Result<PathBuf, Failure> {
    absolute_without_touching(mountpoint).map_err(|error| cannot_examine(mountpoint, &error))
}

/// The mount at a place, if there is one.
fn mount_of(mountpoint: &Path) -> Result<Option<MountEntry>, Failure> {
    mount_at(&absolute(mountpoint)?).map_err(|error| cannot_examine(mountpoint, &error))
}

fn cannot_examine(mountpoint: &Path, error: &io::Error) -> Failure {
    let path = mountpoint.display();
    Failure::new(Code::Failed, format!("cannot examine {path}: {error}"))
}
