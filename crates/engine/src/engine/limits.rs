//! Limits: the memory and room that an operation needs before it is acknowledged.

use mobifs_base::{
    ByteRange, FullDisk, Name, ObjectId, PAGE_BYTES_U64, Room, SpaceInfo, TransactionId,
    dentry_room_bytes,
};

use super::Engine;
use crate::accounting::{Charge, Charged, ENTRY_BYTES, Fit};
use crate::error::{FsError, Need, Stop};
use crate::inode::Inode;

use crate::versions::Change;

/// This fraction of the memory budget is kept for apps that use less than that; and this fraction
/// of the room in the lower filesystem, for apps with less reserved room than that.
const KEPT_SHARE: u64 = 8;

/// How a removal behaves where the memory budget is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemovalMemory {
    /// It stops with [`Need::Memory`], as any other change.
    WithinBudget,
    /// It takes the little memory that it needs. Only where nothing can be committed, because the
    /// disk is full or fails: removals must stay possible, because they make room.
    BeyondBudget,
}

/// The room of so many bytes of content, in one run whose ends may lie in the middle of blocks.
pub(super) const fn content_room(bytes: u64) -> Room {
    Room::of_run(bytes).saturating_add(Room::of_blocks(1))
}

/// Memory and room: what there is, and whether an operation fits, which depends on the object's app
/// and its transactions.
impl Engine {
    /// Sets how much room the lower filesystem has, and how much of it the store has reserved for
    /// committed work.
    pub fn set_space(&mut self, space: SpaceInfo, store_reserved: Room) {
        // Changes applied meanwhile have blocks now.
        self.fetched_content.drop_places();
        self.accounting.set_space(space, store_reserved);
    }

    /// Sets what the engine may reserve where there is no room.
    pub fn set_full_disk(&mut self, on_full_disk: FullDisk) {
        self.accounting.set_full_disk(on_full_disk);
    }

    /// Room as a user of the mount sees it: that of the lower filesystem without the reservations
    /// for acknowledged changes.
    pub fn space(&self) -> SpaceInfo {
        self.accounting.visible_space()
    }

    /// Whether all acknowledged changes can be committed and applied with the last known room of
    /// the lower filesystem. Other programs may take reserved room.
    pub fn has_promised_room(&self) -> bool {
        self.accounting.has_promised_room()
    }

    /// Whether all uncommitted changes can be committed with that room. Overwrites need none, even
    /// if another program has taken the room reserved for applying committed changes.
    pub fn can_commit(&self) -> bool {
        self.accounting.can_commit()
    }

    /// Sets whether a program may still roll back its changes by further changes.
    pub fn set_may_roll_back(&mut self, may_roll_back: bool) {
        self.accounting.set_may_roll_back(may_roll_back);
    }

    /// Whether open transactions stay open, whatever their policies say: a program may roll back
    /// their changes, and there is no room to commit them. An overwrite within an open transaction
    /// takes no further memory or room; after it is closed it does.
    pub fn keeps_open(&self) -> bool {
        self.accounting.may_roll_back() && !self.can_commit()
    }

    /// Bytes of memory that uncommitted changes use.
    pub fn dirty_bytes(&self) -> u64 {
        self.accounting.dirty_bytes()
    }

    /// Bytes of memory that belong to objects without a link: a commit does not free
    /// them, [`Engine::spill_candidate`] does.
    pub fn orphan_bytes(&self) -> u64 {
        self.accounting.orphan_bytes()
    }

    /// Changes the memory budget while mounted.
    pub fn set_memory_budget(&mut self, bytes: u64) {
        self.limits.memory_budget_bytes = bytes;
    }

    /// Whether so much more may be changed at an object. The last part of the budget is for apps
    /// that use little memory: they do not wait for one that fills it.
    fn fits_in_memory(&mut self, at: ObjectId, bytes: u64) -> bool {
        let dirty_bytes = self.accounting.dirty_bytes();
        let budget_bytes = self.limits.memory_budget_bytes;
        let kept_bytes = budget_bytes / KEPT_SHARE;
        // A single operation larger than the whole budget is still admitted alone.
        if dirty_bytes == 0 || dirty_bytes + bytes <= budget_bytes - kept_bytes {
            return true;
        }
        // Pages of a deleted file are in no app's transactions.
        let is_orphan = self.namespace.get(&at).is_some_and(Inode::is_orphan);
        if is_orphan || self.charged_at(at).memory_bytes() + bytes > kept_bytes {
            return false;
        }
        // Where nothing can be committed, removals go beyond the budget. The kept part stays
        // available to other apps.
        dirty_bytes + bytes <= budget_bytes
            || self.transactions.memory_of_small_apps(kept_bytes) + bytes <= kept_bytes
    }

