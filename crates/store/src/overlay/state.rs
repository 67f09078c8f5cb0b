//! What reads need, and the only way to change it, which reports every change to the restart-state sink.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use mobifs_base::{ByteRange, FileKind, ObjectId, RangeSet};
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

use crate::locks::{Order, Rank, Ranked, RankedRwLock};
use crate::overlay::pending::Pending;
use crate::overlay::table::Table;
use crate::{KnownObject, RestartSink, RestartState};

/// What is pending, and what is known of the lower filesystem.
pub(crate) struct State {
    pub(crate) pending: Pending,
    /// Also records the objects whose known state has changed, in the table or in this type.
    pub(crate) table: Table,
    /// Objects that are in use, with or without a link: `pin`.
    pinned: HashSet<ObjectId>,
    /// Ranges spilled to stage files of objects that no transaction created yet.
    spilled: HashMap<ObjectId, RangeSet>,
    /// Objects in the tree with a name in `stage/` that could not be deleted. As long as
    /// their ids are known that name is known to be none of their links.
    left_in_stage: HashSet<ObjectId>,
    /// Directories that the engine does not list any more, in which something is still known.
    unlisted: BTreeSet<ObjectId>,
    /// Objects from which the journal's epoch has copies. They keep their ids: a write in place to an object that was
    /// found again under another one would not be known as a write to a source, and the journal would
    /// have two ids for it.
    copied_from: HashSet<ObjectId>,
}

impl State {
    pub(crate) fn new(pending: Pending, table: Table) -> Self {
        Self {
            pending,
            table,
            pinned: HashSet::new(),
            spilled: HashMap::new(),
            left_in_stage: HashSet::new(),
            unlisted: BTreeSet::new(),
            copied_from: HashSet::new(),
        }
    }

    /// The depth of each of these directories and of their ancestors, by one of the names that they
    /// have or get. Where names form a cycle, as an interrupted apply may leave them, the depth is
    /// arbitrary.
    pub(crate) fn depths_of(
        &self,
        directories: impl Iterator<Item = ObjectId>,
    ) -> HashMap<ObjectId, usize> {
        let mut depths = HashMap::from([(ObjectId::ROOT, 0)]);
        for directory in directories {
            let mut way = Vec::new();
            let mut at = Some(directory);
            let mut depth = loop {
                let Some(id) = at else { break 0 };
                if let Some(depth) = depths.get(&id) {
                    break *depth;
                }
                // A directory that is found again on its own way up ends the walk.
                depths.insert(id, 0);
                way.push(id);
                at = self.directory_above(id);
            };
            for id in way.into_iter().rev() {
                depth += 1;
                depths.insert(id, depth);
            }
        }
        depths
    }

    fn directory_above(&self, id: ObjectId) -> Option<ObjectId> {
        let pending = self.pending.names_of(id).first();
        let known = || self.table.get(id)?.names().first();
        pending.or_else(known).map(|(parent, _)| *parent)
    }

    /// The engine lists a directory from now on.
    pub(crate) fn mark_listed(&mut self, id: ObjectId) {
        self.unlisted.remove(&id);
    }

    /// The inode of an object, if the lower filesystem has it: as found, or as recorded in the
    /// journal.
    pub(crate) fn inode_of(&self, id: ObjectId) -> Option<u64> {
        let known = self.table.get(id).map(|location| location.inode);
        known.or_else(|| self.pending.object(id).and_then(|object| object.bound))
    }

    /// Records whether the name in `stage/` of an object in the tree is still there.
    pub(crate) fn set_left_in_stage(&mut self, id: ObjectId, is_left: bool) {
        if is_left {
            self.left_in_stage.insert(id);
        } else {
            self.left_in_stage.remove(&id);
        }
    }

    pub(crate) fn is_pinned(&self, id: ObjectId) -> bool {
        self.pinned.contains(&id)
    }

    pub(crate) fn pin(&mut self, id: ObjectId) {
        self.pinned.insert(id);
        self.table.touch(id);
    }

    /// The object is not in use any more, so its spilled pages are dropped, too.
    pub(crate) fn unpin(&mut self, id: ObjectId) {
        self.pinned.remove(&id);
        self.take_spilled(id);
    }

    /// Nothing is in use any more.
    pub(crate) fn unpin_all(&mut self) {
        let used: Vec<ObjectId> = self.used().collect();
        used.into_iter().for_each(|id| self.unpin(id));
    }

