//! Which extents a file has, as the kernel reports it (`FS_IOC_FIEMAP`).
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::AsFd;

use rustix::io::{Errno, retry_on_intr};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

use crate::extent::Extent;

/// Extents asked for at a time.
const EXTENTS: usize = 512;
/// Content that has no blocks yet gets them first.
const FLAG_SYNC: u32 = 1;

const LAST: u32 = 0x1;
const UNKNOWN: u32 = 0x2;
const DELAYED: u32 = 0x4;
const ENCODED: u32 = 0x8;
const ENCRYPTED: u32 = 0x80;
const INLINE: u32 = 0x200;
const TAIL: u32 = 0x400;
const UNWRITTEN: u32 = 0x800;
const SHARED: u32 = 0x2000;

/// `struct fiemap_extent` (`linux/fiemap.h`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved_64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap` with its extents.
#[repr(C)]
struct Map {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extents: [RawExtent; EXTENTS],
}

/// `struct fiemap` ends where its extents begin: that size is part of the request's number.
type Header = [u64; 4];

/// Fills the map that it refers to.
struct FillMap<'m>(&'m mut Map);

// SAFETY: the kernel reads and writes a `struct fiemap` with `extent_count` extents, which
// `Map` mirrors and has room for; the pointer is to a `Map` that is borrowed for the call.
unsafe impl Ioctl for FillMap<'_> {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<Header>(b'f', 11)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// Asks for extents; its memory serves all files.
pub(crate) struct Mapper {
    map: Box<Map>,
}

impl Mapper {
    pub(crate) fn new() -> Self {
        let map = Map {
            start: 0,
            length: 0,
            flags: 0,
            mapped_extents: 0,
            extent_count: EXTENTS as u32,
            reserved: 0,
            extents: [RawExtent::default(); EXTENTS],
        };
        Self { map: Box::new(map) }
    }

    /// All extents of a file up to `end`, in its order. Where content has no place yet, and
    /// `may_sync`, the file is written out and asked again from there.
    pub(crate) fn extents(
        &mut self,
        file: impl AsFd,
        end: u64,
        may_sync: bool,
        found: &mut dyn FnMut(Extent),
    ) -> Result<(), Errno> {
        let mut at = 0;
        self.map.flags = 0;
        while at < end {
            (self.map.start, self.map.length) = (at, end - at);
            // SAFETY: `FillMap` describes this request.
            retry_on_intr(|| unsafe { ioctl(file.as_fd(), FillMap(&mut self.map)) })?;
            let may_sync_now = may_sync && self.map.flags & FLAG_SYNC == 0;
            match self.take(at, may_sync_now, found) {
                Progress::Reached(reached) => at = reached,
                Progress::Unplaced(reached) => {
                    at = reached;
                    self.map.flags = FLAG_SYNC;
                }
                Progress::End => break,
            }
        }
        Ok(())
    }

    /// Hands over an answer of the kernel. With `stops`, an extent without a place ends it.
    fn take(&self, at: u64, stops: bool, found: &mut dyn FnMut(Extent)) -> Progress {
        let count = (self.map.mapped_extents as usize).min(EXTENTS);
        let mut reached = at;
        for raw in self.map.extents.iter().take(count) {
            let extent = raw.extent();
            if extent.is_unplaced && stops {
                return Progress::Unplaced(reached);
            }
            found(extent);
            reached = reached.max(raw.logical.saturating_add(raw.length));
            if raw.flags & LAST != 0 {
                return Progress::End;
            }
        }
        if reached > at {
            Progress::Reached(reached)
        } else {
            // Nothing more, or a file that changes meanwhile and must not be asked for ever.
            Progress::End
        }
    }
}

/// All extents of a file up to `end`, in its order. Content that has no place yet is written out.
///
/// # Errors
/// What the kernel says: of a filesystem that does not report extents `EOPNOTSUPP`.
pub fn extents_of(file: impl AsFd, end: u64) -> std::io::Result<Vec<Extent>> {
    let mut found = Vec::new();
    Mapper::new().extents(file, end, true, &mut |extent| found.push(extent))?;
    Ok(found)
}

/// How far an answer of the kernel reaches in the file.
enum Progress {
    Reached(u64),
    /// The answer reaches so far, and what follows has no place yet.
    Unplaced(u64),
    End,
}

impl RawExtent {
    fn extent(&self) -> Extent {
        let has = |flags: u32| self.flags & flags != 0;
        Extent {
            logical: self.logical,
            physical: self.physical,
            length: self.length,
            is_unwritten: has(UNWRITTEN),
            is_unplaced: has(UNKNOWN | DELAYED),
            is_inline: has(INLINE | TAIL),
            is_encoded: has(ENCODED) && !has(ENCRYPTED),
            is_shared: has(SHARED),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_is_laid_out_as_the_kernel_has_it() {
        assert_eq!(std::mem::offset_of!(Map, extents), size_of::<Header>());
        assert_eq!(size_of::<RawExtent>(), 56);
        assert_eq!(std::mem::offset_of!(RawExtent, flags), 40);
    }

    #[test]
    fn flags_are_understood() {
        let with = |flags| {
            let raw = RawExtent {
                flags,
                ..RawExtent::default()
            };
            raw.extent()
        };
        // As filefrag prints them: "last,unknown_loc,delalloc", "last,not_aligned,inline".
        assert!(with(0x7).is_unplaced && !with(0x1).is_unplaced);
        assert!(with(0x301).is_inline && !with(0x301).is_encoded);
        assert!(with(0x2008).is_encoded && with(0x2008).is_shared);
        assert!(with(0x801).is_unwritten);
        // fscrypt on ext4 keeps lengths: its extents are exact.
        assert!(!with(0x88).is_encoded);
    }
}
