//! What of the lost transactions is in the tree already.
//!
//! New content is written in place before the transaction that refers to it, and an apply, or the
//! writing ahead of one, may have been under way. Nothing in a journal says so, but the files do:
//! where a file has what only a lost transaction gives it, it was written there.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use mobifs_base::{ByteRange, ObjectId, ObjectState, PAGE_BYTES, PageIndex};

use crate::StoreError;
use crate::log::Transactions;
use crate::log::record::Record;
use crate::lower::{Lower, LowerStat};
use crate::overlay::pending::{Pending, PendingPage, Runs};
use crate::salvage::objects::Objects;
use crate::salvage::reading::Lost;
use crate::salvage::report::LostChange;
use crate::salvage::tree::Tree;

/// What a device writes whole.
const SECTOR_BYTES: usize = 512;

/// What the lost transactions do to one object.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) created: bool,
    pub(super) deleted: bool,
    pub(super) bytes: u64,
}

impl Changes {
    pub(super) const fn change(&self) -> LostChange {
        if self.deleted {
            LostChange::Deleted
        } else if self.created {
            LostChange::Created
        } else {
            LostChange::Changed
        }
    }
}

/// What the lost transactions do, by object; of those that make or change one.
pub(super) fn changes(lost: &[Lost]) -> BTreeMap<ObjectId, Changes> {
    let mut changes: BTreeMap<ObjectId, Changes> = BTreeMap::new();
    for record in lost.iter().flat_map(|lost| &lost.records) {
        match record {
            Record::Object(state) => {
                let object = changes.entry(state.id).or_default();
                object.created |= state.created;
                object.deleted = state.attributes.nlink == 0;
            }
            Record::Bytes { object, .. } | Record::Copied { object, .. } => {
                changes.entry(*object).or_default().bytes += record.content_bytes();
            }
            Record::Direct { object, range } => {
                let object = changes.entry(*object).or_default();
                // Saturating: what is read of a damaged journal may say anything.
                object.bytes = object.bytes.saturating_add(range.len());
            }
            _ => {}
        }
    }
    changes
}

/// Objects that may hold parts of what is lost, and whether names may have moved.
#[derive(Debug, Default)]
pub(super) struct Traces {
    pub(super) mixed: BTreeSet<ObjectId>,
    pub(super) names_moved: bool,
}

/// Looks for what lost transactions have in the tree.
pub(super) fn find<L: Lower>(
    lower: &L,
    tree: &Tree,
    objects: &Objects,
    intact: &Transactions,
    lost: &[Lost],
) -> Result<Traces, StoreError> {
    let mut pending = Pending::default();
    for record in intact.iter().flat_map(|(_, records)| records) {
        pending.merge_record(record.clone());
    }
    let mut traces = Traces::default();
    let mut files = Files {
        lower,
        tree,
        objects,
        open: None,
    };
    let created: HashSet<ObjectId> = changes(lost)
        .iter()
        .filter(|(_, changes)| changes.created)
        .map(|(id, _)| *id)
        .collect();
    for record in lost.iter().flat_map(|lost| &lost.records) {
        let is_trace = match record {
            Record::RenameMark | Record::RenameMarkInPart => {
                traces.names_moved = true;
                continue;
            }
            Record::Dentry {
                parent,
                name,
                child: Some(child),
            } => {
                let before = pending.dentries().get(&(*parent, name.clone()));
                let inode = objects
                    .inode(*child, tree)
                    .filter(|_| before != Some(&Some(*child)));
                let directory = objects.inode(*parent, tree);
                traces.names_moved |= inode
                    .zip(directory)
                    .is_some_and(|(inode, parent)| tree.is_at(inode, parent, name.as_bytes()));
                continue;
            }
            Record::Object(state) if !created.contains(&state.id) => {
                files.has_state(state, &pending)?
            }
            Record::Direct { object, range } if !created.contains(object) => {
                is_exposed(*object, *range, &pending)
            }
            Record::Bytes {
                object,
                index,
                runs,
                ..
            }
            | Record::Copied {
                object,
                index,
                runs,
                ..
            } if !created.contains(object) => files.has_runs(*object, *index, runs, &pending)?,
            _ => continue,
        };
        if let Some(id) = object_of(record).filter(|_| is_trace) {
            traces.mixed.insert(id);
        }
    }
    if traces.names_moved {
        // Then everything else was in its place before.
        let changed = changes(lost).into_iter();
        let changed = changed.filter(|(_, changes)| !changes.created);
        traces.mixed.extend(changed.map(|(id, _)| id));
    }
    Ok(traces)
}

