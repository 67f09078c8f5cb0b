//! Content of files: reads, writes, sizes and ranges.

use mobifs_base::{
    ByteRange, ContentSearch, FileKind, ObjectId, PAGE_BYTES, PAGE_BYTES_U64, Page, PageIndex,
    Room, TransactionId, Whence,
};

use super::Engine;
use super::limits::content_room;
use crate::accounting::Charge;
use crate::error::{FsError, Need, Stop};
use crate::inode::Inode;
use crate::request::{AllocateMode, Moment, SetIdBits, WriteAt};
use crate::versions::{Edited, ORPHAN, ReadPlan, Zeroed};

/// Content: the versions of a file's pages, its attributes, and what the transaction is charged.
impl Engine {
    /// Plans a read.
    ///
    /// # Errors
    /// `IsDirectory`, `InvalidArgument` for other kinds, `CrossDevice`, `Stale`.
    pub fn read_plan(&self, id: ObjectId, offset: u64, length: usize) -> Result<ReadPlan, Stop> {
        self.namespace.check_file(id)?;
        Ok(self.namespace.inode(id)?.read_plan(offset, length))
    }

    /// A file, symlink or directory was read: its access time moves on, as `relatime` has
    /// it (at most once a day, or after a change). By itself this makes nothing dirty: it
    /// is committed with the next change of the object.
    pub fn accessed(&mut self, id: ObjectId, moment: Moment) {
        const DAY_SECONDS: i64 = 24 * 60 * 60;
        if self.limits.read_only {
            return;
        }
        let moves = |inode: &crate::inode::Inode| {
            let times = &inode.attributes;
            times.atime <= times.mtime
                || times.atime <= times.ctime
                || moment.wall.seconds - times.atime.seconds >= DAY_SECONDS
        };
        if self.namespace.get(&id).is_some_and(moves)
            && let Some(inode) = self.namespace.get_mut(&id)
        {
            inode.attributes.atime = moment.wall;
        }
    }

    /// Looks for the first data or hole from `offset` on, as far as memory can answer.
    ///
    /// # Errors
    /// As [`Engine::read_plan`].
    pub fn search_content(
        &self,
        id: ObjectId,
        offset: u64,
        whence: Whence,
    ) -> Result<ContentSearch, Stop> {
        self.namespace.check_file(id)?;
        Ok(self.namespace.inode(id)?.search_content(offset, whence))
    }

    /// Writes `data`; returns how much was written: all of it, unless the largest
    /// file size cuts it off.
    ///
    /// # Errors
    /// `FileTooBig`, `IsDirectory`, `InvalidArgument` for other kinds, `ReadOnly`,
    /// `Stale`, or a [`Need`].
    pub fn write(
        &mut self,
        moment: Moment,
        id: ObjectId,
        at: WriteAt,
        data: &[u8],
        set_id: SetIdBits,
    ) -> Result<usize, Stop> {
        let mut replace = |page: &mut Page, content: &[u8]| page.write(0, content);
        self.write_pages(moment, id, at, data, set_id, &mut replace)
    }

    /// As [`Engine::write`]. Pages that are new as a whole are made by `replace`, which knows
    /// where they are to lie.
    ///
    /// # Errors
    /// As [`Engine::write`].
    pub fn write_pages(
        &mut self,
        moment: Moment,
        id: ObjectId,
        at: WriteAt,
        data: &[u8],
        set_id: SetIdBits,
        replace: &mut dyn FnMut(&mut Page, &[u8]),
    ) -> Result<usize, Stop> {
        self.namespace.check_file(id)?;
        self.namespace.check_changeable(id)?;
        let inode = self.namespace.inode(id)?;
        let offset = match at {
            WriteAt::Offset(offset) => offset,
            WriteAt::Append => inode.attributes.size,
        };
        if data.is_empty() {
            return Ok(0);
        }
        if offset >= self.limits.file_bytes_max {
            return Err(FsError::FileTooBig.into());
        }
        let room = self.limits.file_bytes_max - offset;
        let data = &data[..usize::try_from(room).map_or(data.len(), |room| room.min(data.len()))];
        let end = offset + data.len() as u64;
        let (first, last) = (PageIndex::of_offset(offset), PageIndex::of_offset(end - 1));
        for index in [first, last] {
            let start = index.offset();
            // After the end of the file there are only zeros, so a write that
            // reaches it from the page's start needs nothing of the old page.
            let whole =
                offset <= start && (end >= start + PAGE_BYTES_U64 || end >= inode.attributes.size);
            if !whole {
                self.base_page(inode, id, index)?;
            }
        }
        self.check_capability(id)?;
        let pages = ByteRange::new(first.offset(), last.offset() + PAGE_BYTES_U64);
        self.require_content(id, pages)?;

        let concerns_all = self.join_super_journals(id, moment.now)?;
        let mut transaction = self.begin_change(id, moment.now)?;
        if concerns_all {
            transaction = self.reach_everywhere(transaction);
        }
        self.content_changed(id, moment, set_id)?;
        let mut rest = data;
        let mut position = offset;
        while !rest.is_empty() {
            let within = (position % PAGE_BYTES_U64) as usize;
            let (chunk, after) = rest.split_at(rest.len().min(PAGE_BYTES - within));
            let index = PageIndex::of_offset(position);
            self.edit_page(id, transaction, index, |page| {
                if chunk.len() == PAGE_BYTES {
                    replace(page, chunk);
                } else {
                    page.write(within, chunk);
                }
            })?;
            position += chunk.len() as u64;
            rest = after;
        }
        let inode = self.namespace.inode_mut(id)?;
        inode.attributes.size = inode.attributes.size.max(end);
        let (app, written_bytes) = (inode.app, data.len() as u64);
        if let Some(open) = self.transactions.open_mut(transaction) {
            open.written_bytes += written_bytes;
            open.brought_bytes += written_bytes;
        } else {
            self.apps.written(app, written_bytes);
        }
        self.fetched_content.drop_pages_of(id);
        self.fetched_content.drop_places_of(id);
        self.finish(transaction, moment.now);
        Ok(data.len())
    }

