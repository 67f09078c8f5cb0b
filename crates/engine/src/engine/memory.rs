//! Limits: memory, room in the lower filesystem, and what may leave memory.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use mobifs_base::{
    AppId, ByteRange, DeviceNumber, NAME_BYTES_MAX, Name, ObjectId, PAGE_BYTES, PAGE_BYTES_U64,
    Page, PageIndex, SYMLINK_BYTES_MAX, SpaceInfo, TransactionId, dentry_room_bytes,
};

use super::Engine;
use crate::error::{FsError, Need, Stop};
use crate::inode::{Inode, ORPHAN};

/// What a changed object or directory entry is charged in memory; and in room below for a name in
/// the store's own directories, which it passes through.
pub(crate) const ENTRY_BYTES: u64 = 512;
/// What a changed object is charged in room below besides. It may need two blocks that are not
/// content: for extended attributes, and for a long symlink, a list of extents, or the first
/// entries of a directory; a directory that grows, for two levels of its index.
pub(crate) const OBJECT_ROOM_BYTES: u64 = ENTRY_BYTES + 2 * PAGE_BYTES_U64;
/// What an entry is charged that names another object than before: its directory may have to
/// split a block for it.
pub(crate) const DENTRY_ROOM_BYTES: u64 = ENTRY_BYTES + PAGE_BYTES_U64;
/// What a page takes in a list of extents if each of its blocks is one, on a filesystem with
/// blocks of 1 KiB; and if the list is full there, besides, where it does not follow on another
/// page: then a block of the list is split.
const EXTENTS_SHARE: u64 = 64;
/// A transaction that the journal is too small for takes this part of its size more, at most, in
/// a file of its own: what its records have besides content.
const OVERFLOW_SHARE: u64 = 4;
/// One part in so many of the memory budget is kept for apps of which less than that is in memory;
/// and of the room below, for those to which less than that is promised.
const KEPT_SHARE: u64 = 8;
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
    /// [`mobifs_base::xattr_room_bytes`]; 0: none are supported.
    pub xattr_bytes_max: usize,
    /// Largest file.
    pub file_bytes_max: u64,
    /// Longest name of something new.
    pub name_bytes_max: usize,
    /// Longest target of a symlink; 0: there are none.
    pub symlink_bytes_max: usize,
    /// Most that the entries of a directory may take together, each of them
    /// [`mobifs_base::dentry_room_bytes`].
    pub directory_bytes_max: u64,
    /// Most links of a file.
    pub links_max: u32,
    /// Largest major and largest minor number of a device node.
    pub device_max: DeviceNumber,
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
            directory_bytes_max: u64::MAX,
            links_max: 65_000,
            device_max: DeviceNumber::MAX,
            privileged: true,
            owner_uid: 0,
            read_only: false,
        }
    }
}

/// What a removal does where the memory budget is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalMemory {
    /// It stops with [`Need::Memory`], as any other change.
    WithinBudget,
    /// It takes the little that it needs. Only for where nothing can be committed, because the
    /// disk is full or fails: removing must stay possible, for it is what makes room.
    BeyondBudget,
}

/// Memory used, and room promised.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    /// Memory of open and closed transactions and of orphans.
    pub(crate) dirty_bytes: u64,
    /// Part of it: pages of objects without a link.
    pub(crate) orphan_bytes: u64,
    /// Room that open and closed transactions will need.
    pub(crate) reserved_bytes: u64,
    pub(crate) reserved_inodes: u64,
    /// What the store needs for committed work that is not applied.
    store_reserved_bytes: u64,
    store_reserved_inodes: u64,
    /// What the lower filesystem has; none: unlimited.
    space: Option<SpaceInfo>,
    on_full_disk: FullDisk,
    /// A program may still roll back what it is changing.
    is_revocable: bool,
}

/// What may be promised although the lower filesystem has no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FullDisk {
    /// Uncommitted changes that the store commits without taking any room, in bytes: so much
    /// content may be overwritten that has its blocks. What is larger takes room for itself, until
    /// it is applied. 0: not known.
    pub overwritten_bytes_max: u64,
    /// Entries that may move, in bytes as they are charged, because the store keeps room for
    /// the directories that grow by it.
    pub entries_bytes_max: u64,
}

