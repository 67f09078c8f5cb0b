//! Content that moves to other blocks, and devices that do not write the new ones.
//!
//! Moving makes nothing durable, and a cut finds the blocks of before. Where the sync that follows gives content up
//! ([`Harm::Lost`](super::Harm::Lost)), pages are clean that the device does not have: it has garbage in the new place,
//! which memory shows of pages that it has dropped meanwhile, and which the next sync of anything makes the
//! file's content for good, unless the file gets its blocks of before again. (A cut before that sync is a second
//! failure, which takes content from any filesystem; here it does not.) If other calls fail than syncs, the
//! filesystem's own journal has ended, and the blocks of before stay.

use std::io;
use std::sync::Arc;

use mobifs_base::FileKind;

use super::Filesystem;
use super::blocks::{BLOCK, is_cached};
use super::effect::{Effect, InodeKey, SECTOR, SECTOR_BYTES};
use super::refusals::Action;
use super::state::{Inode, State};

/// What the device has where nothing was written.
const GARBAGE: [u8; SECTOR_BYTES] = [0xdb; SECTOR_BYTES];

/// How a file has moved that no sync has concerned since.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moving {
    donor: InodeKey,
    /// The device has not written the new place.
    is_lost: bool,
}

impl Filesystem {
    /// Whether the file lies in several pieces: about one in three does, always the same at the same size.
    pub(super) fn is_scattered(&self, key: InodeKey) -> io::Result<bool> {
        let inode = self.file(key)?;
        let end = inode.size.max(inode.allocated_end);
        let is_moved = end <= inode.moved_end;
        let is_large = end > 4 * BLOCK;
        Ok(is_large && !is_moved && (inode.number + end / BLOCK).is_multiple_of(3))
    }

    /// Moves a file; returns the donor. What was not durable is not durable afterwards, and nothing else changes.
    pub(super) fn move_content(
        &mut self,
        key: InodeKey,
        room_bytes: u64,
    ) -> io::Result<Option<InodeKey>> {
        assert!(self.moves_content, "content does not survive a cut here");
        self.check_call(Action::Write, key)?;
        self.check_descriptors()?;
        if !self.is_scattered(key)? {
            return Ok(None);
        }
        let size = self.file(key)?.size;
        if let Some(inode) = self.live.inode_mut(key) {
            inode.moved_end = room_bytes;
        }
        self.moves += 1;
        let (donor, number, predecessor) = self.new_inode();
        let inode = Inode {
            size: size.next_multiple_of(BLOCK),
            predecessor,
            ..Inode::new(number, FileKind::Regular, self.now())
        };
        self.live.inodes.insert(donor, Arc::new(inode));
        self.unlinked.push(donor);
        let moving = Moving {
            donor,
            is_lost: false,
        };
        self.moving.insert(key, moving);
        Ok(Some(donor))
    }

    /// The file has its blocks of before, and all pages that memory has are to be written.
    pub(super) fn move_back(&mut self, key: InodeKey, donor: InodeKey) -> io::Result<()> {
        let Some(moving) = self.moving.remove(&key) else {
            return Ok(());
        };
        assert_eq!(moving.donor, donor, "the donor of another file");
        if moving.is_lost {
            for index in 0..self.file(key)?.size.div_ceil(SECTOR) {
                let sector = self.sector(key, index)?;
                self.record_sector(key, index, sector);
            }
        }
        Ok(())
    }

    /// A sync begins: what the device had not written of a file when the sync before failed, it never has.
    pub(super) fn forget_lost(&mut self) {
        for (&key, _) in self.moving.iter().filter(|(_, moving)| moving.is_lost) {
            let size = self.live.inodes.get(&key).map_or(0, |inode| inode.size);
            for page in (0..size).step_by(BLOCK as usize) {
                fill(&mut self.durable, key, page);
            }
        }
        self.moving.retain(|_, moving| !moving.is_lost);
    }

    /// A sync has made the chosen effects durable.
    pub(super) fn conclude_moves(&mut self, chosen: impl Fn(&Effect) -> bool) {
        self.moving.retain(|&key, _| !concerns(key, &chosen));
    }

    /// A sync has given up the chosen effects.
    pub(super) fn lose_moved(&mut self, chosen: impl Fn(&Effect) -> bool) {
        let concerned = self.moving.keys().filter(|&&key| concerns(key, &chosen));
        for key in concerned.copied().collect::<Vec<_>>() {
            if !self.faults.fails_only_syncs() {
                self.moving.remove(&key);
                continue;
            }
            if let Some(moving) = self.moving.get_mut(&key) {
                moving.is_lost = true;
            }
            self.has_given_up = true;
            let Some(inode) = self.live.inodes.get(&key) else {
                continue;
            };
            let (number, size) = (inode.number, inode.size);
            let pages = (0..size).step_by(BLOCK as usize);
            for page in pages.filter(|&page| !is_cached(number, page)) {
                fill(&mut self.live, key, page);
            }
        }
    }
}

/// Whether these effects are all of the file's content.
fn concerns(key: InodeKey, chosen: &impl Fn(&Effect) -> bool) -> bool {
    let content = Effect::Sector {
        inode: key,
        index: 0,
        content: None,
    };
    chosen(&content)
}

/// A page of a file is garbage, as far as the file reaches.
fn fill(state: &mut State, key: InodeKey, page: u64) {
    let Some(inode) = state.inode_mut(key) else {
        return;
    };
    let sectors = page / SECTOR..(page + BLOCK).min(inode.size).div_ceil(SECTOR);
    let garbage = sectors.map(|index| (index, Arc::new(GARBAGE)));
    inode.sectors.extend(garbage);
    let size = inode.size;
    inode.cut_content(size);
}