fn object_of(record: &Record) -> Option<ObjectId> {
    match record {
        Record::Object(state) => Some(state.id),
        Record::Direct { object, .. }
        | Record::Bytes { object, .. }
        | Record::Copied { object, .. } => Some(*object),
        _ => None,
    }
}

/// Whether data that was written in place shows: no intact transaction says that the range is empty. New
/// files are in `stage/`, where only what an intact transaction mentions is kept.
fn is_exposed(id: ObjectId, range: ByteRange, pending: &Pending) -> bool {
    pending.object(id).is_none_or(|object| {
        if object.created && object.bound.is_none() {
            object.direct.intersects(range)
        } else {
            !object.zeroed.covers(range)
        }
    })
}

/// A file and what it is; none if it is not in the tree.
type OpenFile<L> = Option<(<L as Lower>::Handle, LowerStat)>;

/// The files of the tree, one open at a time.
struct Files<'a, L: Lower> {
    lower: &'a L,
    tree: &'a Tree,
    objects: &'a Objects,
    open: Option<(ObjectId, OpenFile<L>)>,
}

impl<L: Lower> Files<'_, L> {
    fn file(&mut self, id: ObjectId) -> Result<Option<&(L::Handle, LowerStat)>, StoreError> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != id) {
            let inode = self.objects.inode(id, self.tree);
            let handle = match inode {
                Some(inode) => self.tree.open_object(self.lower, inode)?,
                None => None,
            };
            let file = match handle {
                Some(handle) => {
                    let stat = self.lower.stat(&handle);
                    let stat = stat.map_err(StoreError::lower("looking at a file of the store"))?;
                    Some((handle, stat))
                }
                None => None,
            };
            self.open = Some((id, file));
        }
        Ok(self.open.as_ref().and_then(|(_, file)| file.as_ref()))
    }

    /// Whether the file has the attributes that a lost transaction gives it, and did not have them
    /// before, as far as the intact ones say.
    fn has_state(&mut self, state: &ObjectState, pending: &Pending) -> Result<bool, StoreError> {
        let wanted = state.attributes;
        let before = pending
            .object(state.id)
            .and_then(|object| object.attributes);
        let Some((_, stat)) = self.file(state.id)? else {
            return Ok(false);
        };
        let shape = (
            wanted.size,
            wanted.mode,
            wanted.uid,
            wanted.gid,
            wanted.mtime,
        );
        let is_same = (stat.size, stat.mode, stat.uid, stat.gid, stat.mtime) == shape;
        let was_same = before.is_some_and(|before| {
            (
                before.size,
                before.mode,
                before.uid,
                before.gid,
                before.mtime,
            ) == shape
        });
        Ok(is_same && !was_same && stat.kind == mobifs_base::FileKind::Regular)
    }

    /// Whether the file has, sector by sector, anything of what a lost transaction writes there, and
    /// no intact one writes it too.
    fn has_runs(
        &mut self,
        id: ObjectId,
        index: PageIndex,
        runs: &Runs,
        pending: &Pending,
    ) -> Result<bool, StoreError> {
        let intact = pending
            .object(id)
            .and_then(|object| object.pages.get(&index));
        let lower = self.lower;
        let Some((handle, _)) = self.file(id)? else {
            return Ok(false);
        };
        let mut page = [0; PAGE_BYTES];
        let read = lower.read_at(handle, &mut page, index.offset());
        // What cannot be read is not known to be there.
        let read = read.unwrap_or(0);
        let is_there = |(offset, bytes): &(u16, Vec<u8>)| {
            let start = usize::from(*offset);
            let mut at = start;
            while at < start + bytes.len() {
                let sector_end = (at + 1).next_multiple_of(SECTOR_BYTES);
                let end = sector_end.min(start + bytes.len());
                let part = &bytes[at - start..end - start];
                let is_written = end <= read && page[at..end] == *part;
                if is_written
                    && !is_rewritten(intact, at, end)
                    && part.iter().any(|&byte| byte != 0)
                {
                    return true;
                }
                at = end;
            }
            false
        };
        Ok(runs.iter().any(is_there))
    }
}

/// Whether an intact transaction writes all of these bytes of a page.
fn is_rewritten(intact: Option<&PendingPage>, start: usize, end: usize) -> bool {
    match intact {
        None => false,
        Some(PendingPage::Whole(_) | PendingPage::Runs { fresh: true, .. }) => true,
        Some(PendingPage::Runs { fresh: false, runs }) => runs.iter().any(|(offset, bytes)| {
            let from = usize::from(*offset);
            from <= start && end <= from + bytes.len()
        }),
    }
}
