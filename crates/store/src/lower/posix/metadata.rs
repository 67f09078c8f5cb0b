//! How much room btrfs has left for everything that is not content of files.
//!
//! It keeps that apart, so directories can be full where `statfs` shows much room. What is read
//! here it tells to everybody (`BTRFS_IOC_SPACE_INFO`).

use std::ffi::c_void;
use std::os::fd::BorrowedFd;

use rustix::io::retry_on_intr;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

/// Kinds of room, in each of up to a few profiles.
const SPACES: usize = 32;
const DATA: u64 = 1;
const METADATA: u64 = 1 << 2;
/// What the filesystem keeps for finishing what it has begun.
const GLOBAL_RESERVE: u64 = 1 << 49;
/// An operation reserves much more than it takes (a rename eleven times both ways through eight
/// levels of 16 KiB, nearly 3 MiB), and blocks of trees are written elsewhere before the old ones
/// are free again: so much is left for that, and this part of all that is there.
const TURNOVER_BYTES: u64 = 8 << 20;
const TURNOVER_SHARE: u64 = 16;
/// What has no purpose yet is assigned in chunks of this part of the whole, and of so many bytes,
/// at most.
const CHUNK_SHARE: u64 = 10;
const CHUNK_BYTES_MAX: u64 = 1 << 30;
/// More chunks for content than these are not counted on at once.
const CHUNKS_MAX: u64 = 64;

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

/// What a btrfs of so many bytes, and with so much available room for data, surely takes of
/// anything at once; none if it does not tell.
pub(super) fn btrfs_bytes(
    directory: BorrowedFd<'_>,
    total_bytes: u64,
    available_bytes: u64,
) -> Option<u64> {
    let mut found = Spaces {
        slots: SPACES as u64,
        count: 0,
        spaces: [Space::default(); SPACES],
    };
    // SAFETY: `FillSpaces` describes this request.
    retry_on_intr(|| unsafe { ioctl(directory, FillSpaces(&mut found)) }).ok()?;
    let count = usize::try_from(found.count).unwrap_or(SPACES).min(SPACES);
    Some(left(&found.spaces[..count], total_bytes, available_bytes))
}

fn left(spaces: &[Space], total_bytes: u64, available_bytes: u64) -> u64 {
    let free = |space: &Space| space.total_bytes.saturating_sub(space.used_bytes);
    let of_kind = |kind: u64| spaces.iter().filter(move |space| space.flags & kind != 0);
    let assigned: u64 = of_kind(METADATA).map(|space| space.total_bytes).sum();
    let reserve: u64 = of_kind(GLOBAL_RESERVE).map(|space| space.total_bytes).sum();
    let turnover = TURNOVER_BYTES.max(assigned / TURNOVER_SHARE);
    // What is assigned later gives room for this, too.
    let kept = reserve + turnover;
    let metadata: u64 = of_kind(METADATA).map(free).sum();
    let data: u64 = of_kind(DATA).map(free).sum();
    let unassigned = available_bytes.saturating_sub(data);
    let copies = copies(of_kind(METADATA).map(|space| space.flags));
    if of_kind(METADATA).any(|space| space.flags & DATA != 0) {
        return (metadata + unassigned / copies).saturating_sub(kept);
    }
    // Whatever is promised may be content, also that of files so small that the trees take it: room
    // for that is reserved before, and where there is none a chunk is assigned to content, in
    // which no tree can grow any more. And trees get one before they need it.
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

/// Of how many copies a block of a tree has the most, by the profiles in these flags.
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
        let left = |spaces: &[Space], available| left(spaces, 200 * MIB, available * MIB) / MIB;
        assert_eq!(left(&apart(100, 64), 60), 54 - 6 - 8, "trees are the limit");
        assert_eq!(left(&apart(100, 64), 80), 54 - 6 - 8 + 10);
        assert_eq!(left(&apart(50, 64), 10), 10, "content is the limit");
        // A chunk of 20 for content, and one for the trees, twice.
        assert_eq!(left(&apart(50, 64), 10 + 59), 10);
        assert_eq!(left(&apart(50, 64), 10 + 60), 30);
        assert_eq!(left(&apart(50, 64), 10 + 80), 50);
        let mixed = [space(DATA | METADATA, 100, 40), space(GLOBAL_RESERVE, 6, 0)];
        assert_eq!(left(&mixed, 50), 60 - 6 - 8);
        assert_eq!(left(&[space(METADATA, 10, 9)], 0), 0);
        assert_eq!(copies([METADATA | 1 << 10, 1 << 9].into_iter()), 4);
        assert_eq!(size_of::<Space>(), 24);
        assert_eq!(std::mem::offset_of!(Spaces, spaces), size_of::<Header>());
    }
}
