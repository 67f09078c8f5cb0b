//! Sizes and ranges: truncate, punch, zero, allocate.

use mobifs_base::{ByteRange, ObjectId, PAGE_BYTES_U64, PageIndex, Room, TransactionId};

use super::Engine;
use super::limits::content_room;
use crate::accounting::Charge;
use crate::error::{FsError, Stop};
use crate::request::{AllocateMode, Moment, SetIdBits};

impl Engine {
    /// Allocates, punches or zeroes a range (`fallocate`).
    ///
    /// # Errors
    /// `InvalidArgument` for an empty range or another kind, `FileTooBig`,
    /// `IsDirectory`, `ReadOnly`, `Stale`, or a [`crate::Need`].
    pub fn allocate(
        &mut self,
        moment: Moment,
        id: ObjectId,
        mode: AllocateMode,
        offset: u64,
        length: u64,
    ) -> Result<(), Stop> {
        self.namespace.check_file(id)?;
        self.namespace.check_changeable(id)?;
        if length == 0 {
            return Err(FsError::InvalidArgument.into());
        }
        let end = offset
            .checked_add(length)
            .filter(|&end| end <= self.limits.file_bytes_max);
        let range = ByteRange::new(offset, end.ok_or(FsError::FileTooBig)?);
        self.check_capability(id)?;
        let extends = match mode {
            AllocateMode::Allocate { keep_size } | AllocateMode::ZeroRange { keep_size } => {
                !keep_size
            }
            AllocateMode::PunchHole => false,
        };
        let zeroes = !matches!(mode, AllocateMode::Allocate { .. });
        let room = if mode == AllocateMode::PunchHole {
            Room::NONE
        } else {
            content_room(self.unallocated(id, range)?).saturating_add(Room::OBJECT)
        };
        if zeroes {
            self.require_edges(id, range)?;
        }
        self.require(id, Charge::of(2 * PAGE_BYTES_U64, room))?;
        let transaction = self.begin_change(id, moment.now)?;
        // The kernel removes the set-id bits: it knows the caller's rights.
        self.content_changed(id, moment, SetIdBits::Stay)?;
        if zeroes {
            self.zero(id, transaction, range)?;
        }
        let inode = self.namespace.inode_mut(id)?;
        if extends {
            inode.attributes.size = inode.attributes.size.max(range.end);
        }
        if mode != AllocateMode::PunchHole {
            // Zeroing has released what was allocated before.
            let room = self.unallocated(id, range)?;
            let inode = self.namespace.inode_mut(id)?;
            inode.grow_allocated(room, range.end);
            let room = content_room(room);
            if let Some(change) = &mut inode.change {
                change.allocated.insert(range);
            }
            if let Some(open) = self.transactions.open_mut(transaction) {
                self.accounting.charge(open, Charge::room(room));
            }
        }
        self.finish(transaction, moment.now);
        Ok(())
    }

    /// Room that allocating a range takes: all of its blocks, less what this transaction has
    /// allocated there.
    fn unallocated(&self, id: ObjectId, range: ByteRange) -> Result<u64, Stop> {
        let inode = self.namespace.inode(id)?;
        let first = PageIndex::of_offset(range.start).offset();
        let end = range.end.checked_next_multiple_of(PAGE_BYTES_U64);
        let range = ByteRange::new(first, end.unwrap_or(range.end));
        let Some(change) = &inode.change else {
            return Ok(range.len());
        };
        Ok(range.len() - change.allocated.bytes_in(range))
    }

    /// Makes sure that a change of size can be carried out.
    pub(super) fn require_resize(&mut self, id: ObjectId, size: u64) -> Result<(), Stop> {
        self.namespace.check_file(id)?;
        if size > self.limits.file_bytes_max {
            return Err(FsError::FileTooBig.into());
        }
        if size < self.namespace.inode(id)?.attributes.size {
            self.require_edges(id, ByteRange::from(size))?;
            return self.require_cut(id);
        }
        // The page that becomes longer has its place in the lower filesystem.
        self.require(id, Charge::memory(PAGE_BYTES_U64))
    }

    /// Changes the size, after [`Engine::require_resize`].
    pub(super) fn resize(
        &mut self,
        id: ObjectId,
        transaction: TransactionId,
        size: u64,
    ) -> Result<(), Stop> {
        let inode = self.namespace.inode(id)?;
        let was = inode.attributes.size;
        if size < was {
            self.zero(id, transaction, ByteRange::from(size))?;
        } else if size == was && inode.allocated_bytes > size.next_multiple_of(PAGE_BYTES_U64) {
            // This is how programs free what they had allocated past the end.
            let after_end = ByteRange::from(size.next_multiple_of(PAGE_BYTES_U64));
            self.zero_pages(id, transaction, after_end)?;
        }
        if size <= was {
            let inode = self.namespace.inode_mut(id)?;
            let most = size.next_multiple_of(PAGE_BYTES_U64);
            inode.allocated_bytes = inode.allocated_bytes.min(most);
            if let Some(change) = &mut inode.change {
                change.allocated.remove(ByteRange::from(size));
            }
        }
        self.namespace.inode_mut(id)?.attributes.size = size;
        Ok(())
    }

