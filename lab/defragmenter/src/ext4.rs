//! Moving extents on ext4, by `EXT4_IOC_MOVE_EXT` into blocks of a pool.
//!
//! The kernel exchanges blocks while it holds both files, copies through the page cache, and writes
//! the content before it commits the new places (data=ordered): a write of another program comes
//! before or after, and a power cut finds the old places or the new ones.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use mobifs_device_server::RemapPair;
use rustix::fs::{Advice, CWD, Mode, OFlags, fadvise, fstat, openat, syncfs};
use rustix::io::Errno;

use crate::device::Device;
use crate::error::DefragError;
use crate::ioctls::move_extents;
use crate::plan::{Move, Piece, clipped, joined};
use crate::pool::Pool;
use crate::scan::{Found, Looks, Tree, look_at};
use crate::space::Space;

/// Announced pages after which what has moved is written: more would only wait.
const ANNOUNCED_BYTES_MAX: u64 = 256 << 20;

pub(crate) struct Ext4<'a> {
    pool: Pool,
    looks: Looks<'a>,
    /// The device that is to remap.
    device: Option<&'a Device>,
    directory: &'a Path,
    opened: OwnedFd,
    announced_bytes: u64,
}

impl<'a> Ext4<'a> {
    pub(crate) fn new(
        directory: &'a Path,
        room: u64,
        looks: Looks<'a>,
        device: Option<&'a Device>,
    ) -> Result<Self, DefragError> {
        let at = |errno| DefragError::at(directory, errno);
        // Content that waits in memory would not be what a source holds. That the pool has its room need not be
        // durable: ext4 does so with the first move, and a power cut before that leaves no pool.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(CWD, directory, flags, Mode::empty()).map_err(at)?;
        syncfs(&opened).map_err(at)?;
        let pool = Pool::take(directory, room).map_err(at)?;
        Ok(Self {
            pool,
            looks,
            device,
            directory,
            opened,
            announced_bytes: 0,
        })
    }

    /// Gives the room of the pool back, and makes that and all moves durable, in one commit: what ext4 frees it uses
    /// again only after the commit, with which the files have their new places.
    pub(crate) fn finish(self) -> Result<(), DefragError> {
        drop(self.pool);
        syncfs(&self.opened).map_err(|errno| DefragError::at(self.directory, errno))?;
        match self.device.filter(|_| self.announced_bytes > 0) {
            Some(device) => device.forget(),
            None => Ok(()),
        }
    }

    pub(crate) fn free(&self) -> Space {
        self.pool.space()
    }

    fn at(&self, errno: Errno) -> DefragError {
        DefragError::at(self.directory, errno)
    }

    /// Everything that has moved becomes durable; then what it left can be used.
    pub(crate) fn make_durable(&mut self) -> Result<(), DefragError> {
        syncfs(self.pool.file()).map_err(|errno| self.at(errno))?;
        if self.announced_bytes > 0 {
            self.announced_bytes = 0;
            if let Some(device) = self.device {
                device.forget()?;
            }
        }
        Ok(())
    }

    /// After a surprise: what is free, durably.
    pub(crate) fn look_again(&mut self) -> Result<Space, DefragError> {
        self.make_durable()?;
        self.pool.look().map_err(|errno| self.at(errno))?;
        Ok(self.pool.space())
    }

