//! Serving what a journal holds without applying it first: what has to be there for that,
//! and what may go.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};

use mobifs_types::{FileKind, ObjectId};

use super::JournalStore;
use super::lookup::missing;
use super::search::Search;
use crate::StoreError;
use crate::lower::Lower;

/// Objects of the lower filesystem that a journal's changes belong to.
#[derive(Default)]
struct Wanted {
    /// Applying cannot do without them.
    needed: BTreeSet<ObjectId>,
    /// What is committed of them goes with them, if they are gone.
    changed: BTreeSet<ObjectId>,
}

impl<L: Lower> JournalStore<L> {
    /// Looks for the objects that the journal's changes belong to. Somebody may have
    /// removed them while the store was not mounted; without this only the next apply
    /// would notice, and another object under the same inode number would meanwhile be
    /// taken for the one that is gone.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] where applying would not be possible.
    pub(super) fn check_found(&self) -> Result<(), StoreError> {
        let _tree = self.tree.read();
        let wanted = self.wanted()?;
        let mut search = Search::default();
        for id in wanted.needed {
            if !self.is_found(id, &mut search)? {
                return Err(missing(id));
            }
        }
        for id in wanted.changed {
            if !self.is_found(id, &mut search)? {
                tracing::warn!(%id, "a changed file was removed behind the back of the store");
                self.state.write().table.lose(id);
                // It may have been opened as a directory where others are.
                self.handles.lock().remove(id);
            }
        }
        Ok(())
    }

    /// Whether an object is at one of its places, and not one of another kind that got its
    /// inode number.
    fn is_found(&self, id: ObjectId, search: &mut Search) -> Result<bool, StoreError> {
        let Some(place) = self.place_in(id, search)? else {
            return Ok(false);
        };
        let state = self.state.read();
        let kind = state.pending.kind_of(id);
        let is_directory = state.pending.dentries_of(id).next().is_some();
        Ok(kind.is_none_or(|kind| kind == place.kind)
            && (!is_directory || place.kind == FileKind::Directory))
    }

    /// Whether the root and whatever has entries is a directory, what is new is not below
    /// already, every directory that the journal knows will have one name at most, and none
    /// will be below itself. Whoever lists a forged tree might come to no end.
    pub(super) fn is_tree(&self) -> bool {
        let state = self.state.read();
        let (pending, table) = (&state.pending, &state.table);
        let parents = pending.dentries.keys().map(|(parent, _)| *parent);
        let mut kinds = parents
            .chain([ObjectId::ROOT])
            .filter_map(|id| pending.kind_of(id));
        if kinds.any(|kind| kind != FileKind::Directory) {
            return false;
        }
        let mut new = pending.objects.iter().filter(|(_, object)| object.created);
        if new.any(|(id, _)| table.get(*id).is_some()) {
            return false;
        }
        let is_directory = |id: ObjectId| {
            let kinds = [
                pending.kind_of(id),
                table.get(id).map(|location| location.kind),
            ];
            kinds.contains(&Some(FileKind::Directory)) || pending.dentries_of(id).next().is_some()
        };
        let mut parents: HashMap<ObjectId, ObjectId> = HashMap::new();
        for id in table.ids().filter(|id| is_directory(*id)) {
            let names = table.get(id).map_or(&[][..], |location| &location.names);
            let kept = names
                .iter()
                .filter(|entry| !pending.dentries.contains_key(*entry));
            for (parent, _) in kept {
                if parents.insert(id, *parent).is_some() {
                    return false;
                }
            }
        }
        for ((parent, _), child) in &pending.dentries {
            if let Some(child) = child.filter(|child| is_directory(*child))
                && parents.insert(child, *parent).is_some()
            {
                return false;
            }
        }
        let mut ending = HashSet::new();
        parents.keys().all(|&id| {
            let mut path = HashSet::new();
            let mut at = id;
            while let Some(&parent) = parents.get(&at).filter(|_| !ending.contains(&at)) {
                if !path.insert(at) {
                    return false;
                }
                at = parent;
            }
            ending.extend(path);
            true
        })
    }

    /// Whether the journal says all that making its new objects takes.
    pub(super) fn can_make_new(&self) -> bool {
        let state = self.state.read();
        let mut new = state.pending.objects.values().filter(|new| new.created);
        new.all(|new| match new.attributes {
            Some(attributes) => {
                attributes.kind != FileKind::Symlink || new.symlink_target.is_some()
            }
            None => false,
        })
    }

    fn wanted(&self) -> Result<Wanted, StoreError> {
        let staged = self.lower.list(&self.own.stage);
        let staged = staged.map_err(StoreError::lower("listing stage"))?;
        let staged: HashSet<Vec<u8>> = staged.into_iter().map(|entry| entry.name).collect();
        let state = self.state.read();
        let pending = &state.pending;
        let is_below = |id: ObjectId| {
            id != ObjectId::ROOT && pending.object(id).is_none_or(|object| !object.created)
        };
        let mut wanted = Wanted::default();
        for (&id, object) in &pending.objects {
            if is_below(id) {
                wanted.changed.insert(id);
            } else if !object.direct.is_empty()
                && pending.is_linked(id)
                && !staged.contains(id.0.to_string().as_bytes())
            {
                return Err(missing(id));
            }
        }
        for ((parent, _), child) in &pending.dentries {
            match child {
                Some(child) => {
                    let both = [*parent, *child].into_iter();
                    wanted.needed.extend(both.filter(|id| is_below(*id)));
                }
                None if is_below(*parent) => {
                    wanted.changed.insert(*parent);
                }
                None => {}
            }
        }
        Ok(wanted)
    }

    /// Deletes what lies in `limbo/` and is not known to the journal: nobody uses it. An
    /// object that the journal knows may get a name by it.
    ///
    /// # Errors
    /// [`StoreError::Lower`]; the rest is left for the next time.
    pub(super) fn clear_limbo_but_known(&self) -> Result<(), StoreError> {
        let entries = self.lower.list(&self.own.limbo);
        for entry in entries.map_err(StoreError::lower("listing limbo"))? {
            let is_known = {
                let mut state = self.state.write();
                let id = state.table.id_of(entry.inode);
                let location = id.and_then(|id| state.table.get_mut(id));
                location.map(|location| location.in_limbo = true).is_some()
            };
            if !is_known {
                self.delete_from_limbo(&entry.name)?;
            }
        }
        Ok(())
    }
}
