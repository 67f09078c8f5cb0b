//! Limits: memory, room in the lower filesystem, and what may leave memory.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use mobifs_types::{
    ByteRange, NAME_BYTES_MAX, ObjectId, PAGE_BYTES_U64, Page, PageIndex, SYMLINK_BYTES_MAX,
    SpaceInfo,
};

use super::Engine;
use crate::error::{FsError, Need, Stop};
use crate::inode::ORPHAN;

/// What a changed object or directory entry is charged, in memory and in room below.
pub(super) const ENTRY_BYTES: u64 = 512;
/// What a changed object is charged in room below: it may need a block that is not content, as
/// for a list of extents, for the first entries of a directory, for a long symlink, or for
/// extended attributes.
pub(super) const OBJECT_ROOM_BYTES: u64 = ENTRY_BYTES + PAGE_BYTES_U64;
/// Most pages handed out by one [`Engine::spill_candidate`].
const SPILL_PAGES_MAX: usize = 4096;

/// Limits that an operation must keep before it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Memory for what is not committed, in bytes.
    pub memory_budget_bytes: u64,
    /// Objects kept in memory although no program uses them. A memory budget for which that
    /// many are too many lowers it.
    pub objects_max: usize,
    /// Room for one object's extended attributes, each of which takes
    /// [`mobifs_types::xattr_room_bytes`]; 0: none are supported.
    pub xattr_bytes_max: usize,
    /// Largest file.
    pub file_bytes_max: u64,
    /// Longest name of something new.
    pub name_bytes_max: usize,
    /// Longest target of a symlink; 0: there are none.
    pub symlink_bytes_max: usize,
    /// Most links of a file.
    pub links_max: u32,
    /// The lower filesystem lets us make devices and give files away.
    pub privileged: bool,
    /// If it does not: whose everything new is.
    pub owner_uid: u32,
    /// Nothing may change.
    pub read_only: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_budget_bytes: 256 << 20,
            objects_max: 200_000,
            xattr_bytes_max: 64 << 10,
            file_bytes_max: i64::MAX as u64,
            name_bytes_max: NAME_BYTES_MAX,
            symlink_bytes_max: SYMLINK_BYTES_MAX,
            links_max: 65_000,
            privileged: true,
            owner_uid: 0,
            read_only: false,
        }
    }
}

/// Memory used, and room promised.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    /// Memory of open and closed transactions and of orphans.
    pub(super) dirty_bytes: u64,
    /// Part of it: pages of objects without a link.
    pub(super) orphan_bytes: u64,
    /// Room that open and closed transactions will need.
    pub(super) reserved_bytes: u64,
    pub(super) reserved_inodes: u64,
    /// What the store needs for committed work that is not applied.
    store_reserved_bytes: u64,
    store_reserved_inodes: u64,
    /// What the lower filesystem has; none: unlimited.
    space: Option<SpaceInfo>,
    on_full_disk: FullDisk,
}

/// What may be promised although the lower filesystem has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FullDisk {
    /// Uncommitted changes that the store commits without taking any room, in bytes: so much
    /// content may be overwritten that has its blocks.
    pub overwritten_bytes_max: u64,
    /// Entries that may move, in bytes as they are charged, because the store keeps room for
    /// the directories that grow by it.
    pub entries_bytes_max: u64,
}

impl Room {
    /// Room that others may not have any more.
    const fn promised_bytes(&self) -> u64 {
        self.reserved_bytes + self.store_reserved_bytes
    }

    /// What a transaction needs is the store's concern from now on, which says so the next time
    /// it is asked. Until then nobody else may have it.
    pub(super) const fn hand_over(&mut self, bytes: u64, inodes: u64) {
        self.reserved_bytes -= bytes;
        self.reserved_inodes -= inodes;
        if self.space.is_some() {
            self.store_reserved_bytes += bytes;
            self.store_reserved_inodes += inodes;
        }
    }
}

impl Engine {
    /// Tells the engine how much room the lower filesystem has, and how much of it
    /// the store needs for committed work.
    pub fn set_space(&mut self, space: SpaceInfo, reserved_bytes: u64, reserved_inodes: u64) {
        // What was applied meanwhile has blocks now.
        self.place_arrivals.clear();
        self.room.space = Some(space);
        self.room.store_reserved_bytes = reserved_bytes;
        self.room.store_reserved_inodes = reserved_inodes;
    }

    /// Tells the engine what it may promise where there is no room.
    pub fn set_full_disk(&mut self, on_full_disk: FullDisk) {
        self.room.on_full_disk = on_full_disk;
    }

    /// Room as a user of the mount sees it: everything acknowledged is taken off.
    pub fn space(&self) -> SpaceInfo {
        let mut space = self.room.space.unwrap_or_default();
        let promised = self.room.promised_bytes();
        space.free_bytes = space.free_bytes.saturating_sub(promised);
        space.available_bytes = space.available_bytes.saturating_sub(promised);
        let inodes = self.room.reserved_inodes + self.room.store_reserved_inodes;
        space.free_inodes = space.free_inodes.saturating_sub(inodes);
        space
    }

