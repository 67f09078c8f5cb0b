//! Whether a filesystem can carry a store at all.

use std::io;
use std::path::Path;

use rustix::fd::AsFd;
use rustix::fs::{self, IFlags};

use super::magic::{is_of_the_kernel, magic};
use super::overlay;
use crate::StoreError;

const MSDOS_MAGIC: u64 = 0x4D44;
const EXFAT_MAGIC: u64 = 0x2011_BAB0;

/// `FS_CASEFOLD_FL` of ext4, f2fs and tmpfs (`chattr +F`).
const CASEFOLD: IFlags = IFlags::from_bits_retain(0x4000_0000);

/// `FS_ENCRYPT_FL` and `FS_PROJINHERIT_FL`: nothing moves to such a directory from one that is
/// not (`EXDEV`).
const APART: IFlags = IFlags::from_bits_retain(0x800 | 0x2000_0000);

/// Refuses what breaks the assumptions about media (`docs/DESIGN.md`), before anything is changed
/// there. Returns the flags that keep the root's directory apart from others.
pub(super) fn check(root: impl AsFd, path: &Path) -> Result<IFlags, StoreError> {
    let shown = path.display();
    let about = fs::fstatfs(&root)
        .map_err(|errno| StoreError::lower(format!("looking at {shown}"))(errno.into()))?;
    if matches!(magic(about.f_type), MSDOS_MAGIC | EXFAT_MAGIC) {
        return Err(StoreError::Unsuitable(format!(
            "{shown} is on FAT or exFAT, where a power cut can tear a rename and files have no \
             lasting numbers; a store needs ext4, f2fs, xfs, btrfs or the like"
        )));
    }
    if is_of_the_kernel(about.f_type) {
        return Err(StoreError::Unsuitable(format!(
            "{shown} is on a filesystem of the kernel's own interfaces, as /proc and /sys are, \
             which keeps no files; choose a directory on ext4, f2fs, xfs, btrfs or the like"
        )));
    }
    let flags = flags_of(&root);
    if flags.contains(CASEFOLD) {
        return Err(StoreError::Unsuitable(format!(
            "names in {shown} that differ in upper and lower case only are the same (chattr +F); \
             a store needs a directory that distinguishes them"
        )));
    }
    Ok(flags & APART)
}

/// Checks a place for a store that is a whole tree, and not one file.
pub(super) fn check_tree(root: impl AsFd, path: &Path) -> Result<(), StoreError> {
    let is_overlay = overlay::is_overlay(&root).map_err(|errno| {
        StoreError::lower(format!("looking at {}", path.display()))(errno.into())
    })?;
    if is_overlay {
        overlay::check(root, path)?;
    }
    Ok(())
}

/// Why a directory inside a store is not listed, and so neither used nor changed: what is made
/// there, or moved there, could not be applied. `root`: as [`check`] returned it.
pub(super) fn obstacle(directory: impl AsFd, root: IFlags) -> Option<io::Error> {
    let flags = flags_of(directory);
    let why = if flags.contains(CASEFOLD) {
        "its names that differ in upper and lower case only are the same (chattr +F), and a store \
         cannot keep such names"
    } else if flags & APART != root {
        "it is encrypted or of a project (chattr +P) and the store's root is not, or the other way \
         round, and nothing can be moved between the two"
    } else {
        return None;
    };
    Some(io::Error::new(io::ErrorKind::Unsupported, why))
}

fn flags_of(directory: impl AsFd) -> IFlags {
    // Filesystems without such flags have no answer.
    fs::ioctl_getflags(directory).unwrap_or(IFlags::empty())
}
