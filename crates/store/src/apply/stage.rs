//! New objects, made complete in `stage/` before they get their names.

use std::sync::Arc;

use mobifs_base::{Attributes, FileKind, ObjectId, PAGE_BYTES_U64};
use rustix::io::Errno;

use crate::StoreError;
use crate::apply::{Refused, Work};
use crate::journal_store::{JournalStore, Writer};
use crate::log::record::Record;
use crate::lower::{Create, Lower};
use crate::overlay::lookup::{found, missing};
use crate::overlay::pending::PendingObject;
use crate::recovery::Moves;

/// Who says of a part that it has its place must leave the journal the room to say so once more, for
/// everything.
pub(super) const PART_RESERVE_BYTES: u64 = PAGE_BYTES_U64;

/// Which inodes new objects have, as the journal says it.
pub(super) fn bind_records(bindings: &[(ObjectId, u64)]) -> Vec<Record> {
    let bindings = bindings.iter();
    bindings
        .map(|&(id, inode)| Record::Bind { id, inode })
        .collect()
}

impl<L: Lower> JournalStore<L> {
    /// Makes all new objects that have a name (or are in use without one); returns the
    /// inodes of those that get a name and that the journal does not know yet.
    pub(super) fn stage_new_objects(
        &self,
        work: &Work,
        refused: &mut Refused,
    ) -> Result<Vec<(ObjectId, u64)>, StoreError> {
        let mut bindings = Vec::new();
        let mut created: Vec<(ObjectId, &Arc<PendingObject>)> = work
            .objects
            .iter()
            .filter(|(_, object)| object.created)
            .map(|(&id, object)| (id, object))
            .collect();
        created.sort_unstable_by_key(|(id, _)| *id);
        for (id, object) in created {
            let attributes = object.attributes.ok_or_else(|| missing(id))?;
            let (is_linked, is_pinned) = {
                let state = self.state.read();
                (state.pending.is_linked(id), state.is_pinned(id))
            };
            if !is_linked && !is_pinned {
                // Created and removed again: it never needs to exist below.
                continue;
            }
            let staged = self.stage_object(id, object, &attributes);
            match staged.map_err(self.failed_for(id)) {
                Ok(()) => {}
                // The journal tells its inode: it stays, and has its names, or gets them.
                Err(error) if object.bound.is_some() => refused.note_incomplete(id, error)?,
                Err(error) => {
                    refused.note_absent(id, error)?;
                    // What there is of it takes room that others may do with.
                    if self.can_be_unstaged(id, object) {
                        self.unstage(id)?;
                    }
                    continue;
                }
            }
            if object.bound.is_none() {
                let inode = self.stage_inode(id)?;
                let mut state = self.state.write();
                state.table.insert(id, inode, attributes.kind);
                if let Some(location) = state.table.get_mut(id) {
                    location.in_stage = true;
                }
                drop(state);
                if is_linked {
                    bindings.push((id, inode));
                }
            }
        }
        Ok(bindings)
    }

    /// Says in the journal that names move from here on, and under which inodes new
    /// objects can be recognised then. All that was done before is durable first; whether that
    /// is everything else, the journal says, too.
    pub(super) fn announce_moves(
        &self,
        writer: &mut Writer<L>,
        bindings: Vec<(ObjectId, u64)>,
        is_everything: bool,
    ) -> Result<(), StoreError> {
        let mut records = bind_records(&bindings);
        if writer.moves != Moves::NotBegun && records.is_empty() {
            return Ok(());
        }
        let is_told = writer.log.tells_moves() && is_everything;
        if is_told {
            records.push(Record::Moving);
        } else if writer.moves == Moves::NotBegun && writer.log.may_carry() {
            records.push(Record::MovingInPart);
        }
        let reserve_bytes = if is_everything { 0 } else { PART_RESERVE_BYTES };
        if !records.is_empty() && writer.log.free_bytes() < PAGE_BYTES_U64 + reserve_bytes {
            let action = "finding room in the journal for what an apply has made";
            return Err(StoreError::lower(action)(Errno::NOSPC.into()));
        }
        self.lower
            .sync_all()
            .map_err(StoreError::lower("making new objects and content durable"))?;
        if !records.is_empty() {
            self.append(writer, records, reserve_bytes)?;
        }
        writer.moves = if is_told {
            Moves::OnlyNamesAreLeft
        } else {
            Moves::MayHaveBegun
        };
        let mut state = self.state.write();
        for (id, inode) in bindings {
            state.pending.object_mut(id).bound = Some(inode);
        }
        Ok(())
    }

