//! The reserve: room for directories that grow, and for other metadata of the filesystem.
//!
//! Acknowledged changes must be applied, also on a disk without a free block. A renamed file takes
//! none, but its new directory may have to grow, and so may `limbo/`, through which it is renamed,
//! and the extent list of a file where preallocated room is written. A file of a megabyte in the
//! store's own directory keeps the blocks for that: an apply or a commit without room removes it
//! and continues with the freed blocks, and the next apply makes the file again, as large as
//! possible. Without it a full disk takes no renames, and of writes only overwrites.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mobifs_base::{ByteRange, FileKind, FullDisk, PAGE_BYTES_U64, SpaceInfo};

use crate::StoreError;
use crate::lower::directories::Directories;
use crate::lower::{Create, Lower};
use crate::overlay::Overlay;

const NAME: &[u8] = b"reserve";
/// The reserve grows by at least this fraction of its full size.
const PARTS: u64 = 16;

/// The file that holds the reserve.
#[derive(Debug)]
pub(crate) struct Reserve {
    /// Its full size; 0: there is no reserve.
    bytes: u64,
    /// Its present size. On a full disk it shrinks by the blocks that directories have taken.
    held_bytes: AtomicU64,
    /// This filesystem cannot preallocate, or the file cannot be made.
    is_given_up: AtomicBool,
}

/// The room that an apply uses on a full disk.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RoomSource {
    Preallocated,
    ObsoleteStaged,
    Reserve,
    DeletedFiles,
}

impl std::fmt::Display for RoomSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Preallocated => "what was preallocated",
            Self::ObsoleteStaged => "what was made and is not needed any more",
            Self::Reserve => "the reserve",
            Self::DeletedFiles => "deleted files",
        })
    }
}

impl Reserve {
    /// As an earlier mount has left it.
    pub(crate) fn find<L: Lower>(
        lower: &L,
        own: &Directories<L::Handle>,
        bytes: u64,
    ) -> Result<Self, StoreError> {
        let held_bytes = match lower.stat_at(own.mobifs(), NAME) {
            Ok(stat) if stat.kind == FileKind::Regular => stat.allocated_bytes.min(bytes),
            Ok(_) => 0,
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(StoreError::lower("looking at the reserve")(error)),
        };
        Ok(Self {
            bytes,
            held_bytes: AtomicU64::new(held_bytes),
            is_given_up: AtomicBool::new(bytes == 0),
        })
    }

    /// Runs a step of a mount, and once more with the room of the reserve if there is no other: a
    /// full disk must not prevent a mount.
    pub(crate) fn open_with<L: Lower, T>(
        lower: &L,
        own: &Directories<L::Handle>,
        mut attempt: impl FnMut() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let error = match attempt() {
            Err(error) if error.has_no_room() => error,
            done => return done,
        };
        match lower.unlink(own.mobifs(), NAME) {
            Ok(()) => {
                tracing::info!(%error, "the disk is full: the store releases its reserve to open");
                // Its blocks are free when the filesystem's own journal says so.
                lower
                    .sync_all()
                    .map_err(StoreError::lower("releasing the reserve"))?;
                attempt()
            }
            Err(_) => Err(error),
        }
    }

    /// Whether room and inodes are to be kept.
    pub(super) const fn is_wanted(&self) -> bool {
        self.bytes > 0
    }

    pub(crate) fn is_held(&self) -> bool {
        self.held_bytes() > 0
    }

    fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// The most that may be reserved for entries, as they are charged, where there is no room.
    pub(crate) fn promised_bytes(&self) -> u64 {
        FullDisk::promised_of(self.held_bytes())
    }
}

/// Makes the reserve, if there is room.
pub(super) fn keep_reserve<L: Lower>(overlay: &Overlay<L>, reserve: &Reserve) {
    let held_bytes = reserve.held_bytes();
    if held_bytes == reserve.bytes || reserve.is_given_up.load(Ordering::Relaxed) {
        return;
    }
    let available_bytes = overlay
        .lower()
        .space()
        .map_or(0, |space| space.available_bytes);
    let bytes = reserve.bytes.min(held_bytes + available_bytes);
    // A smaller one is of no use, and must not be made again for a few blocks.
    if bytes < reserve.bytes / PARTS || bytes - held_bytes < reserve.bytes / PARTS {
        return;
    }
    reserve.held_bytes.store(0, Ordering::Relaxed);
    // Not every user can allocate all free blocks.
    let sizes = std::iter::successors(Some(bytes), |bytes| Some(bytes / 2));
    let sizes = sizes.map(|bytes| bytes - bytes % PAGE_BYTES_U64);
    for bytes in sizes.take_while(|&bytes| bytes >= reserve.bytes / PARTS) {
        match make_reserve(overlay, bytes) {
            Ok(()) => return reserve.held_bytes.store(bytes, Ordering::Relaxed),
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
            Err(error) => {
                tracing::info!(%error, "the store cannot reserve room for a full disk");
                reserve.is_given_up.store(true, Ordering::Relaxed);
                break;
            }
        }
    }
    let _gone = overlay.lower().unlink(overlay.mobifs(), NAME);
}

fn make_reserve<L: Lower>(overlay: &Overlay<L>, bytes: u64) -> io::Result<()> {
    match overlay.lower().unlink(overlay.mobifs(), NAME) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    overlay
        .lower()
        .create(overlay.mobifs(), NAME, Create::Regular)?;
    let file = overlay.lower().open(overlay.mobifs(), NAME, true)?;
    overlay.lower().preallocate(&file, ByteRange::new(0, bytes))
}

/// Frees the reserve; false if there was none.
pub(crate) fn spend_reserve<L: Lower>(overlay: &Overlay<L>, reserve: &Reserve) -> bool {
    if reserve.held_bytes.swap(0, Ordering::Relaxed) == 0 {
        return false;
    }
    // Its blocks are free when the filesystem's own journal says so.
    let spent = overlay.lower().unlink(overlay.mobifs(), NAME);
    spent.and_then(|()| overlay.lower().sync_all()).is_ok()
}

/// Runs a promised operation, and once more with the room of the reserve if there was no other.
pub(crate) fn with_reserve<L: Lower, T>(
    overlay: &Overlay<L>,
    reserve: &Reserve,
    mut promised: impl FnMut() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    match promised() {
        Err(error) if error.has_no_room() && spend_reserve(overlay, reserve) => {
            tracing::info!(%error, "the disk is full: the store releases its reserve to go on");
            promised()
        }
        done => done,
    }
}

/// The lower filesystem's room without that of the reserve, also after that was released: the
/// reserve gets it again.
pub(crate) fn without_reserve<L: Lower>(
    overlay: &Overlay<L>,
    reserve: &Reserve,
    mut space: SpaceInfo,
) -> SpaceInfo {
    if !overlay.is_read_only() && !reserve.is_given_up.load(Ordering::Relaxed) {
        let held_bytes = reserve.held_bytes();
        debug_assert!(
            held_bytes <= reserve.bytes,
            "{held_bytes} of {}",
            reserve.bytes
        );
        let missing_bytes = reserve.bytes.saturating_sub(held_bytes);
        space.free_bytes = space.free_bytes.saturating_sub(missing_bytes);
        space.available_bytes = space.available_bytes.saturating_sub(missing_bytes);
    }
    space
}