    /// Does a move. A reason says why its file stays as it is, or as far as it has come.
    pub(crate) fn carry_out(
        &mut self,
        step: &Move,
        tree: &Tree,
    ) -> Result<Option<&'static str>, DefragError> {
        const CHANGED: &str = "files that changed meanwhile";
        let Some(known) = tree.files.get(step.file) else {
            return Ok(Some(CHANGED));
        };
        let file = match open(tree, known) {
            Ok(Some(file)) => file,
            Ok(None) | Err(Errno::NOENT | Errno::LOOP) => return Ok(Some(CHANGED)),
            Err(Errno::TXTBSY) => return Ok(Some("programs that run")),
            Err(errno) => return self.refused(errno),
        };
        let (start, bytes) = (step.logical(), step.bytes());
        let now = match self.places(&file, start, bytes) {
            Ok(now) => now,
            Err(errno) => return self.refused(errno),
        };
        let Some((pieces, unwritten)) = now.filter(|(pieces, _)| *pieces == joined(&step.pieces))
        else {
            return Ok(Some(CHANGED));
        };
        let Some(parts) = self.pool.parts(step.to, bytes) else {
            return Ok(Some("moves whose place was lost"));
        };
        // A large folio of the page cache spans several pieces. Having moved one it is dirty, and for
        // each further one the kernel would commit the journal first. An error changes nothing.
        let _advised = fadvise(&file, 0, None, Advice::DontNeed);
        self.announce(&pieces, &unwritten, step.to)?;
        let mut done = 0;
        for (donor, length) in parts {
            if let Err(errno) = self.exchange(&file, (start + done, donor, length)) {
                return self.refused(errno);
            }
            let (left, _) = clipped(&pieces, start + done, start + done + length);
            let left: Vec<(u64, u64)> = left.iter().map(|p| (p.physical, p.length)).collect();
            self.pool.exchanged(step.to + done, length, donor, &left);
            done += length;
        }
        let whole = Piece {
            logical: start,
            physical: step.to,
            length: bytes,
        };
        let is_there =
            matches!(self.places(&file, start, bytes), Ok(Some((now, _))) if now == [whole]);
        if self.announced_bytes > ANNOUNCED_BYTES_MAX {
            syncfs(self.pool.file()).map_err(|errno| self.at(errno))?;
            self.announced_bytes = 1;
        }
        Ok((!is_there).then_some(CHANGED))
    }

    /// Failures of the device or the filesystem end the run; others leave this file alone.
    fn refused(&self, errno: Errno) -> Result<Option<&'static str>, DefragError> {
        Ok(Some(match errno {
            Errno::IO | Errno::ROFS | Errno::NODEV | Errno::NXIO | Errno::UCLEAN => {
                return Err(self.at(errno));
            }
            Errno::NOSPC => "files for whose new extents there was no room",
            Errno::ACCESS | Errno::PERM => "files that this user may not write",
            Errno::TXTBSY => "files that are in use as swap or as a program",
            Errno::OPNOTSUPP => {
                "files that ext4 does not move (data=journal, encrypted, no extents)"
            }
            Errno::BUSY => "files that were busy",
            _ => "files that ext4 did not move",
        }))
    }

    /// The pieces of a range of a file and those that were never written; none if it has holes.
    #[allow(clippy::type_complexity, reason = "two lists of the same")]
    fn places(
        &self,
        file: &OwnedFd,
        start: u64,
        bytes: u64,
    ) -> Result<Option<(Vec<Piece>, Vec<Piece>)>, Errno> {
        let size = u64::try_from(fstat(file)?.st_size).unwrap_or(0);
        let Some(found) = look_at(file, size, self.looks)? else {
            return Ok(None);
        };
        let (pieces, _) = clipped(&found.layout.pieces, start, start + bytes);
        let (unwritten, _) = clipped(&found.unwritten, start, start + bytes);
        let mapped: u64 = pieces.iter().map(|piece| piece.length).sum();
        Ok((mapped == bytes).then_some((pieces, unwritten)))
    }

    /// Tells the device what will be copied where.
    fn announce(
        &mut self,
        pieces: &[Piece],
        unwritten: &[Piece],
        to: u64,
    ) -> Result<(), DefragError> {
        let Some(device) = self.device else {
            return Ok(());
        };
        let mut pairs = Vec::new();
        let mut at = to;
        for piece in pieces {
            for written in without(*piece, unwritten) {
                pairs.push(RemapPair {
                    from: written.physical,
                    to: at + (written.logical - piece.logical),
                    bytes: written.length,
                });
            }
            at += piece.length;
        }
        // Ranges of one pair must not overlap; such a part is written.
        pairs.retain(|pair| pair.from.abs_diff(pair.to) >= pair.bytes);
        self.announced_bytes += pairs.iter().map(|pair| pair.bytes).sum::<u64>();
        device.announce(&pairs)
    }

    /// Exchanges one part with the pool's; a signal may interrupt it between blocks.
    fn exchange(
        &self,
        file: &OwnedFd,
        (start, donor, length): (u64, u64, u64),
    ) -> Result<(), Errno> {
        let block = self.looks.block_bytes;
        let mut done = 0;
        while done < length {
            let (from, to) = ((start + done) / block, (donor + done) / block);
            let blocks = (length - done) / block;
            match move_extents(file.as_fd(), self.pool.file(), from, to, blocks) {
                Ok(0) => return Err(Errno::BUSY),
                Ok(moved) => done += moved * block,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

/// The parts of a piece that are not in a list.
fn without(piece: Piece, others: &[Piece]) -> Vec<Piece> {
    let mut parts = Vec::new();
    let mut at = piece.logical;
    let end = piece.logical + piece.length;
    let (inside, _) = clipped(others, piece.logical, end);
    let end_mark = Piece {
        logical: end,
        physical: 0,
        length: 0,
    };
    for other in inside.iter().chain([&end_mark]) {
        if other.logical > at {
            parts.push(Piece {
                logical: at,
                physical: piece.physical + (at - piece.logical),
                length: other.logical - at,
            });
        }
        at = other.logical + other.length;
    }
    parts
}

/// Opens a file for moving, if it is still the same.
fn open(tree: &Tree, known: &Found) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = tree.open(known.top, &known.path, flags)?;
    let is_same = fstat(&file)?.st_ino == known.inode;
    Ok(is_same.then_some(file))
}
