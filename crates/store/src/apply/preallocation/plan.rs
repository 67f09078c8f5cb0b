//! What an apply preallocates: decided, listed durably and allocated before it writes content.

use std::collections::HashMap;
use std::sync::Arc;

use mobifs_base::{Attributes, ByteRange, FileKind, ObjectId, PageIndex, RangeSet};

use crate::apply::content::growing_runs;
use crate::apply::deleted::Deleted;
use crate::apply::preallocation::go_on::{self, GoOn};
use crate::apply::preallocation::list::{FILES_MAX, Listed, Phase, block_end};
use crate::apply::preallocation::step::{
    HOT_JOURNAL_MAGIC, Kind, SQLITE_MAGIC, end_of, large_bytes, reserved_end, step_bytes,
};
use crate::apply::preallocation::{Preallocations, find, list_file};
use crate::apply::stage;
use crate::apply::work::{Applier, Work};
use crate::lower::{Lower, LowerStat};
use crate::overlay::Overlay;
use crate::overlay::lookup;
use crate::overlay::pending::{PendingObject, PendingPage};
use crate::overlay::search::Search;
use crate::{Preallocation, StoreError};

/// What is done to one file before its content is written.
struct Step<H> {
    handle: Arc<H>,
    inode: u64,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// Blocks for what is written, and beyond the end.
    Allocate(ByteRange),
    /// The file gets blocks where it ends.
    GoOn(GoOn),
    /// A program requests room beyond the end: the store's own blocks make way.
    GiveBack { size: u64 },
}

/// Decides what to preallocate, lists it, and allocates it, for the files of one app after the
/// other: those that grow first, so that they go on behind what they have. Whatever fails is left
/// to the writes, which allocate, too.
///
/// # Errors
/// Content that has moved may not be durable.
pub(crate) fn preallocate<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    work: &Work,
    deleted: &Deleted,
) -> Result<(), StoreError> {
    let preallocations = applier.preallocations();
    if !preallocations.is_ready() {
        return Ok(());
    }
    let mut planner = Planner::new(overlay, applier);
    let mut search = Search::default();
    for id in order(overlay, work) {
        let (Some(object), false) = (work.objects.get(&id), deleted.contains(&id)) else {
            continue;
        };
        let Some(attributes) = object.attributes else {
            continue;
        };
        if attributes.kind == FileKind::Regular {
            // The apply meets the same error.
            let _ = planner.consider(id, object, &attributes, &mut search);
        }
    }
    let steps = planner.steps;
    if let Err(error) = list_file::write(overlay, preallocations) {
        tracing::warn!(%error, "nothing is preallocated: the list of it cannot be written");
        withdraw(preallocations, &steps);
        return Ok(());
    }
    let mut growing = Vec::new();
    for step in steps {
        // Only against fragmentation, where it is no request.
        let done = match step.what {
            What::Allocate(range) => overlay.lower().preallocate(&step.handle, range),
            What::GiveBack { size } => overlay.lower().truncate(&step.handle, size),
            What::GoOn(how) => {
                growing.push((step.handle, how));
                Ok(())
            }
        };
        if let Err(error) = done {
            tracing::debug!(%error, inode = step.inode, "cannot preallocate");
        }
    }
    go_on::go_on(overlay, applier, &growing)
}

/// Nothing new may be allocated of these.
fn withdraw<H>(preallocations: &Preallocations, steps: &[Step<H>]) {
    let mut files = preallocations.files();
    for step in steps {
        files.remove(step.inode);
    }
}

/// The order in which files get their blocks: existing ones before new ones, those of one app
/// together, in it those of one directory.
fn order<L: Lower>(overlay: &Overlay<L>, work: &Work) -> Vec<ObjectId> {
    let state = overlay.state();
    let parent = |id: ObjectId| {
        let pending = state.pending.names_of(id).first();
        let known = || state.table.get(id)?.names().first();
        pending.or_else(known).map(|(parent, _)| *parent)
    };
    let mut apps: HashMap<ObjectId, ObjectId> = HashMap::new();
    let mut app_of = |directory: ObjectId| {
        let mut way = Vec::new();
        let mut at = directory;
        let app = loop {
            if let Some(app) = apps.get(&at) {
                break *app;
            }
            // A directory that is found again on its own way up ends the walk.
            apps.insert(at, at);
            way.push(at);
            match parent(at) {
                Some(above) if above != ObjectId::ROOT => at = above,
                _ => break at,
            }
        };
        way.into_iter().for_each(|below| {
            apps.insert(below, app);
        });
        app
    };
    let mut ids: Vec<_> = work
        .objects
        .iter()
        .map(|(&id, object)| {
            let directory = parent(id).unwrap_or(ObjectId::ROOT);
            (object.created, app_of(directory), directory, id)
        })
        .collect();
    ids.sort_unstable();
    ids.into_iter().map(|(.., id)| id).collect()
}

