//! Which names the objects of a mount have, according to its requests.

use std::collections::HashMap;

use mobifs_base::{FoundObject, ObjectId};

/// A directory and a name in it.
type Place = (ObjectId, Box<[u8]>);

/// Longest path of an event: no call of the system takes a longer one (`PATH_MAX`), with which a
/// replay could do the same. For a program that works thousands of directories deep, one after the
/// other, the size of the written paths would grow by the square of the depth.
const PATH_BYTES_MAX: usize = 4095;

/// Why an object has no path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPath {
    /// Its name, or that of a directory above it, was not observed.
    Unknown,
    /// The path is longer than any path can be.
    TooLong,
}

/// The process and thread that used a file.
pub(super) type User = (u32, u32);

#[derive(Debug, Default)]
struct Node {
    /// The one that was found last is last.
    places: Vec<Place>,
    /// The path of a file that goes on without a name.
    nameless: Option<Vec<u8>>,
    /// The process and thread that used it last without a name.
    user: Option<User>,
    /// References that the kernel has.
    lookups: u64,
    is_directory: bool,
}

/// The names of objects.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: HashMap<ObjectId, Node>,
    entries: HashMap<Place, ObjectId>,
    /// Some references were not seen, so that none can be counted.
    keeps_all: bool,
}

/// A file without a name that is no longer in use.
pub(super) struct Closed {
    pub(super) path: Vec<u8>,
    pub(super) user: User,
}

impl Tree {
    pub(super) fn new() -> Self {
        let root = Node {
            is_directory: true,
            ..Node::default()
        };
        Self {
            nodes: HashMap::from([(ObjectId::ROOT, root)]),
            entries: HashMap::new(),
            keeps_all: false,
        }
    }

    /// Observations are missing: what is known stays known.
    pub(super) const fn keep_all(&mut self) {
        self.keeps_all = true;
    }

    /// The path of an object; `.` for the root.
    pub(super) fn path(&self, id: ObjectId) -> Result<Vec<u8>, NoPath> {
        if id == ObjectId::ROOT {
            return Ok(b".".to_vec());
        }
        let node = self.nodes.get(&id).ok_or(NoPath::Unknown)?;
        if let Some((directory, name)) = node.places.last() {
            return self.child_path(*directory, name);
        }
        node.nameless.clone().ok_or(NoPath::Unknown)
    }

    /// The path of a name in a directory. Names that lead in a circle are too long, too.
    pub(super) fn child_path(&self, directory: ObjectId, name: &[u8]) -> Result<Vec<u8>, NoPath> {
        let mut parts = vec![name];
        let mut bytes = name.len();
        let mut at = directory;
        while at != ObjectId::ROOT {
            let place = self.nodes.get(&at).and_then(|node| node.places.last());
            let (above, name) = place.ok_or(NoPath::Unknown)?;
            parts.push(name);
            bytes += name.len() + 1;
            if bytes > PATH_BYTES_MAX {
                return Err(NoPath::TooLong);
            }
            at = *above;
        }
        parts.reverse();
        Ok(parts.join(&b'/'))
    }

    pub(super) fn is_directory(&self, id: ObjectId) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.is_directory)
    }

    /// A name means this object, of which the kernel has one reference more.
    pub(super) fn found(&mut self, directory: ObjectId, name: &[u8], found: FoundObject) {
        self.count(found);
        self.name(directory, name, found.id);
    }

    /// A file without a name was made; it is called by a path of its own.
    pub(super) fn made_unnamed(&mut self, found: FoundObject, path: Vec<u8>) {
        self.count(found).nameless = Some(path);
    }

    fn count(&mut self, found: FoundObject) -> &mut Node {
        let node = self.nodes.entry(found.id).or_default();
        node.lookups = node.lookups.saturating_add(1);
        node.is_directory = found.is_directory;
        node
    }

    /// An object that is known got a name, in place of what had it.
    pub(super) fn name(&mut self, directory: ObjectId, name: &[u8], id: ObjectId) {
        if id == ObjectId::ROOT {
            return;
        }
        let place: Place = (directory, name.into());
        if self.entries.get(&place).is_some_and(|had| *had != id) {
            self.unlink(directory, name);
        }
        let node = self.nodes.entry(id).or_default();
        node.nameless = None;
        node.places.retain(|had| *had != place);
        node.places.push(place.clone());
        self.entries.insert(place, id);
    }

    /// A name is gone.
    pub(super) fn unlink(&mut self, directory: ObjectId, name: &[u8]) {
        let path = self.child_path(directory, name);
        let Some(id) = self.take(directory, name) else {
            return;
        };
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        if node.places.is_empty() {
            node.nameless = path.ok().map(|mut path| {
                path.push(0);
                path
            });
            node.user = None;
        }
    }

    /// Takes a name away from what has it.
    fn take(&mut self, directory: ObjectId, name: &[u8]) -> Option<ObjectId> {
        let place: Place = (directory, name.into());
        let id = self.entries.remove(&place)?;
        if let Some(node) = self.nodes.get_mut(&id) {
            node.places.retain(|had| *had != place);
        }
        Some(id)
    }

    /// A name became another one.
    pub(super) fn rename(&mut self, from: (ObjectId, &[u8]), to: (ObjectId, &[u8])) {
        if from == to {
            return;
        }
        let has_same = |tree: &Self| {
            let entry = |(directory, name): (ObjectId, &[u8])| {
                tree.entries.get(&(directory, name.into())).copied()
            };
            entry(from).is_some() && entry(from) == entry(to)
        };
        if has_same(self) {
            // Two names of one file: nothing happens.
            return;
        }
        self.unlink(to.0, to.1);
        if let Some(moved) = self.take(from.0, from.1) {
            self.name(to.0, to.1, moved);
        }
    }

    /// Two names changed places.
    pub(super) fn exchange(&mut self, one: (ObjectId, &[u8]), other: (ObjectId, &[u8])) {
        let (first, second) = (self.take(one.0, one.1), self.take(other.0, other.1));
        if let Some(first) = first {
            self.name(other.0, other.1, first);
        }
        if let Some(second) = second {
            self.name(one.0, one.1, second);
        }
    }

    /// An operation used an object: files that are used without a name are remembered.
    pub(super) fn used(&mut self, id: ObjectId, user: User) {
        if let Some(node) = self.nodes.get_mut(&id)
            && node.nameless.is_some()
        {
            node.user = Some(user);
        }
    }

    /// A file that was made without a name was closed.
    pub(super) fn released(&mut self, id: ObjectId) {
        if let Some(node) = self.nodes.get_mut(&id) {
            node.user = None;
        }
    }

    /// The kernel has given references back. If those were the last ones and a program has used the
    /// file without a name, that is its end.
    pub(super) fn forget(&mut self, id: ObjectId, lookups: u64) -> Option<Closed> {
        let node = self.nodes.get_mut(&id).filter(|_| id != ObjectId::ROOT)?;
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups > 0 || self.keeps_all {
            return None;
        }
        let node = self.nodes.remove(&id)?;
        for place in &node.places {
            self.entries.remove(place);
        }
        Some(Closed {
            path: node.nameless?,
            user: node.user?,
        })
    }
}
