//! Moving extents on filesystems that choose the places themselves: btrfs, f2fs and XFS.

use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use rustix::io::Errno;

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
    Btrfs,
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
            "btrfs" => Self::Btrfs,
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
            (Self::Btrfs, Opened::Plain(file)) => {
                let threshold = u32::try_from(bytes).unwrap_or(u32::MAX);
                ioctls::btrfs_defragment(file, start, bytes, threshold)
                    .map(|()| Moved::Bytes(bytes))
            }
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