    /// Whether changes of an object that need room are refused: the uncommitted ones of its app
    /// have found none. An object without a link is in no transaction.
    fn is_starved(&mut self, id: ObjectId) -> bool {
        if self.namespace.get(&id).is_some_and(Inode::is_orphan) {
            return false;
        }
        let app = self.namespace.app_of(id, &mut self.apps);
        self.apps.get(app).refusal == Some(FsError::NoSpace)
    }

    /// The charge of the uncommitted changes of an object's app.
    fn charged_at(&mut self, id: ObjectId) -> Charged {
        let app = self.namespace.app_of(id, &mut self.apps);
        self.transactions.charged_to(app, self.apps.open_of(app))
    }

    /// Whether a change may have the room that it needs. The last part of the room is for apps with
    /// little reserved room: they do not wait while an app that fills the disk commits, which
    /// releases its excess reservations. This holds back no room for long: committed changes do not
    /// count for the app any more, so the last block can be used, too.
    fn leaves_room_to_others(&mut self, at: ObjectId, needed: u64, room: Room) -> bool {
        let available_bytes = self.accounting.available_bytes();
        let kept_bytes = available_bytes / KEPT_SHARE;
        if needed <= available_bytes - kept_bytes {
            return true;
        }
        let charged = self.charged_at(at);
        charged.memory_bytes() == 0 || charged.room().saturating_add(room).bytes() <= kept_bytes
    }

    /// Checks that a change at an object fits in memory and in the lower filesystem.
    pub(crate) fn require(&mut self, at: ObjectId, change: Charge) -> Result<(), Stop> {
        if self.limits.read_only {
            return Err(FsError::ReadOnly.into());
        }
        if !change.room.is_none() && self.is_starved(at) {
            // No need can be met: the app's uncommitted changes have to be committed first.
            return Err(FsError::NoSpace.into());
        }
        if !self.fits_in_memory(at, change.memory_bytes) {
            return Err(Stop::Need(Need::Memory));
        }
        let fits = match self.accounting.fit(change) {
            Fit::Always => true,
            Fit::Never => false,
            Fit::With(needed) => self.leaves_room_to_others(at, needed, change.room),
        };
        if fits {
            Ok(())
        } else {
            Err(Stop::Need(Need::Space))
        }
    }

    /// Checks that a name fits into a directory.
    pub(crate) fn require_entry(&self, parent: ObjectId, name: &Name) -> Result<(), Stop> {
        let taken = self.namespace.entries(parent)?.room_bytes();
        let name_bytes = dentry_room_bytes(name.as_bytes().len());
        if taken + name_bytes > self.limits.directory_bytes_max {
            return Err(FsError::NoSpace.into());
        }
        Ok(())
    }

    /// Checks a change of entries and objects, so many together, in a directory, and what else it
    /// takes: perhaps a new inode.
    pub(crate) fn require_entries(
        &mut self,
        parent: ObjectId,
        entries: u64,
        more: Room,
    ) -> Result<(), Stop> {
        let objects = Room::of_objects(entries).saturating_add(Room::of_blocks(more.inodes()));
        let room = objects.saturating_add(more);
        self.require(parent, Charge::of(entries * ENTRY_BYTES, room))
    }

    /// Checks a new object, with its target where it is a symlink, and what it inherits.
    pub(crate) fn require_new(&mut self, parent: ObjectId, more: Charge) -> Result<(), Stop> {
        let objects = Room::of_objects(3).saturating_add(Room::of_blocks(1));
        let room = objects
            .saturating_add(Room::INODE)
            .saturating_add(more.room);
        let memory_bytes = 3 * ENTRY_BYTES + more.memory_bytes;
        self.require(parent, Charge::of(memory_bytes, room))
    }

