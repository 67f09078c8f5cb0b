//! How much room btrfs has left, for content and for everything else.
//!
//! It keeps the two apart, so directories can be full where `statfs` shows much room. And `statfs`
//! does not count what is written, or even durable, since btrfs has committed its own transaction
//! last: an extent is counted as used when that transaction updates its block group. What is read
//! here btrfs reports to all users (`BTRFS_IOC_SPACE_INFO`, `/sys/fs/btrfs/UUID/allocation`).

use std::ffi::c_void;
use std::fmt::Write as _;
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::io::retry_on_intr;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

/// Kinds of room, in each of up to a few profiles.
const SPACES: usize = 32;
const DATA: u64 = 1;
const METADATA: u64 = 1 << 2;
/// The filesystem's reserve for finishing operations that have begun.
const GLOBAL_RESERVE: u64 = 1 << 49;
/// An operation reserves much more than it takes (a rename eleven times both ways through eight
/// levels of 16 KiB, nearly 3 MiB), and blocks of trees are written elsewhere before the old ones
/// are free again: so much is left for that, and this part of all that is there.
const TURNOVER_BYTES: u64 = 8 << 20;
const TURNOVER_SHARE: u64 = 16;
/// Room without a purpose yet is assigned in chunks of this part of the whole, and of so many
/// bytes, at most.
const CHUNK_SHARE: u64 = 10;
const CHUNK_BYTES_MAX: u64 = 1 << 30;
/// More chunks for content than these are not counted on at once.
const CHUNKS_MAX: u64 = 64;

/// What a btrfs has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BtrfsRoom {
    /// Content that `statfs` still shows as free although it has blocks, or blocks are reserved for
    /// it.
    pub(super) unseen_bytes: u64,
    /// Room that is certainly available at once.
    pub(super) metadata_bytes: u64,
}

/// `struct btrfs_ioctl_fs_info_args`.
#[repr(C)]
struct FsInfo {
    max_id: u64,
    devices: u64,
    fsid: [u8; 16],
    rest: [u8; 992],
}

/// Fills what it refers to.
struct FillFsInfo<'s>(&'s mut FsInfo);

// SAFETY: the kernel writes a `struct btrfs_ioctl_fs_info_args`, which `FsInfo` mirrors in size and
// layout; the pointer is to one that is borrowed for the call.
unsafe impl Ioctl for FillFsInfo<'_> {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read::<FsInfo>(0x94, 31)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// `struct btrfs_ioctl_space_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Space {
    flags: u64,
    total_bytes: u64,
    used_bytes: u64,
}

/// `struct btrfs_ioctl_space_args` with what it asks for.
#[repr(C)]
struct Spaces {
    slots: u64,
    count: u64,
    spaces: [Space; SPACES],
}

/// `struct btrfs_ioctl_space_args` ends where its array begins: that size is part of the
/// request's number.
type Header = [u64; 2];

/// Fills what it refers to.
struct FillSpaces<'s>(&'s mut Spaces);

// SAFETY: the kernel reads and writes a `struct btrfs_ioctl_space_args` with `slots` entries,
// which `Spaces` mirrors and has room for; the pointer is to one that is borrowed for the call.
unsafe impl Ioctl for FillSpaces<'_> {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<Header>(0x94, 20)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// What a btrfs of so many bytes, and with so much available room for data as `statfs` shows, has
/// left; none if it does not report that.
pub(super) fn btrfs_room(
    directory: BorrowedFd<'_>,
    total_bytes: u64,
    available_bytes: u64,
) -> Option<BtrfsRoom> {
    let mut found = Spaces {
        slots: SPACES as u64,
        count: 0,
        spaces: [Space::default(); SPACES],
    };
    // SAFETY: `FillSpaces` describes this request.
    retry_on_intr(|| unsafe { ioctl(directory, FillSpaces(&mut found)) }).ok()?;
    let count = usize::try_from(found.count).unwrap_or(SPACES).min(SPACES);
    let spaces = &found.spaces[..count];
    let unseen_bytes =
        btrfs_directory(directory).map_or(0, |shown| unseen_bytes(&shown.join("allocation")));
    Some(BtrfsRoom {
        unseen_bytes,
        metadata_bytes: left(spaces, total_bytes, available_bytes, unseen_bytes),
    })
}

/// The directory in which the kernel shows this btrfs.
pub(super) fn btrfs_directory(directory: BorrowedFd<'_>) -> Option<PathBuf> {
    let mut info = FsInfo {
        max_id: 0,
        devices: 0,
        fsid: [0; 16],
        rest: [0; 992],
    };
    // SAFETY: `FillFsInfo` describes this request.
    retry_on_intr(|| unsafe { ioctl(directory, FillFsInfo(&mut info)) }).ok()?;
    let mut uuid = String::with_capacity(36);
    for (at, byte) in info.fsid.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            uuid.push('-');
        }
        write!(uuid, "{byte:02x}").ok()?;
    }
    Some(Path::new("/sys/fs/btrfs").join(uuid))
}

