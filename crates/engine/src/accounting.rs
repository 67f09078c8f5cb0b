//! What uncommitted changes take: memory now, and room in the lower filesystem later.
//!
//! Two sums are kept, of which each change of one is a change of the other: what each
//! transaction is charged ([`Charged`]), and what all of them and the orphans are charged
//! together ([`Accounting`]). Both can be changed only here, and together, so that
//!
//! * `dirty_bytes` is the memory of all open and closed transactions and of the orphans,
//! * `reserved_bytes` and `reserved_inodes` are the room that these transactions will need.
//!
//! [`Accounting::check`] asserts that where a transaction closes and where it is committed.

use mobifs_base::codec::{COUNT_MAX, CodecError};
use mobifs_base::{PAGE_BYTES_U64, SpaceInfo};

use crate::persist::RestartImageError;
use crate::transactions::{ClosedTransaction, OpenTransaction, Transactions};

/// What a changed object or directory entry is charged in memory; and in room of the lower
/// filesystem for a name in the store's own directories, which it passes through.
pub(crate) const ENTRY_BYTES: u64 = 512;
/// What a changed object is charged in room of the lower filesystem besides. It may need two blocks
/// that are not content: for extended attributes, and for a long symlink, a list of extents, or the
/// first entries of a directory; a directory that grows, for two levels of its index.
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

/// What content of so many bytes, in one run, takes in the lower filesystem at most.
pub(crate) const fn content_room_bytes(bytes: u64) -> u64 {
    bytes + bytes / EXTENTS_SHARE + 2 * PAGE_BYTES_U64
}

/// What a page takes in the lower filesystem at most.
pub(crate) const fn page_room_bytes(follows_on: bool) -> u64 {
    let list = if follows_on { 0 } else { PAGE_BYTES_U64 };
    PAGE_BYTES_U64 + PAGE_BYTES_U64 / EXTENTS_SHARE + list
}

/// An amount to charge or to refund.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    /// Memory.
    pub(crate) memory_bytes: u64,
    /// Room in the lower filesystem.
    pub(crate) room_bytes: u64,
    /// Inodes there.
    pub(crate) inodes: u64,
}

impl Charge {
    /// Of memory and room.
    pub(crate) const fn of(memory_bytes: u64, room_bytes: u64) -> Self {
        Self {
            memory_bytes,
            room_bytes,
            inodes: 0,
        }
    }

    /// Of room alone.
    pub(crate) const fn room(room_bytes: u64) -> Self {
        Self::of(0, room_bytes)
    }

    /// Of one inode.
    pub(crate) const INODE: Self = Self {
        memory_bytes: 0,
        room_bytes: 0,
        inodes: 1,
    };
}

/// What one transaction is charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charged(Charge);

impl Charged {
    /// What a restart image says.
    pub(crate) const fn restored(charge: Charge) -> Self {
        Self(charge)
    }

    /// Memory of its pages and entries.
    pub(crate) const fn memory_bytes(&self) -> u64 {
        self.0.memory_bytes
    }

    /// Room it will need in the lower filesystem at most.
    pub(crate) const fn room_bytes(&self) -> u64 {
        self.0.room_bytes
    }

    /// Inodes it will need there.
    pub(crate) const fn inodes(&self) -> u64 {
        self.0.inodes
    }

    /// Takes over what a transaction was charged that joins this one; the sum over all stays.
    pub(crate) fn absorb(&mut self, other: Self) {
        add(&mut self.0.memory_bytes, other.0.memory_bytes);
        add(&mut self.0.room_bytes, other.0.room_bytes);
        add(&mut self.0.inodes, other.0.inodes);
    }
}

/// Adds to a count of bytes or inodes. What is counted is in memory or on a disk, so the sum is
/// far from the largest number.
fn add(sum: &mut u64, more: u64) {
    debug_assert!(sum.checked_add(more).is_some(), "{sum} + {more} overflows");
    *sum = sum.saturating_add(more);
}

/// Takes off a count what was added to it before.
fn take(sum: &mut u64, less: u64) {
    debug_assert!(*sum >= less, "{less} is refunded of {sum}");
    *sum = sum.saturating_sub(less);
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

/// Whether the lower filesystem has room for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// It needs none, or there is any amount.
    Always,
    /// So much is needed with it, for all that was acknowledged, and it is there.
    With(u64),
    /// There is less than that.
    Never,
}

/// What all uncommitted changes take together, and what there is for them in the lower filesystem.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Accounting {
    /// Memory of open and closed transactions and of orphans.
    dirty_bytes: u64,
    /// Part of it: pages of objects without a link.
    orphan_bytes: u64,
    /// Room that open and closed transactions will need.
    reserved_bytes: u64,
    reserved_inodes: u64,
    /// What the store needs for committed work that is not applied.
    store_reserved_bytes: u64,
    store_reserved_inodes: u64,
    /// What the lower filesystem has; none: unlimited.
    space: Option<SpaceInfo>,
    on_full_disk: FullDisk,
    /// A program may still roll back what it is changing.
    is_revocable: bool,
}