    /// Content under the newest version of a page: what the store has, or zeros.
    /// Stops if the store must be asked.
    pub(super) fn base_page(
        &self,
        inode: &Inode,
        id: ObjectId,
        index: PageIndex,
    ) -> Result<Page, Stop> {
        if let Some(page) = inode.versions.newest(index) {
            return Ok(page.clone());
        }
        if inode.versions.is_zero_below(index.offset()) {
            return Ok(Page::zero());
        }
        let version = inode.versions.version();
        self.fetched_content
            .page(id, index, version)
            .ok_or(Stop::Need(Need::Page {
                object: id,
                index,
                version,
            }))
    }

    /// Extended attributes must be known before content changes, because a file
    /// capability goes with it.
    pub(super) fn check_capability(&self, id: ObjectId) -> Result<(), Stop> {
        let inode = self.namespace.inode(id)?;
        if inode.xattrs.is_none()
            && self.limits.xattr_bytes_max > 0
            && inode.attributes.kind == FileKind::Regular
        {
            return Err(Stop::Need(Need::Xattrs {
                id,
                epoch: self.namespace.epoch(),
            }));
        }
        Ok(())
    }

    /// Times, set-id bits and the file capability follow a change of content.
    pub(super) fn content_changed(
        &mut self,
        id: ObjectId,
        moment: Moment,
        set_id: SetIdBits,
    ) -> Result<(), Stop> {
        let inode = self.namespace.inode_mut(id)?;
        inode.attributes.mtime = moment.wall;
        inode.attributes.ctime = moment.wall;
        inode.change_set_id(set_id);
        inode.kill_capability();
        Ok(())
    }

    /// Changes a page in the transaction, and what is charged for it.
    fn edit_page(
        &mut self,
        id: ObjectId,
        transaction: TransactionId,
        index: PageIndex,
        edit: impl FnOnce(&mut Page),
    ) -> Result<(), Stop> {
        let inode = self.namespace.inode_mut(id)?;
        let fetched = &self.fetched_content;
        let committed = |version| fetched.page(id, index, version);
        let edited = inode.edit_page(transaction, index, committed, edit);
        let mut open = self.transactions.open_mut(transaction);
        debug_assert!(
            open.is_some() != (transaction == ORPHAN),
            "pages are changed in an open transaction, or belong to an orphan"
        );
        let Edited {
            grown_bytes,
            shrunk_bytes,
            room,
            ..
        } = edited;
        self.accounting
            .resize_pages(open.as_deref_mut(), grown_bytes, shrunk_bytes);
        if let Some(open) = open {
            if let Some(room) = room {
                self.accounting.charge(open, Charge::room(room));
            }
            open.closing.page_written(room.is_none());
        }
        Ok(())
    }

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
            self.namespace.inode_mut(id)?.allocate(range, room);
            let room = content_room(room);
            self.charge(transaction, Charge::room(room));
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
        Ok(range.len() - inode.versions.allocated_bytes_in(range))
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
            self.namespace.inode_mut(id)?.release_allocated_from(size);
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
        self.fetched_content.drop_pages_of(id);
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
        let versions = &inode.versions;
        if versions.newest(index).is_none() && versions.is_zero_below(index.offset()) {
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
        let inode = self.namespace.inode_mut(id)?;
        let Zeroed { own, room, .. } = inode.zero_pages(transaction, range);
        let mut open = self.transactions.open_mut(transaction);
        self.accounting
            .resize_pages(open.as_deref_mut(), 0, own.bytes);
        if let Some(open) = open {
            open.closing.pages_dropped(own.pages);
            self.accounting.refund_room(open, room);
        }
        Ok(())
    }
}
