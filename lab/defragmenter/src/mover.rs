//! Moving extents on filesystems that choose the places themselves: btrfs, f2fs and XFS.

use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::btrfs::{self, Btrfs};
use crate::error::DefragError;
use crate::ioctls;
use crate::moved::Moved;
use crate::place::Place;
use crate::scan::{Found, Looks, Tree};
use crate::xfs::{Xfs, XfsFile};

const NOT_OPENED: &str = "files that could not be opened for writing";
const NOT_MOVED: &str = "files that the filesystem did not move";

/// A part of a file: first byte, bytes, pieces.
type Part = (u64, u64, usize);

pub(crate) enum Mover<'a> {
    Btrfs(Btrfs<'a>),
    F2fs,
    Xfs(Xfs<'a>),
}

/// A file that is open for moving.
pub(crate) enum Opened {
    Plain(OwnedFd),
    Xfs(XfsFile),
}

impl<'a> Mover<'a> {
    pub(crate) fn new(place: &'a Place, looks: Looks<'a>) -> Result<Self, DefragError> {
        Ok(match place.filesystem.as_str() {
            "btrfs" => Self::Btrfs(Btrfs::new(place, looks)?),
            "f2fs" => Self::F2fs,
            _ => Self::Xfs(Xfs::new(place, looks)?),
        })
    }

    /// Opens a file; an error is the reason to leave it alone.
    pub(crate) fn open(&self, tree: &Tree, known: &Found) -> Result<Opened, &'static str> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = tree
            .open(known.top, &known.path, flags)
            .map_err(|_| NOT_OPENED)?;
        match self {
            Self::Xfs(xfs) => xfs.open(&file, known).map(Opened::Xfs),
            _ => Ok(Opened::Plain(file)),
        }
    }

    /// How long a row may be.
    pub(crate) const fn row_bytes_max(&self) -> u64 {
        match self {
            Self::Btrfs(_) => btrfs::ROW_BYTES_MAX,
            _ => u64::MAX,
        }
    }

    /// What moves of a file, part by part.
    pub(crate) fn parts(&self, file: &Opened, groups: &[Part]) -> Vec<Part> {
        match (self, file) {
            (Self::Xfs(xfs), Opened::Xfs(file)) => xfs.parts(file, groups),
            _ => groups.to_vec(),
        }
    }

    /// Moves a part. Failures of the device or the filesystem end the run; others leave this file alone.
    pub(crate) fn carry_out(
        &mut self,
        file: &mut Opened,
        start: u64,
        bytes: u64,
    ) -> Result<Moved, Errno> {
        let moved = match (self, file) {
            (Self::Btrfs(btrfs), Opened::Plain(file)) => btrfs.carry_out(file, start, bytes),
            (Self::F2fs, Opened::Plain(file)) => {
                ioctls::f2fs_defragment(file, start, bytes).map(|()| Moved::Bytes(bytes))
            }
            (Self::Xfs(xfs), Opened::Xfs(file)) => xfs.carry_out(file, start, bytes),
            _ => Ok(Moved::Skipped(NOT_MOVED)),
        };
        match moved {
            Err(errno @ (Errno::IO | Errno::ROFS | Errno::NODEV | Errno::NXIO | Errno::UCLEAN)) => {
                Err(errno)
            }
            Err(_) => Ok(Moved::Skipped(NOT_MOVED)),
            moved => moved,
        }
    }
}
