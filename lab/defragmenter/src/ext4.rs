//! Moving extents on ext4, by `EXT4_IOC_MOVE_EXT` into blocks of a pool.
//!
//! The kernel exchanges blocks while it holds both files, copies through the page cache, and writes
//! the content before it commits the new places (data=ordered): a write of another program comes
//! before or after, and a power cut finds the old places or the new ones.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use mobifs_device_server::RemapPair;
use mobifs_host::{PartlyMoved, move_extents};
use rustix::fs::{
    Advice, CWD, IFlags, Mode, OFlags, fadvise, fstat, ioctl_getflags, openat, syncfs,
};
use rustix::io::Errno;

use crate::device::Device;
use crate::donor::two_files;
use crate::error::DefragError;
use crate::moved::{End, Outcome};
use crate::pace::{Next, Pace, SLICE_BYTES_MAX};
use crate::place::Place;
use crate::plan::{Move, Piece, clipped, joined};
use crate::pool::Pool;
use crate::scan::{EXT4_STAYS, Found, Looks, Tree, look_at};
use crate::space::Space;

/// Announced pages after which what has moved is written: more would only wait.
const ANNOUNCED_BYTES_MAX: u64 = 256 << 20;

/// `FS_ENCRYPT_FL`.
const ENCRYPTED: IFlags = IFlags::from_bits_retain(0x800);
/// At least so much is given to others at a time.
const GIVEN_BYTES_MIN: u64 = 1 << 20;
/// With less room nothing is moved.
pub(crate) const BLOCKS_MIN: u64 = 16;

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
        place: &'a Place,
        room: u64,
        looks: Looks<'a>,
        device: Option<&'a Device>,
    ) -> Result<Self, DefragError> {
        let directory = place.directory.as_path();
        let at = |errno| DefragError::at(directory, errno);
        // Content that waits in memory would not be what a source holds. That the pool has its room need not be
        // durable: ext4 does so with the first move, and a power cut before that leaves no pool.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(CWD, directory, flags, Mode::empty()).map_err(at)?;
        syncfs(&opened).map_err(at)?;
        // After that, so that what this changes takes no commit of its own.
        check(place)?;
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

    /// Gives other programs room, so that they have twice what is the least again; false if then hardly any is left
    /// to work with.
    pub(crate) fn give_room(&mut self, pace: &Pace<'_>) -> Result<bool, DefragError> {
        let Some(watch) = &pace.watch else {
            return Ok(true);
        };
        let lacking = watch.least_bytes.saturating_mul(2);
        let lacking = lacking.saturating_sub(watch.free_bytes());
        let block = self.looks.block_bytes;
        let lacking = lacking.max(GIVEN_BYTES_MIN).next_multiple_of(block);
        // Room that a move has left is given only with the new place of its file.
        self.make_durable()?;
        self.pool
            .give_back(lacking)
            .map_err(|errno| self.at(errno))?;
        self.make_durable()?;
        Ok(self.pool.space().bytes() >= BLOCKS_MIN * block)
    }

    /// Does a move, slice by slice; it ends early only between two pieces, so that no file gets more of them.
    pub(crate) fn carry_out(
        &mut self,
        step: &Move,
        tree: &Tree,
        pace: &mut Pace<'_>,
    ) -> Result<Outcome, DefragError> {
        const CHANGED: &str = "files that changed meanwhile";
        let Some(known) = tree.files.get(step.file) else {
            return Ok(End::LeftAlone(CHANGED).into());
        };
        let file = match open(tree, known) {
            Ok(Some(file)) => file,
            Ok(None) | Err(Errno::NOENT | Errno::LOOP) => {
                return Ok(End::LeftAlone(CHANGED).into());
            }
            Err(Errno::TXTBSY) => return Ok(End::LeftAlone("programs that run").into()),
            Err(errno) => return Ok(self.refused(errno)?.into()),
        };
        let (start, bytes) = (step.logical(), step.bytes());
        let now = match self.places(&file, start, bytes) {
            Ok(now) => now,
            Err(errno) => return Ok(self.refused(errno)?.into()),
        };
        let Some((pieces, unwritten)) = now.filter(|(pieces, _)| *pieces == joined(&step.pieces))
        else {
            return Ok(End::LeftAlone(CHANGED).into());
        };
        if self.pool.parts(step.to, bytes).is_none() {
            return Ok(End::LeftAlone("moves whose place was lost").into());
        }
        // A large folio of the page cache spans several pieces. Having moved one it is dirty, and for
        // each further one the kernel would commit the journal first. An error changes nothing.
        let _advised = fadvise(&file, 0, None, Advice::DontNeed);
        let mut done = 0;
        for length in batches(&pieces, pace.slice_bytes(self.looks.block_bytes)) {
            match pace.next(length)? {
                Next::Move => {}
                Next::Stop => {
                    return Ok(Outcome {
                        bytes: done,
                        end: End::Stopped,
                    });
                }
                Next::GiveRoom => {
                    return Ok(Outcome {
                        bytes: done,
                        end: End::RoomNeeded,
                    });
                }
            }
            let (batch, _) = clipped(&pieces, start + done, start + done + length);
            self.announce(&batch, &unwritten, step.to + done)?;
            if let Err(errno) = self.move_pieces(&file, &batch, step.to + done, pace) {
                return Ok(Outcome {
                    bytes: done,
                    end: self.refused(errno)?,
                });
            }
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
        let end = if is_there {
            End::Whole
        } else {
            End::LeftAlone(CHANGED)
        };
        Ok(Outcome { bytes: done, end })
    }

    /// Moves adjoining pieces as fast as the rate allows it.
    fn move_pieces(
        &mut self,
        file: &OwnedFd,
        pieces: &[Piece],
        to: u64,
        pace: &mut Pace<'_>,
    ) -> Result<(), Errno> {
        let start = pieces.first().map_or(0, |piece| piece.logical);
        let bytes: u64 = pieces.iter().map(|piece| piece.length).sum();
        let mut done = 0;
        while done < bytes {
            let length = SLICE_BYTES_MAX.min(bytes - done);
            // What has begun is brought to the end of its pieces, whatever it waits for.
            pace.wait();
            let parts = self.pool.parts(to + done, length).ok_or(Errno::BUSY)?;
            for (donor, length) in parts {
                self.exchange(file, (start + done, donor, length))?;
                let (left, _) = clipped(pieces, start + done, start + done + length);
                let left: Vec<(u64, u64)> = left.iter().map(|p| (p.physical, p.length)).collect();
                self.pool.exchanged(to + done, length, donor, &left);
                done += length;
                pace.moved(length);
            }
        }
        Ok(())
    }

    /// Failures of the device or the filesystem end the run; others leave this file alone.
    fn refused(&self, errno: Errno) -> Result<End, DefragError> {
        Ok(End::LeftAlone(match errno {
            Errno::IO | Errno::ROFS | Errno::NODEV | Errno::NXIO | Errno::UCLEAN => {
                return Err(self.at(errno));
            }
            Errno::NOSPC => "files for whose new extents there was no room",
            Errno::ACCESS | Errno::PERM => "files that this user may not write",
            Errno::TXTBSY => "files that are in use as swap or as a program",
            Errno::OPNOTSUPP => EXT4_STAYS,
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
                Err(PartlyMoved {
                    moved_blocks,
                    errno: Errno::INTR | Errno::AGAIN,
                }) => done += moved_blocks * block,
                Err(partly) => return Err(partly.errno),
            }
        }
        Ok(())
    }
}

/// Whether this ext4 moves anything at all: tried on two files without a name, before any room is taken.
pub(crate) fn check(place: &Place) -> Result<(), DefragError> {
    let directory = place.directory.as_path();
    let refused = |why| DefragError::Unsupported {
        path: place.mountpoint.clone(),
        filesystem: place.filesystem.clone(),
        why,
    };
    let (file, donor) = match two_files(directory, place.block_bytes) {
        Ok(two) => two,
        Err(Errno::OPNOTSUPP) => {
            return Err(refused(
                "which makes files without extents; give it the feature (tune2fs -O extents), for new files",
            ));
        }
        Err(errno) => return Err(DefragError::at(directory, errno)),
    };
    match move_extents(file.as_fd(), donor.as_fd(), 0, 0, 1) {
        Err(PartlyMoved {
            errno: Errno::OPNOTSUPP | Errno::NOTTY,
            ..
        }) => {
            let flags = ioctl_getflags(&file).unwrap_or(IFlags::empty());
            Err(refused(if flags.contains(ENCRYPTED) {
                "and encrypted there, so that it moves nothing; what is outside of that directory can be moved"
            } else {
                "which moves nothing where it allocates clusters of several blocks (bigalloc) or is mounted with \
                 data=journal; make it without the one, or mount it with data=ordered"
            }))
        }
        // Whatever else the trial says, files are looked at one by one.
        _ => Ok(()),
    }
}

/// Pieces that move between two questions: so many bytes, and always whole ones.
fn batches(pieces: &[Piece], slice: u64) -> Vec<u64> {
    let mut batches: Vec<u64> = Vec::new();
    for piece in pieces {
        match batches.last_mut() {
            Some(batch) if *batch + piece.length <= slice => *batch += piece.length,
            _ => batches.push(piece.length),
        }
    }
    batches
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
