//! Which filesystems' files are mapped in a range of memory, for `msync`.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read};
use rustix::path::Arg;

use crate::ofd_lock::last_error;
use crate::superblock::Device;

/// What a process has mapped: its file `maps` in `/proc`.
#[derive(Debug)]
pub struct MappedFiles {
    maps: OwnedFd,
}

/// A mapping, as far as `msync` cares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    /// Changes reach a file.
    is_shared: bool,
    device: Option<Device>,
}

impl MappedFiles {
    /// What this process has mapped.
    ///
    /// # Errors
    /// `/proc` is not mounted, or no descriptor is free.
    pub fn own() -> Result<Self, Errno> {
        Self::at(c"/proc/self/maps")
    }

    /// What the process has mapped whose file `maps` this is.
    ///
    /// # Errors
    /// There is no such process, or it does not let this one look at it.
    pub fn at(path: impl Arg) -> Result<Self, Errno> {
        let maps = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { maps })
    }

    /// Whether the range is mapped without a gap, files are mapped in it whose changes are shared, and
    /// all of them are on filesystems that satisfy `is_wanted`.
    pub fn are_all(&self, range: &Range<u64>, mut is_wanted: impl FnMut(Device) -> bool) -> bool {
        let mut covered = Coverage::new(range);
        match self.query(&mut covered, &mut is_wanted) {
            Err(Errno::NOTTY | Errno::INVAL) => {
                let mut covered = Coverage::new(range);
                self.read_all(&mut covered, &mut is_wanted).is_ok() && covered.is_complete()
            }
            result => result.is_ok() && covered.is_complete(),
        }
    }

    /// Asks for one mapping after the other (Linux 6.11).
    fn query(
        &self,
        covered: &mut Coverage,
        is_wanted: &mut dyn FnMut(Device) -> bool,
    ) -> Result<(), Errno> {
        while covered.next < covered.end {
            let mapping = query(&self.maps, covered.next)?;
            covered.take(mapping, is_wanted)?;
        }
        Ok(())
    }

    /// Reads the table.
    fn read_all(
        &self,
        covered: &mut Coverage,
        is_wanted: &mut dyn FnMut(Device) -> bool,
    ) -> Result<(), Errno> {
        let mut line = MapsLine::default();
        let mut buffer = [0; 1024];
        while covered.next < covered.end {
            let count = read(&self.maps, &mut buffer)?;
            if count == 0 {
                return Err(Errno::NOENT);
            }
            for &byte in buffer.iter().take(count) {
                match line.take(byte) {
                    Some(mapping) if mapping.end > covered.next && covered.next < covered.end => {
                        covered.take(mapping, is_wanted)?;
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// How far a range is known.
struct Coverage {
    next: u64,
    end: u64,
    has_file: bool,
}

impl Coverage {
    fn new(range: &Range<u64>) -> Self {
        Self {
            next: range.start,
            end: range.end,
            has_file: false,
        }
    }

    fn is_complete(&self) -> bool {
        self.has_file && self.next >= self.end
    }

    fn take(
        &mut self,
        mapping: Mapping,
        is_wanted: &mut dyn FnMut(Device) -> bool,
    ) -> Result<(), Errno> {
        if mapping.start > self.next || mapping.end <= self.next {
            return Err(Errno::NOMEM);
        }
        if let Some(device) = mapping.device.filter(|_| mapping.is_shared) {
            if !is_wanted(device) {
                return Err(Errno::XDEV);
            }
            self.has_file = true;
        }
        self.next = mapping.end;
        Ok(())
    }
}

/// `struct procmap_query`.
#[derive(Default)]
#[repr(C)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    properties: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_size: u32,
    build_id_size: u32,
    name_address: u64,
    build_id_address: u64,
}

const PROCMAP_QUERY: rustix::ioctl::Opcode = rustix::ioctl::opcode::read_write::<Query>(b'f', 17);
const COVERING_OR_NEXT: u64 = 0x10;
const IS_SHARED: u64 = 0x08;

fn query(maps: impl AsFd, address: u64) -> Result<Mapping, Errno> {
    let mut query = Query {
        size: size_of::<Query>() as u64,
        flags: COVERING_OR_NEXT,
        address,
        ..Query::default()
    };
    // SAFETY: the kernel reads and writes the structure, which states its size, and nothing else, as
    // it is not asked for names.
    let answer =
        unsafe { libc::ioctl(maps.as_fd().as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) };
    if answer != 0 {
        return Err(last_error());
    }
    let device = Device {
        major: query.major,
        minor: query.minor,
    };
    Ok(Mapping {
        start: query.start,
        end: query.end,
        is_shared: query.properties & IS_SHARED != 0,
        device: (query.inode != 0).then_some(device),
    })
}

/// A line of the table: `START-END PERM OFFSET MAJOR:MINOR INODE …`, numbers but for the last in
/// base 16.
#[derive(Default)]
struct MapsLine {
    field: usize,
    /// Start, end, (permissions), offset, major, minor, inode.
    numbers: [u64; 7],
    is_shared: bool,
    is_done: bool,
}

const PERMISSIONS: usize = 2;
const INODE: usize = 6;

impl MapsLine {
    /// Takes the next byte of the table; the mapping when its fields are known.
    fn take(&mut self, byte: u8) -> Option<Mapping> {
        match byte {
            b'\n' => {
                let mapping = self.finish();
                *self = Self::default();
                mapping
            }
            b' ' if self.field == INODE => self.finish(),
            b' ' | b'-' | b':' if self.field < INODE && !self.is_permission(byte) => {
                self.field += 1;
                None
            }
            byte => {
                self.add(byte);
                None
            }
        }
    }

    fn is_permission(&self, byte: u8) -> bool {
        self.field == PERMISSIONS && byte == b'-'
    }

    fn add(&mut self, byte: u8) {
        if self.field == PERMISSIONS {
            self.is_shared |= byte == b's';
            return;
        }
        let base = if self.field == INODE { 10 } else { 16 };
        let digit = char::from(byte).to_digit(base);
        if let (Some(number), Some(digit), false) =
            (self.numbers.get_mut(self.field), digit, self.is_done)
        {
            *number = number.wrapping_mul(base.into()).wrapping_add(digit.into());
        }
    }

    fn finish(&mut self) -> Option<Mapping> {
        if self.is_done || self.field != INODE {
            return None;
        }
        self.is_done = true;
        let [start, end, _, _, major, minor, inode] = self.numbers;
        let device = Device {
            major: u32::try_from(major).ok()?,
            minor: u32::try_from(minor).ok()?,
        };
        Some(Mapping {
            start,
            end,
            is_shared: self.is_shared,
            device: (inode != 0).then_some(device),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

    use super::*;

    #[test]
    fn both_ways_know_what_is_mapped() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 14).unwrap();
        let device = Device::of(&file).unwrap();
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping of a file that stays as long as it is.
        let start = unsafe { mmap(null_mut(), 1 << 14, both, MapFlags::SHARED, &file, 0) }.unwrap();
        let at = start as u64;
        let maps = MappedFiles::own().unwrap();
        let range = at..at + (1 << 14);
        assert!(maps.are_all(&range, |found| found == device));
        assert!(!maps.are_all(&range, |_| false));
        let read = |range: &Range<u64>| {
            let mut covered = Coverage::new(range);
            let maps = MappedFiles::own().unwrap();
            let wanted = &mut |found| found == device;
            maps.read_all(&mut covered, wanted).is_ok() && covered.is_complete()
        };
        assert!(read(&range));
        // A gap, which no other thread fills.
        assert!(!maps.are_all(&(0..4096), |_| true));
        assert!(!read(&(0..4096)));
        // Private memory is nothing that could be durable.
        let local = [0_u8; 1];
        let page = local.as_ptr() as u64 & !4095;
        assert!(!maps.are_all(&(page..page + 4096), |_| true));
        // SAFETY: the mapping above, which nothing uses any more.
        unsafe { munmap(start, 1 << 14) }.unwrap();
    }

    #[test]
    fn a_line_is_read_as_the_kernel_writes_it() {
        let text = "7f0000000000-7f0000002000 r--s 00001000 103:0a 77 /a - file: s\n\
                    7f0000002000-7f0000003000 rw-p 00000000 00:00 0 \n";
        let mut line = MapsLine::default();
        let found: Vec<Mapping> = text.bytes().filter_map(|byte| line.take(byte)).collect();
        assert_eq!(found.len(), 2);
        assert!(found[0].is_shared && !found[1].is_shared);
        let device = Device {
            major: 0x103,
            minor: 0x0a,
        };
        assert_eq!(found[0].device, Some(device));
        assert_eq!(found[0].end, found[1].start);
        assert_eq!(found[1].device, None);
    }
}
