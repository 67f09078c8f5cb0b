//! Writing file content.

use mobifs_base::{
    ByteRange, FileKind, ObjectId, PAGE_BYTES, PAGE_BYTES_U64, Page, PageIndex, Room, TransactionId,
};

use super::Engine;
use crate::accounting::Charge;
use crate::error::{FsError, Need, Stop};
use crate::inode::Inode;
use crate::request::{Moment, SetIdBits, WriteAt};
use crate::versions::{ORPHAN, PageSlot};

impl Engine {
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

        let transaction = self.begin_change(id, moment.now)?;
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
        } else {
            self.apps.written(app, written_bytes);
        }
        self.arrivals.drop_pages_of(id);
        self.arrivals.drop_places_of(id);
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
        if let Some(slot) = inode.pages.get(&index) {
            return Ok(slot.page.clone());
        }
        if inode.is_zero_below(index.offset()) {
            return Ok(Page::zero());
        }
        let version = inode.version;
        self.arrivals
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

    /// Changes a page in the transaction: the three cases of S0 §4.2.
    pub(super) fn edit_page(
        &mut self,
        id: ObjectId,
        transaction: TransactionId,
        index: PageIndex,
        edit: impl FnOnce(&mut Page),
    ) -> Result<(), Stop> {
        let Self {
            namespace,
            transactions,
            accounting,
            arrivals,
            ..
        } = self;
        let inode = namespace.inode_mut(id)?;
        let mut open = transactions.open_mut(transaction);
        debug_assert!(
            open.is_some() != (transaction == ORPHAN),
            "pages are changed in an open transaction, or belong to an orphan"
        );
        let overwritten;
        let mut grown_bytes = 0;
        match inode.pages.get_mut(&index) {
            // The active section has it: overwrite in place.
            Some(slot) if slot.transaction == transaction => {
                let before = slot.page.stored_bytes() as u64;
                edit(&mut slot.page);
                // A page shrinks only when its tail becomes zero.
                let after = slot.page.stored_bytes() as u64;
                grown_bytes = after.saturating_sub(before);
                let shrunk = before.saturating_sub(after);
                accounting.resize_pages(open.as_deref_mut(), 0, shrunk);
                overwritten = true;
            }
            // A closed section has it: the closed transaction keeps its copy, the
            // edit makes ours.
            Some(slot) => {
                edit(&mut slot.page);
                slot.transaction = transaction;
                overwritten = false;
            }
            // The log does not have it: append.
            None => {
                let in_hole = inode.is_zero_below(index.offset());
                let mut page = if in_hole {
                    let end = index.offset().saturating_add(PAGE_BYTES_U64);
                    inode.grow_allocated(PAGE_BYTES_U64, end);
                    Page::zero()
                } else {
                    let version = inode.version;
                    arrivals.page(id, index, version).unwrap_or_else(Page::zero)
                };
                edit(&mut page);
                inode.pages.insert(index, PageSlot { page, transaction });
                overwritten = false;
            }
        }
        if !overwritten {
            grown_bytes = inode
                .pages
                .get(&index)
                .map_or(0, |slot| slot.page.stored_bytes() as u64);
            if let Some(change) = &mut inode.change {
                change.log.push(index);
            }
            if let Some(open) = &mut open {
                let follows_on = inode.pages.follows_on(index, transaction);
                accounting.charge(open, Charge::room(Room::of_page(follows_on)));
            }
        }
        accounting.resize_pages(open.as_deref_mut(), grown_bytes, 0);
        if let Some(open) = open {
            open.closing.page_written(overwritten);
        }
        Ok(())
    }
}
