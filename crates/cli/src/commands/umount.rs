//! `mobifs umount`

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mobifs_daemon::control::{
    AnswerPatience, ControlClient, ControlError, ErrorKind, Reply, Request, find_mount,
};
use mobifs_daemon::{
    Code, DaemonEnd, Failure, describe, predecessor, unmount_unused, users_of_device,
};
use mobifs_fuse::UnmountError;
use mobifs_host::{MountEntry, other_mounts_of};
use mobifs_store::StoreScope;
use mobifs_volume::{AppSelection, Status, StoreLock};

use super::progress::Progress;
use super::{AS_LONG_AS_IT_TAKES, tell, tell_what_stays, unexpected};
use crate::arguments::UmountArguments;

/// How long the daemon is waited for before looking for what keeps it.
const END_STEP: AnswerPatience = AnswerPatience {
    limit: Some(Duration::from_millis(200)),
    ..AS_LONG_AS_IT_TAKES
};
/// How long a daemon is waited for whose filesystem has no mount that can be seen.
const END_WAIT: Duration = Duration::from_secs(10);

pub(crate) fn run(arguments: &UmountArguments) -> Result<(), Failure> {
    let lazy = arguments.lazy;
    let mount = find_mount(&arguments.mountpoint)?;
    // The daemon is not asked for what is certainly a bind mount: nothing depends on it.
    if mount.shows_a_part() && has_other_mounts(&mount) {
        return unmount_here(&mount, lazy);
    }
    // This process must not be what uses it. Where it cannot leave, it is named with the other users.
    let _stays = std::env::set_current_dir("/");
    let _progress = Progress::of_commit("unmounting", &mount.mountpoint);
    let mut store = store_in_table(&mount);
    let mut end = DaemonEnd::of(None);
    let mut before = None;
    let asked = ControlClient::connect(&mount.mountpoint).and_then(|mut client| {
        before = ask_for_status(&mut client);
        if store.is_none() {
            let path = before.as_ref().and_then(|status| status.store.path.clone());
            store = path.map(PathBuf::from);
        }
        end = DaemonEnd::of(store.as_deref());
        ask_to_unmount(client, lazy)
    });
    let (client, reply) = match asked {
        Ok(answered) => answered,
        Err(error) => {
            let is_gone = matches!(error, ControlError::DaemonGone { .. });
            // Otherwise it may have ended between two checks.
            if !is_gone && mount.is_in_table() {
                return Err(error.into());
            }
            // With `--lazy` the client waits for nothing more than the mount out of the tree.
            let awaited = store.filter(|_| !arguments.lazy);
            return without_answer(&mount, awaited.as_deref());
        }
    };
    match reply {
        Reply::Done => {
            client.wait_for_end(&AS_LONG_AS_IT_TAKES);
            end.wait();
            before.iter().for_each(tell_what_stays);
            Ok(())
        }
        Reply::Detached { used_by } => {
            detached(client.mountpoint(), lazy, &used_by.join(", "));
            Ok(())
        }
        Reply::AnotherMount => {
            unmount_another(client, lazy)?;
            // The daemon may have been killed while it was waited for.
            let awaited = store.filter(|_| !lazy && !has_other_mounts(&mount));
            awaited.map_or(Ok(()), |store| wait_for_store(&store))
        }
        Reply::Error { kind, message } => Err(Failure::new(kind.into(), message)),
        other => Err(unexpected(&other)),
    }
}

/// Asks the daemon to unmount the mount that the client is about, and not one that it finds there.
fn ask_to_unmount(
    mut client: ControlClient,
    lazy: bool,
) -> Result<(ControlClient, Reply), ControlError> {
    let ask = |client: &mut ControlClient, mount_id| {
        client.ask(&Request::Unmount { lazy, mount_id }, &AS_LONG_AS_IT_TAKES)
    };
    let id = client.mount().id;
    let mut reply = ask(&mut client, Some(id))?;
    if matches!(&reply, Reply::Error { kind, .. } if *kind == ErrorKind::Usage) {
        // A daemon of a version that knows no numbers of mounts.
        reply = ask(&mut client, None)?;
    }
    Ok((client, reply))
}

/// Unmounts a mount that the daemon has not made: a bind mount, or what a mount namespace has of
/// the mount. With the last one in this namespace everything is committed, as with the daemon's
/// own; before that the filesystem goes on, and so does its work.
fn unmount_another(mut client: ControlClient, lazy: bool) -> Result<(), Failure> {
    let mount = client.mount().clone();
    if has_other_mounts(&mount) {
        return unmount_here(&mount, lazy);
    }
    // Otherwise the daemon was killed after it had unmounted, and its successor finishes.
    if mount.is_in_table() {
        commit_all(&mut client, &mount)?;
        unmount_here(&mount, lazy)?;
    }
    let start = Instant::now();
    while !client.wait_for_end(&END_STEP) {
        let users = users_of_device(mount.device_major, mount.device_minor);
        if !users.is_empty() || start.elapsed() >= END_WAIT {
            detached(&mount.mountpoint, lazy, &describe(&users));
            break;
        }
    }
    Ok(())
}

