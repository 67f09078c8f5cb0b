//! Accounting of uncommitted changes: their memory, and the room that they will need in the lower
//! filesystem.
//!
//! There are two kinds of sums: the charge of each transaction ([`Charged`]), and that of all
//! transactions and orphans together ([`Accounting`]). They can be changed only here, and only
//! together, so that
//!
//! * `dirty_bytes` is the memory of all open and closed transactions and of the orphans,
//! * `reserved` is the room that these transactions will need, by the contract with the store
//!   ([`mobifs_base::room`]).
//!
//! [`Accounting::check`] asserts that where a transaction closes and where it is committed.

mod charge;

use mobifs_base::codec::{COUNT_MAX, CodecError};
use mobifs_base::{FullDisk, Room, SpaceInfo};

pub(crate) use charge::{Charge, Charged};
use charge::{add, take};

use crate::persist::RestartImageError;
use crate::transactions::{ClosedTransaction, OpenTransaction, Transactions};

/// The memory charged for a changed object or directory entry.
pub(crate) const ENTRY_BYTES: u64 = 512;

/// Whether the lower filesystem has room for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// It needs none, or the room is unlimited.
    Always,
    /// There is room: with this change, all acknowledged changes need so much.
    With(u64),
    /// There is not enough room.
    Never,
}

/// The memory and room of all uncommitted changes together, and the room of the lower filesystem.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Accounting {
    /// Memory of open and closed transactions and of orphans.
    dirty_bytes: u64,
    /// Part of it: pages of objects without a link.
    orphan_bytes: u64,
    /// Room that open and closed transactions will need.
    reserved: Room,
    /// The room that the store needs for committed, unapplied changes.
    store_reserved: Room,
    /// The room of the lower filesystem; none: unlimited.
    space: Option<SpaceInfo>,
    on_full_disk: FullDisk,
    /// A program may still roll back its changes.
    may_roll_back: bool,
}

/// Charging and refunding.
impl Accounting {
    /// Charges an open transaction for a change.
    pub(crate) fn charge(&mut self, open: &mut OpenTransaction, charge: Charge) {
        open.charged.absorb(Charged(charge));
        add(&mut self.dirty_bytes, charge.memory_bytes);
        self.reserved.charge(charge.room);
    }

    /// Pages of an open transaction, or of an orphan (none), gained and freed memory.
    pub(crate) fn resize_pages(
        &mut self,
        open: Option<&mut OpenTransaction>,
        gained_bytes: u64,
        freed_bytes: u64,
    ) {
        let of = match open {
            Some(open) => &mut open.charged.0.memory_bytes,
            None => &mut self.orphan_bytes,
        };
        add(of, gained_bytes);
        take(of, freed_bytes);
        add(&mut self.dirty_bytes, gained_bytes);
        take(&mut self.dirty_bytes, freed_bytes);
    }

    /// Refunds room that is not needed any more; at most the charge of the transaction, because the
    /// refund is exact and the charge was an estimate.
    pub(crate) fn refund_room(&mut self, open: &mut OpenTransaction, room: Room) {
        let room = room.min(open.charged.room());
        open.charged.0.room.refund(room);
        self.reserved.refund(room);
    }

    /// Pages of a transaction become those of an orphan.
    pub(crate) fn orphan(&mut self, open: &mut OpenTransaction, bytes: u64) {
        take(&mut open.charged.0.memory_bytes, bytes);
        add(&mut self.orphan_bytes, bytes);
    }

    /// Pages of an orphan become those of a transaction, which will write them.
    pub(crate) fn adopt(&mut self, open: &mut OpenTransaction, charge: Charge) {
        take(&mut self.orphan_bytes, charge.memory_bytes);
        open.charged.absorb(Charged(charge));
        self.reserved.charge(charge.room);
    }