struct Planner<'a, L: Lower> {
    overlay: &'a Overlay<L>,
    preallocations: &'a Preallocations,
    /// Room that may still be preallocated.
    room_bytes: u64,
    /// Files go on where they end ([`go_on`]).
    goes_on: bool,
    steps: Vec<Step<L::Handle>>,
}

impl<'a, L: Lower> Planner<'a, L> {
    fn new(overlay: &'a Overlay<L>, applier: &'a Applier) -> Self {
        let space = overlay.lower().space();
        let room_bytes = space.map_or(0, |space| go_on::free_bytes(overlay, &space));
        Self {
            overlay,
            preallocations: applier.preallocations(),
            room_bytes,
            goes_on: applier.preallocations().policy.large_bytes > 0
                && overlay.lower().moves_content(),
            steps: Vec::new(),
        }
    }

    fn consider(
        &mut self,
        id: ObjectId,
        object: &PendingObject,
        attributes: &Attributes,
        search: &mut Search,
    ) -> Result<(), StoreError> {
        if object.created {
            return self.consider_new(id, object, attributes);
        }
        let Some(handle) = lookup::handle_in(self.overlay, id, search)? else {
            return Ok(());
        };
        let stat = self.stat(&handle)?;
        let listed = self.preallocations.files().of(&stat).cloned();
        let growth = Growth::of(object, stat.size, attributes.size);
        let makes_way = requests_room(object, attributes.size)
            || growth == Growth::WithHoles
            || loses_names(self.overlay, id);
        if makes_way {
            if let Some(listed) = listed {
                self.make_way(listed, handle, &stat, attributes);
            }
            return Ok(());
        }
        if attributes.size < stat.size || is_cut_off(object, stat.size) {
            // The size is set below, which frees all beyond it.
            self.preallocations.files().remove(stat.inode);
            return Ok(());
        }
        let end = listed.as_ref().map_or(0, |listed| listed.end);
        if let Growth::From(start) = growth
            && attributes.size > end
            && let Some(step) = self.step(id, object, attributes, Some(&handle))
            && let Some(range) = self.range(start, attributes.size, step, &stat)
            && (listed.is_some() || self.has_nothing_after_end(&handle, &stat)?)
            && self.list(id, listed.clone(), &stat, attributes, range.end)
        {
            self.allocate(handle, &stat, (id, object), range);
        } else if let Some(listed) = listed {
            self.list(id, Some(listed), &stat, attributes, end);
        }
        Ok(())
    }

    /// Considers a new file: where its kind is worth it, its stage file is made first.
    fn consider_new(
        &mut self,
        id: ObjectId,
        object: &PendingObject,
        attributes: &Attributes,
    ) -> Result<(), StoreError> {
        let is_linked = self.overlay.state().pending.is_linked(id);
        let requests = !object.allocated.is_empty();
        if !is_linked || object.is_whole || requests {
            return Ok(());
        }
        let Growth::From(start) = Growth::of_new(object, attributes.size) else {
            return Ok(());
        };
        let step = self.step(id, object, attributes, None);
        if step.is_none() {
            return Ok(());
        }
        let handle = if object.bound.is_some() {
            lookup::require_handle(self.overlay, id)?
        } else {
            stage::stage_file(self.overlay, id)?
        };
        let stat = self.stat(&handle)?;
        let range = step.and_then(|step| self.range(start, attributes.size, step, &stat));
        let Some(range) = range else {
            return Ok(());
        };
        let listed = self.preallocations.files().of(&stat).cloned();
        let is_free = listed.is_some() || self.has_nothing_after_end(&handle, &stat)?;
        if is_free && self.list(id, listed, &stat, attributes, range.end) {
            self.allocate(handle, &stat, (id, object), range);
        }
        Ok(())
    }

    fn stat(&self, handle: &L::Handle) -> Result<LowerStat, StoreError> {
        let stat = self.overlay.lower().stat(handle);
        stat.map_err(StoreError::lower("looking at a file that grows"))
    }

    fn has_nothing_after_end(
        &self,
        handle: &L::Handle,
        stat: &LowerStat,
    ) -> Result<bool, StoreError> {
        let lower = self.overlay.lower();
        let after = lower.allocated_after(handle, block_end(stat.size));
        let after = after.map_err(StoreError::lower("looking for blocks beyond the end"))?;
        Ok(after.is_none())
    }

    /// In which steps the file grows; none: nothing is preallocated.
    fn step(
        &self,
        id: ObjectId,
        object: &PendingObject,
        attributes: &Attributes,
        lower: Option<&L::Handle>,
    ) -> Option<u64> {
        let kind = self.kind_of(id, object, lower);
        let policy = Preallocation {
            large_bytes: large_bytes(&self.preallocations.policy, self.room_bytes),
            ..self.preallocations.policy
        };
        step_bytes(&policy, kind, object.created, attributes.size)
    }

