//! Which objects of the journal lie where in the tree.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use mobifs_base::{FileKind, Name, ObjectId};

use crate::log::Transactions;
use crate::log::record::Record;
use crate::recovery::copied;
use crate::salvage::reading::Lost;
use crate::salvage::tree::Tree;

/// Inodes, and the objects that the journal has under other numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct Objects {
    /// Objects that were in the tree when the epoch began, and new ones that an apply has made.
    pub(super) inodes: BTreeMap<ObjectId, (u64, FileKind)>,
    ids: HashMap<u64, ObjectId>,
    /// New objects that an apply has made.
    pub(super) bound: BTreeSet<ObjectId>,
    /// Where the journal has seen objects: directory and name.
    recorded: Vec<(ObjectId, ObjectId, Name)>,
    /// Objects that only lost transactions concern.
    pub(super) from_lost: BTreeSet<ObjectId>,
}

impl Objects {
    /// What these transactions say.
    pub(super) fn of(transactions: &Transactions) -> Self {
        let mut objects = Self::default();
        let in_copy = copied::inodes(transactions);
        let mut created = HashMap::new();
        let mut bound = Vec::new();
        for record in transactions.iter().flat_map(|(_, records)| records) {
            match record {
                Record::Known {
                    id,
                    inode,
                    kind,
                    parent,
                    name,
                } => {
                    let inode = in_copy.get(id).copied().unwrap_or(Some(*inode));
                    let Some(inode) = inode else { continue };
                    objects.add(*id, inode, *kind);
                    if let Ok(name) = Name::new(name) {
                        objects.recorded.push((*id, *parent, name));
                    }
                }
                Record::Object(state) if state.created => {
                    created.insert(state.id, state.attributes.kind);
                }
                Record::Bind { id, inode } => bound.push((*id, *inode)),
                _ => {}
            }
        }
        for (id, inode) in bound {
            if let Some(kind) = created.get(&id) {
                objects.add(id, inode, *kind);
                objects.bound.insert(id);
            }
        }
        objects
    }

    /// Adds what lost transactions say of objects that are not new in them, if they match their
    /// checksums. What others say may be wrong, and must not move anything.
    pub(super) fn with_whole(&mut self, lost: &[Lost]) {
        let before: BTreeSet<ObjectId> = self.inodes.keys().copied().collect();
        self.learn(lost, |lost| lost.is_legible);
        let after = self.inodes.keys().copied();
        self.from_lost = after.filter(|id| !before.contains(id)).collect();
    }

    /// These, with what can be made out of damaged transactions: for reports only.
    pub(super) fn with_doubtful(&self, lost: &[Lost]) -> Self {
        let mut objects = self.clone();
        objects.learn(lost, |_| true);
        objects
    }

    fn learn(&mut self, lost: &[Lost], is_used: impl Fn(&Lost) -> bool) {
        let created = lost.iter().flat_map(|lost| &lost.records);
        let created = created.filter_map(|record| match record {
            Record::Object(state) if state.created => Some(state.id),
            _ => None,
        });
        let created: HashSet<ObjectId> = created.collect();
        let used = lost.iter().filter(|lost| is_used(lost));
        for record in used.flat_map(|lost| &lost.records) {
            if let Record::Known {
                id,
                inode,
                kind,
                parent,
                name,
            } = record
                && !created.contains(id)
                && !self.inodes.contains_key(id)
                && !self.ids.contains_key(inode)
                && let Ok(name) = Name::new(name)
            {
                self.add(*id, *inode, *kind);
                self.recorded.push((*id, *parent, name));
            }
        }
    }

    pub(super) fn add(&mut self, id: ObjectId, inode: u64, kind: FileKind) {
        if id != ObjectId::ROOT && !self.ids.contains_key(&inode) {
            self.inodes.entry(id).or_insert((inode, kind));
            if self
                .inodes
                .get(&id)
                .is_some_and(|(known, _)| *known == inode)
            {
                self.ids.insert(inode, id);
            }
        }
    }

    pub(super) fn remove(&mut self, id: ObjectId) {
        if let Some((inode, _)) = self.inodes.remove(&id) {
            self.ids.remove(&inode);
        }
        self.bound.remove(&id);
    }

    /// The inode of an object that has one.
    pub(super) fn inode(&self, id: ObjectId, tree: &Tree) -> Option<u64> {
        if id == ObjectId::ROOT {
            return Some(tree.root());
        }
        self.inodes.get(&id).map(|(inode, _)| *inode)
    }

    pub(super) fn id(&self, inode: u64) -> Option<ObjectId> {
        self.ids.get(&inode).copied()
    }

    /// All inodes.
    pub(super) fn wanted(&self) -> HashSet<u64> {
        self.ids.keys().copied().collect()
    }

    /// Where the journal has seen objects.
    pub(super) fn recorded(&self) -> &[(ObjectId, ObjectId, Name)] {
        &self.recorded
    }
}
