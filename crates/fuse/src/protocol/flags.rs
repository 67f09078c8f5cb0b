//! Bit flags of the protocol, by the names of `<linux/fuse.h>`.

/// Capabilities negotiated at INIT. The kernel sends them in two words; here they
/// are one.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DONT_MASK: u64 = 1 << 6;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub(crate) const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const SETXATTR_EXT: u64 = 1 << 29;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const NO_EXPORT_SUPPORT: u64 = 1 << 38;
}

/// `fuse_setattr_in.valid`.
pub(crate) mod set_attr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const CTIME: u32 = 1 << 10;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
    /// All that stand for a change somebody asked for; the time of the change itself is none.
    pub(crate) const CHANGES: u32 = MODE | UID | GID | SIZE | ATIME | MTIME | ATIME_NOW | MTIME_NOW;
}

/// `fuse_open_out.open_flags`.
pub(crate) mod open {
    pub(crate) const KEEP_CACHE: u32 = 1 << 1;
}

/// `fuse_write_in.write_flags`.
pub(crate) mod write {
    pub(crate) const KILL_SUIDGID: u32 = 1 << 2;
}

/// `fuse_fsync_in.fsync_flags`.
pub(crate) mod fsync {
    pub(crate) const DATA_ONLY: u32 = 1 << 0;
}

/// `fuse_setxattr_in.setxattr_flags`.
pub(crate) mod set_xattr {
    pub(crate) const ACL_KILL_SGID: u32 = 1 << 0;
}

/// Flags and values of the system call interface that requests carry unchanged.
pub(crate) mod syscall {
    /// Set in the file flags of a write that must be durable (`O_SYNC` contains it).
    pub(crate) const O_DSYNC: u32 = 0o10_000;
    /// In the file flags of a read that leaves no trace.
    pub(crate) const O_NOATIME: u32 = 0o1_000_000;
    pub(crate) const RENAME_NOREPLACE: u32 = 1 << 0;
    pub(crate) const RENAME_EXCHANGE: u32 = 1 << 1;
    pub(crate) const RENAME_WHITEOUT: u32 = 1 << 2;
    pub(crate) const XATTR_CREATE: u32 = 1;
    pub(crate) const XATTR_REPLACE: u32 = 2;
    pub(crate) const FALLOC_KEEP_SIZE: u32 = 0x01;
    pub(crate) const FALLOC_PUNCH_HOLE: u32 = 0x02;
    pub(crate) const FALLOC_ZERO_RANGE: u32 = 0x10;
    pub(crate) const SEEK_DATA: u32 = 3;
    pub(crate) const SEEK_HOLE: u32 = 4;
}