    /// The pages that a range covers only in part must be known before they are
    /// zeroed in part.
    fn require_edges(&self, id: ObjectId, range: ByteRange) -> Result<(), Stop> {
        let inode = self.namespace.inode(id)?;
        for offset in [range.start, range.end] {
            if offset % PAGE_BYTES_U64 != 0 && offset != u64::MAX {
                self.base_page(inode, id, PageIndex::of_offset(offset))?;
            }
        }
        Ok(())
    }

    /// Makes a range read as zero: pages inside are dropped, pages at the edges are edited.
    fn zero(
        &mut self,
        id: ObjectId,
        transaction: TransactionId,
        range: ByteRange,
    ) -> Result<(), Stop> {
        let whole = ByteRange::new(
            range.start.next_multiple_of(PAGE_BYTES_U64),
            if range.end == u64::MAX {
                u64::MAX
            } else {
                range.end & !(PAGE_BYTES_U64 - 1)
            },
        );
        if range.start < whole.start {
            let page_end = whole.start.min(range.end);
            self.zero_in_page(id, transaction, ByteRange::new(range.start, page_end))?;
        }
        if range.end > whole.end && whole.end >= whole.start {
            self.zero_in_page(id, transaction, ByteRange::new(whole.end, range.end))?;
        }
        if !whole.is_empty() {
            self.zero_pages(id, transaction, whole)?;
        }
        self.arrivals.drop_pages_of(id);
        Ok(())
    }

    /// Zeroes part of one page, unless it is all zeros anyway.
    fn zero_in_page(
        &mut self,
        id: ObjectId,
        transaction: TransactionId,
        range: ByteRange,
    ) -> Result<(), Stop> {
        let index = PageIndex::of_offset(range.start);
        let start = (range.start - index.offset()) as usize;
        let end = (range.end - index.offset()) as usize;
        let inode = self.namespace.inode(id)?;
        if !inode.pages.contains_key(&index) && inode.is_zero_below(index.offset()) {
            return Ok(());
        }
        self.edit_page(id, transaction, index, |page| page.zero_range(start, end))
    }

    /// Drops whole pages and hides what the store has under them.
    fn zero_pages(
        &mut self,
        id: ObjectId,
        transaction: TransactionId,
        range: ByteRange,
    ) -> Result<(), Stop> {
        let Self {
            namespace,
            transactions,
            accounting,
            ..
        } = self;
        let inode = namespace.inode_mut(id)?;
        let end = (range.end != u64::MAX).then(|| PageIndex::of_offset(range.end));
        let tail = inode
            .pages
            .take_range(PageIndex::of_offset(range.start), end);
        let (mut dropped, mut bytes) = (0_u64, 0);
        for slot in tail.values().filter(|slot| slot.transaction == transaction) {
            dropped += 1;
            bytes += slot.page.stored_bytes() as u64;
        }
        // Where a hole makes two of a run, a block stays reserved: for the second one's extent.
        let first = PageIndex::of_offset(range.start);
        let splits = inode.pages.follows_on(first, transaction)
            && end.is_some_and(|end| inode.pages.is_of(end, transaction));
        let mut unreserved = Room::of_blocks(dropped.saturating_sub(u64::from(splits)));
        inode.shrink_allocated(tail.len() as u64 * PAGE_BYTES_U64, range);
        let is_below = inode.announced || inode.known_to_store;
        if let Some(change) = &mut inode.change {
            let allocated = &mut change.allocated;
            let before = range.start.checked_sub(1);
            let splits = before.is_some_and(|before| allocated.contains(before))
                && allocated.contains(range.end);
            let bytes = Room::of_bytes(allocated.bytes_in(range));
            let kept = Room::of_blocks(u64::from(splits));
            unreserved = unreserved.saturating_add(bytes.saturating_sub(kept));
            allocated.remove(range);
            if is_below {
                change.zeroed.insert(range);
            }
        }
        let mut open = transactions.open_mut(transaction);
        accounting.resize_pages(open.as_deref_mut(), 0, bytes);
        if let Some(open) = open {
            open.closing.pages_dropped(dropped);
            accounting.refund_room(open, unreserved);
        }
        Ok(())
    }
}
