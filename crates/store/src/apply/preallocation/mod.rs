//! Preallocation: blocks beyond the end of a growing file, allocated before they are needed, so that
//! the file stays in one piece (S4 §6.1.1).
//!
//! An apply allocates them together with the blocks of what it writes ([`plan`]). They are the
//! store's own, unlike room that a program has requested: what is unused is given back
//! ([`give_back`]) when the store is closed, when room is short, when the file loses its names, and
//! by the first apply of the next mount after a kill or a power cut. A [`list`] of these files in `.mobifs`, durable
//! before any block of them is allocated, tells the store's blocks from those of programs: a file
//! with blocks beyond its end that the list does not know is left alone.

pub(crate) mod adopt;
mod find;
pub(crate) mod give_back;
mod go_on;
pub(crate) mod list;
pub(crate) mod list_file;
pub(crate) mod plan;
mod step;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use mobifs_base::{Page, SpaceInfo};
use parking_lot::MutexGuard;

use crate::Preallocation;
pub(crate) use crate::apply::preallocation::list::block_end;
use crate::apply::preallocation::list::{Listed, Phase};
use crate::apply::preallocation::step::SQLITE_MAGIC;
use crate::locks::{Order, Rank, Ranked, RankedMutex};
use crate::lower::{Lower, LowerStat};
use crate::overlay::pending::PendingObject;

/// With less free room than this fraction of the filesystem, nothing is preallocated, and with less
/// than half of that what is unused is given back. It is small, because preallocation matters most
/// on a disk that is almost full, and nothing is refused for its sake.
const SHORT_PARTS: u64 = 512;

/// The files with preallocation, and what is preallocated.
pub(crate) struct Preallocations {
    policy: Preallocation,
    /// The id of the store: a list with another id is of another store.
    uuid: [u8; 16],
    /// The list can be written: its file is there, and this filesystem keeps such blocks.
    is_ready: AtomicBool,
    /// The device did not take content in a new place: nothing moves any more in this mount.
    moves_nothing: AtomicBool,
    files: RankedMutex<Files>,
}

/// The listed files, by inode number.
#[derive(Debug, Default)]
pub(super) struct Files {
    by_inode: BTreeMap<u64, Listed>,
    /// The sequence number of the list that was written last.
    sequence: u64,
    /// The list on disk differs.
    is_dirty: bool,
    /// No file could be added because there are too many.
    is_overfull: bool,
    /// How often a file was listed.
    listings: u64,
}

impl Preallocations {
    /// The preallocations of a store that is being opened, with the list that was found.
    pub(crate) fn new(
        order: Order,
        policy: Preallocation,
        uuid: [u8; 16],
        found: list::Found,
    ) -> Self {
        let files = found.files.into_iter().map(|file| (file.inode, file));
        let files = Files {
            by_inode: files.collect(),
            sequence: found.sequence,
            ..Files::default()
        };
        Self {
            policy,
            uuid,
            is_ready: AtomicBool::new(found.is_usable),
            moves_nothing: AtomicBool::new(false),
            files: RankedMutex::new(order, Rank::Preallocations, files),
        }
    }

