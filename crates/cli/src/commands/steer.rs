//! `mobifs steer`

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::Duration;

use mobifs_daemon::control::{ControlClient, ControlError, Reply, Request};
use mobifs_daemon::launch::{Ready, start_in_background};
use mobifs_daemon::{Code, ConfigText, Failure, logging};
use mobifs_host::{MountEntry, absolute_without_touching, mount_at};
use mobifs_native::{
    Plan, TakeoverError, examine_only, forget_daemon, prepare, restore_after_daemon, serve,
    unmark_after_daemon, withdraw_after_daemon,
};

use super::{AS_LONG_AS_IT_TAKES, print, refuse_under_run, tell, unexpected};
use crate::arguments::SteerArguments;

pub(crate) fn run(arguments: &SteerArguments) -> Result<(), Failure> {
    if arguments.stop {
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

/// Says whether the filesystem of a directory can be steered, and what is missing.
fn check(arguments: &SteerArguments) -> Result<(), Failure> {
    logging::start(None, "warn")?;
    let config = ConfigText::load(arguments.config.as_deref())?;
    let policy = config.config.rules.policy_of_all();
    let failed = |error: &dyn std::fmt::Display| Failure::new(Code::Failed, error.to_string());
    let examination = examine_only(&arguments.mountpoint, &arguments.only, &policy, false)
        .map_err(|obstacle| failed(&obstacle))?;
    let mut text = String::new();
    for obstacle in &examination.obstacles {
        let sentence = obstacle.to_string();
        text += &format!("Missing: {sentence}.\n");
    }
    for note in &examination.notes {
        text += &format!("{note}\n");
    }
    let history = examination.mount.as_ref();
    let history =
        history.and_then(|mount| mobifs_native::history::check(mount, &config.config.history));
    text.extend(history.map(|note| format!("{note}\n")));
    let mountpoint = examination.mount.map(|mount| mount.mountpoint);
    let mountpoint = mountpoint.unwrap_or_else(|| arguments.mountpoint.clone());
    let shown = mountpoint.display();
    let is_possible = examination.obstacles.is_empty();
    let steered = mount_at(&mountpoint).ok().flatten();
    if steered
        .as_ref()
        .and_then(mobifs_native::is_steered)
        .is_some()
    {
        return print(&format!(
            "{shown} is steered already: `mobifs status {shown}`.\n"
        ));
    }
    if is_possible {
        let only: String = examination
            .only
            .iter()
            .map(|directory| format!("--only {} ", directory.display()))
            .collect();
        text += &format!("{shown} can be steered: `mobifs steer {only}{shown}`.\n");
    }
    print(&text)?;
    if is_possible {
        return Ok(());
    }
    Err(Failure::new(
        Code::Failed,
        format!("{shown} cannot be steered as it is"),
    ))
}

/// How often, and after which pause, a daemon that has begun to steer and does not answer yet is
/// asked again.
const START_TRIES: u32 = 200;
const START_PAUSE: Duration = Duration::from_millis(50);

fn stop(mountpoint: &Path) -> Result<(), Failure> {
    logging::start(None, "warn")?;
    let mut tries = 0;
    let mut client = loop {
        match ControlClient::connect(mountpoint) {
            Ok(client) => break client,
            Err(ControlError::SteeringGone { .. } | ControlError::NotMounted { .. }) => {
                if !is_steered(mountpoint)? {
                    return restore(mountpoint);
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
        Err(ControlError::SteeringGone { .. }) => {
            for _ in 0..START_TRIES {
                if !is_steered(mountpoint)? {
                    break;
                }
                std::thread::sleep(START_PAUSE);
            }
            restore(mountpoint)
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether a daemon lives that steers the filesystem.
fn is_steered(mountpoint: &Path) -> Result<bool, Failure> {
    let mount = mount_of(mountpoint)?;
    Ok(mobifs_native::is_steered(&mount).is_some())
}

/// Restores what a daemon has left that was killed.
fn restore(mountpoint: &Path) -> Result<(), Failure> {
    let mount = mount_of(mountpoint)?;
    mobifs_native::history::end_standstill_after_daemon(&mount);
    withdraw_after_daemon(&mount)?;
    let restored = restore_after_daemon(&mount);
    // One that could not be restored is still known by the socket, to be tried again.
    if restored.is_ok() {
        unmark_after_daemon(&mount)?;
    }
    if matches!(restored, Ok(()) | Err(TakeoverError::NotSteered { .. })) {
        forget_daemon(&mount)?;
    }
    Ok(restored?)
}

fn mount_of(mountpoint: &Path) -> Result<MountEntry, Failure> {
    let failed = |error: io::Error| {
        let path = mountpoint.display();
        Failure::new(Code::Failed, format!("cannot examine {path}: {error}"))
    };
    let absolute = absolute_without_touching(mountpoint).map_err(failed)?;
    mount_at(&absolute).map_err(failed)?.ok_or_else(|| {
        let path = mountpoint.display();
        Failure::new(Code::NotMounted, format!("{path} is not a mount point"))
    })
}
