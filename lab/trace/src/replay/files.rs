//! The directory that a trace is replayed in: the only place where files are touched.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use mobifs_numerics::Random;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

use super::error::ReplayError;
use crate::model::OpenFlags;

/// Data that is written comes from here; longer writes repeat it.
const POOL_BYTES: usize = 1 << 20;

/// The directory, and data to write.
pub(super) struct Directory {
    path: PathBuf,
    handle: OwnedFd,
    pool: Vec<u8>,
    seed: u64,
}

/// The number that stands for a state: the same one everywhere.
const fn mixed(state: u64) -> u64 {
    Random::new(state).next_u64()
}

impl Directory {
    pub(super) fn open(path: &Path, seed: u64) -> Result<Self, ReplayError> {
        let failed = |source| ReplayError::Directory {
            path: path.to_owned(),
            source,
        };
        if fs::read_dir(path).map_err(failed)?.next().is_some() {
            return Err(ReplayError::NotEmpty(path.to_owned()));
        }
        let handle: OwnedFd = File::open(path).map_err(failed)?.into();
        let words = (0..POOL_BYTES as u64 / 8).map(|word| mixed(seed ^ word.rotate_left(32)));
        Ok(Self {
            path: path.to_owned(),
            handle,
            pool: words.flat_map(u64::to_le_bytes).collect(),
            seed,
        })
    }

    /// The path below the directory: absolute ones from here, `..` and `.` are passed over, and
    /// so is the mark of files without a name.
    fn relative(path: &[u8]) -> PathBuf {
        let path = path.strip_suffix(b"\0").unwrap_or(path);
        let parts = path.split(|&byte| byte == b'/' || byte == 0);
        let parts = parts.filter(|part| !matches!(*part, b"" | b"." | b".."));
        let relative: PathBuf = parts.map(OsStr::from_bytes).collect();
        if relative.as_os_str().is_empty() {
            return PathBuf::from(".");
        }
        relative
    }

    /// A path of the trace as one of the system.
    pub(super) fn shown(&self, path: &[u8]) -> PathBuf {
        self.path.join(Self::relative(path))
    }

    pub(super) fn handle(&self) -> &OwnedFd {
        &self.handle
    }

    /// Opens a file; no symbolic link leads out of the directory.
    pub(super) fn open_file(&self, path: &[u8], flags: OpenFlags, mode: u32) -> io::Result<File> {
        let has = |flag| flags.contains(flag);
        let access = match (has(OpenFlags::READ), has(OpenFlags::WRITE)) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            _ => OFlags::RDONLY,
        };
        let mut bits = access | OFlags::CLOEXEC;
        for (flag, bit) in [
            (OpenFlags::TRUNCATE, OFlags::TRUNC),
            (OpenFlags::CREATE, OFlags::CREATE),
            (OpenFlags::EXCLUSIVE, OFlags::EXCL),
            (OpenFlags::SYNCHRONOUS, OFlags::SYNC),
            (OpenFlags::DIRECTORY, OFlags::DIRECTORY),
        ] {
            if has(flag) {
                bits |= bit;
            }
        }
        // Appends go to the offset that the trace has, and direct transfers would need buffers
        // aligned as the device wants them.
        let mode = if has(OpenFlags::CREATE) {
            Mode::from_raw_mode(mode)
        } else {
            Mode::empty()
        };
        let path = Self::relative(path);
        let opened = openat2(&self.handle, path, bits, mode, ResolveFlags::BENEATH)?;
        Ok(opened.into())
    }

    /// Data for a range of a file: the same for the same seed, file and range.
    pub(super) fn data(&self, key: u32, offset: u64, length: usize) -> Vec<u8> {
        let mut data = Vec::with_capacity(length);
        let mut at = mixed(self.seed ^ mixed(u64::from(key)) ^ offset) as usize % POOL_BYTES;
        while data.len() < length {
            let end = POOL_BYTES.min(at + length - data.len());
            data.extend_from_slice(&self.pool[at..end]);
            at = 0;
        }
        data
    }

    pub(super) fn prepare_directory(&self, path: &[u8]) -> io::Result<()> {
        fs::create_dir_all(self.shown(path))
    }

    pub(super) fn prepare_file(&self, path: &[u8], key: u32, size: u64) -> io::Result<()> {
        let path = self.shown(path);
        if path.is_dir() {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        let mut offset = 0;
        while offset < size {
            let length = (size - offset).min(POOL_BYTES as u64);
            file.write_all_at(&self.data(key, offset, length as usize), offset)?;
            offset += length;
        }
        Ok(())
    }

    /// Syncs everything that was prepared, so that writing it is not measured.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.handle)?)
    }
}
