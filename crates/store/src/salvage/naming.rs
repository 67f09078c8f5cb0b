//! Paths of objects, as transactions name them.

use std::collections::HashMap;

use mobifs_base::{Name, ObjectId};

use crate::log::Transactions;
use crate::log::record::Record;
use crate::salvage::objects::Objects;
use crate::salvage::reading::Lost;
use crate::salvage::tree::Tree;

/// Deeper paths are shown from there on.
const DEPTH_MAX: usize = 1000;

/// A name for each object, and the directory that it is in.
type ById = HashMap<ObjectId, (ObjectId, Name)>;

/// What transactions call objects.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// As whole transactions say.
    whole: ById,
    /// As damaged ones seem to say.
    doubtful: ById,
}

impl Names {
    /// The names after the intact and the lost transactions; that of a deleted object stays.
    pub(super) fn after(intact: &Transactions, lost: &[Lost]) -> Self {
        let lost_records = |is_whole: bool| {
            let lost = lost.iter().filter(move |lost| lost.is_legible == is_whole);
            lost.flat_map(|lost| &lost.records)
        };
        let intact = intact.iter().flat_map(|(_, records)| records);
        Self {
            whole: after(intact.chain(lost_records(true))),
            doubtful: after(lost_records(false)),
        }
    }

    /// The path of an object from the root of the mount, as text; what is not known of it is left
    /// out. That of the root is `.`.
    pub(super) fn path(&self, id: ObjectId, objects: &Objects, tree: &Tree) -> String {
        let mut parts: Vec<String> = Vec::new();
        let mut at = id;
        while at != ObjectId::ROOT && parts.len() < DEPTH_MAX {
            // Objects of the lower tree mostly have the numbers of their inodes.
            let inode = objects.inode(at, tree).unwrap_or(at.0);
            let named = self.whole.get(&at);
            // A damaged name is better than none.
            let named = match (named, tree.path(inode)) {
                (None, Some(path)) => {
                    let names = path.iter().rev();
                    parts.extend(names.map(|name| name.escape_ascii().to_string()));
                    break;
                }
                (None, None) => self.doubtful.get(&at),
                (named, _) => named,
            };
            let Some((parent, name)) = named else {
                parts.push(format!("({at})"));
                break;
            };
            parts.push(name.as_bytes().escape_ascii().to_string());
            at = *parent;
        }
        if parts.is_empty() {
            return ".".to_owned();
        }
        parts.reverse();
        parts.join("/")
    }
}

fn after<'r>(records: impl Iterator<Item = &'r Record>) -> ById {
    let mut names = ById::new();
    for record in records {
        match record {
            Record::Known {
                id, parent, name, ..
            } => {
                if let Ok(name) = Name::new(name) {
                    names.entry(*id).or_insert((*parent, name));
                }
            }
            Record::Dentry {
                parent,
                name,
                child: Some(child),
            } => {
                names.insert(*child, (*parent, name.clone()));
            }
            _ => {}
        }
    }
    names
}
