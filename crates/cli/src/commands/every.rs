//! `mobifs every`, for scripts of packages and units: something done to all daemons of this machine. The names of
//! mounts pass through no shell, and the table of mounts shows neither lazily unmounted nor all steered ones.

use std::fs::File;
use std::io::ErrorKind;
use std::thread;
use std::time::{Duration, Instant};

use mobifs_daemon::control::{
    AnswerPatience, ControlClient, ControlError, Reply, Request, covered_mounts, detached_mounts,
    own_mounts,
};
use mobifs_daemon::{Code, Failure};
use mobifs_host::{DaemonProcess, MountEntry, daemon_processes, mounts, printable_path};

use super::adopt::STORE_SUFFIX;
use super::{AS_LONG_AS_IT_TAKES, steer, tell, umount};
use crate::arguments::{EveryAction, EveryArguments, UmountArguments};

/// How long a daemon whose mount has ended may take to end.
const END_WAIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);
/// More bind mounts and mounts over each other than anybody has.
const ROUNDS_MAX: usize = 1000;

pub(crate) fn run(arguments: &EveryArguments) -> Result<(), Failure> {
    match arguments.action {
        EveryAction::Adopted => refuse_adopted(),
        EveryAction::End => end(),
        EveryAction::Commit => commit(),
    }
}

fn failed(error: std::io::Error) -> Failure {
    Failure::new(
        Code::Failed,
        format!("cannot read the table of mounts: {error}"),
    )
}

/// At the next start they would be empty, and their files elsewhere.
fn refuse_adopted() -> Result<(), Failure> {
    let is_adopted = |mount: &MountEntry| {
        let store = mount.source.to_string_lossy();
        mount.is_fuse() && mount.has_subtype("mobifs") && store.ends_with(STORE_SUFFIX)
    };
    let table = mounts().map_err(failed)?;
    match table.iter().find(|mount| is_adopted(mount)) {
        None => Ok(()),
        Some(mount) => Err(Failure::new(
            Code::InUse,
            format!(
                "{place} is adopted; `mobifs unadopt {place}` makes it an ordinary directory again",
                place = printable_path(&mount.mountpoint)
            ),
        )),
    }
}

/// Ends all, with everything committed. What is in use is named and stays.
fn end() -> Result<(), Failure> {
    for _ in 0..ROUNDS_MAX {
        let found = own_mounts().map_err(failed)?;
        if found.is_empty() {
            break;
        }
        let failures: Vec<_> = found
            .iter()
            .filter_map(|mount| end_one(mount).err())
            .collect();
        if let Some((last, others)) = failures.split_last() {
            others.iter().for_each(|failure| tell(&failure.message));
            return Err(last.clone());
        }
    }
    wait_for_processes()
}

fn end_one(mount: &MountEntry) -> Result<(), Failure> {
    let ended = if mount.is_fuse() {
        umount::run(&UmountArguments {
            lazy: false,
            mountpoint: mount.mountpoint.clone(),
        })
    } else {
        steer::stop(&mount.mountpoint)
    };
    // It may have ended by itself.
    ended.or_else(|failure| {
        if mount.is_in_table() {
            Err(failure)
        } else {
            Ok(())
        }
    })
}

/// Daemons are left that the table of mounts does not show: of lazily unmounted mounts, in other mount namespaces.
fn wait_for_processes() -> Result<(), Failure> {
    let start = Instant::now();
    loop {
        let left = daemon_processes();
        let Some(process) = left.first() else {
            return Ok(());
        };
        if start.elapsed() >= END_WAIT {
            return Err(still_runs(process));
        }
        thread::sleep(PAUSE);
    }
}

fn still_runs(process: &DaemonProcess) -> Failure {
    Failure::new(
        Code::InUse,
        format!(
            "process {} still serves {}, which was unmounted lazily and is in use, is mounted in another mount \
             namespace, or has another filesystem mounted over it: end the programs that use it, unmount it there, or \
             unmount what hides it",
            process.pid,
            printable_path(process.last_word())
        ),
    )
}

/// Commits all at the same time: one that does not answer holds up none of the others.
fn commit() -> Result<(), Failure> {
    let found = own_mounts().map_err(failed)?;
    let detached = detached_mounts().map_err(failed)?.into_iter().map(Ok);
    let covered = covered_mounts().map_err(failed)?.into_iter();
    let others = detached.chain(covered.map(|(_, client)| client));
    thread::scope(|scope| {
        let of_mounts = found.iter().map(|mount| scope.spawn(|| commit_one(mount)));
        let mut threads: Vec<_> = of_mounts.collect();
        threads.extend(others.map(|client| scope.spawn(|| commit_by(client))));
        let mut result = Ok(());
        for thread in threads {
            if let Ok(Err(failure)) = thread.join() {
                tell(&failure.message);
                result = Err(failure);
            }
        }
        result
    })
}

/// One that has ended meanwhile has committed everything.
fn commit_one(mount: &MountEntry) -> Result<(), Failure> {
    let client = ControlClient::connect(&mount.mountpoint);
    if matches!(client, Err(ControlError::NotMounted { .. })) {
        return commit_without_daemon(mount);
    }
    let Err(failure) = commit_by(client) else {
        return Ok(());
    };
    let now = own_mounts().map_err(failed)?;
    if now.iter().any(|it| it.mountpoint == mount.mountpoint) {
        Err(failure)
    } else {
        Ok(())
    }
}

/// A steered filesystem whose daemon has ended has its socket for a while: the kernel commits it.
fn commit_without_daemon(mount: &MountEntry) -> Result<(), Failure> {
    let synced = File::open(&mount.mountpoint).and_then(|at| Ok(rustix::fs::syncfs(at)?));
    match synced {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Failure::new(
            Code::Failed,
            format!(
                "cannot commit {}, which has no daemon: {error}",
                printable_path(&mount.mountpoint)
            ),
        )),
        _ => Ok(()),
    }
}

/// One that is out of the tree or covered, and has ended meanwhile, has committed everything.
fn commit_by(client: Result<ControlClient, ControlError>) -> Result<(), Failure> {
    let mut client = match client {
        Err(ControlError::NotMounted { .. } | ControlError::Missing { .. }) => return Ok(()),
        client => client?,
    };
    let request = Request::Sync {
        app: None,
        apply: false,
    };
    let patience = AnswerPatience {
        report: |_| {},
        ..AS_LONG_AS_IT_TAKES
    };
    match client.ask(&request, &patience)? {
        Reply::Error { kind, message } => Err(Failure::new(kind.into(), message)),
        _ => Ok(()),
    }
}
