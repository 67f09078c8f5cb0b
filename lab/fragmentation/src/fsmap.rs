//! Which room of a mounted filesystem is free (`FS_IOC_GETFSMAP`, of ext4 and XFS).
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::os::fd::AsFd;

use rustix::fs::{fstat, major, minor};
use rustix::io::{Errno, retry_on_intr};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};

/// Records asked for at a time.
const RECORDS: usize = 512;
/// The owner is a number of the list of special ones.
const OWNER_IS_SPECIAL: u32 = 0x10;
const LAST: u32 = 0x20;
/// The special owner of free room.
const OWNER_FREE: u64 = 1;

/// `struct fsmap` (`linux/fsmap.h`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    device: u32,
    flags: u32,
    physical: u64,
    owner: u64,
    offset: u64,
    length: u64,
    reserved: [u64; 3],
}

/// `struct fsmap_head` with its records.
#[repr(C)]
struct Map {
    input_flags: u32,
    output_flags: u32,
    count: u32,
    entries: u32,
    reserved: [u64; 6],
    keys: [Record; 2],
    records: [Record; RECORDS],
}

/// `struct fsmap_head` ends where its records begin: that size is part of the request's number.
type Header = [u64; 24];

/// Fills the map that it refers to.
struct FillMap<'m>(&'m mut Map);

// SAFETY: the kernel reads and writes a `struct fsmap_head` with `count` records, which `Map`
// mirrors and has room for; the pointer is to a `Map` that is borrowed for the call.
unsafe impl Ioctl for FillMap<'_> {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        opcode::read_write::<Header>(b'X', 59)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self.0).cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> rustix::io::Result<()> {
        Ok(())
    }
}

/// Start and length of all free room of the filesystem that an open file lies on, in bytes; none if
/// it does not report them.
///
/// # Errors
/// What the kernel says.
pub fn free_extents_of(file: impl AsFd) -> std::io::Result<Option<Vec<(u64, u64)>>> {
    let mut found = Vec::new();
    let is_reported = free_extents(file, &mut |start, length| found.push((start, length)))?;
    Ok(is_reported.then_some(found))
}

/// Start and length of all free room of the filesystem that an open file lies on, in bytes and in
/// order. `false`: this filesystem does not report them.
pub(crate) fn free_extents(
    file: impl AsFd,
    found: &mut dyn FnMut(u64, u64),
) -> Result<bool, Errno> {
    let device = encoded(fstat(file.as_fd())?.st_dev);
    let mut map = Box::new(Map {
        input_flags: 0,
        output_flags: 0,
        count: RECORDS as u32,
        entries: 0,
        reserved: [0; 6],
        keys: [
            Record::default(),
            Record {
                device: u32::MAX,
                flags: u32::MAX,
                physical: u64::MAX,
                owner: u64::MAX,
                offset: u64::MAX,
                ..Record::default()
            },
        ],
        records: [Record::default(); RECORDS],
    });
    let mut reached = None;
    loop {
        // SAFETY: `FillMap` describes this request.
        match retry_on_intr(|| unsafe { ioctl(file.as_fd(), FillMap(&mut map)) }) {
            Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(false),
            other => other?,
        }
        let count = (map.entries as usize).min(RECORDS);
        let records = map.records.get(..count).unwrap_or_default();
        let Some(last) = records.last().copied() else {
            return Ok(true);
        };
        for record in records {
            let is_free = record.flags & OWNER_IS_SPECIAL != 0 && record.owner == OWNER_FREE;
            // Journals and real-time parts of their own are other devices.
            if is_free && record.device == device {
                found(record.physical, record.length);
            }
        }
        // An answer that goes back must not be followed for ever.
        let place = Some((last.device, last.physical));
        if last.flags & LAST != 0 || place <= reached {
            return Ok(true);
        }
        reached = place;
        map.keys[0] = last;
    }
}

/// The number of a device, as the kernel hands it to programs in 32 bits.
#[allow(clippy::useless_conversion, reason = "narrower on some machines")]
fn encoded(device: rustix::fs::Dev) -> u32 {
    let (major, minor) = (major(device), minor(device));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_is_laid_out_as_the_kernel_has_it() {
        assert_eq!(size_of::<Record>(), 64);
        assert_eq!(std::mem::offset_of!(Map, keys), 64);
        assert_eq!(std::mem::offset_of!(Map, records), size_of::<Header>());
    }

    #[test]
    fn numbers_of_devices_are_as_the_kernel_has_them() {
        assert_eq!(encoded(rustix::fs::makedev(7, 3)), 0x703);
        assert_eq!(encoded(rustix::fs::makedev(259, 0x123)), 0x11_0323);
    }
}