/// Charging and refunding.
impl Accounting {
    /// A change of an open transaction takes so much.
    pub(crate) fn charge(&mut self, open: &mut OpenTransaction, charge: Charge) {
        open.charged.absorb(Charged(charge));
        add(&mut self.dirty_bytes, charge.memory_bytes);
        add(&mut self.reserved_bytes, charge.room_bytes);
        add(&mut self.reserved_inodes, charge.inodes);
    }

    /// Pages of an open transaction, or of an orphan (none), gained and gave back memory.
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

    /// Room is not needed any more; at most what the transaction was charged, because what is
    /// given back is known more exactly than what was charged for it.
    pub(crate) fn refund_room(&mut self, open: &mut OpenTransaction, room_bytes: u64) {
        let room_bytes = room_bytes.min(open.charged.room_bytes());
        take(&mut open.charged.0.room_bytes, room_bytes);
        take(&mut self.reserved_bytes, room_bytes);
    }

    /// A new object of the transaction will not be created, if it was charged for any.
    pub(crate) fn refund_inode(&mut self, open: &mut OpenTransaction) {
        if open.charged.inodes() > 0 {
            take(&mut open.charged.0.inodes, 1);
            take(&mut self.reserved_inodes, 1);
        }
    }

    /// Pages of a transaction become those of an orphan.
    pub(crate) fn orphan(&mut self, open: &mut OpenTransaction, bytes: u64) {
        take(&mut open.charged.0.memory_bytes, bytes);
        add(&mut self.orphan_bytes, bytes);
    }

    /// Pages of an orphan become those of a transaction, which will write them.
    pub(crate) fn adopt(&mut self, open: &mut OpenTransaction, bytes: u64, room_bytes: u64) {
        take(&mut self.orphan_bytes, bytes);
        open.charged.absorb(Charged(Charge::of(bytes, room_bytes)));
        add(&mut self.reserved_bytes, room_bytes);
    }

    /// Pages, and new objects, of a closed transaction are not committed. So much memory becomes
    /// an orphan's; what is refunded is free. Room, as in [`Accounting::refund_room`], is no more
    /// than was charged.
    pub(crate) fn shrink_merged(
        &mut self,
        closed: &mut ClosedTransaction,
        orphan_bytes: u64,
        refund: Charge,
    ) {
        let charged = &mut closed.charged.0;
        take(
            &mut charged.memory_bytes,
            orphan_bytes + refund.memory_bytes,
        );
        add(&mut self.orphan_bytes, orphan_bytes);
        take(&mut self.dirty_bytes, refund.memory_bytes);
        let room_bytes = refund.room_bytes.min(charged.room_bytes);
        take(&mut charged.room_bytes, room_bytes);
        take(&mut self.reserved_bytes, room_bytes);
        let inodes = refund.inodes.min(charged.inodes);
        take(&mut charged.inodes, inodes);
        take(&mut self.reserved_inodes, inodes);
    }

    /// Pages of orphans left memory.
    pub(crate) fn drop_orphan_pages(&mut self, bytes: u64) {
        take(&mut self.orphan_bytes, bytes);
        take(&mut self.dirty_bytes, bytes);
    }

    /// A transaction is committed: its memory is free. What room it needs is the store's concern
    /// from now on, which reports it with [`Accounting::set_space`]. Until then it stays reserved
    /// here.
    pub(crate) fn committed(&mut self, closed: &ClosedTransaction) {
        let Charge {
            memory_bytes,
            room_bytes,
            inodes,
        } = closed.charged.0;
        take(&mut self.dirty_bytes, memory_bytes);
        take(&mut self.reserved_bytes, room_bytes);
        take(&mut self.reserved_inodes, inodes);
        if self.space.is_some() {
            add(&mut self.store_reserved_bytes, room_bytes);
            add(&mut self.store_reserved_inodes, inodes);
        }
    }

    /// Counts what a restart image says that a transaction was charged.
    pub(crate) fn restore(&mut self, charged: Charged) -> Result<(), RestartImageError> {
        let Charge {
            memory_bytes,
            room_bytes,
            inodes,
        } = charged.0;
        for (sum, more) in [
            (&mut self.dirty_bytes, memory_bytes),
            (&mut self.reserved_bytes, room_bytes),
            (&mut self.reserved_inodes, inodes),
        ] {
            let counted = sum.checked_add(more).filter(|sum| *sum <= COUNT_MAX);
            *sum = counted.ok_or(CodecError::Beyond)?;
        }
        Ok(())
    }

    /// Counts the pages of orphans in a restart image.
    pub(crate) fn restore_orphans(&mut self, bytes: u64) -> Result<(), RestartImageError> {
        self.orphan_bytes = bytes;
        self.restore(Charged(Charge::of(bytes, 0)))
    }