    fn stage_inode(&self, id: ObjectId) -> Result<u64, StoreError> {
        let name = id.0.to_string();
        let stat = self
            .stat_at(&self.own.stage, name.as_bytes())?
            .ok_or_else(|| missing(id))?;
        Ok(stat.inode)
    }

    fn stage_object(
        &self,
        id: ObjectId,
        object: &PendingObject,
        attributes: &Attributes,
    ) -> Result<(), StoreError> {
        if object.bound.is_none() {
            self.create_staged(id, object, attributes)?;
        }
        if object.is_whole {
            return Ok(());
        }
        let handle = self.require_handle(id)?;
        if attributes.kind == FileKind::Regular {
            self.write_staged(id, object, attributes.size, &handle)?;
        }
        self.apply_xattrs(id, object, &handle)?;
        if attributes.kind != FileKind::Directory {
            self.apply_attributes(id, attributes, &handle)?;
        }
        Ok(())
    }

    fn create_staged(
        &self,
        id: ObjectId,
        object: &PendingObject,
        attributes: &Attributes,
    ) -> Result<(), StoreError> {
        let name = id.0.to_string();
        let what = match attributes.kind {
            FileKind::Regular => Create::Regular,
            FileKind::Directory => Create::Directory,
            FileKind::Symlink => Create::Symlink(
                object
                    .symlink_target
                    .as_deref()
                    .ok_or_else(|| missing(id))?,
            ),
            FileKind::Fifo => Create::Fifo,
            FileKind::Socket => Create::Socket,
            FileKind::CharDevice => Create::CharDevice(attributes.rdev),
            FileKind::BlockDevice => Create::BlockDevice(attributes.rdev),
        };
        let failed = || StoreError::lower(format!("making new object {id}"));
        let there = found(self.lower.stat_at(&self.own.stage, name.as_bytes()));
        if let Some(stat) = there.map_err(failed())? {
            // An earlier attempt made it, or direct data is in it. Anything but a
            // file may be torn (a symlink without its target): make it anew.
            if stat.kind == FileKind::Regular && attributes.kind == FileKind::Regular {
                return Ok(());
            }
            // What is made anew has another inode number than the first attempt noted.
            self.state.write().table.remove(id);
            self.lower.handles().remove(id);
            self.delete_from_stage(name.as_bytes(), stat.kind)
                .map_err(failed())?;
        } else if !object.direct.is_empty() {
            // Data that was durable before the transaction that mentions it is gone.
            return Err(missing(id));
        }
        self.lower
            .create(&self.own.stage, name.as_bytes(), what)
            .map_err(failed())?;
        // Who looked at one that was there before may have it open.
        self.lower.handles().remove(id);
        Ok(())
    }

    /// Content of a new file: everything but what was written directly is zeros, then
    /// pages lie on top.
    fn write_staged(
        &self,
        id: ObjectId,
        object: &PendingObject,
        size: u64,
        handle: &L::Handle,
    ) -> Result<(), StoreError> {
        let mut gaps: mobifs_base::RangeSet =
            core::iter::once(mobifs_base::ByteRange::from(0)).collect();
        object.direct.iter().for_each(|range| gaps.remove(range));
        self.zero_ranges(id, &gaps, handle)?;
        self.write_pages(id, object, size, handle)
    }
}
