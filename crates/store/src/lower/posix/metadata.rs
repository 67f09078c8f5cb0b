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
/// Trees are written elsewhere before the old place is free again: so much is left for that, and
/// this part of all that is there.
const TURNOVER_BYTES: u64 = 1 << 20;
const TURNOVER_SHARE: u64 = 16;
/// What has no purpose yet is counted once for so many copies.
const COPIES: u64 = 2;

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

/// What a btrfs with so much available room for data can still take of anything else; none if
/// it does not tell.
pub(super) fn btrfs_bytes(directory: BorrowedFd<'_>, available_bytes: u64) -> Option<u64> {
    let mut found = Spaces {
        slots: SPACES as u64,
        count: 0,
        spaces: [Space::default(); SPACES],
    };
    // SAFETY: `FillSpaces` describes this request.
    retry_on_intr(|| unsafe { ioctl(directory, FillSpaces(&mut found)) }).ok()?;
    let count = usize::try_from(found.count).unwrap_or(SPACES).min(SPACES);
    Some(left(&found.spaces[..count], available_bytes))
}

fn left(spaces: &[Space], available_bytes: u64) -> u64 {
    let free = |is_meant: &dyn Fn(u64) -> bool| -> u64 {
        let meant = spaces.iter().filter(|space| is_meant(space.flags));
        meant
            .map(|space| space.total_bytes.saturating_sub(space.used_bytes))
            .sum()
    };
    let is_metadata = |flags: u64| flags & METADATA != 0;
    let metadata = free(&is_metadata);
    let data = free(&|flags| flags & DATA != 0);
    let unassigned = available_bytes.saturating_sub(data);
    let total = spaces.iter().filter(|space| is_metadata(space.flags));
    let total: u64 = total.map(|space| space.total_bytes).sum();
    let reserve = spaces
        .iter()
        .filter(|space| space.flags & GLOBAL_RESERVE != 0);
    let reserve: u64 = reserve.map(|space| space.total_bytes).sum();
    (metadata + unassigned / COPIES)
        .saturating_sub(reserve)
        .saturating_sub(TURNOVER_BYTES.max(total / TURNOVER_SHARE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_for_metadata_is_what_no_tree_has_and_nobody_keeps() {
        const MIB: u64 = 1 << 20;
        let space = |flags, total: u64, used: u64| Space {
            flags,
            total_bytes: total * MIB,
            used_bytes: used * MIB,
        };
        let apart = [
            space(DATA, 100, 40),
            space(2, 8, 1),
            space(METADATA | 1 << 5, 64, 10),
            space(GLOBAL_RESERVE, 6, 0),
        ];
        assert_eq!(left(&apart, 60 * MIB), (54 - 6 - 4) * MIB);
        assert_eq!(left(&apart, 80 * MIB), (54 + 10 - 6 - 4) * MIB);
        let mixed = [space(DATA | METADATA, 100, 40), space(GLOBAL_RESERVE, 6, 0)];
        assert_eq!(left(&mixed, 50 * MIB), (60 - 6) * MIB - 100 * MIB / 16);
        assert_eq!(left(&[space(METADATA, 10, 9)], 0), 0);
        assert_eq!(size_of::<Space>(), 24);
        assert_eq!(std::mem::offset_of!(Spaces, spaces), size_of::<Header>());
    }
}
