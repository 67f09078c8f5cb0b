//! Bit flags of the protocol, by the names of `<linux/fuse.h>`.

/// Capabilities negotiated at INIT. The kernel sends them in two words; here they
/// are one.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const NO_EXPORT_SUPPORT: u64 = 1 << 38;
}

/// `fuse_setattr_in.valid`.
pub mod set_attr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
    /// All that stand for a change that a program asked for; the time of the change itself is none.
    pub const CHANGES: u32 = MODE | UID | GID | SIZE | ATIME | MTIME | ATIME_NOW | MTIME_NOW;
}

/// `fuse_open_out.open_flags`.
pub mod open {
    pub const KEEP_CACHE: u32 = 1 << 1;
}

/// `fuse_write_in.write_flags`.
pub mod write {
    pub const KILL_SUIDGID: u32 = 1 << 2;
}

/// `fuse_fsync_in.fsync_flags`.
pub mod fsync {
    pub const DATA_ONLY: u32 = 1 << 0;
}

/// `fuse_setxattr_in.setxattr_flags`.
pub mod set_xattr {
    pub const ACL_KILL_SGID: u32 = 1 << 0;
}

/// Flags and values of the system call interface that requests carry unchanged.
pub mod syscall {
    /// Set in the file flags of a write that must be durable (`O_SYNC` contains it).
    pub const O_DSYNC: u32 = 0o10_000;
    /// In the file flags of a read that leaves no trace.
    pub const O_NOATIME: u32 = 0o1_000_000;
    pub const RENAME_NOREPLACE: u32 = 1 << 0;
    pub const RENAME_EXCHANGE: u32 = 1 << 1;
    pub const RENAME_WHITEOUT: u32 = 1 << 2;
    pub const XATTR_CREATE: u32 = 1;
    pub const XATTR_REPLACE: u32 = 2;
    pub const FALLOC_KEEP_SIZE: u32 = 0x01;
    pub const FALLOC_PUNCH_HOLE: u32 = 0x02;
    pub const FALLOC_ZERO_RANGE: u32 = 0x10;
    pub const SEEK_DATA: u32 = 3;
    pub const SEEK_HOLE: u32 = 4;
}
