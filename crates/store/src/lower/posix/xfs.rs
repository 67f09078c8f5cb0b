//! Room of deleted files, and beyond the ends of files, on XFS.
//!
//! XFS frees the blocks of deleted files in the background (since Linux 5.14), and keeps blocks
//! that it has allocated ahead of the ends of files. Until then `statfs` counts both as used: a
//! store that had deleted what filled the disk saw no room, for as long as that took.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::{Errno, retry_on_intr};
use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};

/// Room is scarce where less than this part of the whole is available. Elsewhere waiting would hold
/// up commits for room that is not missing, and files of other programs would lose what was
/// allocated ahead of them.
const SCARCE_SHARE: u64 = 8;

/// `XFS_EOFBLOCKS_VERSION`.
const VERSION: u32 = 1;
/// `XFS_EOF_FLAGS_SYNC`: busy files are waited for.
const FLAG_SYNC: u32 = 1;

/// `struct xfs_fs_eofblocks` (`fs/xfs/libxfs/xfs_fs.h`): of which files to free what is allocated
/// ahead. Without a filter flag, of all.
#[repr(C)]
struct EofBlocks {
    version: u32,
    flags: u32,
    uid: u32,
    gid: u32,
    project: u32,
    padding: u32,
    file_bytes_min: u64,
    reserved: [u64; 12],
}

/// `XFS_IOC_FREE_EOFBLOCKS`.
const FREE_EOFBLOCKS: Opcode = opcode::read::<EofBlocks>(b'X', 58);

/// `struct fsxattr` (`linux/fs.h`).
#[repr(C)]
struct Flags {
    flags: u32,
    others: [u32; 4],
    padding: [u8; 8],
}

/// `FS_IOC_FSGETXATTR`.
const GET_FLAGS: Opcode = opcode::read::<Flags>(b'X', 31);
/// `FS_XFLAG_PREALLOC`: blocks of the file were requested.
const FLAG_REQUESTED: u32 = 2;

/// Whether blocks of the file were requested by `fallocate`. Others that it has beyond its end are
/// XFS's own, and it frees them.
pub(super) fn has_requested_blocks(file: BorrowedFd<'_>) -> bool {
    // SAFETY: the kernel writes a `struct fsxattr`, which `Flags` mirrors in size and layout.
    let call = || unsafe { ioctl(file, Getter::<GET_FLAGS, Flags>::new()) };
    // If it does not say so, they count as requested, and stay.
    retry_on_intr(call).map_or(true, |about| about.flags & FLAG_REQUESTED != 0)
}

/// Whether there may be deleted files whose blocks XFS has not freed yet.
#[derive(Debug, Default)]
pub(super) struct Removals(AtomicBool);

impl Removals {
    /// An object was removed.
    pub(super) fn record(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Where room is scarce and something was removed since the last call that found it so: waits
    /// until the XFS on which `directory` lies has freed what was removed. Returns whether there
    /// may be more room now.
    pub(super) fn free(
        &self,
        directory: BorrowedFd<'_>,
        available_bytes: u64,
        total_bytes: u64,
    ) -> bool {
        self.are_due(available_bytes, total_bytes) && free_removed(directory)
    }

    fn are_due(&self, available_bytes: u64, total_bytes: u64) -> bool {
        available_bytes < total_bytes / SCARCE_SHARE && self.0.swap(false, Ordering::SeqCst)
    }
}

/// After it has freed what is allocated ahead, the request waits for what is freed in the
/// background. It needs `CAP_SYS_ADMIN`.
fn free_removed(directory: BorrowedFd<'_>) -> bool {
    let call = || {
        let request = EofBlocks {
            version: VERSION,
            flags: FLAG_SYNC,
            uid: 0,
            gid: 0,
            project: 0,
            padding: 0,
            file_bytes_min: 0,
            reserved: [0; 12],
        };
        // SAFETY: the kernel reads a `struct xfs_fs_eofblocks`, which `EofBlocks` mirrors in size
        // and layout, and writes nothing.
        unsafe { ioctl(directory, Setter::<FREE_EOFBLOCKS, EofBlocks>::new(request)) }
    };
    match retry_on_intr(call) {
        Ok(()) => true,
        Err(Errno::PERM) => false,
        Err(errno) => {
            tracing::debug!(%errno, "XFS does not say when the blocks of deleted files are free");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_is_laid_out_as_the_kernel_has_it() {
        assert_eq!(size_of::<EofBlocks>(), 128);
        assert_eq!(std::mem::offset_of!(EofBlocks, file_bytes_min), 24);
        assert_eq!(FREE_EOFBLOCKS, 0x8080_583a);
        assert_eq!(GET_FLAGS, 0x801c_581f);
    }

    #[test]
    fn xfs_is_asked_once_for_what_was_removed_and_only_where_room_is_scarce() {
        let removals = Removals::default();
        assert!(!removals.are_due(0, 800), "nothing was removed");
        removals.record();
        assert!(!removals.are_due(100, 800), "there is room");
        assert!(removals.are_due(99, 800));
        assert!(!removals.are_due(99, 800), "nothing was removed since");
        removals.record();
        removals.record();
        assert!(removals.are_due(0, 800));
        assert!(!removals.are_due(0, 800));
    }
}
