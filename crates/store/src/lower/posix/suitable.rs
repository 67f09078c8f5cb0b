//! Whether a filesystem can carry a store at all.

use std::io;
use std::path::Path;

use rustix::fd::AsFd;
use rustix::fs::{self, IFlags};

use super::probe::magic;
use crate::StoreError;

const MSDOS_MAGIC: u64 = 0x4D44;
const EXFAT_MAGIC: u64 = 0x2011_BAB0;

/// `FS_CASEFOLD_FL` of ext4, f2fs and tmpfs (`chattr +F`).
const CASEFOLD: IFlags = IFlags::from_bits_retain(0x4000_0000);

/// Refuses what breaks the assumptions about media (`docs/DESIGN.md`), before anything is
/// changed there.
pub(super) fn check(root: impl AsFd, path: &Path) -> Result<(), StoreError> {
    let shown = path.display();
    let about = fs::fstatfs(&root)
        .map_err(|errno| StoreError::lower(format!("looking at {shown}"))(errno.into()))?;
    if matches!(magic(about.f_type), MSDOS_MAGIC | EXFAT_MAGIC) {
        return Err(StoreError::Unsuitable(format!(
            "{shown} is on FAT or exFAT, where a power cut can tear a rename and files have no \
             lasting numbers; a store needs ext4, f2fs, xfs, btrfs or the like"
        )));
    }
    if folds_case(&root) {
        return Err(StoreError::Unsuitable(format!(
            "names in {shown} that differ in upper and lower case only are the same (chattr +F); \
             a store needs a directory that tells them apart"
        )));
    }
    Ok(())
}

/// Whether names in a directory that differ in case only are the same.
pub(super) fn folds_case(directory: impl AsFd) -> bool {
    // Filesystems without such flags have no answer.
    fs::ioctl_getflags(directory).is_ok_and(|flags| flags.contains(CASEFOLD))
}

/// Why such a directory inside a store is not listed, and so neither used nor changed.
pub(super) fn case_is_folded() -> io::Error {
    io::Error::new(
        io::ErrorKind::Unsupported,
        "its names that differ in upper and lower case only are the same (chattr +F), and a store \
         cannot keep such names",
    )
}