    /// Bytes of memory that uncommitted changes take.
    pub fn dirty_bytes(&self) -> u64 {
        self.room.dirty_bytes
    }

    /// Bytes of memory that belong to objects without a link: a commit does not free
    /// them, [`Engine::spill_candidate`] does.
    pub fn orphan_bytes(&self) -> u64 {
        self.room.orphan_bytes
    }

    /// Objects in memory.
    pub fn objects(&self) -> u64 {
        self.inodes.len() as u64
    }

    /// Changes the memory budget while mounted.
    pub fn set_memory_budget(&mut self, bytes: u64) {
        self.limits.memory_budget_bytes = bytes;
    }

    /// Checks that a change fits in memory and below.
    pub(super) fn require(
        &self,
        memory_bytes: u64,
        room_bytes: u64,
        inodes: u64,
    ) -> Result<(), Stop> {
        if self.limits.read_only {
            return Err(FsError::ReadOnly.into());
        }
        let room = &self.room;
        // A single operation larger than the whole budget still goes through alone.
        if room.dirty_bytes > 0 && room.dirty_bytes + memory_bytes > self.limits.memory_budget_bytes
        {
            return Err(Stop::Need(Need::Memory));
        }
        let Some(space) = room.space.filter(|_| room_bytes > 0 || inodes > 0) else {
            // What needs no room does not care that others have taken all of it: how else
            // would somebody give room back?
            return Ok(());
        };
        let promised_inodes = room.reserved_inodes + room.store_reserved_inodes;
        let inodes_fit = space.total_inodes == 0 || promised_inodes + inodes <= space.free_inodes;
        let needed = room_bytes.saturating_add(room.promised_bytes());
        if needed > space.available_bytes || !inodes_fit {
            return Err(Stop::Need(Need::Space));
        }
        Ok(())
    }

    /// Checks a change of entries and objects, so many together, and perhaps a new inode.
    pub(super) fn require_entries(&self, entries: u64, inodes: u64) -> Result<(), Stop> {
        let room_bytes = entries * OBJECT_ROOM_BYTES + inodes * PAGE_BYTES_U64;
        self.require(entries * ENTRY_BYTES, room_bytes, inodes)
    }

    /// Checks a change of entries that are there, or of files that get more of them. On a full
    /// disk the room that the store keeps is for these.
    pub(super) fn require_moves(&self, entries: u64) -> Result<(), Stop> {
        let Err(stop) = self.require_entries(entries, 0) else {
            return Ok(());
        };
        let room = &self.room;
        let available_bytes = room.space.map_or(0, |space| space.available_bytes);
        let kept_bytes = available_bytes + room.on_full_disk.entries_bytes_max;
        let needed = room.promised_bytes() + entries * OBJECT_ROOM_BYTES;
        if stop == Stop::Need(Need::Space) && needed <= kept_bytes {
            return self.require(entries * ENTRY_BYTES, 0, 0);
        }
        Err(stop)
    }

    /// Checks a change of content. On a full disk what has its blocks below already may be
    /// overwritten.
    pub(super) fn require_content(&self, id: ObjectId, range: ByteRange) -> Result<(), Stop> {
        let bytes = range.len();
        let Err(stop) = self.require(bytes, bytes + OBJECT_ROOM_BYTES, 0) else {
            return Ok(());
        };
        let inode = self.inode(id)?;
        let changed_bytes = self.room.dirty_bytes - self.room.orphan_bytes;
        let fits = changed_bytes + bytes <= self.room.on_full_disk.overwritten_bytes_max;
        let is_known = inode.known_to_store && !inode.is_orphan() && !inode.gives_back(range);
        if stop != Stop::Need(Need::Space) || !fits || !is_known {
            return Err(stop);
        }
        let version = inode.version;
        let asked = (id, range, version);
        let arrived = self.place_arrivals.iter().find(|(of, _)| *of == asked);
        match arrived {
            Some((_, true)) => self.require(bytes, 0, 0),
            Some((_, false)) => Err(stop),
            None => Err(Stop::Need(Need::Place {
                object: id,
                range,
                version,
            })),
        }
    }

    /// Checks a change of what is there: it needs memory, and below nothing that is not
    /// there already.
    pub(super) fn require_change(&self) -> Result<(), Stop> {
        self.require(ENTRY_BYTES, 0, 0)
    }

    /// The kernel dropped `count` references to an object.
    pub fn forget(&mut self, id: ObjectId, count: u64) {
        if let Some(inode) = self.inodes.get_mut(&id) {
            inode.lookups = inode.lookups.saturating_sub(count);
        }
        self.dispose_if_unused(id);
        self.evict_if_crowded(id);
    }

    /// Frees an object without links as soon as nobody uses it: its pages at once,
    /// itself when no transaction mentions it any more, and then the removed directories above
    /// it, of which there may be any number, as far as nothing else needs them.
    pub(super) fn dispose_if_unused(&mut self, id: ObjectId) {
        let mut next = Some(id);
        while let Some(id) = next {
            next = if self.frees_pages_of(id) {
                self.take_out(id)
            } else {
                None
            };
        }
    }

