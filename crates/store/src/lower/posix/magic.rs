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

/// Filesystems in which the kernel shows itself: their files are no content that lasts, and making
/// a directory there may change the system (in a cgroup it makes another one).
const KERNEL_MAGIC: [u64; 21] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0x6265_6570, // configfs
    0xcafe_4a11, // bpf
    0xf97c_ff8c, // selinuxfs
    0x4341_5d53, // smackfs
    0x5a3c_69f0, // apparmorfs
    0x1cd1,      // devpts
    0x6c6f_6f70, // binderfs
    0xde5e_81e4, // efivarfs
    0x6165_676c, // pstore
    0x4249_4e4d, // binfmt_misc
    0x1980_0202, // mqueue
    0x0765_5821, // resctrl
    0x6573_5543, // fusectl
    0x6e73_6673, // nsfs
];

/// Whether it is a filesystem of the kernel's own interfaces.
pub(super) fn is_of_the_kernel(f_type: fs::FsWord) -> bool {
    KERNEL_MAGIC.contains(&magic(f_type))
}

pub(super) fn magic(f_type: fs::FsWord) -> u64 {
    // The field is signed on some machines; all known values have 32 bits.
    (f_type as u64) & 0xffff_ffff
}

pub(super) fn is_memory_filesystem(f_type: fs::FsWord) -> bool {
    matches!(magic(f_type), TMPFS_MAGIC | RAMFS_MAGIC)
}

/// Whether blocks beyond the end of a file lie on the disk where the file goes on, and are overwritten
/// there. btrfs writes new content elsewhere after the first time, and keeps all of an extent as long
/// as a part of it is used; f2fs only counts such blocks, and chooses their places when they are
/// written.
pub(super) fn keeps_preallocation(f_type: fs::FsWord) -> bool {
    matches!(magic(f_type), EXT_MAGIC | XFS_MAGIC)
}

/// Whether writes to allocated blocks overwrite them (f2fs has room of its own for writing it
/// elsewhere), unless they are shared. Elsewhere, and where it is not known, writing takes room.
pub(super) fn overwrites_in_place(f_type: fs::FsWord) -> bool {
    matches!(magic(f_type), EXT_MAGIC | XFS_MAGIC | F2FS_MAGIC)
}
