//! Directories that are missing in the store, and into which the journal puts something: new files, and files that
//! it takes away from their old names. They are made again, or nothing would have a name for these.

use std::collections::BTreeSet;

use mobifs_base::{Attributes, DeviceNumber, FileKind, Name, ObjectId, ObjectState, Timestamp};

use crate::StoreError;
use crate::log::record::Record;
use crate::lower::Lower;
use crate::overlay::pending::Pending;
use crate::salvage::objects::Objects;
use crate::salvage::tree::Tree;

/// Rights of a directory of which the journal does not say what it had: no more than its owner's.
const UNKNOWN_MODE: u16 = 0o700;

/// What is not in the store.
pub(super) struct Missing<'a> {
    /// Objects that are nowhere.
    pub(super) gone: &'a mut BTreeSet<ObjectId>,
    /// Directories that were, and are made again.
    pub(super) made_again: &'a mut BTreeSet<ObjectId>,
}

impl Missing<'_> {
    /// Makes the directories again that are needed; returns the records that do. One whose name another
    /// directory has is taken for that.
    pub(super) fn make_again<L: Lower>(
        self,
        lower: &L,
        tree: &mut Tree,
        objects: &mut Objects,
        pending: &Pending,
    ) -> Result<Vec<Record>, StoreError> {
        let mut waiting: Vec<ObjectId> = needed(objects, pending, self.gone).into_iter().collect();
        let mut records = Vec::new();
        while !waiting.is_empty() {
            // Those above come first. A forged journal may lead in circles.
            let is_first = |id: &ObjectId| {
                place(objects, *id).is_none_or(|(parent, _)| !waiting.contains(&parent))
            };
            let id = waiting.remove(waiting.iter().position(is_first).unwrap_or(0));
            let known = place(objects, id).filter(|(parent, _)| {
                let is_there = *parent == ObjectId::ROOT || objects.inode(*parent, tree).is_some();
                is_there || self.made_again.contains(parent)
            });
            let (parent, name) = known.unwrap_or_else(|| (ObjectId::ROOT, fallback_name(id, 0)));
            let directory = objects.inode(parent, tree);
            let found = match directory {
                Some(directory) => tree.stat_at(lower, directory, name.as_bytes())?,
                None => None,
            };
            let same = found.as_ref().zip(directory).filter(|(stat, _)| {
                stat.kind == FileKind::Directory && objects.id(stat.inode).is_none()
            });
            self.gone.remove(&id);
            if let Some((stat, directory)) = same {
                objects.add(id, stat.inode, FileKind::Directory);
                tree.record(stat, directory, name.as_bytes());
                continue;
            }
            let mut free = name;
            let mut number = 0;
            while is_taken(lower, tree, pending, (directory, parent, &free), id)? {
                free = fallback_name(id, number);
                number += 1;
            }
            records.push(Record::Object(directory_state(id, pending)));
            records.push(Record::Dentry {
                parent,
                name: free,
                child: Some(id),
            });
            self.made_again.insert(id);
        }
        Ok(records)
    }
}

/// Missing directories that something else has its name in, and the missing ones above them.
fn needed(objects: &Objects, pending: &Pending, gone: &BTreeSet<ObjectId>) -> BTreeSet<ObjectId> {
    let entries = pending.dentries().iter();
    let entries = entries.filter(|(_, child)| child.is_some_and(|id| !gone.contains(&id)));
    let mut waiting: Vec<ObjectId> = entries.map(|((parent, _), _)| *parent).collect();
    let mut needed = BTreeSet::new();
    while let Some(id) = waiting.pop() {
        if !gone.contains(&id) || !needed.insert(id) {
            continue;
        }
        waiting.extend(pending.names_of(id).iter().map(|(parent, _)| *parent));
        waiting.extend(place(objects, id).map(|(parent, _)| parent));
    }
    needed
}

/// Where the journal has seen an object first.
fn place(objects: &Objects, id: ObjectId) -> Option<(ObjectId, Name)> {
    let mut recorded = objects.recorded().iter();
    let (_, parent, name) = recorded.find(|(known, ..)| *known == id)?;
    Some((*parent, name.clone()))
}

/// Whether something else has the name, or gets it, or the directory itself would lose it.
fn is_taken<L: Lower>(
    lower: &L,
    tree: &Tree,
    pending: &Pending,
    (directory, parent, name): (Option<u64>, ObjectId, &Name),
    id: ObjectId,
) -> Result<bool, StoreError> {
    let is_named = !pending.names_of(id).is_empty();
    match pending.dentries().get(&(parent, name.clone())) {
        Some(Some(other)) if *other != id => return Ok(true),
        Some(None) if !is_named => return Ok(true),
        _ => {}
    }
    let Some(directory) = directory else {
        return Ok(false);
    };
    Ok(tree.stat_at(lower, directory, name.as_bytes())?.is_some())
}

fn fallback_name(id: ObjectId, number: u64) -> Name {
    let name = format!("salvaged-directory-{}-{number}", id.0);
    #[expect(
        clippy::expect_used,
        reason = "it has no slash, and fewer than 255 bytes"
    )]
    Name::new(name.as_bytes()).expect("a valid name")
}

fn directory_state(id: ObjectId, pending: &Pending) -> ObjectState {
    let known = pending.object(id).and_then(|object| object.attributes);
    let unknown = Timestamp::new(0, 0);
    let attributes = known.unwrap_or(Attributes {
        kind: FileKind::Directory,
        mode: UNKNOWN_MODE,
        uid: 0,
        gid: 0,
        rdev: DeviceNumber::default(),
        size: 0,
        nlink: 2,
        atime: unknown,
        mtime: unknown,
        ctime: unknown,
    });
    ObjectState {
        id,
        created: true,
        attributes,
        symlink_target: None,
        zeroed: Vec::new(),
        allocated: Vec::new(),
        xattrs: Vec::new(),
    }
}
