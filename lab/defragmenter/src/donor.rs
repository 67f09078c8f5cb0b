//! Files without a name that get room and a copy of content, before a file gets their extents.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, fallocate, ftruncate, openat};
use rustix::io::{Errno, pread, pwrite};

use crate::plan::{Piece, clipped, joined};
use crate::scan::{Looks, look_at};

/// Copied at a time.
const COPY_BYTES: usize = 1 << 20;

pub(crate) const CHANGED: &str = "files that changed meanwhile";
pub(crate) const NO_RUN: &str = "files for which the filesystem found no longer run";

pub(crate) fn nameless(directory: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    openat(CWD, directory, flags, Mode::RUSR | Mode::WUSR)
}

/// A file without a name, of this size.
pub(crate) fn sized(directory: &Path, bytes: u64) -> Result<OwnedFd, Errno> {
    let donor = nameless(directory)?;
    ftruncate(&donor, bytes)?;
    Ok(donor)
}

/// Two files of one block, to try on.
pub(crate) fn two_files(directory: &Path, block_bytes: u64) -> Result<(OwnedFd, OwnedFd), Errno> {
    let one = || {
        let file = nameless(directory)?;
        fallocate(&file, FallocateFlags::empty(), 0, block_bytes)?;
        Ok(file)
    };
    Ok((one()?, one()?))
}

/// Allocates for the donor what the file has in this range, between the same holes: in how many pieces; none if there
/// is no room.
pub(crate) fn take_room(
    donor: &OwnedFd,
    pieces: &[Piece],
    start: u64,
    bytes: u64,
    looks: Looks<'_>,
) -> Result<Option<usize>, Errno> {
    let mut rest = pieces;
    while let Some(first) = rest.first() {
        let mut end = first.logical;
        let row = rest.iter().take_while(|piece| {
            let follows = piece.logical == end;
            end += if follows { piece.length } else { 0 };
            follows
        });
        let row = row.count();
        rest = rest.get(row..).unwrap_or_default();
        // At the end of the file a block is longer than the file.
        let keep = FallocateFlags::KEEP_SIZE;
        match fallocate(donor, keep, first.logical - start, end - first.logical) {
            Ok(()) => {}
            Err(Errno::NOSPC) => return Ok(None),
            Err(errno) => return Err(errno),
        }
    }
    let got = look_at(donor, bytes, looks)?;
    Ok(got.map(|got| joined(&got.layout.pieces).len()))
}

/// Copies what the pieces have between two places of the file to the beginning of the donor, but for what was
/// never written.
pub(crate) fn copy(
    file: &OwnedFd,
    donor: &OwnedFd,
    pieces: &[Piece],
    unwritten: &[Piece],
    start: u64,
    end: u64,
) -> Result<(), Errno> {
    let mut buffer = vec![0; COPY_BYTES];
    for piece in joined(pieces) {
        let mut at = piece.logical;
        let piece_end = (piece.logical + piece.length).min(end);
        while at < piece_end {
            let (never, _) = clipped(unwritten, at, piece_end);
            if let Some(never) = never.first().filter(|never| never.logical == at) {
                at += never.length;
                continue;
            }
            let to = never.first().map_or(piece_end, |never| never.logical);
            let length = (to - at).min(COPY_BYTES as u64) as usize;
            let part = buffer.get_mut(..length).unwrap_or_default();
            let read = read_at(file.as_fd(), part, at)?;
            if read == 0 {
                // It has become shorter, which the exchange will notice.
                return Ok(());
            }
            write_at(
                donor.as_fd(),
                part.get(..read).unwrap_or_default(),
                at - start,
            )?;
            at += read as u64;
        }
    }
    Ok(())
}

fn read_at(file: BorrowedFd<'_>, buffer: &mut [u8], at: u64) -> Result<usize, Errno> {
    rustix::io::retry_on_intr(|| pread(file, &mut *buffer, at))
}

fn write_at(file: BorrowedFd<'_>, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let written = rustix::io::retry_on_intr(|| pwrite(file, bytes, at))?;
        bytes = bytes.get(written..).unwrap_or_default();
        at += written as u64;
    }
    Ok(())
}
