//! Content that moves to one place (ext4).

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;

use mobifs_base::FileKind;
use mobifs_host::{PartlyMoved, is_ext4_ordered, move_extents};
use rustix::fs::{
    self, Advice, AtFlags, FallocateFlags, IFlags, Mode, OFlags, StatxAttributes, StatxFlags,
};
use rustix::io::{Errno, retry_on_intr};

use super::extents::pieces;
use super::handle::{Access, PosixHandle};
use super::magic;
use super::root::PosixLower;

/// Larger blocks than the pages of the store have no boundaries where it writes.
const BLOCK_BYTES_MAX: u64 = 4096;
/// `FS_EXTENT_FL`: what has no list of extents does not move.
const HAS_EXTENTS: IFlags = IFlags::from_bits_retain(0x8_0000);
/// Encrypted, verity, inline data, DAX; and content that is journalled, which the kernel does not move, either.
const STAYS: IFlags =
    IFlags::from_bits_retain(0x800 | 0x10_0000 | 0x1000_0000 | 0x200_0000 | 0x4000);

/// Whether the filesystem moves content so that it survives a cut at any instant: ext4 with a journal of its own,
/// which writes content first.
pub(super) fn moves(root: impl AsFd) -> bool {
    let is_ext = |about: fs::StatFs| {
        let block_bytes = u64::try_from(about.f_bsize).unwrap_or(u64::MAX);
        magic::magic(about.f_type) == magic::EXT_MAGIC && block_bytes <= BLOCK_BYTES_MAX
    };
    fs::fstatfs(&root).is_ok_and(is_ext) && is_ext4_ordered(root.as_fd())
}

/// Whether this file is one that moves, whatever the filesystem does in general.
fn may_move(file: BorrowedFd<'_>) -> io::Result<bool> {
    let flags = fs::ioctl_getflags(file)?;
    if flags.intersects(STAYS | IFlags::IMMUTABLE | IFlags::APPEND) || !flags.contains(HAS_EXTENTS)
    {
        return Ok(false);
    }
    let about = fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::TYPE)?;
    Ok(!about.stx_attributes.contains(StatxAttributes::DAX))
}

impl PosixLower {
    pub(super) fn has_several_pieces(&self, file: &PosixHandle) -> io::Result<bool> {
        let count = pieces(self.usable(file, Access::Read)?)?;
        Ok(count.is_some_and(|count| count > 1))
    }

    /// The donor has no name: it goes with its descriptor, and after a cut or a kill with the next mount.
    ///
    /// It gets the content first, and the device has written that when the blocks are exchanged: the filesystem
    /// makes the new place durable also if the device fails when the kernel writes the content there once more.
    pub(super) fn move_to_one_place(
        &self,
        own_directory: &PosixHandle,
        file: &PosixHandle,
        content: &[u8],
        room_bytes: u64,
    ) -> io::Result<Option<PosixHandle>> {
        let fd = self.usable(file, Access::ReadWrite)?;
        if !self.has_several_pieces(file)? || !may_move(fd)? {
            return Ok(None);
        }
        let block_bytes = block_bytes(fd);
        let size = fs::fstat(fd)?.st_size.cast_unsigned();
        if size != content.len() as u64 {
            return Ok(None);
        }
        let content_bytes = size.next_multiple_of(block_bytes);
        let Some(donor) = self.donor(own_directory, content, room_bytes.max(content_bytes))? else {
            return Ok(None);
        };
        // Only what lies within the size is cut off; this is free once the file is synced, and is where it grows. The
        // kernel moves nothing beyond an end.
        fs::ftruncate(&donor, content_bytes)?;
        // A large folio of the page cache spans several pieces. Having moved one it is dirty, and for each further
        // one the kernel would commit the journal first. An error changes nothing.
        for folios in [fd, donor.as_fd()] {
            let _advised = fs::fadvise(folios, 0, None, Advice::DontNeed);
        }
        let (moved, result) = exchange(fd, donor.as_fd(), content_bytes / block_bytes);
        match result {
            Err(errno) if moved == 0 => return Err(errno.into()),
            // What has moved has to be made durable all the same.
            Err(_) => drop(fs::ftruncate(&donor, moved * block_bytes)),
            Ok(()) => {}
        }
        let donor = PosixHandle::new(donor, FileKind::Regular, Access::ReadWrite);
        Ok(Some(donor))
    }

    /// An unnamed file of so many bytes in one piece, which begins with this content, written by the device; none if
    /// there is no such piece.
    fn donor(
        &self,
        own_directory: &PosixHandle,
        content: &[u8],
        room_bytes: u64,
    ) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let donor = fs::openat(own_directory.fd(), ".", flags, Mode::RUSR | Mode::WUSR)?;
        retry_on_intr(|| fs::fallocate(&donor, FallocateFlags::empty(), 0, room_bytes))?;
        if pieces(donor.as_fd())? != Some(1) {
            return Ok(None);
        }
        let donor = File::from(donor);
        donor.write_all_at(content, 0)?;
        let donor = OwnedFd::from(donor);
        // Looking has the kernel write the content, and tells whether it could.
        let is_written = pieces(donor.as_fd())? == Some(1);
        Ok(is_written.then_some(donor))
    }

    pub(super) fn return_blocks(&self, file: &PosixHandle, donor: &PosixHandle) -> io::Result<()> {
        let fd = self.usable(file, Access::ReadWrite)?;
        let bytes = fs::fstat(donor.fd())?.st_size.cast_unsigned();
        let (_, result) = exchange(fd, donor.fd(), bytes / block_bytes(fd));
        Ok(result?)
    }
}

fn block_bytes(fd: BorrowedFd<'_>) -> u64 {
    let about = fs::fstatfs(fd).ok();
    let bytes = about.and_then(|about| u64::try_from(about.f_bsize).ok());
    bytes.unwrap_or(BLOCK_BYTES_MAX)
}

/// Exchanges this many blocks from the beginning on; how many have been.
fn exchange(file: BorrowedFd<'_>, donor: BorrowedFd<'_>, blocks: u64) -> (u64, Result<(), Errno>) {
    let mut done = 0;
    while done < blocks {
        match move_extents(file, donor, done, done, blocks - done) {
            Ok(0) => return (done, Err(Errno::BUSY)),
            Ok(moved) => done += moved,
            Err(PartlyMoved {
                moved_blocks,
                errno,
            }) => {
                done += moved_blocks;
                if !matches!(errno, Errno::INTR | Errno::AGAIN) {
                    return (done, Err(errno));
                }
            }
        }
    }
    (done, Ok(()))
}
