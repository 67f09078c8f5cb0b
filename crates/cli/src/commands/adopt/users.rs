//! What uses a directory that is to change its place: processes, and the kernel for loop devices and swap.
//!
//! A process that has a file open from before would go on writing to it beside the mount, and what it writes
//! would be mixed with, or replaced by, what the daemon knows of the file. So there is no way to adopt a
//! directory in use: its users end first, or the next start of the machine does it before they begin.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use mobifs_daemon::{
    Code, Failure, MountUser, describe, mounts_elsewhere, users_of, users_of_directory,
};
use mobifs_host::{daemon_processes, mounts, shell_path};
use mobifs_store::StoreScope;
use mobifs_volume::StoreLock;

use super::place::Place;

/// Users for no longer than this are none.
const PASSING_MAX: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(50);

/// Fails if something uses the files at `path`, which are those of the place.
pub(super) fn refuse(place: &Place, path: &Path, at_boot_helps: bool) -> Result<(), Failure> {
    let users = lasting(|| users_of_directory(path));
    if users.is_empty() {
        return Ok(());
    }
    let shown = place.directory().display();
    let boot = if at_boot_helps {
        format!(
            ", or have the next start do it (mobifs adopt --at-boot {})",
            shell_path(place.directory())
        )
    } else {
        String::new()
    };
    Err(Failure::new(
        Code::InUse,
        format!(
            "{shown} is in use by {}. {}{boot}",
            describe(&users),
            what_to_do(&users)
        ),
    ))
}

/// Users that are more than passing.
fn lasting(find: impl Fn() -> Vec<MountUser>) -> Vec<MountUser> {
    let start = Instant::now();
    let mut users = find();
    // A process that another one is just starting has all its files until it executes its program.
    while !users.is_empty() && start.elapsed() < PASSING_MAX {
        std::thread::sleep(PAUSE);
        users = find();
    }
    users
}

/// What uses the store past the mount: not the daemons, which serve it.
fn of_store(place: &Place) -> Vec<MountUser> {
    let daemons: BTreeSet<u32> = daemon_processes().iter().map(|daemon| daemon.pid).collect();
    // One whose program has another name is known by the lock that it has, and its supervisor by the same program.
    let owner = StoreLock::owner(place.store(), &StoreScope::Tree).unwrap_or_default();
    let program = program_of(owner.pid);
    let is_daemon = |pid: u32| {
        daemons.contains(&pid)
            || pid == owner.pid
            || program.is_some() && program == program_of(pid)
    };
    let mut users = users_of_directory(place.store());
    users.retain(|user| !matches!(user, MountUser::Process { pid, .. } if is_daemon(*pid)));
    users
}

/// Device and number of the program that a process executes, as far as this user may see it.
fn program_of(pid: u32) -> Option<(u64, u64)> {
    let about = fs::metadata(format!("/proc/{pid}/exe")).ok()?;
    Some((about.dev(), about.ino()))
}

/// Fails if something uses the store of a mount past it: it would keep the files from going back once nothing is
/// mounted any more.
pub(super) fn refuse_store(place: &Place) -> Result<(), Failure> {
    if !place.is_served()? {
        return Ok(());
    }
    let users = lasting(|| of_store(place));
    if users.is_empty() {
        return Ok(());
    }
    Err(stays(place, &users))
}

/// What would keep it adopted now.
pub(super) fn keeping(place: &Place) -> Result<Vec<MountUser>, Failure> {
    let mount = place.mounted()?;
    let mut users = mount.as_ref().map(users_of).unwrap_or_default();
    users.extend(mount.as_ref().map(mounts_elsewhere).unwrap_or_default());
    users.extend(of_store(place));
    Ok(users)
}

/// Fails if the mount's filesystem would live on when the mount itself has gone, as in a container.
pub(super) fn refuse_mounts_elsewhere(place: &Place) -> Result<(), Failure> {
    let mount = place.mounted()?;
    let users = mount.as_ref().map(mounts_elsewhere).unwrap_or_default();
    if users.is_empty() {
        return Ok(());
    }
    Err(stays(place, &users))
}

