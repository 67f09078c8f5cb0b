//! Serving what a journal holds without applying it first: what has to be there for that,
//! and what may go.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap, HashSet};

use mobifs_types::{FileKind, ObjectId};

use super::JournalStore;
use super::lookup::missing;
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
        for id in wanted.needed {
            if self.place(id)?.is_none() {
                return Err(missing(id));
            }
        }
        for id in wanted.changed {
            if self.place(id)?.is_none() {
                tracing::warn!(%id, "a changed file was removed behind the back of the store");
                self.state.write().table.lose(id);
            }
        }
        Ok(())
    }

    /// Whether every directory that the journal knows will have one name at most, and none
    /// be below itself. Whoever lists a forged tree might come to no end.
    pub(super) fn is_tree(&self) -> bool {
        let state = self.state.read();
        let (pending, table) = (&state.pending, &state.table);
        let is_directory = |id: ObjectId| {
            let attributes = pending.object(id).and_then(|object| object.attributes);
            let pending_kind = attributes.map(|attributes| attributes.kind);
            let kinds = [pending_kind, table.get(id).map(|location| location.kind)];
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
