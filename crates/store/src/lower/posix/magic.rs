//! Which filesystem it is (`statfs(2)`, `f_type`).

use rustix::fs;

pub(super) const EXT_MAGIC: u64 = 0xEF53;
pub(super) const XFS_MAGIC: u64 = 0x5846_5342;
pub(super) const BTRFS_MAGIC: u64 = 0x9123_683E;
pub(super) const F2FS_MAGIC: u64 = 0xF2F5_2010;
pub(super) const TMPFS_MAGIC: u64 = 0x0102_1994;
pub(super) const RAMFS_MAGIC: u64 = 0x8584_58F6;
pub(super) const OVERLAYFS_MAGIC: u64 = 0x794C_7630;
pub(super) const BCACHEFS_MAGIC: u64 = 0xCA45_1A4E;

pub(super) fn magic(f_type: fs::FsWord) -> u64 {
    // The field is signed on some machines; all known values have 32 bits.
    (f_type as u64) & 0xffff_ffff
}

pub(super) fn is_memory_filesystem(f_type: fs::FsWord) -> bool {
    matches!(magic(f_type), TMPFS_MAGIC | RAMFS_MAGIC)
}

/// Whether writes to allocated blocks overwrite them (f2fs has room of its own for writing it
/// elsewhere), unless they are shared. Elsewhere, and where it is not known, writing takes room.
pub(super) fn overwrites_in_place(f_type: fs::FsWord) -> bool {
    matches!(magic(f_type), EXT_MAGIC | XFS_MAGIC | F2FS_MAGIC)
}
