//! Room that is kept for directories.
//!
//! What is acknowledged must be applied, also on a disk without a free block. A renamed file
//! takes none, but a directory that it comes to may have to grow, and so may `limbo/`, which it
//! passes through. A file of a megabyte in the store's own directory keeps the blocks for that:
//! an apply that finds no room removes it and goes on, and makes it anew when there is room
//! again. Without it, as where there was never room for it, a full disk takes no renames.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use mobifs_types::{ByteRange, FileKind};

use super::{Directories, JournalStore, Writer};
use crate::StoreError;
use crate::lower::{Create, Lower};

const NAME: &[u8] = b"reserve";
/// One of so many bytes of the reserve is promised: entries are charged with a small part of
/// the block that each of them might need.
const PROMISED_SHARE: u64 = 8;
/// The last room of a disk is for its users.
const FREE_SHARE_MIN: u64 = 4;

/// The file that keeps room.
#[derive(Debug)]
pub(super) struct Reserve {
    /// Its size; 0: none is to be kept.
    bytes: u64,
    is_held: AtomicBool,
    /// This filesystem keeps no room, or something is in the way.
    is_given_up: AtomicBool,
}

impl Reserve {
    /// As an earlier mount has left it.
    pub(super) fn find<L: Lower>(
        lower: &L,
        own: &Directories<L>,
        bytes: u64,
    ) -> Result<Self, StoreError> {
        let is_held = match lower.stat_at(&own.mobifs, NAME) {
            Ok(stat) => {
                bytes > 0 && stat.kind == FileKind::Regular && stat.allocated_bytes >= bytes
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(StoreError::lower("looking at the reserve")(error)),
        };
        Ok(Self {
            bytes,
            is_held: AtomicBool::new(is_held),
            is_given_up: AtomicBool::new(bytes == 0),
        })
    }

    /// So much may be promised for entries, as they are charged, where there is no room.
    pub(super) fn promised_bytes(&self) -> u64 {
        if self.is_held.load(Ordering::Relaxed) {
            self.bytes / PROMISED_SHARE
        } else {
            0
        }
    }
}

impl<L: Lower> JournalStore<L> {
    /// Keeps room, unless there is hardly any. Not while anything is pending: the file would
    /// get an inode that the journal may name, of an object which a cut has taken.
    pub(super) fn keep_reserve(&self) {
        let reserve = &self.reserve;
        let is_done = reserve.is_held.load(Ordering::Relaxed);
        if self.read_only || is_done || reserve.is_given_up.load(Ordering::Relaxed) {
            return;
        }
        let space = self.lower.space();
        if !space.is_ok_and(|space| space.available_bytes / FREE_SHARE_MIN >= reserve.bytes) {
            return;
        }
        match self.make_reserve() {
            Ok(()) => reserve.is_held.store(true, Ordering::Relaxed),
            Err(error) => {
                let _gone = self.lower.unlink(&self.own.mobifs, NAME);
                if error.kind() != io::ErrorKind::StorageFull {
                    tracing::info!(%error, "no room can be kept for a full disk");
                    reserve.is_given_up.store(true, Ordering::Relaxed);
                }
            }
        }
    }

    fn make_reserve(&self) -> io::Result<()> {
        match self.lower.unlink(&self.own.mobifs, NAME) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.lower.create(&self.own.mobifs, NAME, Create::Regular)?;
        let file = self.lower.open(&self.own.mobifs, NAME, true)?;
        let whole = ByteRange::new(0, self.reserve.bytes);
        self.lower.preallocate(&file, whole)
    }

    /// Gives the room back; false if there was none.
    fn spend_reserve(&self) -> bool {
        if !self.reserve.is_held.swap(false, Ordering::Relaxed) {
            return false;
        }
        // Its blocks are free when the filesystem's own journal says so.
        let spent = self.lower.unlink(&self.own.mobifs, NAME);
        spent.and_then(|()| self.lower.sync_all()).is_ok()
    }

    /// Applies everything pending and starts a new epoch of the journal; with the room that was
    /// kept, if there is no other.
    pub(super) fn apply_all(&self, writer: &mut Writer<L>) -> Result<(), StoreError> {
        let mut applied = self.apply_pending(writer);
        if applied.as_ref().is_err_and(StoreError::has_no_room) && self.spend_reserve() {
            tracing::info!("the disk is full: applying with the room that was kept for that");
            applied = self.apply_pending(writer);
        }
        if applied.is_ok() {
            self.keep_reserve();
        }
        applied
    }
}