/// The mount is in use, so it stays.
pub(super) fn still_there(place: &Place, failure: Failure) -> Failure {
    let mount = place.mounted().ok().flatten();
    let users = mount.as_ref().map(users_of).unwrap_or_default();
    if failure.code != Code::InUse || users.is_empty() {
        return failure;
    }
    stays(place, &users)
}

fn stays(place: &Place, users: &[MountUser]) -> Failure {
    let message = format!(
        "{} is in use by {}, and stays adopted. {}, and run mobifs unadopt again",
        place.directory().display(),
        describe(users),
        what_to_do(users)
    );
    Failure::new(Code::InUse, message)
}

/// How its users end.
fn what_to_do(users: &[MountUser]) -> String {
    let mut units: Vec<String> = users.iter().filter_map(unit_of).collect();
    units.sort();
    units.dedup();
    let mut commands = Vec::new();
    if !units.is_empty() {
        commands.push(format!("systemctl stop {}", units.join(" ")));
    }
    commands.extend(users.iter().filter_map(|user| match user {
        MountUser::LoopDevice { device, .. } => Some(detach(device)),
        MountUser::Overlay { mountpoint, .. } => Some(format!("umount {}", shell_path(mountpoint))),
        MountUser::SwapFile(path) => Some(format!("swapoff {}", shell_path(path))),
        _ => None,
    }));
    if commands.is_empty() {
        "End what uses it".to_owned()
    } else {
        format!("End what uses it ({})", commands.join("; "))
    }
}

/// How a loop device lets its file go: one that is mounted, with the mount.
fn detach(device: &str) -> String {
    let node = Path::new("/dev").join(device);
    let table = mounts().unwrap_or_default();
    let mounted = table.iter().find(|mount| mount.source == node);
    mounted.map_or_else(
        || format!("losetup -d {}", shell_path(&node)),
        |mount| format!("umount {}", shell_path(&mount.mountpoint)),
    )
}

/// The service of the system that a process belongs to.
fn unit_of(user: &MountUser) -> Option<String> {
    let MountUser::Process { pid, .. } = user else {
        return None;
    };
    service_in(&fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?)
}

/// The service in the content of `/proc/PID/cgroup`: lines `ID:CONTROLLERS:PATH`. Sessions and what
/// runs in them have no services.
fn service_in(groups: &str) -> Option<String> {
    groups.lines().find_map(|line| {
        let path = line.splitn(3, ':').nth(2)?;
        let name = path
            .strip_prefix("/system.slice/")?
            .split('/')
            .find(|part| {
                Path::new(part)
                    .extension()
                    .is_some_and(|kind| kind == "service")
            })?;
        Some(name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_uses_is_ended_by_commands() {
        let device = MountUser::LoopDevice {
            device: "loop99999".to_owned(),
            file: "/srv/d/image".into(),
        };
        let swap = MountUser::SwapFile("/srv/d/a swap".into());
        let expected = "End what uses it (losetup -d /dev/loop99999; swapoff '/srv/d/a swap')";
        assert_eq!(what_to_do(&[device, swap]), expected);
        let socket = MountUser::Socket("/srv/d/s".into());
        assert_eq!(what_to_do(&[socket]), "End what uses it");
    }

    #[test]
    fn services_are_named_and_sessions_are_not() {
        let service = |text| service_in(text);
        assert_eq!(
            service("0::/system.slice/rsyslog.service\n").as_deref(),
            Some("rsyslog.service")
        );
        let instance = "0::/system.slice/system-getty.slice/getty@tty1.service";
        assert_eq!(service(instance).as_deref(), Some("getty@tty1.service"));
        let old = "2:cpu:/\n1:name=systemd:/system.slice/cron.service\n";
        assert_eq!(service(old).as_deref(), Some("cron.service"));
        let session = "0::/user.slice/user-1000.slice/user@1000.service/app.slice/firefox.service";
        assert_eq!(service(session), None);
        assert_eq!(service("0::/"), None);
    }
}
