//! `sync()`: all filesystems but those that are steered, and what was written to block devices.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use mobifs_host::{MountEntry, read_mount_table};
use mobifs_steered::{Decisions, Device, Look};
use rustix::fs::{FileType, Mode, OFlags, fstat, open, openat, syncfs};
use rustix::io::Errno;

use crate::beyond_mounts::{device_of, has_hidden_filesystem, sync_block_devices};
use crate::target::MountTable;

/// How often the table of mounts is read.
const TRIES: u32 = 3;
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

/// Commits every filesystem that is not steered, and block devices; whether that was possible, which it is not where
/// there are filesystems that the thread does not see.
pub(crate) fn sync_others(thread: u32, decisions: &Decisions) -> bool {
    let mut done = BTreeSet::new();
    // What is gone when one comes to it is not in the next table.
    (0..TRIES).any(|_| {
        let Ok(table) = read_mount_table(format!("/proc/{thread}/mountinfo")) else {
            return false;
        };
        if has_hidden_filesystem(&table) {
            return false;
        }
        let others = table.iter().filter(|mount| {
            let has_disk = !WITHOUT_DISK.contains(&mount.kind.as_str());
            has_disk && !decisions.is_in_force(device_of(mount))
        });
        let others: Vec<&MountEntry> = others.collect();
        for mount in &others {
            let device = device_of(mount);
            if !done.contains(&device) && sync(thread, &mount.mountpoint, device).is_ok() {
                done.insert(device);
            }
        }
        others.iter().all(|mount| done.contains(&device_of(mount)))
            && sync_block_devices(&table, |device| decisions.is_in_force(device))
    })
}

/// Commits the filesystem if it is still the one at this place.
fn sync(thread: u32, mountpoint: &Path, device: Device) -> Result<(), Errno> {
    match open_root(thread, mountpoint).and_then(|opened| {
        let found = Look::at(&opened)?.device(&opened, MountTable::of(thread).path())?;
        if found == device {
            syncfs(&opened)
        } else {
            Err(Errno::XDEV)
        }
    }) {
        // FUSE without its server: there is nothing that could be kept.
        Err(Errno::NOTCONN | Errno::CONNABORTED) => Ok(()),
        result => result,
    }
}

/// Opens what is mounted at a place as a thread sees it, unless opening it does something.
fn open_root(thread: u32, mountpoint: &Path) -> Result<OwnedFd, Errno> {
    let root = format!("/proc/{thread}/root");
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let root = open(root.as_str(), flags | OFlags::DIRECTORY, Mode::empty())?;
    let below = mountpoint.strip_prefix("/").map_err(|_| Errno::NOENT)?;
    let below = below.as_os_str().as_bytes();
    let below = if below.is_empty() { b"." } else { below };
    let place = openat(&root, below, flags | OFlags::NOFOLLOW, Mode::empty())?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match FileType::from_raw_mode(fstat(&place)?.st_mode) {
        FileType::Directory => openat(&place, ".", flags, Mode::empty()),
        FileType::RegularFile => {
            let link = format!("/proc/self/fd/{}", place.as_raw_fd());
            open(link.as_str(), flags, Mode::empty())
        }
        _ => Err(Errno::INVAL),
    }
}