fn commit_all(client: &mut ControlClient, mount: &MountEntry) -> Result<(), Failure> {
    let sync = Request::Sync {
        app: None,
        apply: true,
    };
    match client.ask(&sync, &AS_LONG_AS_IT_TAKES) {
        Ok(Reply::Done) => Ok(()),
        Ok(Reply::Error { kind, message }) => Err(Failure::new(
            kind.into(),
            format!("not unmounted: {message}"),
        )),
        Ok(other) => Err(unexpected(&other)),
        // The daemon has ended with the mount.
        Err(_) if !mount.is_in_table() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn has_other_mounts(mount: &MountEntry) -> bool {
    // Where that cannot be read, the daemon decides.
    other_mounts_of(mount).is_ok_and(|others| !others.is_empty())
}

/// Unmounts in this process, in its own mount namespace.
fn unmount_here(mount: &MountEntry, lazy: bool) -> Result<(), Failure> {
    let place = &mount.mountpoint;
    match unmount_unused(place, || mobifs_fuse::unmount(place, lazy)) {
        // It was there a moment ago: another process has unmounted it since.
        Ok(()) | Err((UnmountError::NotMounted(_), _)) => Ok(()),
        Err((UnmountError::Busy(path), users)) => {
            let (path, users) = (path.display(), describe(&users));
            let message =
                format!("{path} is in use by {users}. Close what uses it, or unmount with --lazy");
            Err(Failure::new(Code::InUse, message))
        }
        Err((error, _)) => Err(error.into()),
    }
}

/// Reports that the daemon goes on.
fn detached(mountpoint: &Path, lazy: bool, used_by: &str) {
    let mountpoint = mountpoint.display();
    if lazy {
        tell(&format!(
            "{mountpoint} is out of the tree; its daemon ends with its last user"
        ));
        return;
    }
    let users = match used_by {
        "" => describe(&[]),
        used_by => used_by.to_owned(),
    };
    tell(&format!(
        "{mountpoint} is unmounted and everything is committed, but its filesystem is still in use \
         by {users}; its daemon ends when that has ended"
    ));
}

/// No daemon answers for the mount: unmounts it, unless it is gone already, and waits for the
/// process that still brings what was changed to the store: the successor of a daemon that died
/// when the mount was out of the tree, or the last process.
fn without_answer(mount: &MountEntry, store: Option<&Path>) -> Result<(), Failure> {
    if mount.is_in_table() {
        take_away(&mount.mountpoint)?;
    }
    store.map_or(Ok(()), wait_for_store)
}

/// Unmounts a mount without a daemon. Does not wait for users: they get no answers any more.
fn take_away(mountpoint: &Path) -> Result<(), Failure> {
    match mobifs_fuse::unmount(mountpoint, true) {
        // Another process has unmounted it first.
        Err(UnmountError::NotMounted(_)) => return Ok(()),
        other => other?,
    }
    tell(&format!(
        "the daemon of {} was gone; the mount is taken away, and the next mount of its store finds \
         everything that was committed",
        mountpoint.display()
    ));
    Ok(())
}

/// Waits until no process of a mount that has ended has the store.
fn wait_for_store(store: &Path) -> Result<(), Failure> {
    let scope = StoreScope::Tree;
    let look = || StoreLock::acquire(store, &scope, true).map(StoreLock::release);
    let waited = predecessor::for_command(store, predecessor::WAIT_DEFAULT, look);
    match waited {
        Err(failure) if predecessor::has_store(store) => Err(failure),
        // Another mount has it by now, or that cannot be found out.
        _ => Ok(()),
    }
}

/// The store of a mount, if its source says so, which an option may change.
fn store_in_table(mount: &MountEntry) -> Option<PathBuf> {
    let source = &mount.source;
    let is_store = source.is_absolute() && source.join(".mobifs").is_dir();
    is_store.then(|| source.clone())
}

fn ask_for_status(client: &mut ControlClient) -> Option<Status> {
    let select = AppSelection {
        limit: Some(1),
        ..AppSelection::default()
    };
    match client.ask(&Request::Status { select }, &AS_LONG_AS_IT_TAKES) {
        Ok(Reply::Status { status }) => Some(*status),
        _ => None,
    }
}