    pub(super) fn files(&self) -> Ranked<MutexGuard<'_, Files>> {
        self.files.lock()
    }

    const fn is_off(&self) -> bool {
        self.policy.database_bytes == 0 && self.policy.large_bytes == 0
    }

    fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Relaxed)
    }

    fn moves_nothing(&self) -> bool {
        self.moves_nothing.load(Ordering::Relaxed)
    }

    fn set_moves_nothing(&self) {
        self.moves_nothing.store(true, Ordering::Relaxed);
    }

    fn set_ready(&self, is_ready: bool) {
        self.is_ready.store(is_ready, Ordering::Relaxed);
    }

    /// Whether no file is listed.
    pub(crate) fn is_empty(&self) -> bool {
        self.files().by_inode.is_empty()
    }

    /// What is preallocated and not used.
    pub(crate) fn unused_bytes(&self) -> u64 {
        self.files().unused_bytes()
    }

    /// Where the store's own blocks in this file end; none if it has none beyond the end.
    pub(crate) fn own_end(&self, stat: &LowerStat) -> Option<u64> {
        let files = self.files();
        let file = files.by_inode.get(&stat.inode)?;
        (file.is_same_object(stat) && file.phase == Phase::Held).then_some(file.end)
    }

    /// Whether a new file is a database, which the apply gives blocks in which it can grow. Where a
    /// commit has so much new content that it brings others to their places at once, such a file stays
    /// in the journal, but for long runs.
    pub(crate) fn keeps_in_one_piece(
        &self,
        first: Option<&Page>,
        pending: Option<&PendingObject>,
    ) -> bool {
        let begins = first.map(|page| page.stored().starts_with(SQLITE_MAGIC));
        let is_pending = || pending.is_some_and(|object| object.begins_with(SQLITE_MAGIC));
        self.policy.database_bytes > 0 && self.is_ready() && begins.unwrap_or_else(is_pending)
    }

    /// Whether a new database of this size has all its content in the first step of its growth.
    pub(crate) const fn is_within_step(&self, size: u64) -> bool {
        size < self.policy.database_bytes
    }

    /// A commit has written to the file as far as this.
    pub(crate) fn record_written(&self, stat: &LowerStat, end: u64) {
        if let Some(file) = self.files().by_inode.get_mut(&stat.inode) {
            file.size = file.size.max(end);
        }
    }

    /// Room of the lower filesystem with what is unused: that is given back before there is no
    /// other.
    pub(crate) fn with_unused(&self, mut space: SpaceInfo) -> SpaceInfo {
        let unused_bytes = self.unused_bytes();
        let add = |bytes: u64| bytes.saturating_add(unused_bytes).min(space.total_bytes);
        (space.free_bytes, space.available_bytes) =
            (add(space.free_bytes), add(space.available_bytes));
        space
    }
}

impl Files {
    fn unused_bytes(&self) -> u64 {
        let files = self.by_inode.values();
        files.fold(0, |sum: u64, file| sum.saturating_add(file.unused_bytes()))
    }

    /// The listed file that this is, if it is one.
    fn of(&self, stat: &LowerStat) -> Option<&Listed> {
        let file = self.by_inode.get(&stat.inode)?;
        file.is_same_object(stat).then_some(file)
    }

    fn remove(&mut self, inode: u64) {
        self.is_dirty |= self.by_inode.remove(&inode).is_some();
    }

    fn retain(&mut self, mut is_kept: impl FnMut(&Listed) -> bool) {
        let before = self.by_inode.len();
        self.by_inode.retain(|_, file| is_kept(file));
        self.is_dirty |= self.by_inode.len() < before;
    }

    /// Marks files whose preallocation is to be given back at the next apply.
    fn mark_due(&mut self, is_due: impl Fn(u64) -> bool) {
        for (&inode, file) in &mut self.by_inode {
            file.is_due |= is_due(inode);
        }
    }

    fn insert(&mut self, mut file: Listed) {
        self.listings += 1;
        file.listed_at = self.listings;
        self.is_dirty = true;
        self.by_inode.insert(file.inode, file);
    }
}

/// Free room below which the lower filesystem is short of it.
fn short_bytes(space: &SpaceInfo) -> u64 {
    space.total_bytes / SHORT_PARTS
}

/// Whether a file has blocks beyond its end that the store has not allocated: a program has
/// requested them.
pub(crate) fn has_requested_room<L: Lower>(
    lower: &L,
    preallocations: &Preallocations,
    file: &L::Handle,
    stat: &LowerStat,
) -> bool {
    if stat.allocated_bytes == 0 {
        return false;
    }
    let own_end = preallocations.own_end(stat).unwrap_or(0);
    match lower.allocated_after(file, block_end(stat.size)) {
        Ok(end) => end.is_some_and(|end| end > own_end),
        // Nothing else is known there: with so much it is not the end of a block.
        Err(_) => stat.allocated_bytes > stat.size.saturating_add(UNKNOWN_ROOM_BYTES_MIN),
    }
}

/// Where the filesystem does not say where blocks are: so much more than the size is room that was
/// requested.
const UNKNOWN_ROOM_BYTES_MIN: u64 = 256 << 10;

/// Blocks of the list's file itself and of the lists of extents.
const METADATA_BYTES: u64 = 64 << 10;
