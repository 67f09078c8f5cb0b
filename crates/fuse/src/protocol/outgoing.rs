//! Structures that the kernel receives, named after those of `<linux/fuse.h>` without
//! `fuse_` and `_out`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! outgoing {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $(pub $field: $kind),* }
    )*};
}

outgoing! {
    /// In front of every reply and notification.
    ReplyHeader { len: u32, error: i32, unique: u64 }
    /// Attributes of an object.
    Attr {
        inode: u64,
        size: u64,
        blocks: u64,
        atime: i64,
        mtime: i64,
        ctime: i64,
        atime_ns: u32,
        mtime_ns: u32,
        ctime_ns: u32,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        block_bytes: u32,
        flags: u32,
    }
    /// A directory entry looked up or made; node 0: there is none (and the kernel may cache that).
    EntryReply {
        node: u64,
        generation: u64,
        entry_valid_seconds: u64,
        attr_valid_seconds: u64,
        entry_valid_ns: u32,
        attr_valid_ns: u32,
        attr: Attr,
    }
    /// GETATTR and SETATTR.
    AttrReply { attr_valid_seconds: u64, attr_valid_ns: u32, dummy: u32, attr: Attr }
    /// OPEN, and the second part of CREATE and TMPFILE.
    OpenReply { handle: u64, open_flags: u32, backing_id: u32 }
    /// WRITE and COPY_FILE_RANGE.
    WriteReply { size: u32, padding: u32 }
    /// STATFS.
    StatFsReply {
        blocks: u64,
        blocks_free: u64,
        blocks_available: u64,
        files: u64,
        files_free: u64,
        block_bytes: u32,
        name_bytes_max: u32,
        fragment_bytes: u32,
        padding: u32,
        spare: [u32; 6],
    }
    /// GETXATTR and LISTXATTR when only the size was asked for.
    GetXattrReply { size: u32, padding: u32 }
    /// INIT.
    InitReply {
        major: u32,
        minor: u32,
        max_readahead_bytes: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write_bytes: u32,
        time_granularity_ns: u32,
        max_pages: u16,
        map_alignment: u16,
        flags2: u32,
        max_stack_depth: u32,
        request_timeout_seconds: u16,
        unused: [u16; 11],
    }
    /// LSEEK.
    LseekReply { offset: u64 }
    /// COPY_FILE_RANGE_64.
    CopyFileRangeReply { bytes_copied: u64 }
    /// In front of a name in a READDIR reply.
    DirectoryEntryHeader { inode: u64, offset: u64, name_bytes: u32, kind: u32 }
    /// Notification: forget the attributes (and, from `offset` on if it is not
    /// negative, the cached content) of an inode.
    InvalidateInode { node: u64, offset: i64, length: i64 }
    /// Notification: forget a name, which follows, ended by a NUL byte.
    InvalidateEntry { parent: u64, name_bytes: u32, flags: u32 }
    /// Notification: forget these objects, whose node numbers follow, if no program uses them.
    Prune { count: u32, padding: u32, spare: u64 }
}

/// Notification code of [`InvalidateInode`].
pub const NOTIFY_INVALIDATE_INODE: i32 = 2;
/// Notification code of [`InvalidateEntry`].
pub const NOTIFY_INVALIDATE_ENTRY: i32 = 3;
/// Notification code of [`Prune`].
pub const NOTIFY_PRUNE: i32 = 9;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::*;

    /// The sizes of `<linux/fuse.h>`: a slip in a field shows here.
    #[test]
    fn structures_have_the_kernels_sizes() {
        let sizes = [
            (size_of::<RequestHeader>(), 40),
            (size_of::<SetAttrArgs>(), 88),
            (size_of::<MkNodArgs>(), 16),
            (size_of::<CreateArgs>(), 16),
            (size_of::<ReadArgs>(), 40),
            (size_of::<WriteArgs>(), 40),
            (size_of::<ReleaseArgs>(), 24),
            (size_of::<SetXattrArgs>(), 16),
            (size_of::<InitArgs>() + size_of::<InitExtensionArgs>(), 64),
            (size_of::<FallocateArgs>(), 32),
            (size_of::<LseekArgs>(), 24),
            (size_of::<CopyFileRangeArgs>(), 56),
            (size_of::<ReplyHeader>(), 16),
            (size_of::<Attr>(), 88),
            (size_of::<EntryReply>(), 128),
            (size_of::<AttrReply>(), 104),
            (size_of::<OpenReply>(), 16),
            (size_of::<StatFsReply>(), 80),
            (size_of::<InitReply>(), 64),
            (size_of::<DirectoryEntryHeader>(), 24),
            (size_of::<InvalidateInode>(), 24),
            (size_of::<InvalidateEntry>(), 16),
            (size_of::<Prune>(), 16),
        ];
        for (index, (ours, kernels)) in sizes.into_iter().enumerate() {
            assert_eq!(ours, kernels, "structure number {index}");
        }
    }
}