    /// Frees the pages of an object without links that nobody uses; whether the object itself
    /// can leave memory, too.
    fn frees_pages_of(&mut self, id: ObjectId) -> bool {
        let Some(inode) = self.inodes.get_mut(&id) else {
            return false;
        };
        if !inode.is_orphan() || inode.lookups > 0 || inode.opens > 0 || id == ObjectId::ROOT {
            return false;
        }
        let mut freed = 0;
        inode.pages.retain(|slot| {
            let keep = slot.vct != ORPHAN;
            freed += if keep {
                0
            } else {
                slot.page.stored_bytes() as u64
            };
            keep
        });
        self.room.orphan_bytes -= freed;
        self.room.dirty_bytes -= freed;
        inode.holds == 0 && inode.residents == 0
    }

    /// Takes an object out of memory, and the removed directories above it that were there only
    /// for its sake.
    pub(super) fn evict(&mut self, id: ObjectId) {
        if let Some(home) = self.take_out(id) {
            self.dispose_if_unused(home);
        }
    }

    /// Takes an object out of memory; the directory that it had its place in, if nothing else in
    /// memory has.
    fn take_out(&mut self, id: ObjectId) -> Option<ObjectId> {
        let inode = self.inodes.remove(&id)?;
        self.several_names.remove(&id);
        self.departures.left(id);
        self.arrivals.remove(&id);
        if inode.pinned {
            self.unpinned.push(id);
        }
        if inode.is_directory() || inode.is_orphan() {
            // A file stays known to the store as long as its directory's listing,
            // which names it, is in memory.
            self.forgotten.push(id);
        }
        let home = self.inodes.get_mut(&inode.home)?;
        home.residents -= 1;
        (home.residents == 0).then_some(inode.home)
    }

    /// Directories whose listing, and deleted objects that, left memory since the last
    /// call: the store may forget them, and what it knows only as entries of them.
    ///
    /// Until [`Engine::forgotten`] says that the store has done so, no answer that
    /// names objects is accepted, because the store may be about to forget these.
    pub fn take_forgotten(&mut self) -> Vec<ObjectId> {
        self.is_forgetting = !self.forgotten.is_empty();
        if self.is_forgetting {
            self.arrivals.clear();
        }
        core::mem::take(&mut self.forgotten)
    }

    /// Whether [`Engine::take_forgotten`] would name any.
    pub fn has_forgotten(&self) -> bool {
        !self.forgotten.is_empty()
    }

    /// Objects in memory of which the directory whose listing is kept for them need not be one
    /// that names them: the store must know these as long as they are here, whichever listings
    /// leave memory.
    pub fn objects_with_several_names(&self) -> &BTreeSet<ObjectId> {
        &self.several_names
    }

    /// The store has forgotten what [`Engine::take_forgotten`] named.
    pub fn forgotten(&mut self) {
        self.is_forgetting = false;
        self.departures.all_left();
    }

    /// Pinned objects that nobody uses since the last call: to be unpinned.
    pub fn take_unpinned(&mut self) -> Vec<ObjectId> {
        core::mem::take(&mut self.unpinned)
    }

    /// Whether [`Engine::take_unpinned`] would name any.
    pub fn has_unpinned(&self) -> bool {
        !self.unpinned.is_empty()
    }

    /// Pages of an object without links that may leave memory by
    /// `Store::spill`: nothing uncommitted mentions it.
    pub fn spill_candidate(&self) -> Option<(ObjectId, Vec<(PageIndex, Page)>)> {
        self.inodes
            .iter()
            .filter(|(_, inode)| inode.is_orphan() && inode.holds == 0)
            .map(|(&id, inode)| {
                let pages: Vec<_> = inode
                    .pages
                    .iter()
                    .filter(|(_, slot)| slot.vct == ORPHAN)
                    .take(SPILL_PAGES_MAX)
                    .map(|(&index, slot)| (index, slot.page.clone()))
                    .collect();
                (id, pages)
            })
            // The choice must not depend on the order of a hash table.
            .max_by_key(|(id, pages)| (pages.len(), id.0))
            .filter(|(_, pages)| !pages.is_empty())
    }

    /// The store has these pages of an orphan now.
    pub fn spilled(&mut self, id: ObjectId, pages: &[(PageIndex, Page)]) {
        let Some(inode) = self.inodes.get_mut(&id) else {
            return;
        };
        inode.known_to_store = true;
        inode.pinned = true;
        inode.version += 1;
        for (index, page) in pages {
            let end = index.offset() + PAGE_BYTES_U64;
            inode.store_bytes = inode.store_bytes.max(end);
            let unchanged = inode
                .pages
                .get(index)
                .is_some_and(|slot| slot.vct == ORPHAN && slot.page == *page);
            if unchanged && let Some(slot) = inode.pages.remove(index) {
                let bytes = slot.page.stored_bytes() as u64;
                self.room.orphan_bytes -= bytes;
                self.room.dirty_bytes -= bytes;
                if let Some(change) = &mut inode.change {
                    change.zeroed.remove(ByteRange::new(index.offset(), end));
                }
            }
        }
    }
}
