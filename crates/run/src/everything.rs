//! `sync()`: all filesystems but those that are steered.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use mobifs_host::{MountEntry, read_mount_table};
use mobifs_steered::{Decisions, Device};
use rustix::fs::{FileType, Mode, OFlags, fstat, open, openat, syncfs};

use crate::target::mount_table_of;

/// Types of filesystems that keep nothing on a disk.
const WITHOUT_DISK: &[&str] = &[
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "ramfs",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "squashfs",
    "sysfs",
    "tmpfs",
    "tracefs",
];

/// Commits every filesystem that a thread sees and that is not steered; whether that was possible.
pub(crate) fn sync_others(thread: u32, decisions: &Decisions) -> bool {
    let Ok(table) = read_mount_table(mount_table_of(thread)) else {
        return false;
    };
    let others = table.iter().filter(|mount| {
        !WITHOUT_DISK.contains(&mount.kind.as_str()) && !decisions.is_in_force(device_of(mount))
    });
    let mut missing: BTreeSet<Device> = BTreeSet::new();
    let mut done: BTreeSet<Device> = BTreeSet::new();
    for mount in others {
        let device = device_of(mount);
        if done.contains(&device) {
            continue;
        }
        if sync(thread, &mount.mountpoint, device).is_some() {
            done.insert(device);
            missing.remove(&device);
        } else {
            missing.insert(device);
        }
    }
    missing.is_empty()
}

fn device_of(mount: &MountEntry) -> Device {
    Device {
        major: mount.device_major,
        minor: mount.device_minor,
    }
}

/// Commits the filesystem if it is still the one at this place.
fn sync(thread: u32, mountpoint: &Path, device: Device) -> Option<()> {
    let root = format!("/proc/{thread}/root");
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = open(root.as_str(), flags | OFlags::DIRECTORY, Mode::empty()).ok()?;
    let below = mountpoint.strip_prefix("/").ok()?.as_os_str().as_bytes();
    let below = if below.is_empty() { b"." } else { below };
    let place = openat(&root, below, flags | OFlags::NOFOLLOW, Mode::empty()).ok()?;
    let kind = FileType::from_raw_mode(fstat(&place).ok()?.st_mode);
    if !matches!(kind, FileType::Directory | FileType::RegularFile) {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = if kind == FileType::Directory {
        openat(&place, ".", flags, Mode::empty())
    } else {
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&place));
        open(link.as_str(), flags, Mode::empty())
    };
    let opened = opened.ok()?;
    if mobifs_steered::Look::at(&opened)
        .ok()?
        .device(&opened, mount_table_of(thread))
        .ok()?
        != device
    {
        return None;
    }
    syncfs(&opened).ok()
}
