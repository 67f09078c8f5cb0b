//! Which filesystem a descriptor is on.
//!
//! `st_dev` does not tell: each subvolume of a btrfs has a device number of its own, and a device may
//! be of another filesystem later. The mount does: since Linux 6.8 its number is never used again, and
//! the kernel says of which filesystem it is.
#![allow(unsafe_code)]

use std::fmt;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, StatxFlags, open, statx};
use rustix::io::{Errno, read};
use rustix::path::Arg;

use crate::ofd_lock::last_error;

/// `STATX_MNT_ID_UNIQUE` (Linux 6.8).
const MNT_ID_UNIQUE: u32 = 0x4000;
/// `SYS_statmount` (Linux 6.8); of the numbers that are the same for all machines.
const SYS_STATMOUNT: libc::c_long = 457;
/// Magic numbers of filesystems that do nothing when a descriptor is closed: ext4, XFS, btrfs, f2fs,
/// tmpfs.
const LOCAL: [u64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];
/// `STATMOUNT_SB_BASIC`.
const SB_BASIC: u64 = 1;

/// A filesystem, as `/proc/self/mountinfo` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Device {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl Device {
    /// The filesystem that a descriptor is on.
    ///
    /// # Errors
    /// The descriptor is not open, or its mount is not in this process's namespace.
    pub fn of(file: impl AsFd) -> Result<Self, Errno> {
        Look::at(&file)?.device(file, "/proc/self/mountinfo")
    }

    /// `MAJOR:MINOR`.
    pub fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once(':')?;
        Some(Self {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
        })
    }
}

/// What the kernel says about a descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    mount_id: u64,
    /// The number is never used for another mount.
    is_unique: bool,
    kind: FileType,
}

impl Look {
    /// Looks at a descriptor, without asking the server of a network filesystem.
    ///
    /// # Errors
    /// The descriptor is not open, or the kernel is older than 5.8.
    pub fn at(file: impl AsFd) -> Result<Self, Errno> {
        let asked =
            StatxFlags::TYPE | StatxFlags::MNT_ID | StatxFlags::from_bits_retain(MNT_ID_UNIQUE);
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(file, c"", flags, asked)?;
        if found.stx_mask & (StatxFlags::MNT_ID.bits() | MNT_ID_UNIQUE) == 0 {
            return Err(Errno::NOSYS);
        }
        Ok(Self {
            mount_id: found.stx_mnt_id,
            is_unique: found.stx_mask & MNT_ID_UNIQUE != 0,
            kind: FileType::from_raw_mode(found.stx_mode.into()),
        })
    }

    /// The number of the mount, if no other mount ever has it.
    pub fn unique_mount(&self) -> Option<u64> {
        self.is_unique.then_some(self.mount_id)
    }

    /// Whether the descriptor is of a file or directory, which have something to make durable. Pipes,
    /// sockets and devices are elsewhere than their names.
    pub fn is_file_or_directory(&self) -> bool {
        self.is_file() || self.kind == FileType::Directory
    }

    /// Whether the descriptor is of a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == FileType::RegularFile
    }

    /// Whether it is certain that closing the descriptor asks no server and writes nothing, as it does
    /// on FUSE and network filesystems.
    pub fn is_closed_at_once(&self) -> bool {
        let is_local = || {
            LOCAL
                .contains(&statmount(self.mount_id).ok()?.magic)
                .then_some(())
        };
        self.is_unique && self.is_file_or_directory() && is_local().is_some()
    }

    /// The filesystem of the descriptor that was looked at; `mount_table` is the mountinfo of a process
    /// that sees the mount.
    ///
    /// # Errors
    /// The mount is neither in this process's namespace nor in the table.
    pub fn device(&self, file: impl AsFd, mount_table: impl Arg) -> Result<Device, Errno> {
        if !self.is_unique {
            return find_mount(mount_table, self.mount_id);
        }
        // In a namespace of its own the kernel does not tell of the mount, and tables have numbers
        // that are used again.
        let by_number = statmount(self.mount_id).map(|answer| Device {
            major: answer.major,
            minor: answer.minor,
        });
        by_number.or_else(|_| {
            let found = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
            find_mount(mount_table, found.stx_mnt_id)
        })
    }
}

