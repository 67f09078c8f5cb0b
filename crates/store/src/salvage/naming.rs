//! Paths of objects, as transactions name them.

use std::collections::{BTreeMap, HashMap};

use mobifs_base::{Name, ObjectId};

use crate::log::record::Record;
use crate::salvage::placing::Objects;
use crate::salvage::tree::Tree;

/// Deeper paths are shown from there on.
const DEPTH_MAX: usize = 1000;

/// A name for each object.
#[derive(Debug, Default)]
pub(super) struct Names {
    by_id: HashMap<ObjectId, (ObjectId, Name)>,
    by_place: BTreeMap<(ObjectId, Name), ObjectId>,
}

impl Names {
    /// The names after these records; that of a deleted object stays.
    pub(super) fn after<'r>(records: impl Iterator<Item = &'r Record>) -> Self {
        let mut names = Self::default();
        for record in records {
            match record {
                Record::Known {
                    id, parent, name, ..
                } => {
                    if let Ok(name) = Name::new(name)
                        && !names.by_id.contains_key(id)
                    {
                        names.set(*id, *parent, name);
                    }
                }
                Record::Dentry {
                    parent,
                    name,
                    child: Some(child),
                } => names.set(*child, *parent, name.clone()),
                _ => {}
            }
        }
        names
    }

    fn set(&mut self, id: ObjectId, parent: ObjectId, name: Name) {
        self.by_place.insert((parent, name.clone()), id);
        self.by_id.insert(id, (parent, name));
    }

    /// The path of an object from the root of the mount, as text; what is not known of it is left
    /// out.
    pub(super) fn path(&self, id: ObjectId, objects: &Objects, tree: &Tree) -> String {
        let mut parts: Vec<String> = Vec::new();
        let mut at = id;
        while at != ObjectId::ROOT && parts.len() < DEPTH_MAX {
            if let Some((parent, name)) = self.by_id.get(&at) {
                parts.push(name.as_bytes().escape_ascii().to_string());
                at = *parent;
                continue;
            }
            // Objects of the lower tree mostly have the numbers of their inodes.
            let inode = objects.inode(at, tree).unwrap_or(at.0);
            match tree.path(inode) {
                Some(path) => parts.extend(
                    path.iter()
                        .rev()
                        .map(|name| name.escape_ascii().to_string()),
                ),
                None => parts.push(format!("({at})")),
            }
            break;
        }
        parts.reverse();
        parts.join("/")
    }
}
