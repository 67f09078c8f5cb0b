//! A file that lies in as many pieces as wanted, and what reading it costs.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use mobifs_device_server::DeviceCounts;
use rustix::fs::{FallocateFlags, OFlags, fallocate};

use crate::disk::Disk;
use crate::error::FragError;
use crate::settings::Settings;

const PAGE_BYTES: u64 = 4096;
/// One direct write has at most so many bytes.
const WRITE_BYTES_MAX: u64 = 1 << 20;

/// Memory that direct I/O accepts.
pub(crate) struct Aligned {
    memory: Vec<u8>,
    start: usize,
    bytes: usize,
}

impl Aligned {
    pub(crate) fn new(bytes: usize) -> Self {
        let memory = vec![0x33; bytes + PAGE_BYTES as usize];
        let start = memory.as_ptr().align_offset(PAGE_BYTES as usize);
        Self {
            memory,
            start,
            bytes,
        }
    }

    pub(crate) fn get(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.bytes]
    }

    pub(crate) fn get_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.bytes]
    }
}

/// Makes a file of `pages` pages in `pieces` pieces: like another one beside it, it gets room piece by
/// piece in turns, and then both are written in the order of addresses, as files are that grow together.
pub(crate) fn write_in_pieces(
    disk: &Disk,
    pages: u64,
    pieces: u64,
    settings: &Settings,
) -> Result<PathBuf, FragError> {
    let root = disk.root();
    let paths = [root.join("scanned"), root.join("beside")];
    let open = |path: &PathBuf| {
        let direct = i32::try_from(OFlags::DIRECT.bits()).unwrap_or_default();
        let mut options = OpenOptions::new();
        options.create(true).truncate(true).write(true);
        let file = options.custom_flags(direct).open(path);
        file.map_err(|error| FragError::io(path, error))
    };
    let files = [open(&paths[0])?, open(&paths[1])?];
    let start = |piece: u64| piece * pages / pieces * PAGE_BYTES;
    let each =
        |work: &mut dyn FnMut(&File, u64, u64) -> std::io::Result<()>| -> Result<(), FragError> {
            for piece in 0..pieces {
                if piece % 256 == 0 {
                    settings.check()?;
                }
                for (file, path) in files.iter().zip(&paths) {
                    let (from, to) = (start(piece), start(piece + 1));
                    work(file, from, to - from).map_err(|error| FragError::io(path, error))?;
                }
            }
            Ok(())
        };
    // A file alone lies in one piece.
    if pieces > 1 {
        each(&mut |file, from, bytes| Ok(fallocate(file, FallocateFlags::empty(), from, bytes)?))?;
    } else {
        for (file, path) in files.iter().zip(&paths) {
            let reserved = fallocate(file, FallocateFlags::empty(), 0, pages * PAGE_BYTES);
            reserved.map_err(|errno| FragError::io(path, errno.into()))?;
        }
    }
    let content = Aligned::new(WRITE_BYTES_MAX as usize);
    each(&mut |file, from, bytes| {
        let mut done = 0;
        while done < bytes {
            let count = (bytes - done).min(WRITE_BYTES_MAX);
            file.write_all_at(&content.get()[..count as usize], from + done)?;
            done += count;
        }
        Ok(())
    })?;
    disk.sync()?;
    let [scanned, _] = paths;
    Ok(scanned)
}

/// Reads a file from start to end as `cat` does, nothing of it being in memory; what the device did.
pub(crate) fn read_whole(disk: &mut Disk, path: &Path) -> Result<DeviceCounts, FragError> {
    disk.remount()?;
    let before = disk.counts()?;
    read_through(path)?;
    Ok(disk.counts()?.since(&before))
}

/// Reads a file from start to end.
pub(crate) fn read_through(path: &Path) -> Result<(), FragError> {
    let at = |error| FragError::io(path, error);
    let mut file = File::open(path).map_err(at)?;
    // What cat has.
    let mut buffer = vec![0; 128 << 10];
    while file.read(&mut buffer).map_err(at)? > 0 {}
    Ok(())
}
