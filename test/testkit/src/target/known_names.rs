//! The kernel's cache of names: it looks each one up only once.

use std::collections::{BTreeMap, BTreeSet};

use mobifs_base::{FileKind, ObjectId};
use mobifs_volume::RenameMode;

/// A name in a directory.
pub(super) type Place = (ObjectId, Vec<u8>);

/// Names that were looked up, and references that were counted for it. A reference is given back
/// when the kernel drops the object, and not with a name of it.
#[derive(Clone, Debug, Default)]
pub struct KnownNames {
    names: BTreeMap<Place, (ObjectId, FileKind)>,
    references: BTreeMap<ObjectId, u64>,
}

impl KnownNames {
    /// What a name means, if that is known.
    pub(super) fn get(&self, place: &Place) -> Option<(ObjectId, FileKind)> {
        self.names.get(place).copied()
    }

    /// A name was looked up or made, and the volume has counted a reference.
    pub(super) fn learn(&mut self, place: Place, object: (ObjectId, FileKind)) {
        self.names.insert(place, object);
        self.count(object.0);
    }

    /// The volume has counted a reference to an object without a name.
    pub(super) fn count(&mut self, id: ObjectId) {
        *self.references.entry(id).or_default() += 1;
    }

    /// The references that were counted and not given back.
    pub(super) fn references(&self) -> impl Iterator<Item = (ObjectId, u64)> {
        self.references.iter().map(|(id, count)| (*id, *count))
    }

    /// References were given back before a daemon died.
    pub(super) fn given_back(&mut self, id: ObjectId, count: u64) {
        if let Some(counted) = self.references.get_mut(&id) {
            *counted = counted.saturating_sub(count);
        }
        self.references.retain(|_, count| *count > 0);
    }

    /// A name is gone.
    pub(super) fn removed(&mut self, place: &Place) {
        self.names.remove(place);
    }

    /// A name is another one now.
    pub(super) fn renamed(&mut self, from: Place, to: Place, mode: RenameMode) {
        let (moved, replaced) = (self.names.remove(&from), self.names.remove(&to));
        self.names.extend(moved.map(|object| (to, object)));
        if mode == RenameMode::Exchange {
            self.names.extend(replaced.map(|object| (from, object)));
        }
    }

    /// Drops the names of these objects that are not in use: that are not open, and under
    /// which no other name is known.
    pub(super) fn prune(
        &mut self,
        objects: &BTreeSet<ObjectId>,
        is_in_use: impl Fn(ObjectId) -> bool,
    ) {
        let parents: BTreeSet<ObjectId> = self.names.keys().map(|(parent, _)| *parent).collect();
        let is_kept = |id| !objects.contains(&id) || parents.contains(&id) || is_in_use(id);
        self.names.retain(|_, (id, _)| is_kept(*id));
    }

    /// Drops all names.
    pub(super) fn clear(&mut self) {
        self.names.clear();
    }

    /// The references to give back: those to objects that no known name means and that are
    /// not in use.
    pub(super) fn take_unused(
        &mut self,
        is_in_use: impl Fn(ObjectId) -> bool,
    ) -> BTreeMap<ObjectId, u64> {
        let named: BTreeSet<ObjectId> = self
            .names
            .iter()
            .flat_map(|((parent, _), (id, _))| [*parent, *id])
            .collect();
        let is_kept = |id: &ObjectId| named.contains(id) || is_in_use(*id);
        let references = std::mem::take(&mut self.references);
        let (kept, unused) = references.into_iter().partition(|(id, _)| is_kept(id));
        self.references = kept;
        unused
    }
}
