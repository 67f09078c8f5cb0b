//! Where known objects are in the lower tree.

use std::collections::{HashMap, HashSet};

use mobifs_types::{FileKind, Name, ObjectId};

/// Where one object of the lower filesystem can be found.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    pub(crate) inode: u64,
    pub(crate) kind: FileKind,
    /// Known names in the tree: (directory, name).
    pub(crate) names: Vec<(ObjectId, Name)>,
    /// It has a name in `limbo/`: its inode number.
    pub(crate) in_limbo: bool,
    /// It has a name in `stage/`: its id.
    pub(crate) in_stage: bool,
    /// Known objects that have a name in this directory.
    children: HashSet<ObjectId>,
}

/// All objects of the lower filesystem that somebody was told of.
#[derive(Debug)]
pub(crate) struct Table {
    locations: HashMap<ObjectId, Location>,
    by_inode: HashMap<u64, ObjectId>,
    next_fresh: u64,
}

impl Table {
    /// A table that knows the root.
    pub(crate) fn new(root_inode: u64) -> Self {
        let mut table = Self {
            locations: HashMap::new(),
            by_inode: HashMap::new(),
            // Even offsets are the engine's.
            next_fresh: ObjectId::FIRST_NEW.0 + 1,
        };
        table.insert(ObjectId::ROOT, root_inode, FileKind::Directory);
        table
    }

    /// Forgets everything but the root.
    pub(crate) fn start_anew(&mut self) {
        let root = self.locations.get(&ObjectId::ROOT).map(|root| root.inode);
        *self = Self::new(root.unwrap_or(ObjectId::ROOT.0));
    }

    pub(crate) fn get(&self, id: ObjectId) -> Option<&Location> {
        self.locations.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: ObjectId) -> Option<&mut Location> {
        self.locations.get_mut(&id)
    }

    pub(crate) fn id_of(&self, inode: u64) -> Option<ObjectId> {
        self.by_inode.get(&inode).copied()
    }

    /// Adds an object without a place.
    pub(crate) fn insert(&mut self, id: ObjectId, inode: u64, kind: FileKind) {
        self.by_inode.insert(inode, id);
        self.locations.entry(id).or_insert(Location {
            inode,
            kind,
            names: Vec::new(),
            in_limbo: false,
            in_stage: false,
            children: HashSet::new(),
        });
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
        let id = self.by_inode.get(&inode).copied().unwrap_or_else(|| {
            let usable = (ObjectId::ROOT.0 + 1..ObjectId::FIRST_NEW.0).contains(&inode);
            if usable && !self.locations.contains_key(&ObjectId(inode)) {
                return ObjectId(inode);
            }
            let id = ObjectId(self.next_fresh);
            self.next_fresh += 2;
            id
        });
        self.insert(id, inode, kind);
        self.add_name(id, parent, name);
        id
    }

    /// Records a name in the tree.
    pub(crate) fn add_name(&mut self, id: ObjectId, parent: ObjectId, name: &Name) {
        let Some(location) = self.locations.get_mut(&id) else {
            return;
        };
        if location
            .names
            .iter()
            .any(|(p, n)| (*p, n) == (parent, name))
        {
            return;
        }
        location.names.push((parent, name.clone()));
        if let Some(parent) = self.locations.get_mut(&parent) {
            parent.children.insert(id);
        }
    }

    /// Forgets a name in the tree.
    pub(crate) fn remove_name(&mut self, id: ObjectId, parent: ObjectId, name: &Name) {
        let Some(location) = self.locations.get_mut(&id) else {
            return;
        };
        location.names.retain(|(p, n)| (*p, n) != (parent, name));
        let is_child = location.names.iter().any(|(p, _)| *p == parent);
        if !is_child && let Some(parent) = self.locations.get_mut(&parent) {
            parent.children.remove(&id);
        }
    }

    /// Forgets the names in a directory, except of objects that are needed or have
    /// known objects below; returns the others.
    pub(crate) fn remove_names_in(
        &mut self,
        parent: ObjectId,
        is_needed: impl Fn(ObjectId) -> bool,
    ) -> Vec<ObjectId> {
        let Some(directory) = self.locations.get(&parent) else {
            return Vec::new();
        };
        let has_children = |id: &ObjectId| {
            self.locations
                .get(id)
                .is_some_and(|l| !l.children.is_empty())
        };
        let gone: Vec<ObjectId> = directory
            .children
            .iter()
            .copied()
            .filter(|id| !is_needed(*id) && !has_children(id))
            .collect();
        for id in &gone {
            if let Some(location) = self.locations.get_mut(id) {
                location.names.retain(|(p, _)| *p != parent);
            }
            if let Some(directory) = self.locations.get_mut(&parent) {
                directory.children.remove(id);
            }
        }
        gone
    }

    /// Forgets an object, unless something known lies in it.
    pub(crate) fn remove(&mut self, id: ObjectId) -> bool {
        match self.locations.get(&id) {
            Some(location) if location.children.is_empty() && id != ObjectId::ROOT => {}
            _ => return false,
        }
        if let Some(location) = self.locations.remove(&id) {
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

    /// Ids of all objects with a name in `limbo/`.
    pub(crate) fn in_limbo(&self) -> Vec<ObjectId> {
        let limbo = self
            .locations
            .iter()
            .filter(|(_, location)| location.in_limbo);
        limbo.map(|(&id, _)| id).collect()
    }
}
