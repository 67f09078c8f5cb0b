//! Moving extents on btrfs: a donor gets the room and a copy of the content, and the file its extents, if the content
//! is still the same (`FIDEDUPERANGE`).
//!
//! btrfs's own defragmentation writes anew where there is room, be it in more pieces than before. Here the
//! room is looked at first.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use rustix::fs::{
    CWD, IFlags, Mode, OFlags, fstat, ftruncate, ioctl_getflags, ioctl_setflags, openat, syncfs,
};
use rustix::io::Errno;

use crate::donor::{CHANGED, NO_RUN, copy, nameless, take_room};
use crate::error::DefragError;
use crate::ioctls::share_the_same;
use crate::moved::Moved;
use crate::place::Place;
use crate::plan::clipped;
use crate::scan::{Looks, look_at};

/// A row is no longer: there must be a free run for it.
pub(crate) const ROW_BYTES_MAX: u64 = 16 << 20;
/// What is given back can be used again after a commit, which is worth it from here on.
const RESTING_BYTES_MAX: u64 = 16 << 20;

pub(crate) struct Btrfs<'a> {
    directory: &'a Path,
    opened: OwnedFd,
    looks: Looks<'a>,
    /// What was given back since the last commit.
    resting_bytes: u64,
}

impl<'a> Btrfs<'a> {
    pub(crate) fn new(place: &'a Place, looks: Looks<'a>) -> Result<Self, DefragError> {
        let directory = place.directory.as_path();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(CWD, directory, flags, Mode::empty());
        Ok(Self {
            directory,
            opened: opened.map_err(|errno| DefragError::at(directory, errno))?,
            looks,
            resting_bytes: 0,
        })
    }

    /// Moves a range, if there is a place for it with half as many pieces at most.
    pub(crate) fn carry_out(
        &mut self,
        file: &OwnedFd,
        start: u64,
        bytes: u64,
    ) -> Result<Moved, Errno> {
        let size = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
        let end = start.saturating_add(bytes).min(size);
        let Some(found) = look_at(file, size, self.looks)?.filter(|_| start < end) else {
            return Ok(Moved::Skipped(CHANGED));
        };
        let (pieces, _) = clipped(&found.layout.pieces, start, start.saturating_add(bytes));
        let flags = ioctl_getflags(file)? & IFlags::NOCOW;
        let make = || {
            let donor = nameless(self.directory)?;
            // Extents with and without checksums do not mix; that can be changed of an empty file only.
            if ioctl_getflags(&donor)? & IFlags::NOCOW != flags {
                ioctl_setflags(&donor, flags)?;
            }
            ftruncate(&donor, end - start)?;
            let got = take_room(&donor, &pieces, start, end - start, self.looks)?;
            let fits = got.is_some_and(|got| got < pieces.len() && got <= pieces.len().div_ceil(2));
            Ok(fits.then_some(donor))
        };
        let mut donor = make()?;
        self.resting_bytes += bytes;
        if donor.is_none() && self.resting_bytes > RESTING_BYTES_MAX {
            syncfs(&self.opened)?;
            self.resting_bytes = bytes;
            donor = make()?;
        }
        let Some(donor) = donor else {
            return Ok(Moved::Skipped(NO_RUN));
        };
        copy(file, &donor, &pieces, &found.unwritten, start, end)?;
        let mut done = start;
        while done < end {
            let left = end - done;
            let shared = share_the_same(donor.as_fd(), done - start, file.as_fd(), done, left)?;
            if shared == 0 {
                return Ok(Moved::Skipped(CHANGED));
            }
            done += shared;
        }
        Ok(Moved::Bytes(pieces.iter().map(|piece| piece.length).sum()))
    }
}
