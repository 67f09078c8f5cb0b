//! Where known objects are in the lower tree.

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{HashMap, HashSet};

use mobifs_base::{FileKind, Name, ObjectId};

use crate::KnownLocation;

/// No object has this number.
pub(crate) const NO_INODE: u64 = 0;

/// Where one object of the lower filesystem can be found.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    pub(crate) inode: u64,
    pub(crate) kind: FileKind,
    /// Known names in the tree: (directory, name). The directories have it among their `children`.
    names: Vec<(ObjectId, Name)>,
    /// More than one was known at a time, or its links have been counted.
    had_several_names: bool,
    /// The object has a name in `limbo/`: its inode number.
    in_limbo: bool,
    /// The object has a name in `stage/`: its id.
    in_stage: bool,
    /// Known objects that have a name in this directory.
    children: HashSet<ObjectId>,
}

impl Location {
    fn new(inode: u64, kind: FileKind) -> Self {
        Self {
            inode,
            kind,
            names: Vec::new(),
            had_several_names: false,
            in_limbo: false,
            in_stage: false,
            children: HashSet::new(),
        }
    }

    /// Whether anything is known of it but its id.
    pub(crate) fn is_somewhere(&self) -> bool {
        self.inode != NO_INODE
    }

    /// Known names in the tree: (directory, name).
    pub(crate) fn names(&self) -> &[(ObjectId, Name)] {
        &self.names
    }

    /// Whether the object has a name in `limbo/`: its inode number.
    pub(crate) const fn in_limbo(&self) -> bool {
        self.in_limbo
    }

    /// Whether the object has a name in `stage/`: its id.
    pub(crate) const fn in_stage(&self) -> bool {
        self.in_stage
    }

    /// All that cannot be found out from the other locations.
    pub(crate) fn known(&self) -> KnownLocation {
        KnownLocation {
            inode: self.inode,
            kind: self.kind,
            names: self.names.clone(),
            in_limbo: self.in_limbo,
            in_stage: self.in_stage,
        }
    }
}

/// All objects of the lower filesystem that the engine, or the journal, knows.
#[derive(Debug)]
pub(crate) struct Table {
    locations: HashMap<ObjectId, Location>,
    by_inode: HashMap<u64, ObjectId>,
    /// Ids, by inode, that forgotten objects get again when they are found: of objects that had
    /// several names and would otherwise get new ids. A look-up of each name must return the same
    /// id.
    remembered: HashMap<u64, ObjectId>,
    next_fresh: u64,
    /// Objects of which something changed since the last report; none: changes are not reported.
    touched: Option<HashSet<ObjectId>>,
}

impl Table {
    /// A table that knows the root.
    pub(crate) fn new(root_inode: u64) -> Self {
        let mut table = Self {
            locations: HashMap::new(),
            by_inode: HashMap::new(),
            remembered: HashMap::new(),
            // Ids at even offsets are the engine's.
            next_fresh: ObjectId::FIRST_NEW.0 + 1,
            touched: None,
        };
        table.insert(ObjectId::ROOT, root_inode, FileKind::Directory);
        table
    }

    /// Forgets everything but the root.
    pub(crate) fn start_anew(&mut self) {
        let root = self.locations.get(&ObjectId::ROOT).map(|root| root.inode);
        let (before, touched) = (self.ids().collect::<Vec<_>>(), self.touched.take());
        *self = Self::new(root.unwrap_or(ObjectId::ROOT.0));
        self.touched = touched;
        before.into_iter().for_each(|id| self.touch(id));
    }

    /// From now on, changed objects are recorded; and at once all known ones, unless that was done
    /// before.
    pub(crate) fn record_changes(&mut self) {
        if self.touched.is_none() {
            self.touched = Some(self.ids().collect());
        }
    }

    /// The change of an object has been reported.
    pub(crate) fn untouch(&mut self, id: ObjectId) {
        if let Some(touched) = &mut self.touched {
            touched.remove(&id);
        }
    }

    /// Notes that something known of an object changes.
    pub(crate) fn touch(&mut self, id: ObjectId) {
        if let Some(touched) = &mut self.touched {
            touched.insert(id);
        }
    }

    /// The objects noted since the last call.
    pub(crate) fn take_touched(&mut self) -> HashSet<ObjectId> {
        self.touched
            .as_mut()
            .map_or_else(HashSet::new, std::mem::take)
    }

