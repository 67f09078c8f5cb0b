//! The zeros that ext4 writes past its journal.
//!
//! When a program writes to a part of room that was allocated (`fallocate`), ext4 fills its rest with
//! zeros on the device itself, up to so many KiB (`extent_max_zeroout_kb`), and no transaction has these. If the
//! blocks had other content in the journal before, recovery after a power cut puts that content back, into a
//! file that never had it. With 0 the kernel divides the room instead, and every byte goes through the journal.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

const NAME: &str = "extent_max_zeroout_kb";
/// `EXT4_IOC_CHECKPOINT`.
const CHECKPOINT: Opcode = opcode::write::<u32>(b'f', 43);

/// How many KiB the kernel fills for the ext4 of this name; none if it does not show that.
pub(super) fn limit_kib(name: &str) -> Option<u64> {
    let mut text = String::new();
    let file = open_attribute(name, OFlags::RDONLY).ok()?;
    File::from(file).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Sets it.
///
/// # Errors
/// The kernel refuses, or does not show its settings.
pub(super) fn set_limit_kib(name: &str, kib: u64) -> io::Result<()> {
    let file = open_attribute(name, OFlags::WRONLY)?;
    File::from(file).write_all(kib.to_string().as_bytes())
}

/// In containers `/sys` may be read-only or not there: another mount of it, which has no place in the tree, is
/// not.
fn open_attribute(name: &str, access: OFlags) -> Result<OwnedFd, Errno> {
    let flags = access | OFlags::CLOEXEC;
    let path = Path::new("fs/ext4").join(name).join(NAME);
    open(Path::new("/sys").join(&path), flags, Mode::empty()).or_else(|errno| {
        let root = mount_sysfs().map_err(|_| errno)?;
        openat(&root, &path, flags, Mode::empty())
    })
}

fn mount_sysfs() -> Result<OwnedFd, Errno> {
    let sysfs = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&sysfs)?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    fsmount(&sysfs, flags, MountAttrFlags::empty())
}

/// Writes all content to its place that the journal has, and empties the journal: what lies beside zeros that
/// were written past it is put back by no recovery any more.
///
/// # Errors
/// The filesystem's; Linux before 5.14 does not know it.
pub(super) fn empty_journal(root: impl AsFd) -> Result<(), Errno> {
    // SAFETY: EXT4_IOC_CHECKPOINT reads one u32, from which the opcode is made.
    unsafe { ioctl(root, Setter::<CHECKPOINT, u32>::new(0)) }
}