    /// Asserts that the sums are those of the transactions.
    pub(crate) fn check(&self, transactions: &Transactions) {
        let mut sum = Charged::default();
        transactions
            .charged()
            .for_each(|charged| sum.absorb(charged));
        let Charge {
            memory_bytes,
            room_bytes,
            inodes,
        } = sum.0;
        assert_eq!(self.dirty_bytes, memory_bytes + self.orphan_bytes);
        assert_eq!(self.reserved_bytes, room_bytes);
        assert_eq!(self.reserved_inodes, inodes);
    }
}

/// What there is, and whether more fits.
impl Accounting {
    /// The lower filesystem has so much room, of which the store needs some for committed work.
    pub(crate) const fn set_space(
        &mut self,
        space: SpaceInfo,
        reserved_bytes: u64,
        reserved_inodes: u64,
    ) {
        self.space = Some(space);
        self.store_reserved_bytes = reserved_bytes;
        self.store_reserved_inodes = reserved_inodes;
    }

    pub(crate) const fn set_full_disk(&mut self, on_full_disk: FullDisk) {
        self.on_full_disk = on_full_disk;
    }

    pub(crate) const fn set_revocable(&mut self, is_revocable: bool) {
        self.is_revocable = is_revocable;
    }

    pub(crate) const fn is_revocable(&self) -> bool {
        self.is_revocable
    }

    pub(crate) const fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }

    pub(crate) const fn orphan_bytes(&self) -> u64 {
        self.orphan_bytes
    }

    /// Room as a user of the mount sees it: everything acknowledged is taken off.
    pub(crate) fn visible_space(&self) -> SpaceInfo {
        let mut space = self.space.unwrap_or_default();
        let promised = self.promised_bytes();
        space.free_bytes = space.free_bytes.saturating_sub(promised);
        space.available_bytes = space.available_bytes.saturating_sub(promised);
        let inodes = self.reserved_inodes + self.store_reserved_inodes;
        space.free_inodes = space
            .free_inodes
            .saturating_sub(inodes + space.own_inodes());
        space
    }

    /// What the lower filesystem has for content and for what it brings along.
    pub(crate) fn available_bytes(&self) -> u64 {
        self.space.map_or(u64::MAX, |space| {
            let metadata_bytes = space.metadata_bytes.unwrap_or(u64::MAX);
            space.available_bytes.min(metadata_bytes)
        })
    }

    /// Whether a change of so much memory, that takes so much room and so many inodes, fits in the
    /// lower filesystem.
    pub(crate) fn fit(&self, charge: Charge) -> Fit {
        let Charge {
            memory_bytes,
            room_bytes,
            inodes,
        } = charge;
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

    /// Whether all that was acknowledged can be committed and applied with the room that the
    /// lower filesystem had when it was asked last. Other programs take what was promised.
    pub(crate) fn has_promised_room(&self) -> bool {
        self.promised_bytes() + self.overflow_bytes(0) <= self.available_bytes()
    }

    /// Whether all that is uncommitted can be committed with that room. What only overwrites needs
    /// none, even if another program has taken the room that committed changes are to be applied
    /// with.
    pub(crate) fn can_commit(&self) -> bool {
        let takes_none = self.reserved_bytes == 0 && self.overflow_bytes(0) == 0;
        takes_none || self.has_promised_room()
    }

    /// Whether so many bytes of entries may move with the room that the store keeps for that.
    pub(crate) fn has_room_for_moves(&self, bytes: u64) -> bool {
        let available_bytes = self.space.map_or(0, |space| space.available_bytes);
        self.promised_bytes() + bytes <= available_bytes + self.on_full_disk.entries_bytes_max
    }

    /// Whether so much more content may be overwritten in place without any room.
    pub(crate) const fn has_journal_for(&self, bytes: u64) -> bool {
        self.committable_bytes() + bytes <= self.on_full_disk.overwritten_bytes_max
    }

    /// Whether more is uncommitted than the journal takes.
    pub(crate) const fn overflows_journal(&self) -> bool {
        self.overflow_bytes(0) > 0
    }

    /// Memory that commits free.
    const fn committable_bytes(&self) -> u64 {
        debug_assert!(
            self.dirty_bytes >= self.orphan_bytes,
            "orphans are a part of it"
        );
        self.dirty_bytes - self.orphan_bytes
    }

    /// Room that others may not have any more.
    const fn promised_bytes(&self) -> u64 {
        self.reserved_bytes + self.store_reserved_bytes
    }

    /// Room that committing takes for itself, with so much more to be committed: the journal may be
    /// too small for it.
    const fn overflow_bytes(&self, more_bytes: u64) -> u64 {
        let bytes = self.committable_bytes() + more_bytes;
        let in_journal = self.on_full_disk.overwritten_bytes_max;
        if in_journal == 0 || bytes <= in_journal {
            return 0;
        }
        bytes + bytes / OVERFLOW_SHARE
    }
}