/// Content that is written and not counted as used (`bytes_reserved`), or reserved for what is
/// still in the page cache (`bytes_may_use`). Where chunks are mixed, `bytes_may_use` holds the
/// filesystem's reserve, too, which is taken off elsewhere.
fn unseen_bytes(kinds: &Path) -> u64 {
    let read = |kind: &str, what: &str| {
        let text = fs::read_to_string(kinds.join(kind).join(what)).ok();
        text.and_then(|text| text.trim().parse::<u64>().ok())
            .unwrap_or(0)
    };
    let data = read("data", "bytes_reserved").saturating_add(read("data", "bytes_may_use"));
    data.saturating_add(read("mixed", "bytes_reserved"))
}

/// Room that is certainly available at once, where `unseen_bytes` of what seems available is not.
fn left(spaces: &[Space], total_bytes: u64, available_bytes: u64, unseen_bytes: u64) -> u64 {
    let free = |space: &Space| space.total_bytes.saturating_sub(space.used_bytes);
    let of_kind = |kind: u64| spaces.iter().filter(move |space| space.flags & kind != 0);
    let assigned: u64 = of_kind(METADATA).map(|space| space.total_bytes).sum();
    let reserve: u64 = of_kind(GLOBAL_RESERVE).map(|space| space.total_bytes).sum();
    let turnover = TURNOVER_BYTES.max(assigned / TURNOVER_SHARE);
    // Chunks that are assigned later give room for this, too.
    let kept = reserve + turnover;
    let metadata: u64 = of_kind(METADATA).map(free).sum();
    let data: u64 = of_kind(DATA).map(free).sum();
    let unassigned = available_bytes.saturating_sub(data);
    let data = data.saturating_sub(unseen_bytes);
    let copies = copies(of_kind(METADATA).map(|space| space.flags));
    if of_kind(METADATA).any(|space| space.flags & DATA != 0) {
        let taken = kept.saturating_add(unseen_bytes);
        return (metadata + unassigned / copies).saturating_sub(taken);
    }
    // All reserved room may be content, also that of files so small that the trees take it: room
    // for that is reserved before, and where there is none a chunk is assigned to content, in which
    // no tree can grow any more. And trees get one before they need it.
    let chunk = CHUNK_BYTES_MAX.min(total_bytes / CHUNK_SHARE).max(1);
    let chunks = unassigned.saturating_sub(copies * chunk) / chunk;
    let with_chunks = |chunks: u64| {
        let assigned = chunks * chunk;
        let trees = (metadata + (unassigned - assigned) / copies).saturating_sub(kept);
        trees.min(data + assigned)
    };
    (0..=chunks.min(CHUNKS_MAX))
        .map(with_chunks)
        .max()
        .unwrap_or(0)
}

/// The most copies of a block of a tree, by the profiles in these flags.
fn copies(flags: impl Iterator<Item = u64>) -> u64 {
    const RAID1C3: u64 = 1 << 9;
    const RAID1C4: u64 = 1 << 10;
    let all = flags.fold(0, |all, flags| all | flags);
    match all {
        all if all & RAID1C4 != 0 => 4,
        all if all & RAID1C3 != 0 => 3,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_for_metadata_is_what_neither_trees_nor_content_can_have_taken() {
        const MIB: u64 = 1 << 20;
        let space = |flags, total: u64, used: u64| Space {
            flags,
            total_bytes: total * MIB,
            used_bytes: used * MIB,
        };
        let apart = |data, metadata| {
            [
                space(DATA, data, 40),
                space(2, 8, 1),
                space(METADATA | 1 << 5, metadata, 10),
                space(GLOBAL_RESERVE, 6, 0),
            ]
        };
        let left_with = |spaces: &[Space], available, unseen| {
            left(spaces, 200 * MIB, available * MIB, unseen * MIB) / MIB
        };
        let left = |spaces: &[Space], available| left_with(spaces, available, 0);
        assert_eq!(left(&apart(100, 64), 60), 54 - 6 - 8, "trees are the limit");
        assert_eq!(left(&apart(100, 64), 80), 54 - 6 - 8 + 10);
        assert_eq!(left(&apart(50, 64), 10), 10, "content is the limit");
        // A chunk of 20 for content, and one for the trees, twice.
        assert_eq!(left(&apart(50, 64), 10 + 59), 10);
        assert_eq!(left(&apart(50, 64), 10 + 60), 30);
        assert_eq!(left(&apart(50, 64), 10 + 80), 50);
        // What is written and not counted yet.
        assert_eq!(left_with(&apart(50, 64), 10, 4), 6);
        assert_eq!(left_with(&apart(50, 64), 10 + 60, 30), 20);
        let mixed = [space(DATA | METADATA, 100, 40), space(GLOBAL_RESERVE, 6, 0)];
        assert_eq!(left(&mixed, 50), 60 - 6 - 8);
        assert_eq!(left_with(&mixed, 50, 20), 60 - 6 - 8 - 20);
        assert_eq!(left(&[space(METADATA, 10, 9)], 0), 0);
        assert_eq!(copies([METADATA | 1 << 10, 1 << 9].into_iter()), 4);
        assert_eq!(size_of::<Space>(), 24);
        assert_eq!(size_of::<FsInfo>(), 1024);
        assert_eq!(std::mem::offset_of!(Spaces, spaces), size_of::<Header>());
    }
}
