//! What `sync()` has to commit besides the filesystems that a thread sees.

use std::collections::BTreeSet;
use std::fs::{read_dir, read_to_string};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use mobifs_host::MountEntry;
use mobifs_steered::Device;
use rustix::fs::{Mode, OFlags, fdatasync, fstat, major, minor, open};
use rustix::io::Errno;

/// Types whose filesystems the kernel lists in `/sys/fs`, by the name of their device.
const LISTED: &[&str] = &["ext4", "xfs", "f2fs"];
const BTRFS: &str = "btrfs";
const BLOCK_DEVICES: &str = "/sys/class/block";

/// Whether the kernel has a filesystem that no mount of this table shows: one that only another mount
/// namespace has, or that was detached and is in use. Of types that the kernel does not list this is not known.
pub(crate) fn has_hidden_filesystem(table: &[MountEntry]) -> bool {
    let shown: BTreeSet<Device> = table.iter().map(device_of).collect();
    let is_hidden =
        |name: &String| device_named(name).is_some_and(|device| !shown.contains(&device));
    let listed = LISTED
        .iter()
        .flat_map(|kind| names_in(&format!("/sys/fs/{kind}")));
    listed.into_iter().any(|name| is_hidden(&name)) || has_hidden_btrfs(table)
}

/// A btrfs has a device number of its own, so its mounts are known by what is mounted.
fn has_hidden_btrfs(table: &[MountEntry]) -> bool {
    let sources = table.iter().filter(|mount| mount.kind == BTRFS);
    let shown: BTreeSet<Device> = sources
        .filter_map(|mount| {
            let about = std::fs::metadata(&mount.source).ok()?;
            Some(numbered(about.rdev()))
        })
        .collect();
    names_in("/sys/fs/btrfs").iter().any(|filesystem| {
        let devices = names_in(&format!("/sys/fs/btrfs/{filesystem}/devices"));
        let mut devices = devices
            .iter()
            .filter_map(|name| device_named(name))
            .peekable();
        // Not all that is there is a filesystem.
        devices.peek().is_some() && !devices.any(|device| shown.contains(&device))
    })
}

/// Makes durable what programs have written to block devices that no mount of this table shows. `is_passed_over`:
/// of a steered filesystem. False where that was not possible.
pub(crate) fn sync_block_devices(
    table: &[MountEntry],
    is_passed_over: impl Fn(Device) -> bool,
) -> bool {
    let shown: BTreeSet<Device> = table.iter().map(device_of).collect();
    names_in(BLOCK_DEVICES).iter().all(|name| {
        let Some(device) = device_named(name) else {
            return true;
        };
        if shown.contains(&device) || is_passed_over(device) || is_unwritable(name) {
            return true;
        }
        sync_block_device(name, device).is_ok()
    })
}

fn sync_block_device(name: &str, device: Device) -> Result<(), Errno> {
    let about = read_to_string(format!("{BLOCK_DEVICES}/{name}/uevent")).unwrap_or_default();
    let node = about.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    let node = Path::new("/dev").join(node.unwrap_or(name));
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match open(&node, flags, Mode::empty()) {
        Ok(opened) if numbered(fstat(&opened)?.st_rdev) == device => fdatasync(&opened),
        // Nor can a program have written to it.
        Ok(_) | Err(Errno::NOENT | Errno::ACCESS | Errno::PERM | Errno::NXIO | Errno::NOMEDIUM) => {
            Ok(())
        }
        Err(errno) => Err(errno),
    }
}

/// It is read-only or has no content, as a loop device without a file.
fn is_unwritable(name: &str) -> bool {
    let number = |attribute: &str| {
        let text = read_to_string(format!("{BLOCK_DEVICES}/{name}/{attribute}")).ok()?;
        text.trim().parse::<u64>().ok()
    };
    number("size") == Some(0) || number("ro") == Some(1)
}

fn device_named(name: &str) -> Option<Device> {
    let text = read_to_string(format!("{BLOCK_DEVICES}/{name}/dev")).ok()?;
    Device::parse(text.trim())
}

pub(crate) const fn device_of(mount: &MountEntry) -> Device {
    Device {
        major: mount.device_major,
        minor: mount.device_minor,
    }
}

fn numbered(number: u64) -> Device {
    Device {
        major: major(number),
        minor: minor(number),
    }
}

fn names_in(directory: &str) -> Vec<String> {
    let entries = read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_lists_and_no_mount_shows_is_hidden() {
        let table = mobifs_host::mounts().unwrap();
        let listed = LISTED
            .iter()
            .flat_map(|kind| names_in(&format!("/sys/fs/{kind}")));
        let known: Vec<Device> = listed.filter_map(|name| device_named(&name)).collect();
        // Without any mount each of them is.
        assert_eq!(
            has_hidden_filesystem(&[]),
            !known.is_empty() || has_hidden_btrfs(&[])
        );
        let shown: BTreeSet<Device> = table.iter().map(device_of).collect();
        if known.iter().all(|device| shown.contains(device)) && !has_hidden_btrfs(&table) {
            assert!(!has_hidden_filesystem(&table));
        }
    }
}
