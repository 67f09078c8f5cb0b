//! Structures that the kernel sends, named after those of `<linux/fuse.h>` without
//! `fuse_` and `_in`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! incoming {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $(pub $field: $kind),* }
    )*};
}

incoming! {
    /// In front of every request.
    RequestHeader {
        len: u32,
        opcode: u32,
        unique: u64,
        node: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        extension_words: u16,
        padding: u16,
    }
    /// FORGET.
    ForgetArgs { lookups: u64 }
    /// BATCH_FORGET, before its entries.
    BatchForgetArgs { count: u32, dummy: u32 }
    /// One entry of BATCH_FORGET.
    ForgetOne { node: u64, lookups: u64 }
    /// SETATTR.
    SetAttrArgs {
        valid: u32,
        padding: u32,
        handle: u64,
        size: u64,
        lock_owner: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atime_ns: u32,
        mtime_ns: u32,
        ctime_ns: u32,
        mode: u32,
        unused4: u32,
        uid: u32,
        gid: u32,
        unused5: u32,
    }
    /// MKNOD.
    MkNodArgs { mode: u32, rdev: u32, umask: u32, padding: u32 }
    /// MKDIR.
    MkDirArgs { mode: u32, umask: u32 }
    /// RENAME.
    RenameArgs { new_directory: u64 }
    /// RENAME2.
    Rename2Args { new_directory: u64, flags: u32, padding: u32 }
    /// LINK.
    LinkArgs { node: u64 }
    /// CREATE and TMPFILE.
    CreateArgs { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    /// READ, READDIR and READDIRPLUS.
    ReadArgs {
        handle: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
    /// WRITE, before its data.
    WriteArgs {
        handle: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
    /// RELEASE.
    ReleaseArgs { handle: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    /// FSYNC and FSYNCDIR.
    FsyncArgs { handle: u64, flags: u32, padding: u32 }
    /// SETXATTR as it was before the extension.
    SetXattrCompatArgs { size: u32, flags: u32 }
    /// SETXATTR.
    SetXattrArgs { size: u32, flags: u32, set_xattr_flags: u32, padding: u32 }
    /// GETXATTR and LISTXATTR.
    GetXattrArgs { size: u32, padding: u32 }
    /// INIT, the part that every kernel sends.
    InitArgs { major: u32, minor: u32, max_readahead_bytes: u32, flags: u32 }
    /// INIT, the part that newer kernels add.
    InitExtensionArgs { flags2: u32, unused: [u32; 11] }
    /// FALLOCATE.
    FallocateArgs { handle: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    /// LSEEK.
    LseekArgs { handle: u64, offset: u64, whence: u32, padding: u32 }
    /// COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyFileRangeArgs {
        handle_in: u64,
        offset_in: u64,
        node_out: u64,
        handle_out: u64,
        offset_out: u64,
        length: u64,
        flags: u64,
    }
}