/// Whether there is room below for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    /// It needs none, or there is any amount.
    Always,
    /// So much is needed with it, for all that was acknowledged, and it is there.
    With(u64),
    /// There is less than that.
    Never,
}

impl Room {
    /// What there is below for content and for what it brings along.
    fn available_bytes(&self) -> u64 {
        self.space.map_or(u64::MAX, |space| {
            let metadata_bytes = space.metadata_bytes.unwrap_or(u64::MAX);
            space.available_bytes.min(metadata_bytes)
        })
    }

    /// Whether a change of so much memory, that takes so much room and so many inodes, fits below.
    fn fit(&self, memory_bytes: u64, room_bytes: u64, inodes: u64) -> Fit {
        // What rolls back may wait in memory until there is room to commit it.
        let may_wait = self.is_revocable && room_bytes == 0 && inodes == 0;
        let overflow_bytes = match memory_bytes {
            0 => 0,
            _ if may_wait => 0,
            bytes => self.overflow_bytes(bytes),
        };
        let needs_room = room_bytes > 0 || inodes > 0 || overflow_bytes > 0;
        let Some(space) = self.space.filter(|_| needs_room) else {
            // What needs no room succeeds also where others have taken all of it: otherwise
            // nothing could be deleted to free some.
            return Fit::Always;
        };
        let promised_inodes = self.reserved_inodes + self.store_reserved_inodes;
        let inodes_fit = inodes == 0
            || space.total_inodes == 0
            || promised_inodes + inodes + space.own_inodes() <= space.free_inodes;
        let needed = room_bytes
            .saturating_add(overflow_bytes)
            .saturating_add(self.promised_bytes());
        if needed > self.available_bytes() || !inodes_fit {
            return Fit::Never;
        }
        Fit::With(needed)
    }

    /// Room that others may not have any more.
    const fn promised_bytes(&self) -> u64 {
        self.reserved_bytes + self.store_reserved_bytes
    }

    /// Room that committing takes for itself, with so much more to be committed: the journal may be
    /// too small for it.
    const fn overflow_bytes(&self, more_bytes: u64) -> u64 {
        let bytes = self.dirty_bytes - self.orphan_bytes + more_bytes;
        let in_journal = self.on_full_disk.overwritten_bytes_max;
        if in_journal == 0 || bytes <= in_journal {
            return 0;
        }
        bytes + bytes / OVERFLOW_SHARE
    }

    /// What a transaction needs is the store's concern from now on, which says so the next time
    /// it is asked. Until then it stays reserved here.
    pub(crate) const fn hand_over(&mut self, bytes: u64, inodes: u64) {
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
        space.free_inodes = space
            .free_inodes
            .saturating_sub(inodes + space.own_inodes());
        space
    }

    /// Whether all that was acknowledged can be committed and applied with the room that the
    /// lower filesystem had when it was asked last. Other programs take what was promised.
    pub fn has_promised_room(&self) -> bool {
        let room = &self.room;
        let needed = room.promised_bytes() + room.overflow_bytes(0);
        needed <= room.available_bytes()
    }

    /// Whether all that is uncommitted can be committed with that room. What only overwrites needs
    /// none, even if another program has taken the room that committed changes are to be applied
    /// with.
    pub fn can_commit(&self) -> bool {
        let takes_none = self.room.reserved_bytes == 0 && self.room.overflow_bytes(0) == 0;
        takes_none || self.has_promised_room()
    }

    /// Says whether a program may still roll back what it is changing, by changing it again.
    pub fn set_revocable(&mut self, is_revocable: bool) {
        self.room.is_revocable = is_revocable;
    }