/// `struct mnt_id_req` of Linux 6.8.
#[repr(C)]
struct MountRequest {
    size: u32,
    spare: u32,
    mount_id: u64,
    asked: u64,
}

/// `struct statmount`: what is needed of it, and room for the rest.
#[repr(C)]
struct MountAnswer {
    size: u32,
    options: u32,
    known: u64,
    major: u32,
    minor: u32,
    magic: u64,
    rest: [u64; 60],
}

fn statmount(mount_id: u64) -> Result<MountAnswer, Errno> {
    let request = MountRequest {
        size: size_of::<MountRequest>() as u32,
        spare: 0,
        mount_id,
        asked: SB_BASIC,
    };
    let mut answer = MountAnswer {
        size: 0,
        options: 0,
        known: 0,
        major: 0,
        minor: 0,
        magic: 0,
        rest: [0; 60],
    };
    // SAFETY: the kernel reads the first structure, and writes to the second no more than the size
    // that is passed.
    let code = unsafe {
        libc::syscall(
            SYS_STATMOUNT,
            &raw const request,
            &raw mut answer,
            size_of::<MountAnswer>(),
            0,
        )
    };
    if code != 0 {
        return Err(last_error());
    }
    if answer.known & SB_BASIC == 0 {
        return Err(Errno::NOSYS);
    }
    Ok(answer)
}

/// Looks for a mount in a table, without memory of its own.
fn find_mount(table: impl Arg, mount_id: u64) -> Result<Device, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let table = open(table, flags, Mode::empty())?;
    let mut line = MountLine::default();
    let mut buffer = [0; 1024];
    loop {
        let count = read(&table, &mut buffer)?;
        if count == 0 {
            return Err(Errno::NOENT);
        }
        for &byte in buffer.iter().take(count) {
            if let Some(device) = line.take(byte, mount_id) {
                return Ok(device);
            }
        }
    }
}

/// The first fields of a line: `ID PARENT MAJOR:MINOR …`.
#[derive(Default)]
struct MountLine {
    field: u32,
    numbers: [u64; 4],
}

impl MountLine {
    /// Takes the next byte of the table; the filesystem of the mount when it is known.
    fn take(&mut self, byte: u8, mount_id: u64) -> Option<Device> {
        match byte {
            b'\n' => *self = Self::default(),
            b' ' | b':' if self.field < 4 => {
                self.field += 1;
                let [id, _, major, minor] = self.numbers;
                if self.field == 4 && id == mount_id {
                    return Some(Device {
                        major: u32::try_from(major).ok()?,
                        minor: u32::try_from(minor).ok()?,
                    });
                }
            }
            digit => {
                if let Some(number) = self.numbers.get_mut(self.field as usize) {
                    let digit = u64::from(digit.wrapping_sub(b'0'));
                    *number = number.wrapping_mul(10).wrapping_add(digit);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn old_and_new_kernels_find_the_same_filesystem() {
        let file = File::open("/proc/self/exe").unwrap();
        let by_number = Device::of(&file).unwrap();
        let flags = AtFlags::EMPTY_PATH;
        let found = statx(&file, c"", flags, StatxFlags::MNT_ID).unwrap();
        let by_table = find_mount("/proc/self/mountinfo", found.stx_mnt_id).unwrap();
        assert_eq!(by_number, by_table);
        assert_eq!(
            find_mount("/proc/self/mountinfo", u64::MAX),
            Err(Errno::NOENT)
        );
    }

    #[test]
    fn a_name_is_read_as_it_is_written() {
        let device = Device {
            major: 259,
            minor: 1_048_575,
        };
        assert_eq!(Device::parse(&device.to_string()), Some(device));
        assert_eq!(Device::parse("7"), None);
        assert_eq!(Device::parse(".lock"), None);
    }
}