    /// A closed transaction became part of another one, and does not write all of it any more. So
    /// much memory of it becomes an orphan's, so much is free; of the room all that the content
    /// does not take.
    pub(crate) fn shrink_merged(
        &mut self,
        closed: &mut ClosedTransaction,
        orphan_bytes: u64,
        freed_bytes: u64,
    ) {
        let charged = &mut closed.charged.0;
        take(&mut charged.memory_bytes, orphan_bytes + freed_bytes);
        add(&mut self.orphan_bytes, orphan_bytes);
        take(&mut self.dirty_bytes, freed_bytes);
        let needed = closed.content.room();
        debug_assert!(
            charged.room.covers(needed),
            "{:?} is promised for what takes {needed:?}",
            charged.room
        );
        let spare = charged.room.saturating_sub(needed);
        charged.room.refund(spare);
        self.reserved.refund(spare);
    }

    /// Pages of orphans left memory.
    pub(crate) fn drop_orphan_pages(&mut self, bytes: u64) {
        take(&mut self.orphan_bytes, bytes);
        take(&mut self.dirty_bytes, bytes);
    }

    /// A transaction is committed: its memory is free. From now on the store accounts for its room
    /// and reports it with [`Accounting::set_space`]. Until then it stays reserved here.
    pub(crate) fn committed(&mut self, closed: &ClosedTransaction) {
        let Charge { memory_bytes, room } = closed.charged.0;
        take(&mut self.dirty_bytes, memory_bytes);
        self.reserved.refund(room);
        if self.space.is_some() {
            self.store_reserved.charge(room);
        }
    }

    /// Counts the charge of a transaction in a restart image.
    pub(crate) fn restore(&mut self, charged: Charged) -> Result<(), RestartImageError> {
        let Charge { memory_bytes, room } = charged.0;
        let dirty_bytes = self.dirty_bytes.checked_add(memory_bytes);
        let dirty_bytes = dirty_bytes.filter(|bytes| *bytes <= COUNT_MAX);
        let most = Room::new(COUNT_MAX, COUNT_MAX);
        let reserved = self.reserved.checked_add(room);
        let reserved = reserved.filter(|reserved| most.covers(*reserved));
        self.dirty_bytes = dirty_bytes.ok_or(CodecError::Beyond)?;
        self.reserved = reserved.ok_or(CodecError::Beyond)?;
        Ok(())
    }

    /// Counts the pages of orphans in a restart image.
    pub(crate) fn restore_orphans(&mut self, bytes: u64) -> Result<(), RestartImageError> {
        self.orphan_bytes = bytes;
        self.restore(Charged(Charge::memory(bytes)))
    }

    /// Asserts that the sums are those of the transactions.
    pub(crate) fn check(&self, transactions: &Transactions) {
        let mut sum = Charged::default();
        transactions
            .charged()
            .for_each(|charged| sum.absorb(charged));
        let Charge { memory_bytes, room } = sum.0;
        assert_eq!(self.dirty_bytes, memory_bytes + self.orphan_bytes);
        assert_eq!(self.reserved, room);
    }
}

/// What there is, and whether more fits.
impl Accounting {
    /// Sets the room of the lower filesystem, and how much of it the store needs for committed
    /// changes.
    pub(crate) const fn set_space(&mut self, space: SpaceInfo, store_reserved: Room) {
        self.space = Some(space);
        self.store_reserved = store_reserved;
    }

    pub(crate) const fn set_full_disk(&mut self, on_full_disk: FullDisk) {
        self.on_full_disk = on_full_disk;
    }

    pub(crate) const fn set_may_roll_back(&mut self, may_roll_back: bool) {
        self.may_roll_back = may_roll_back;
    }

    pub(crate) const fn may_roll_back(&self) -> bool {
        self.may_roll_back
    }

