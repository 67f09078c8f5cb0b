//! Moving extents on XFS: a donor gets the room and a copy of the content, and then both exchange their extents if
//! the file has not changed since.
//!
//! `XFS_IOC_COMMIT_RANGE` exchanges a range (Linux 6.12, and a filesystem with the feature *exchange*, which
//! `mkfs.xfs` makes from 6.12 on); `XFS_IOC_SWAPEXT`, which xfs_fsr uses, whole files. Both compare the
//! file's times with those from before the copy. So that no write can hide, the file is synced first, which
//! makes writes through a mapping change the times again, and one that has changed within the last second is
//! left alone: a clock that is coarser than writes are would not tell them apart.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, XattrFlags, fsetxattr, fstat, fsync, openat};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::donor::{CHANGED, NO_RUN, copy, sized, take_room, two_files};
use crate::error::DefragError;
use crate::ioctls::{XfsCommit, xfs_open_without_times, xfs_swap_extents};
use crate::moved::Moved;
use crate::place::Place;
use crate::plan::{Piece, clipped};
use crate::scan::{Found, Looks, ROOT_ONLY, look_at};

/// A file is younger than this in seconds: it may be written right now.
const YOUNG_S: i64 = 1;
/// All of a file moves for some of its pieces only if these are a quarter of it at least.
const WHOLE_FACTOR: u64 = 4;

/// With an attribute of this size an inode of 512 bytes keeps as much room for extents as one that was made with
/// room for attributes: 192 bytes, 12 extents.
const ATTRIBUTE: [u8; 128] = [0; 128];

const YOUNG: &str = "files that changed within the last second";
const ALL_OR_NOTHING: &str = "files of which this XFS moves all or nothing (mkfs.xfs -i exchange=1 makes one that moves parts)";
const BEYOND_END: &str = "files with room after their end, which would be lost";

pub(crate) struct Xfs<'a> {
    directory: &'a Path,
    opened: OwnedFd,
    looks: Looks<'a>,
    /// Ranges can be exchanged, not only whole files.
    has_ranges: bool,
}

/// A file that is open for moving.
pub(crate) struct XfsFile {
    /// Opened so that its times stay.
    file: OwnedFd,
    size: u64,
}

