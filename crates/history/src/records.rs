//! Which snapshots were found to be exact when they were taken.
//!
//! A name says so, too, and anyone who may enter the history can give it to a snapshot of their own. So the history's
//! directory has an attribute for each, with the number that the kernel has given to the snapshot and gives to no
//! other one. Attributes are committed with the names.

use std::os::fd::AsFd;

use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr};
use rustix::io::Errno;

/// All that is exact is recorded.
const KEPT: &str = "user.mobifs.records";
/// What the attribute of a snapshot begins with.
const EXACT: &str = "user.mobifs.exact.";

/// Whether there are records; an earlier version kept none.
pub(crate) fn are_kept(directory: impl AsFd) -> bool {
    is_set(directory, KEPT)
}

/// From now on, what is not recorded is not exact.
pub(crate) fn begin(directory: impl AsFd) -> Result<(), Errno> {
    fsetxattr(directory, KEPT, b"1", XattrFlags::empty())
}

pub(crate) fn add(directory: impl AsFd, uuid: [u8; 16]) -> Result<(), Errno> {
    fsetxattr(directory, name_of(uuid), b"1", XattrFlags::empty())
}

pub(crate) fn has(directory: impl AsFd, uuid: [u8; 16]) -> bool {
    let directory = directory.as_fd();
    is_set(directory, &name_of(uuid)) || !are_kept(directory)
}

/// The snapshot is gone. A record that stays is of nothing.
pub(crate) fn forget(directory: impl AsFd, uuid: [u8; 16]) {
    let _none_there = fremovexattr(directory, name_of(uuid));
}

fn is_set(directory: impl AsFd, name: &str) -> bool {
    fgetxattr(directory, name, &mut [0; 1]).is_ok()
}

fn name_of(uuid: [u8; 16]) -> String {
    format!("{EXACT}{:032x}", u128::from_be_bytes(uuid))
}