    fn kind_of(&self, id: ObjectId, object: &PendingObject, lower: Option<&L::Handle>) -> Kind {
        if object.begins_with(SQLITE_MAGIC) {
            return Kind::Database;
        }
        // It is mostly deleted at the end of its transaction.
        if object.created && object.begins_with(HOT_JOURNAL_MAGIC) {
            return Kind::Other;
        }
        let of_name = {
            let state = self.overlay.state();
            let known = state.table.get(id);
            let known = known.map_or(&[][..], |location| location.names());
            let names = state.pending.names_of(id).iter().chain(known);
            names
                .filter_map(|(_, name)| Kind::of_name(name.as_bytes()))
                .next()
        };
        of_name.unwrap_or_else(|| {
            if self.begins_as_database(object, lower) {
                Kind::Database
            } else {
                Kind::Other
            }
        })
    }

    /// Whether the lower file has the header of a database.
    fn begins_as_database(&self, object: &PendingObject, lower: Option<&L::Handle>) -> bool {
        let is_replaced = matches!(object.pages.get(&PageIndex(0)), Some(PendingPage::Whole(_)));
        let Some(handle) = lower.filter(|_| !is_replaced && !object.zeroed.contains(0)) else {
            return false;
        };
        let mut header = [0; SQLITE_MAGIC.len()];
        let read = self.overlay.lower().read_at(handle, &mut header, 0);
        read.is_ok_and(|length| header[..length] == *SQLITE_MAGIC)
    }

    /// Lists the file; false if there is no room for it, in the list or on the disk.
    fn list(
        &mut self,
        id: ObjectId,
        listed: Option<Listed>,
        stat: &LowerStat,
        attributes: &Attributes,
        end: u64,
    ) -> bool {
        let before = listed.as_ref().map_or(0, |listed| listed.end);
        let more_bytes = end.saturating_sub(before.max(block_end(attributes.size)));
        let path = {
            let state = self.overlay.state();
            find::path_of(&state, id)
        };
        let mut files = self.preallocations.files();
        if listed.is_none() && files.by_inode.len() >= FILES_MAX {
            files.is_overfull = true;
            return false;
        }
        if more_bytes > self.room_bytes {
            return false;
        }
        self.room_bytes -= more_bytes;
        files.insert(Listed {
            inode: stat.inode,
            born: stat.born,
            phase: Phase::Held,
            size: attributes.size,
            end: end.max(before),
            mtime: attributes.mtime,
            path,
            listed_at: 0,
            is_due: false,
        });
        true
    }

    /// What is allocated from here to the end of a step beyond this size, or of what the filesystem reserves.
    fn range(&self, start: u64, size: u64, step_bytes: u64, stat: &LowerStat) -> Option<ByteRange> {
        let end = end_of(size, step_bytes)?;
        let end = if self.goes_on && stat.size > 0 && size <= go_on::MOVED_FILE_BYTES_MAX {
            end.max(reserved_end(size))
        } else {
            end
        };
        (end <= i64::MAX.cast_unsigned() && start < end).then(|| ByteRange::new(start, end))
    }

    fn allocate(
        &mut self,
        handle: Arc<L::Handle>,
        stat: &LowerStat,
        (id, object): (ObjectId, &PendingObject),
        range: ByteRange,
    ) {
        let what = if self.goes_on && stat.size > 0 {
            let size = object.attributes.map_or(0, |attributes| attributes.size);
            // Otherwise the apply first cuts off what the journal does not have.
            let is_kept = !object.created && !object.zeroed.iter().any(|it| it.end == u64::MAX);
            What::GoOn(GoOn {
                id,
                size,
                range,
                extends: is_kept,
            })
        } else {
            What::Allocate(range)
        };
        let inode = stat.inode;
        self.steps.push(Step {
            handle,
            inode,
            what,
        });
    }

    fn make_way(
        &mut self,
        listed: Listed,
        handle: Arc<L::Handle>,
        stat: &LowerStat,
        attributes: &Attributes,
    ) {
        self.preallocations.files().insert(Listed {
            phase: Phase::Requested,
            size: attributes.size,
            mtime: attributes.mtime,
            ..listed
        });
        self.steps.push(Step {
            handle,
            inode: stat.inode,
            what: What::GiveBack { size: stat.size },
        });
    }
}

/// How a file grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    /// The file does not grow.
    None,
    /// By content without a gap, of which the pages from here on are still to be written.
    From(u64),
    /// Parts of it are holes, which get no blocks.
    WithHoles,
}