    /// Objects that are in use, with or without a name.
    pub(crate) fn used(&self) -> impl Iterator<Item = ObjectId> + '_ {
        let spilled = self.spilled.keys().copied();
        self.pinned.iter().copied().chain(spilled)
    }

    /// Ranges spilled of an object that no transaction created yet.
    pub(crate) fn spilled(&self, id: ObjectId) -> Option<&RangeSet> {
        self.spilled.get(&id)
    }

    pub(crate) fn record_spilled(&mut self, id: ObjectId, ranges: impl Iterator<Item = ByteRange>) {
        let spilled = self.spilled.entry(id).or_default();
        ranges.for_each(|range| spilled.insert(range));
        self.table.touch(id);
    }

    /// Removes an object's spilled ranges: a transaction records them now, or they are not needed
    /// any more.
    pub(crate) fn take_spilled(&mut self, id: ObjectId) {
        self.spilled.remove(&id);
        self.table.touch(id);
    }

    pub(crate) fn is_copied_from(&self, id: ObjectId) -> bool {
        self.copied_from.contains(&id)
    }

    /// The journal has copies from these objects, or will have.
    pub(crate) fn keep_copied_from(&mut self, ids: impl IntoIterator<Item = ObjectId>) {
        self.copied_from.extend(ids);
    }

    /// The journal has begun anew, without copies.
    pub(crate) fn release_copied_from(&mut self) {
        self.copied_from.clear();
    }

    /// Drops what is known of these objects and of objects that have names only in them; unless an
    /// object is `in_use`, or a pending change, a copy in the journal, or a known object of the lower
    /// filesystem, still needs it. Returns what was dropped, with the name that it has in `limbo/`.
    pub(crate) fn forget(
        &mut self,
        ids: &[ObjectId],
        in_use: &BTreeSet<ObjectId>,
    ) -> Vec<(ObjectId, Option<u64>)> {
        let Self {
            pending,
            table,
            pinned,
            left_in_stage,
            unlisted,
            copied_from,
            ..
        } = self;
        let is_needed = |id: ObjectId| {
            in_use.contains(&id)
                || pinned.contains(&id)
                || left_in_stage.contains(&id)
                || copied_from.contains(&id)
                || pending.mentions(id)
        };
        let mut dropped = Vec::new();
        let is_directory = |id: &ObjectId| {
            let location = table.get(*id);
            location.is_some_and(|location| location.kind == FileKind::Directory)
        };
        // Objects that were needed in these may not be needed any more. Listings leave memory many
        // at a time, and rarely.
        let again = if ids.iter().any(is_directory) {
            std::mem::take(unlisted)
        } else {
            BTreeSet::new()
        };
        for id in again.into_iter().chain(ids.iter().copied()) {
            let mut nameless = table.remove_names_in(id, is_needed);
            if table.has_children(id) {
                unlisted.insert(id);
            }
            nameless.push(id);
            for id in nameless.into_iter().filter(|&id| !is_needed(id)) {
                let location = table.get(id).filter(|location| location.names().is_empty());
                let Some(location) = location else { continue };
                let limbo_inode = Some(location.inode).filter(|_| location.in_limbo());
                if table.forget(id) {
                    dropped.push((id, limbo_inode));
                }
            }
        }
        dropped
    }

    /// Takes over the state of a killed process. A journal record of an object's place counts only
    /// for objects that the killed process did not know.
    pub(crate) fn take_over(&mut self, saved: &RestartState) {
        let mut objects: Vec<&(ObjectId, KnownObject)> = saved.objects.iter().collect();
        objects.sort_unstable_by_key(|(id, _)| *id);
        self.table.record_changes();
        self.table.begin_fresh_above(saved.ids_above);
        for (id, known) in &objects {
            self.table.begin_fresh_above(id.0);
            if let Some(location) = known.location.as_ref().filter(|_| *id != ObjectId::ROOT) {
                self.table.take_over(*id, location);
            }
            if known.is_pinned {
                self.pinned.insert(*id);
            }
            // If the transaction that creates it is in the journal, that transaction records its
            // spilled ranges; the kill came before the call of the sink.
            if !known.spilled.is_empty() && self.pending.object(*id).is_none() {
                let ranges = known.spilled.iter().copied().collect();
                self.spilled.insert(*id, ranges);
            }
        }
        self.table.index_children();
        for (id, known) in objects {
            if self.known(*id).as_ref() == Some(known) {
                self.table.untouch(*id);
            } else {
                self.table.touch(*id);
            }
        }
    }

    /// What a successor of this process would have to know of an object.
    fn known(&self, id: ObjectId) -> Option<KnownObject> {
        let known = KnownObject {
            location: self.table.get(id).map(|location| location.known()),
            is_pinned: self.is_pinned(id),
            spilled: self
                .spilled(id)
                .map_or_else(Vec::new, |ranges| ranges.iter().collect()),
        };
        (known != KnownObject::default()).then_some(known)
    }
}

/// The state, under its lock. There is no other way to change it than [`ReportedState::write`],
/// so no change can escape the sink.
pub(crate) struct ReportedState {
    state: RankedRwLock<State>,
    sink: Option<Arc<dyn RestartSink>>,
}

impl ReportedState {
    /// Changes are not reported.
    pub(crate) const fn new(order: Order, state: State) -> Self {
        Self {
            state: RankedRwLock::new(order, Rank::State, state),
            sink: None,
        }
    }

    /// From now on every change is reported to `sink`; at once what is there, or
    /// of a state that was taken over, of what it did not know yet.
    pub(crate) fn watch(&mut self, sink: Arc<dyn RestartSink>) {
        self.state.get_mut().table.record_changes();
        self.sink = Some(sink);
        drop(self.write());
    }

    pub(crate) fn sink(&self) -> Option<&dyn RestartSink> {
        self.sink.as_deref()
    }

    pub(crate) fn read(&self) -> Ranked<RwLockReadGuard<'_, State>> {
        self.state.read()
    }

    /// The state, to be changed. All of it is reported to the sink at once, before another
    /// thread can see it.
    pub(crate) fn write(&self) -> Change<'_> {
        Change {
            state: self.state.write(),
            sink: self.sink(),
        }
    }
}

/// A change of the state; see [`ReportedState::write`].
pub(crate) struct Change<'a> {
    state: Ranked<RwLockWriteGuard<'a, State>>,
    sink: Option<&'a dyn RestartSink>,
}

impl Deref for Change<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

impl DerefMut for Change<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.state
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let Some(sink) = self.sink else { return };
        for id in self.state.table.take_touched() {
            sink.object(id, self.state.known(id).as_ref());
        }
    }
}