impl<'a> Xfs<'a> {
    pub(crate) fn new(place: &'a Place, looks: Looks<'a>) -> Result<Self, DefragError> {
        let directory = place.directory.as_path();
        let at = |errno: Errno| DefragError::at(directory, errno);
        let has_ranges = has_ranges(directory, place.block_bytes).map_err(at)?;
        if !has_ranges && !has_swaps(directory, place.block_bytes).map_err(at)? {
            return Err(DefragError::Unsupported {
                path: place.mountpoint.clone(),
                filesystem: place.filesystem.clone(),
                why: "on a kernel that exchanges neither ranges nor files (XFS_IOC_COMMIT_RANGE, XFS_IOC_SWAPEXT)",
            });
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            directory,
            opened: openat(CWD, directory, flags, Mode::empty()).map_err(at)?,
            looks,
            has_ranges,
        })
    }

    pub(crate) fn open(&self, file: &OwnedFd, known: &Found) -> Result<XfsFile, &'static str> {
        let about = fstat(file).map_err(|_| CHANGED)?;
        if about.st_ino != known.inode {
            return Err(CHANGED);
        }
        let file =
            xfs_open_without_times(self.opened.as_fd(), file.as_fd()).map_err(
                |errno| match errno {
                    Errno::PERM | Errno::ACCESS => ROOT_ONLY,
                    _ => CHANGED,
                },
            )?;
        let size = u64::try_from(about.st_size).unwrap_or(0);
        Ok(XfsFile { file, size })
    }

    /// Groups where ranges can be exchanged, else all of the file, if that is not far more.
    pub(crate) fn parts(
        &self,
        file: &XfsFile,
        groups: &[(u64, u64, usize)],
    ) -> Vec<(u64, u64, usize)> {
        if self.has_ranges {
            return groups.to_vec();
        }
        let pieces = groups.iter().map(|&(_, _, pieces)| pieces).sum();
        vec![(0, file.size, pieces)]
    }

    /// Moves a range, or, where ranges cannot be exchanged, all of the file.
    pub(crate) fn carry_out(&self, file: &XfsFile, start: u64, bytes: u64) -> Result<Moved, Errno> {
        // What is mapped and dirty could be written again without a change of the times.
        fsync(&file.file)?;
        let before = fstat(&file.file)?;
        let commit = if self.has_ranges {
            Some(XfsCommit::begin(&file.file)?)
        } else {
            None
        };
        if u64::try_from(before.st_size) != Ok(file.size) {
            return Ok(Moved::Skipped(CHANGED));
        }
        let now = clock_gettime(ClockId::Realtime);
        if now.tv_sec.saturating_sub(before.st_ctime) <= YOUNG_S {
            return Ok(Moved::Skipped(YOUNG));
        }
        let Some(found) = look_at(&file.file, file.size, self.looks)? else {
            return Ok(Moved::Skipped(CHANGED));
        };
        let end = start.saturating_add(bytes).min(file.size);
        let (pieces, _) = clipped(&found.layout.pieces, start, start.saturating_add(bytes));
        if commit.is_none() {
            let small = self.small_bytes(&pieces);
            if small.saturating_mul(WHOLE_FACTOR) < file.size {
                return Ok(Moved::Skipped(ALL_OR_NOTHING));
            }
            if has_room_after(&file.file, file.size, self.looks.block_bytes)? {
                return Ok(Moved::Skipped(BEYOND_END));
            }
        }
        let donor = |has_attribute: bool| -> Result<Option<OwnedFd>, Errno> {
            let donor = sized(self.directory, end - start)?;
            if has_attribute {
                fsetxattr(&donor, "user.mobifs", &ATTRIBUTE, XattrFlags::empty())?;
            }
            let got = take_room(&donor, &pieces, start, end - start, self.looks)?;
            if got.is_none_or(|got| got >= pieces.len()) {
                return Ok(None);
            }
            copy(&file.file, &donor, &pieces, &found.unwritten, start, end)?;
            fsync(&donor)?;
            Ok(Some(donor))
        };
        let Some(first) = donor(false)? else {
            return Ok(Moved::Skipped(NO_RUN));
        };
        let swap = |donor: &OwnedFd| xfs_swap_extents(file.file.as_fd(), donor.as_fd(), &before);
        let exchanged = match commit {
            Some(commit) => commit.exchange(&file.file, first.as_fd(), (start, end - start), false),
            None => match swap(&first) {
                // The file's extents are in a tree and would not need one in the donor: an inode that was made with
                // room for attributes, as by security modules, has less for extents than a nameless file.
                Err(Errno::INVAL) => {
                    drop(first);
                    let Some(second) = donor(true)? else {
                        return Ok(Moved::Skipped(NO_RUN));
                    };
                    swap(&second)
                }
                other => other,
            },
        };
        match exchanged {
            Ok(()) => Ok(Moved::Bytes(pieces.iter().map(|piece| piece.length).sum())),
            Err(Errno::BUSY) => Ok(Moved::Skipped(CHANGED)),
            Err(errno) => Err(errno),
        }
    }

    fn small_bytes(&self, pieces: &[Piece]) -> u64 {
        let most = if self.looks.takes_all {
            u64::MAX
        } else {
            self.looks.model.small_piece_bytes()
        };
        let small = pieces.iter().map(|piece| piece.length);
        small.filter(|&length| length <= most).sum()
    }
}

const fn is_missing(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOTTY | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL
    )
}

fn has_ranges(directory: &Path, block_bytes: u64) -> Result<bool, Errno> {
    let (file, donor) = two_files(directory, block_bytes)?;
    let tried = XfsCommit::begin(&file)
        .and_then(|commit| commit.exchange(&file, donor.as_fd(), (0, block_bytes), true));
    match tried {
        Ok(()) => Ok(true),
        Err(errno) if is_missing(errno) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn has_swaps(directory: &Path, block_bytes: u64) -> Result<bool, Errno> {
    let (file, donor) = two_files(directory, block_bytes)?;
    fsync(&file)?;
    fsync(&donor)?;
    let before = fstat(&file)?;
    match xfs_swap_extents(file.as_fd(), donor.as_fd(), &before) {
        // Both are empty, and go.
        Ok(()) | Err(Errno::BUSY) => Ok(true),
        Err(errno) if is_missing(errno) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Whether there are extents after the last block of the file.
fn has_room_after(file: &OwnedFd, size: u64, block_bytes: u64) -> Result<bool, Errno> {
    let end = size.next_multiple_of(block_bytes);
    let extents = mobifs_fragmentation::extents_of(file, u64::MAX);
    let extents =
        extents.map_err(|error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(extents
        .iter()
        .any(|extent| extent.logical + extent.length > end))
}