    /// Charges a transaction for what is neither an object, nor an entry, nor a page.
    pub(crate) fn charge(&mut self, transaction: TransactionId, charge: Charge) {
        if let Some(open) = self.transactions.open_mut(transaction) {
            self.accounting.charge(open, charge);
        }
    }

    /// Checks a change of entries that are there, or of files that get more of them. On a full
    /// disk the room that the store keeps is for these.
    pub(crate) fn require_moves(&mut self, parent: ObjectId, entries: u64) -> Result<(), Stop> {
        let Err(stop) = self.require_entries(parent, entries, Room::NONE) else {
            return Ok(());
        };
        let needed = Room::of_objects(entries).bytes();
        if stop == Stop::Need(Need::Space) && self.accounting.has_room_for_moves(needed) {
            return self.require(parent, Charge::memory(entries * ENTRY_BYTES));
        }
        Err(stop)
    }

    /// Checks a change of content. On a full disk content that has blocks in the lower filesystem
    /// may be overwritten.
    pub(crate) fn require_content(&mut self, id: ObjectId, range: ByteRange) -> Result<(), Stop> {
        if self.is_in_open_transaction(id, range) {
            // Its room is reserved. Other programs may have taken some since: that must not keep a
            // program from undoing its last writes.
            return Ok(());
        }
        let bytes = range.len();
        let room = content_room(bytes).saturating_add(Room::OBJECT);
        let change = Charge::of(bytes, room);
        let Err(stop) = self.require(id, change) else {
            return Ok(());
        };
        let is_overwritten = range.end <= self.namespace.inode(id)?.attributes.size;
        if self.accounting.may_roll_back() && stop == Stop::Need(Need::Space) && is_overwritten {
            // A transaction is rolled back of which a part was committed, with room that other
            // programs have taken since. A transaction that goes on writes to its journal first,
            // which needs room.
            return Ok(());
        }
        if self.accounting.fit(change) != Fit::Never {
            // There is room, but other apps have priority.
            return Err(stop);
        }
        let inode = self.namespace.inode(id)?;
        let fits = self.accounting.has_journal_for(bytes);
        let is_known = inode.versions.is_known_to_store()
            && !inode.is_orphan()
            && !inode.versions.gives_back(range);
        if stop != Stop::Need(Need::Space) || !fits || !is_known {
            return Err(stop);
        }
        let version = inode.versions.version();
        let asked = (id, range, version);
        match self.fetched_content.is_in_place(asked) {
            Some(true) => self.require(id, Charge::memory(bytes)),
            Some(false) => Err(stop),
            None => Err(Stop::Need(Need::Place {
                object: id,
                range,
                version,
            })),
        }
    }

    /// Whether the transaction that is open has all of these pages, and they can become no larger.
    fn is_in_open_transaction(&self, id: ObjectId, range: ByteRange) -> bool {
        let versions = self.namespace.get(&id).map(|inode| &inode.versions);
        let is_open = |change: &Change| self.transactions.is_open(change.transaction());
        versions.is_some_and(|versions| {
            versions.change().is_some_and(is_open) && versions.has_whole(range)
        })
    }

    /// Checks that an entry may be removed.
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

    /// Checks that content may be truncated.
    pub(crate) fn require_cut(&mut self, id: ObjectId) -> Result<(), Stop> {
        self.require_less(id, PAGE_BYTES_U64)
    }

    /// Checks a change that frees room in the lower filesystem. Where there is none, the
    /// uncommitted changes must not become larger than the journal; unless they are so already,
    /// because other programs have taken the room since: then they can only become smaller, except
    /// for so much memory.
    fn require_less(&mut self, at: ObjectId, memory_bytes: u64) -> Result<(), Stop> {
        let is_too_much = self.accounting.overflows_journal();
        match self.require(at, Charge::memory(memory_bytes)) {
            Err(Stop::Need(Need::Space)) if is_too_much => Ok(()),
            other => other,
        }
    }

    /// Checks a change of something that exists: it needs memory, and no further room in the lower
    /// filesystem.
    pub(crate) fn require_change(&mut self, id: ObjectId) -> Result<(), Stop> {
        self.require(id, Charge::memory(ENTRY_BYTES))
    }
}