    pub(crate) const fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }

    pub(crate) const fn orphan_bytes(&self) -> u64 {
        self.orphan_bytes
    }

    /// Room as a user of the mount sees it: that of the lower filesystem without the reservations
    /// for acknowledged changes.
    pub(crate) fn visible_space(&self) -> SpaceInfo {
        let mut space = self.space.unwrap_or_default();
        let promised = self.promised();
        space.free_bytes = space.free_bytes.saturating_sub(promised.bytes());
        space.available_bytes = space.available_bytes.saturating_sub(promised.bytes());
        let inodes = promised.inodes().saturating_add(space.own_inodes());
        space.free_inodes = space.free_inodes.saturating_sub(inodes);
        space
    }

    /// The room of the lower filesystem for content and its metadata.
    pub(crate) fn available_bytes(&self) -> u64 {
        self.space.map_or(u64::MAX, |space| {
            let metadata_bytes = space.metadata_bytes.unwrap_or(u64::MAX);
            space.available_bytes.min(metadata_bytes)
        })
    }

    /// Whether a change of so much memory, that takes so much room, fits in the lower filesystem.
    pub(crate) fn fit(&self, charge: Charge) -> Fit {
        let Charge { memory_bytes, room } = charge;
        // Changes that roll back may stay in memory until there is room to commit them.
        let may_wait = self.may_roll_back && room.is_none();
        let overflow = match memory_bytes {
            0 => Room::NONE,
            _ if may_wait => Room::NONE,
            bytes => self.overflow(bytes),
        };
        let needed = room.saturating_add(overflow);
        let Some(space) = self.space.filter(|_| !needed.is_none()) else {
            // A change that needs no room succeeds also where other programs have taken all room:
            // otherwise no file could be deleted to free some.
            return Fit::Always;
        };
        let needed = needed.saturating_add(self.promised());
        let inodes_fit = room.inodes() == 0
            || space.total_inodes == 0
            || needed.inodes().saturating_add(space.own_inodes()) <= space.free_inodes;
        if needed.bytes() > self.available_bytes() || !inodes_fit {
            return Fit::Never;
        }
        Fit::With(needed.bytes())
    }

    /// Whether all acknowledged changes can be committed and applied with the last known room of
    /// the lower filesystem. Other programs may take reserved room.
    pub(crate) fn has_promised_room(&self) -> bool {
        let promised = self.promised().saturating_add(self.overflow(0));
        promised.bytes() <= self.available_bytes()
    }

    /// Whether all uncommitted changes can be committed with that room. Overwrites need none, even
    /// if another program has taken the room reserved for applying committed changes.
    pub(crate) fn can_commit(&self) -> bool {
        let takes_none = self.reserved.bytes() == 0 && !self.overflows_journal();
        takes_none || self.has_promised_room()
    }

    /// Whether so many bytes of entries may be renamed with the room that the store keeps for that.
    pub(crate) fn has_room_for_moves(&self, bytes: u64) -> bool {
        let available_bytes = self.space.map_or(0, |space| space.available_bytes);
        let promised_bytes = self.promised().bytes().saturating_add(bytes);
        promised_bytes <= available_bytes.saturating_add(self.on_full_disk.entries_bytes_max)
    }

    /// Whether so many more bytes of content may be overwritten in place without any room.
    pub(crate) const fn has_journal_for(&self, bytes: u64) -> bool {
        self.committable_bytes() + bytes <= self.on_full_disk.overwritten_bytes_max
    }

    /// Whether the uncommitted changes are larger than the journal.
    pub(crate) const fn overflows_journal(&self) -> bool {
        !self.overflow(0).is_none()
    }

    /// Memory that commits free.
    const fn committable_bytes(&self) -> u64 {
        debug_assert!(
            self.dirty_bytes >= self.orphan_bytes,
            "orphans are a part of it"
        );
        self.dirty_bytes - self.orphan_bytes
    }

    /// Room that is not available for further changes.
    const fn promised(&self) -> Room {
        self.reserved.saturating_add(self.store_reserved)
    }

    /// Room that commits need for themselves, with so many more bytes to be committed: the journal
    /// may be too small for these.
    const fn overflow(&self, more_bytes: u64) -> Room {
        let bytes = self.committable_bytes().saturating_add(more_bytes);
        let in_journal = self.on_full_disk.overwritten_bytes_max;
        if in_journal == 0 || bytes <= in_journal {
            return Room::NONE;
        }
        Room::of_overflow(bytes)
    }
}