    /// All known objects, in no order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = ObjectId> + '_ {
        self.locations.keys().copied()
    }

    /// Objects found from now on get ids above this one, if they get new ones.
    pub(crate) fn begin_fresh_above(&mut self, id: u64) {
        // Ids at even offsets are the engine's.
        let above = id.saturating_add(1) | 1;
        self.next_fresh = self.next_fresh.max(above);
    }

    /// Takes over the entry of an object in the table of a killed process. To be called in the
    /// order of ids: of two that had the same inode number the later one was made when the number
    /// was free again. [`Table::index_children`] has to follow.
    pub(crate) fn take_over(&mut self, id: ObjectId, known: &KnownLocation) {
        self.by_inode.insert(known.inode, id);
        let location = Location {
            names: known.names.clone(),
            had_several_names: known.names.len() > 1,
            in_limbo: known.in_limbo,
            in_stage: known.in_stage,
            ..Location::new(known.inode, known.kind)
        };
        self.locations.insert(id, location);
    }

    /// Finds out anew which objects have names in which.
    pub(crate) fn index_children(&mut self) {
        let parents: Vec<(ObjectId, ObjectId)> = self
            .locations
            .iter()
            .flat_map(|(&id, location)| location.names.iter().map(move |(parent, _)| (*parent, id)))
            .collect();
        for (parent, id) in parents {
            if let Some(parent) = self.locations.get_mut(&parent) {
                parent.children.insert(id);
            }
        }
    }

    pub(crate) fn get(&self, id: ObjectId) -> Option<&Location> {
        self.locations.get(&id)
    }

    /// Records whether an object has a name in `limbo/`; false if it is not known.
    pub(crate) fn set_in_limbo(&mut self, id: ObjectId, in_limbo: bool) -> bool {
        self.touch(id);
        let location = self.locations.get_mut(&id);
        location
            .map(|location| location.in_limbo = in_limbo)
            .is_some()
    }

    /// Records whether an object that is known has a name in `stage/`.
    pub(crate) fn set_in_stage(&mut self, id: ObjectId, in_stage: bool) {
        self.touch(id);
        if let Some(location) = self.locations.get_mut(&id) {
            location.in_stage = in_stage;
        }
    }

    pub(crate) fn id_of(&self, inode: u64) -> Option<ObjectId> {
        self.by_inode.get(&inode).copied()
    }

    /// Whether nothing else is known of an object that is said to have this inode, and no
    /// other one has it.
    pub(crate) fn agrees(&self, id: ObjectId, inode: u64, kind: FileKind) -> bool {
        let is_other = |known: &Location| (known.inode, known.kind) != (inode, kind);
        inode != NO_INODE
            && id != ObjectId::ROOT
            && !self.get(id).is_some_and(is_other)
            && self.id_of(inode).is_none_or(|other| other == id)
    }

    /// Adds an object without a place.
    pub(crate) fn insert(&mut self, id: ObjectId, inode: u64, kind: FileKind) {
        self.by_inode.insert(inode, id);
        let is_again = self.remembered.remove(&inode) == Some(id);
        if let MapEntry::Vacant(entry) = self.locations.entry(id) {
            let location = entry.insert(Location::new(inode, kind));
            location.had_several_names = is_again;
            self.touch(id);
        }
    }

    /// Keeps the id of an object that a journal changes without recording its place, as only a
    /// forged one does: it has no place, and no other object gets its id.
    pub(crate) fn reserve(&mut self, id: ObjectId) {
        if let MapEntry::Vacant(entry) = self.locations.entry(id) {
            entry.insert(Location::new(NO_INODE, FileKind::Regular));
            self.touch(id);
        }
    }

    /// The id of the object that the lower tree has at this place; a new one if it
    /// was not known.
    pub(crate) fn adopt(
        &mut self,
        inode: u64,
        kind: FileKind,
        parent: ObjectId,
        name: &Name,
    ) -> ObjectId {
        let known = self.by_inode.get(&inode).or(self.remembered.get(&inode));
        let id = known.copied().unwrap_or_else(|| {
            let usable = (ObjectId::ROOT.0 + 1..ObjectId::FIRST_NEW.0).contains(&inode);
            if usable && !self.locations.contains_key(&ObjectId(inode)) {
                return ObjectId(inode);
            }
            let id = ObjectId(self.next_fresh);
            debug_assert!(
                id > ObjectId::FIRST_NEW && (id.0 - ObjectId::FIRST_NEW.0) % 2 == 1,
                "odd offsets are the store's"
            );
            debug_assert!(!self.locations.contains_key(&id), "{id} is a new id");
            self.next_fresh += 2;
            id
        });
        self.insert(id, inode, kind);
        self.add_name(id, parent, name);
        id
    }

    /// Records names in the tree: object, directory, name. A forged journal may give an object
    /// any number of them, so each is not compared with all before it. Some may be known,
    /// because a look-up came in between.
    pub(crate) fn add_names(&mut self, names: impl Iterator<Item = (ObjectId, ObjectId, Name)>) {
        let mut added = HashSet::new();
        let mut seen = HashSet::new();
        for place in names {
            let (id, parent, name) = place.clone();
            if seen.insert(id)
                && let Some(location) = self.locations.get(&id)
            {
                let known = location.names.iter();
                added.extend(known.map(|(parent, name)| (id, *parent, name.clone())));
            }
            if added.insert(place) {
                self.push_name(id, parent, name);
            }
        }
    }

    /// Records a name in the tree.
    pub(crate) fn add_name(&mut self, id: ObjectId, parent: ObjectId, name: &Name) {
        let is_known = self.locations.get(&id).is_some_and(|location| {
            let mut names = location.names.iter();
            names.any(|(p, n)| (*p, n) == (parent, name))
        });
        if !is_known {
            self.push_name(id, parent, name.clone());
        }
    }

    fn push_name(&mut self, id: ObjectId, parent: ObjectId, name: Name) {
        let Some(location) = self.locations.get_mut(&id) else {
            return;
        };
        location.had_several_names |= !location.names.is_empty();
        location.names.push((parent, name));
        self.touch(id);
        if let Some(parent) = self.locations.get_mut(&parent) {
            parent.children.insert(id);
        }
    }

    /// The object that is known to have this name in the tree.
    pub(crate) fn child(&self, parent: ObjectId, name: &Name) -> Option<ObjectId> {
        let mut children = self.locations.get(&parent)?.children.iter().copied();
        let is_at = |id: &ObjectId| {
            let mut names = self.locations.get(id).into_iter().flat_map(Location::names);
            names.any(|(at, known)| *at == parent && known == name)
        };
        children.find(is_at)
    }

    /// Whether an object is known to have, or to have had, several names.
    pub(crate) fn has_had_several_names(&self, id: ObjectId) -> bool {
        let location = self.locations.get(&id);
        location.is_some_and(|location| location.had_several_names)
    }

    /// Records that an object has names that were never looked up yet.
    pub(crate) fn mark_several_names(&mut self, id: ObjectId) {
        if let Some(location) = self.locations.get_mut(&id) {
            location.had_several_names = true;
        }
    }

    /// Forgets a name in the tree.
    pub(crate) fn remove_name(&mut self, id: ObjectId, parent: ObjectId, name: &Name) {
        let Some(location) = self.locations.get_mut(&id) else {
            return;
        };
        location.names.retain(|(p, n)| (*p, n) != (parent, name));
        let is_child = location.names.iter().any(|(p, _)| *p == parent);
        self.touch(id);
        if !is_child && let Some(parent) = self.locations.get_mut(&parent) {
            parent.children.remove(&id);
        }
    }

    /// Forgets the names in a directory, except of objects that are needed or have
    /// known lower objects; returns the others.
    pub(crate) fn remove_names_in(
        &mut self,
        parent: ObjectId,
        is_needed: impl Fn(ObjectId) -> bool,
    ) -> Vec<ObjectId> {
        let Some(directory) = self.locations.get(&parent) else {
            return Vec::new();
        };
        let gone: Vec<ObjectId> = directory
            .children
            .iter()
            .copied()
            .filter(|id| !is_needed(*id) && !self.has_children(*id))
            .collect();
        for id in &gone {
            self.touch(*id);
            if let Some(location) = self.locations.get_mut(id) {
                location.names.retain(|(p, _)| *p != parent);
            }
            if let Some(directory) = self.locations.get_mut(&parent) {
                directory.children.remove(id);
            }
        }
        gone
    }

    /// Whether anything known has a name in this directory.
    pub(crate) fn has_children(&self, id: ObjectId) -> bool {
        let location = self.locations.get(&id);
        location.is_some_and(|location| !location.children.is_empty())
    }

    /// As [`Table::remove`], of an object that exists and may be found again.
    pub(crate) fn forget(&mut self, id: ObjectId) -> bool {
        let again = self.locations.get(&id).filter(|location| {
            location.had_several_names && !location.in_limbo && id >= ObjectId::FIRST_NEW
        });
        let again = again.map(|location| location.inode);
        let is_forgotten = self.remove(id);
        if let (true, Some(inode)) = (is_forgotten, again) {
            self.remembered.insert(inode, id);
        }
        is_forgotten
    }

    /// Forgets an object, unless something known lies in it.
    pub(crate) fn remove(&mut self, id: ObjectId) -> bool {
        match self.locations.get(&id) {
            Some(location) if location.children.is_empty() && id != ObjectId::ROOT => {}
            _ => return false,
        }
        if let Some(location) = self.locations.remove(&id) {
            self.touch(id);
            if self.by_inode.get(&location.inode) == Some(&id) {
                self.by_inode.remove(&location.inode);
            }
            for (parent, _) in &location.names {
                if let Some(parent) = self.locations.get_mut(parent) {
                    parent.children.remove(&id);
                }
            }
        }
        true
    }

    /// The object is not in the lower filesystem any more: what is found under its inode
    /// number is another one.
    pub(crate) fn lose(&mut self, id: ObjectId) {
        let Some(location) = self.locations.get_mut(&id) else {
            return;
        };
        let names = std::mem::take(&mut location.names);
        let inode = std::mem::replace(&mut location.inode, NO_INODE);
        if self.by_inode.get(&inode) == Some(&id) {
            self.by_inode.remove(&inode);
        }
        for (parent, _) in names {
            if let Some(parent) = self.locations.get_mut(&parent) {
                parent.children.remove(&id);
            }
        }
        self.touch(id);
    }

    /// Ids of all objects with a name in `limbo/`.
    pub(crate) fn in_limbo(&self) -> Vec<ObjectId> {
        let limbo = self
            .locations
            .iter()
            .filter(|(_, location)| location.in_limbo);
        limbo.map(|(&id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_several_names_has_its_id_again() {
        let names = [b"a", b"b"].map(|name| Name::new(name).unwrap());
        let adopt = |table: &mut Table, inode, name| {
            table.adopt(inode, FileKind::Regular, ObjectId::ROOT, name)
        };
        let made = |number| ObjectId(ObjectId::FIRST_NEW.0 + number);
        let mut table = Table::new(2);
        for (id, inode, known) in [(made(0), 70, 2), (made(2), 71, 1), (ObjectId(72), 72, 2)] {
            table.insert(id, inode, FileKind::Regular);
            for name in &names[..known] {
                table.add_name(id, ObjectId::ROOT, name);
            }
            table.remove_names_in(ObjectId::ROOT, |_| false);
            assert!(table.forget(id));
        }
        for _ in 0..3 {
            // That one name was found again does not mean that it has no others.
            assert_eq!(adopt(&mut table, 70, &names[1]), made(0));
            table.remove_names_in(ObjectId::ROOT, |_| false);
            assert!(table.forget(made(0)));
        }
        assert_eq!(adopt(&mut table, 70, &names[0]), made(0));
        assert_eq!(adopt(&mut table, 71, &names[0]), ObjectId(71));
        // One name is all that a journal says of an object.
        table.insert(made(4), 73, FileKind::Regular);
        table.add_name(made(4), ObjectId::ROOT, &names[0]);
        table.mark_several_names(made(4));
        table.remove_names_in(ObjectId::ROOT, |_| false);
        assert!(table.forget(made(4)));
        assert_eq!(adopt(&mut table, 73, &names[1]), made(4));
        assert_eq!(adopt(&mut table, 72, &names[0]), ObjectId(72));
        assert!(table.remembered.is_empty());
        // A deleted object's id is not remembered.
        table.remove(made(0));
        assert_eq!(adopt(&mut table, 70, &names[0]), ObjectId(70));
    }

    #[test]
    fn fresh_ids_are_the_stores_and_above_those_that_are_known() {
        let name = Name::new(b"a").unwrap();
        let mut table = Table::new(2);
        // Not usable as an id: the root's.
        let first = table.adopt(ObjectId::ROOT.0, FileKind::Regular, ObjectId::ROOT, &name);
        assert_eq!(first.0, ObjectId::FIRST_NEW.0 + 1);
        for (known, next) in [(2, 3), (3, 5), (10, 11)] {
            let mut table = Table::new(2);
            table.begin_fresh_above(ObjectId::FIRST_NEW.0 + known);
            let fresh = table.adopt(ObjectId::ROOT.0, FileKind::Regular, ObjectId::ROOT, &name);
            assert_eq!(fresh.0, ObjectId::FIRST_NEW.0 + next);
        }
    }
}
