//! Which files a process has mapped: in a range of memory (`msync`), and so that it changes them.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read};
use rustix::path::Arg;

use crate::ofd_lock::last_error;
use crate::superblock::Device;

/// The index that SQLite has of its write-ahead log ends with this. SQLite makes it anew after a crash,
/// whatever is in it, so its order with the log does not matter.
const REBUILT: &[u8; 4] = b"-shm";
/// Longer names than this are taken for files whose order matters.
const NAME_BYTES_MAX: usize = 4096;

/// Whether stores into a mapping of a file with this name have to keep their order with other
/// changes.
pub fn is_order_kept(name: &[u8]) -> bool {
    !name.ends_with(REBUILT)
}

/// What a process has mapped: its file `maps` in `/proc`.
#[derive(Debug)]
pub struct MappedFiles {
    maps: OwnedFd,
}

/// A mapping, as far as it matters here.
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

    /// Whether the process can change files on filesystems that satisfy `is_wanted` by storing into its
    /// memory, those aside whose order does not matter ([`is_order_kept`]).
    ///
    /// # Errors
    /// What is mapped cannot be read.
    pub fn may_store(&self, mut is_wanted: impl FnMut(Device) -> bool) -> Result<bool, Errno> {
        match self.query_stores(&mut is_wanted) {
            Err(Errno::NOTTY | Errno::INVAL) => self.read_stores(&mut is_wanted),
            result => result,
        }
    }

    fn query_stores(&self, is_wanted: &mut dyn FnMut(Device) -> bool) -> Result<bool, Errno> {
        let mut next = 0;
        let mut name = [0; NAME_BYTES_MAX];
        loop {
            let (mapping, name) = match query(&self.maps, next, STORES, &mut name) {
                Ok(found) => found,
                // None is left.
                Err(Errno::NOENT) => return Ok(false),
                Err(Errno::NAMETOOLONG) => return Ok(true),
                Err(error) => return Err(error),
            };
            if mapping.device.is_some_and(&mut *is_wanted) && is_order_kept(name) {
                return Ok(true);
            }
            next = mapping.end;
        }
    }

    fn read_stores(&self, is_wanted: &mut dyn FnMut(Device) -> bool) -> Result<bool, Errno> {
        rustix::fs::seek(&self.maps, rustix::fs::SeekFrom::Start(0))?;
        let mut line = MapsLine::default();
        // What was found in the line, until its end tells the name.
        let mut found = None;
        let mut buffer = [0; 1024];
        loop {
            let count = read(&self.maps, &mut buffer)?;
            if count == 0 {
                return Ok(false);
            }
            for &byte in buffer.iter().take(count) {
                let last = line.last;
                found = line.take(byte).or(found);
                if byte != b'\n' {
                    continue;
                }
                let stores = found
                    .take()
                    .filter(|mapping: &Mapping| mapping.is_shared && is_order_kept(&last));
                if stores
                    .and_then(|mapping| mapping.device)
                    .is_some_and(&mut *is_wanted)
                {
                    return Ok(true);
                }
            }
        }
    }

    /// Asks for one mapping after the other (Linux 6.11).
    fn query(
        &self,
        covered: &mut Coverage,
        is_wanted: &mut dyn FnMut(Device) -> bool,
    ) -> Result<(), Errno> {
        while covered.next < covered.end {
            let (mapping, _) = query(&self.maps, covered.next, 0, &mut [])?;
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
const IS_SHARED: u64 = 0x08;
const COVERING_OR_NEXT: u64 = 0x10;
const HAS_FILE: u64 = 0x20;
/// Mappings by which files can be changed, also while they are protected: what was stored into one
/// before leaves its pages writable to the kernel, which then sees no later store to them.
const STORES: u64 = IS_SHARED | HAS_FILE;

/// The mapping at an address, or the next one, that has these properties; and its name, for which
/// there is this room, if it has one and was asked for.
fn query(
    maps: impl AsFd,
    address: u64,
    properties: u64,
    name: &mut [u8],
) -> Result<(Mapping, &[u8]), Errno> {
    let mut query = Query {
        size: size_of::<Query>() as u64,
        flags: COVERING_OR_NEXT | properties,
        address,
        name_size: name.len() as u32,
        name_address: if name.is_empty() {
            0
        } else {
            name.as_mut_ptr() as u64
        },
        ..Query::default()
    };
    // SAFETY: the kernel reads and writes the structure, which states its size, and writes the name to
    // the address that it gets, no more than there is room for.
    let answer =
        unsafe { libc::ioctl(maps.as_fd().as_raw_fd(), PROCMAP_QUERY as _, &raw mut query) };
    if answer != 0 {
        return Err(last_error());
    }
    let device = Device {
        major: query.major,
        minor: query.minor,
    };
    let mapping = Mapping {
        start: query.start,
        end: query.end,
        is_shared: query.properties & IS_SHARED != 0,
        device: (query.inode != 0).then_some(device),
    };
    // With its NUL.
    let length = (query.name_size as usize).saturating_sub(1);
    Ok((mapping, name.get(..length).unwrap_or_default()))
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
    /// The last bytes, which at the end are those of the name.
    last: [u8; REBUILT.len()],
}

const PERMISSIONS: usize = 2;
const INODE: usize = 6;

impl MapsLine {
    /// Takes the next byte of the table; the mapping when its fields are known.
    fn take(&mut self, byte: u8) -> Option<Mapping> {
        self.last.rotate_left(1);
        if let Some(last) = self.last.last_mut() {
            *last = byte;
        }
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

    /// Whether stores into a file that is mapped so have to keep their order. It is in memory, on a
    /// filesystem on which no other test maps files.
    fn stores(protection: ProtFlags, flags: MapFlags) -> bool {
        let file = rustix::fs::memfd_create("mapped", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 1 << 14).unwrap();
        // No mount shows it.
        let number = rustix::fs::fstat(&file).unwrap().st_dev;
        let device = Device {
            major: rustix::fs::major(number),
            minor: rustix::fs::minor(number),
        };
        // SAFETY: a new mapping of a file that stays as long as it is.
        let start = unsafe { mmap(null_mut(), 1 << 14, protection, flags, &file, 0) }.unwrap();
        let maps = MappedFiles::own().unwrap();
        let read = maps.read_stores(&mut |found| found == device);
        let either = maps.may_store(|found| found == device);
        assert_eq!(read, either, "both ways know");
        // SAFETY: the mapping above, which nothing uses any more.
        unsafe { munmap(start, 1 << 14) }.unwrap();
        read.unwrap()
    }

    #[test]
    fn only_what_may_change_files_counts_as_storing() {
        let (read, both) = (ProtFlags::READ, ProtFlags::READ | ProtFlags::WRITE);
        assert!(stores(both, MapFlags::SHARED));
        assert!(
            stores(read, MapFlags::SHARED),
            "it can be stored into later, and before"
        );
        assert!(!stores(both, MapFlags::PRIVATE));
    }

    #[test]
    fn the_index_of_a_log_of_sqlite_is_made_anew() {
        assert!(!is_order_kept(b"/a/app.db-shm"));
        assert!(is_order_kept(b"/a/app.db-shm (deleted)"));
        assert!(is_order_kept(b"/a/app.db") && is_order_kept(b""));
        let text = "7f00-7f01 rw-s 00000000 08:01 7                  /a/app.db-shm\n";
        let mut line = MapsLine::default();
        let before_end = text.bytes().fold([0; 4], |last, byte| {
            let now = line.last;
            line.take(byte);
            if byte == b'\n' { now } else { last }
        });
        assert_eq!(&before_end, REBUILT);
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