    /// Whether open transactions stay open, whatever their policies say: a program may roll back
    /// what they hold, and there is no room to commit them. What is overwritten in an open
    /// transaction takes no memory and no room again, as it does in one that was closed.
    pub fn keeps_open(&self) -> bool {
        self.room.is_revocable && !self.can_commit()
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

    /// Whether so much more may be changed at an object. The last part of the budget is for
    /// apps that have little in memory: they do not wait for one that fills it.
    fn fits_in_memory(&mut self, at: ObjectId, bytes: u64) -> bool {
        let dirty_bytes = self.room.dirty_bytes;
        let budget_bytes = self.limits.memory_budget_bytes;
        let kept_bytes = budget_bytes / KEPT_SHARE;
        // A single operation larger than the whole budget still goes through alone.
        if dirty_bytes == 0 || dirty_bytes + bytes <= budget_bytes - kept_bytes {
            return true;
        }
        // What a deleted file holds is in no app's transactions.
        let is_orphan = self.inodes.get(&at).is_some_and(Inode::is_orphan);
        if is_orphan || self.dirty_bytes_of(at) + bytes > kept_bytes {
            return false;
        }
        // Where nothing can be committed, removals go beyond the budget. What is kept is there
        // for the others all the same.
        dirty_bytes + bytes <= budget_bytes || self.small_bytes(kept_bytes) + bytes <= kept_bytes
    }

    /// Memory of the uncommitted changes of all apps that have no more than this.
    fn small_bytes(&self, most_bytes: u64) -> u64 {
        let transactions = || {
            let open = self.open.values().map(|open| (&open.apps, open.bytes));
            let closed = self.closed.values();
            open.chain(closed.map(|closed| (&closed.apps, closed.bytes)))
        };
        let mut of_apps: BTreeMap<AppId, u64> = BTreeMap::new();
        for (apps, bytes) in transactions() {
            for app in apps {
                *of_apps.entry(*app).or_default() += bytes;
            }
        }
        let is_small = |app: &AppId| of_apps.get(app).is_none_or(|&bytes| bytes <= most_bytes);
        let small = transactions().filter(|(apps, _)| apps.iter().all(is_small));
        small.map(|(_, bytes)| bytes).sum()
    }

    /// Memory of the uncommitted changes of an object's app.
    fn dirty_bytes_of(&mut self, id: ObjectId) -> u64 {
        self.uncommitted_of(id).0
    }

    /// Memory of the uncommitted changes of an object's app, and the room promised to them.
    fn uncommitted_of(&mut self, id: ObjectId) -> (u64, u64) {
        let app = self.app_of(id);
        let open = self.apps[app.0 as usize].open;
        let open = open.and_then(|transaction| self.open.get(&transaction));
        let open = open.map(|open| (open.bytes, open.reserved_bytes));
        let closed = self.closed.values();
        let closed = closed.filter(|closed| closed.apps.contains(&app));
        let closed = closed.map(|closed| (closed.bytes, closed.reserved_bytes));
        open.into_iter()
            .chain(closed)
            .fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1))
    }

    /// Whether a change that needs so much room may have it. The last part of the room is for apps
    /// to which little is promised: they do not wait while one that fills the disk commits, which
    /// takes back what it was promised too much. Nothing is withheld for long: what is committed
    /// is not the app's any more, so the last block can be used, too.
    fn leaves_room_to_others(&mut self, at: ObjectId, needed: u64, room_bytes: u64) -> bool {
        let available_bytes = self.room.available_bytes();
        let kept_bytes = available_bytes / KEPT_SHARE;
        if needed <= available_bytes - kept_bytes {
            return true;
        }
        let (dirty_bytes, reserved_bytes) = self.uncommitted_of(at);
        dirty_bytes == 0 || reserved_bytes + room_bytes <= kept_bytes
    }

    /// Checks that a change at an object fits in memory and below.
    pub(crate) fn require(
        &mut self,
        at: ObjectId,
        memory_bytes: u64,
        room_bytes: u64,
        inodes: u64,
    ) -> Result<(), Stop> {
        if self.limits.read_only {
            return Err(FsError::ReadOnly.into());
        }
        if !self.fits_in_memory(at, memory_bytes) {
            return Err(Stop::Need(Need::Memory));
        }
        let fits = match self.room.fit(memory_bytes, room_bytes, inodes) {
            Fit::Always => true,
            Fit::Never => false,
            Fit::With(needed) => self.leaves_room_to_others(at, needed, room_bytes),
        };
        if fits {
            Ok(())
        } else {
            Err(Stop::Need(Need::Space))
        }
    }

    /// Checks that a name fits into a directory.
    pub(crate) fn require_entry(&self, parent: ObjectId, name: &Name) -> Result<(), Stop> {
        let taken = self.entries(parent)?.room_bytes();
        let name_bytes = dentry_room_bytes(name.as_bytes().len());
        if taken + name_bytes > self.limits.directory_bytes_max {
            return Err(FsError::NoSpace.into());
        }
        Ok(())
    }

    /// Checks a change of entries and objects, so many together, and perhaps a new inode, in a
    /// directory.
    pub(crate) fn require_entries(
        &mut self,
        parent: ObjectId,
        entries: u64,
        inodes: u64,
    ) -> Result<(), Stop> {
        let room_bytes = entries * OBJECT_ROOM_BYTES + inodes * PAGE_BYTES_U64;
        self.require(parent, entries * ENTRY_BYTES, room_bytes, inodes)
    }

    /// Checks a new object, with a target where it is a symlink.
    pub(crate) fn require_new(&mut self, parent: ObjectId, target_bytes: u64) -> Result<(), Stop> {
        let room_bytes = 3 * OBJECT_ROOM_BYTES + PAGE_BYTES_U64;
        self.require(parent, 3 * ENTRY_BYTES + target_bytes, room_bytes, 1)
    }

    /// Charges a transaction for what is neither an object, nor an entry, nor a page.
    pub(crate) fn charge(
        &mut self,
        transaction: TransactionId,
        memory_bytes: u64,
        room_bytes: u64,
    ) {
        let Some(open) = self.open.get_mut(&transaction) else {
            return;
        };
        open.bytes += memory_bytes;
        open.reserved_bytes += room_bytes;
        self.room.dirty_bytes += memory_bytes;
        self.room.reserved_bytes += room_bytes;
    }

    /// Checks a change of entries that are there, or of files that get more of them. On a full
    /// disk the room that the store keeps is for these.
    pub(crate) fn require_moves(&mut self, parent: ObjectId, entries: u64) -> Result<(), Stop> {
        let Err(stop) = self.require_entries(parent, entries, 0) else {
            return Ok(());
        };
        let room = &self.room;
        let available_bytes = room.space.map_or(0, |space| space.available_bytes);
        let kept_bytes = available_bytes + room.on_full_disk.entries_bytes_max;
        let needed = room.promised_bytes() + entries * OBJECT_ROOM_BYTES;
        if stop == Stop::Need(Need::Space) && needed <= kept_bytes {
            return self.require(parent, entries * ENTRY_BYTES, 0, 0);
        }
        Err(stop)
    }

    /// Checks a change of content. On a full disk what has its blocks below already may be
    /// overwritten.
    pub(crate) fn require_content(&mut self, id: ObjectId, range: ByteRange) -> Result<(), Stop> {
        if self.is_in_open_transaction(id, range) {
            // Its room is reserved. Others may have taken some since: that must not keep a
            // program from undoing what it has just written.
            return Ok(());
        }
        let bytes = range.len();
        let room_bytes = content_room_bytes(bytes) + OBJECT_ROOM_BYTES;
        let Err(stop) = self.require(id, bytes, room_bytes, 0) else {
            return Ok(());
        };
        let is_overwritten = range.end <= self.inode(id)?.attributes.size;
        if self.room.is_revocable && stop == Stop::Need(Need::Space) && is_overwritten {
            // A transaction is rolled back, of which a part was committed with room that others
            // have taken since. A transaction that goes on writes to its journal first, which needs room.
            return Ok(());
        }
        if self.room.fit(bytes, room_bytes, 0) != Fit::Never {
            // There is room, for which others come first.
            return Err(stop);
        }
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
            Some((_, true)) => self.require(id, bytes, 0, 0),
            Some((_, false)) => Err(stop),
            None => Err(Stop::Need(Need::Place {
                object: id,
                range,
                version,
            })),
        }
    }

    /// Whether the transaction that is open has all of these pages, and they can become no larger.
    fn is_in_open_transaction(&self, id: ObjectId, range: ByteRange) -> bool {
        let inode = self.inodes.get(&id);
        let Some((inode, change)) = inode.and_then(|it| Some((it, it.change.as_ref()?))) else {
            return false;
        };
        let is_whole = |index| {
            let slot = inode.pages.get(&PageIndex(index));
            slot.is_some_and(|slot| {
                slot.transaction == change.transaction && slot.page.stored_bytes() == PAGE_BYTES
            })
        };
        let mut pages = range.start / PAGE_BYTES_U64..range.end.div_ceil(PAGE_BYTES_U64);
        self.open.contains_key(&change.transaction) && pages.all(is_whole)
    }

    /// Checks that an entry may go.
    pub(crate) fn require_removal(
        &mut self,
        parent: ObjectId,
        memory: RemovalMemory,
    ) -> Result<(), Stop> {
        match self.require_less(parent, ENTRY_BYTES) {
            Err(Stop::Need(Need::Memory)) if memory == RemovalMemory::BeyondBudget => Ok(()),
            other => other,
        }
    }

    /// Checks that content may be cut off.
    pub(crate) fn require_cut(&mut self, id: ObjectId) -> Result<(), Stop> {
        self.require_less(id, PAGE_BYTES_U64)
    }

    /// Checks what gives room back below. Where there is none, what is not committed must not become
    /// more than the journal takes; unless it is more already, because others have taken the room
    /// since: then it can only become less, but for so much memory.
    fn require_less(&mut self, at: ObjectId, memory_bytes: u64) -> Result<(), Stop> {
        let is_too_much = self.room.overflow_bytes(0) > 0;
        match self.require(at, memory_bytes, 0, 0) {
            Err(Stop::Need(Need::Space)) if is_too_much => Ok(()),
            other => other,
        }
    }

    /// Checks a change of what is there: it needs memory, and below nothing that is not
    /// there already.
    pub(crate) fn require_change(&mut self, id: ObjectId) -> Result<(), Stop> {
        self.require(id, ENTRY_BYTES, 0, 0)
    }

    /// The kernel dropped `count` references to an object.
    pub fn forget(&mut self, id: ObjectId, count: u64) {
        if let Some(inode) = self.inodes.get_mut(&id) {
            inode.lookups = inode.lookups.saturating_sub(count);
        }
        self.dispose_if_unused(id);
        self.evict_if_crowded(id);
    }

    /// Frees an object without links as soon as it is not in use: its pages at once,
    /// itself when no transaction mentions it any more, and then the removed directories above
    /// it, of which there may be any number, as far as nothing else needs them.
    pub(crate) fn dispose_if_unused(&mut self, id: ObjectId) {
        let mut next = Some(id);
        while let Some(id) = next {
            next = if self.frees_pages_of(id) {
                self.take_out(id)
            } else {
                None
            };
        }
    }

    /// Frees the pages of an object without links that is not in use; whether the object itself
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
            let keep = slot.transaction != ORPHAN;
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
    pub(crate) fn evict(&mut self, id: ObjectId) {
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
            self.forgotten.insert(id);
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
        core::mem::take(&mut self.forgotten).into_iter().collect()
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

    /// Pinned objects that went out of use since the last call: to be unpinned.
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
                    .filter(|(_, slot)| slot.transaction == ORPHAN)
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
                .is_some_and(|slot| slot.transaction == ORPHAN && slot.page == *page);
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

/// What content of so many bytes, in one run, takes below at most.
pub(crate) const fn content_room_bytes(bytes: u64) -> u64 {
    bytes + bytes / EXTENTS_SHARE + 2 * PAGE_BYTES_U64
}

/// What a page takes below at most.
pub(crate) const fn page_room_bytes(follows_on: bool) -> u64 {
    let list = if follows_on { 0 } else { PAGE_BYTES_U64 };
    PAGE_BYTES_U64 + PAGE_BYTES_U64 / EXTENTS_SHARE + list
}