impl Growth {
    /// The growth of a file that the epoch has made: commits may have written parts of it to their place.
    fn of_new(object: &PendingObject, size: u64) -> Self {
        let mut missing = RangeSet::from_iter([ByteRange::new(0, block_end(size))]);
        object.direct.iter().for_each(|range| missing.remove(range));
        let start = missing
            .iter()
            .next()
            .map_or(block_end(size), |first| first.start);
        growing_runs(object, 0).for_each(|run| missing.remove(run));
        if size > 0 && missing.is_empty() {
            Self::From(start)
        } else {
            Self::WithHoles
        }
    }

    /// The growth of a file with `lower_bytes` bytes in the lower filesystem, to `size`.
    fn of(object: &PendingObject, lower_bytes: u64, size: u64) -> Self {
        if size < lower_bytes {
            return Self::None;
        }
        if size == lower_bytes {
            // A commit may have written what it has grown by.
            let is_written = object.direct.iter().any(|range| range.end >= size);
            return if is_written && size > 0 {
                Self::From(block_end(size))
            } else {
                Self::None
            };
        }
        let mut runs = growing_runs(object, lower_bytes);
        match (runs.next(), runs.next()) {
            (Some(run), None) if run.start <= block_end(lower_bytes) && run.end >= size => {
                Self::From(run.start)
            }
            _ => Self::WithHoles,
        }
    }
}

/// Whether a program requests room beyond the end.
fn requests_room(object: &PendingObject, size: u64) -> bool {
    object.allocated.iter().any(|range| range.end > size)
}

/// Whether all names that the store knows of the object go: then it grows no more.
fn loses_names<L: Lower>(overlay: &Overlay<L>, id: ObjectId) -> bool {
    let state = overlay.state();
    let known = state
        .table
        .get(id)
        .map_or(&[][..], |location| location.names());
    let mut known = known.iter();
    !state.pending.is_linked(id) && known.all(|name| state.pending.dentries().contains_key(name))
}

/// Whether all from a place before the end on is cut off, before the file grows again.
fn is_cut_off(object: &PendingObject, size: u64) -> bool {
    let mut cut = object.zeroed.iter().filter(|range| range.end == u64::MAX);
    cut.any(|range| range.start < size)
}

/// After an apply: files without blocks of the store beyond the end are not listed any more, nor
/// are those that have lost their names. Where there are too many, the oldest are due.
pub(crate) fn conclude<L: Lower>(overlay: &Overlay<L>, applier: &Applier, work: &Work) {
    let preallocations = applier.preallocations();
    if preallocations.is_empty() {
        return;
    }
    examine(overlay, preallocations, work);
    let mut files = preallocations.files();
    if std::mem::take(&mut files.is_overfull) {
        let mut listed: Vec<u64> = files.by_inode.values().map(|file| file.listed_at).collect();
        listed.sort_unstable();
        if let Some(&oldest_kept) = listed.get(listed.len() / 4) {
            let old = files
                .by_inode
                .values_mut()
                .filter(|file| file.listed_at < oldest_kept);
            old.for_each(|file| file.is_due = true);
        }
    }
}

/// Compares what the list says of the files of this apply with the blocks that they have.
fn examine<L: Lower>(overlay: &Overlay<L>, preallocations: &Preallocations, work: &Work) {
    let _names = overlay.hold_names();
    let listed: Vec<Listed> = preallocations.files().by_inode.values().cloned().collect();
    for listed in listed {
        let inode = listed.inode;
        let id = overlay.state().table.id_of(inode);
        let Some(id) = id.filter(|id| work.objects.contains_key(id)) else {
            continue;
        };
        let is_pending = overlay.state().pending.object(id).is_some();
        if is_pending {
            // Its change was refused; the next apply tries again.
            continue;
        }
        if listed.phase == Phase::Requested {
            preallocations.files().remove(inode);
            continue;
        }
        let after = || -> Result<(LowerStat, Option<u64>), StoreError> {
            let handle = lookup::require_handle(overlay, id)?;
            let failed = || StoreError::lower("looking at preallocated blocks");
            let stat = overlay.lower().stat(&handle).map_err(failed())?;
            let end = overlay
                .lower()
                .allocated_after(&handle, block_end(stat.size));
            Ok((stat, end.map_err(failed())?))
        };
        // It is deleted, or cannot be read.
        let Ok((stat, end)) = after() else { continue };
        let path = {
            let state = overlay.state();
            find::path_of(&state, id)
        };
        let mut files = preallocations.files();
        match end {
            Some(end) if end <= listed.end => {
                if let Some(file) = files.by_inode.get_mut(&inode) {
                    // Some filesystems keep whole seconds.
                    let is_other = file.path != path || file.mtime != stat.mtime;
                    (file.size, file.end) = (stat.size, end);
                    (file.path, file.mtime) = (path, stat.mtime);
                    files.is_dirty |= is_other;
                }
            }
            _ => files.remove(inode),
        }
    }
}
