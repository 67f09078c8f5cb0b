//! The intact transactions as changes of the tree as it lies there now.
//!
//! Lost transactions may be in the tree already, in part: an apply may have moved names, and made
//! new objects, which the intact ones do not know. But no inode that a journal mentions is freed as
//! long as its epoch lasts. So every object is found by its inode, wherever it is, and a new epoch
//! begins with where everything is: what the intact transactions say is true of it again.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use mobifs_base::{FileKind, Name, ObjectId};

use crate::StoreError;
use crate::log::Transactions;
use crate::log::record::Record;
use crate::lower::{Lower, LowerStat};
use crate::overlay::pending::Pending;
use crate::salvage::missing::Missing;
use crate::salvage::objects::Objects;
use crate::salvage::tree::Tree;

/// The transactions of the new journal, and what is missing in them.
#[derive(Debug, Default)]
pub(super) struct Placed {
    /// Their records.
    pub(super) transactions: Vec<Vec<Record>>,
    /// Objects that are nowhere in the store: what the journal says of them is left out.
    pub(super) gone: BTreeSet<ObjectId>,
    /// Directories that are nowhere, and that the journal puts something into: they are made again.
    pub(super) made_again: BTreeSet<ObjectId>,
    /// New files whose content was in `stage/`, and is not there any more.
    pub(super) without_content: BTreeSet<ObjectId>,
    /// Files at places that other objects get: directory and name.
    pub(super) replaced: Vec<(u64, Name)>,
    /// Directories in `stage/` that no intact transaction makes, with something in them: names and
    /// inodes.
    pub(super) unstaged: Vec<(Vec<u8>, u64)>,
}

/// Makes a journal of the intact transactions for the tree as it is.
pub(super) fn place<L: Lower>(
    lower: &L,
    tree: &mut Tree,
    objects: &mut Objects,
    intact: Transactions,
) -> Result<Placed, StoreError> {
    let mut placed = Placed::default();
    let mut pending = Pending::default();
    for record in intact.iter().flat_map(|(_, records)| records) {
        pending.merge_record(record.clone());
    }
    bind_filled(tree, objects, &pending, &mut placed);
    find_gone(tree, objects, &pending, &mut placed);
    let missing = Missing {
        gone: &mut placed.gone,
        made_again: &mut placed.made_again,
    };
    let made_again = missing.make_again(lower, tree, objects, &pending)?;
    find_made(lower, tree, objects, &pending, &mut placed)?;
    let mut ids = Ids::of(objects, &pending);
    let mut known = Vec::new();
    let mut last = restored(lower, tree, objects, &pending, &mut placed)?;
    keep_unknown(lower, tree, objects, &pending, &mut placed)?;
    leave_nameless(tree, objects, &last);
    if intact.is_empty() && last.is_empty() && objects.bound.is_empty() {
        return Ok(placed);
    }
    record_places(tree, objects, &mut ids, &mut known);
    let bound = objects.bound.iter().filter_map(|id| {
        let (inode, _) = objects.inodes.get(id)?;
        Some(Record::Bind {
            id: *id,
            inode: *inode,
        })
    });
    last.extend(bound);
    last.push(Record::RenameMarkInPart);
    placed.transactions.push(known);
    if !made_again.is_empty() {
        placed.transactions.push(made_again);
    }
    for (_, records) in intact {
        let kept = records.into_iter().filter(|record| placed.keeps(record));
        let kept: Vec<Record> = kept.collect();
        if !kept.is_empty() {
            placed.transactions.push(kept);
        }
    }
    placed.transactions.push(last);
    Ok(placed)
}

impl Placed {
    fn keeps(&self, record: &Record) -> bool {
        let is_there = |id: &ObjectId| !self.gone.contains(id);
        match record {
            // Where things are is said anew, and that names may have moved.
            Record::Known { .. }
            | Record::Found { .. }
            | Record::Bind { .. }
            | Record::RenameMark
            | Record::RenameMarkInPart
            | Record::Copied { .. }
            | Record::Materialized
            | Record::External { .. } => false,
            Record::Object(state) => is_there(&state.id),
            Record::Dentry { parent, child, .. } => {
                is_there(parent) && child.as_ref().is_none_or(is_there)
            }
            Record::Bytes { object, .. } => is_there(object),
            Record::Direct { object, .. } => {
                is_there(object) && !self.without_content.contains(object)
            }
        }
    }
}

/// Directories in `stage/` that an apply has put something into. Those that are made by an intact
/// transaction are used as they are.
fn bind_filled(tree: &mut Tree, objects: &mut Objects, pending: &Pending, placed: &mut Placed) {
    for (name, inode) in tree.filled().to_vec() {
        let number = std::str::from_utf8(&name)
            .ok()
            .and_then(|name| name.parse().ok());
        let id = number.map(ObjectId).filter(|id| {
            let is_created = pending.object(*id).is_some_and(|object| object.created);
            is_created && pending.kind_of(*id) == Some(FileKind::Directory)
        });
        match id {
            Some(id) => {
                objects.add(id, inode, FileKind::Directory);
                objects.bound.insert(id);
            }
            None => {
                tree.mark_in_limbo(inode);
                placed.unstaged.push((name, inode));
            }
        }
    }
}

/// Objects that are nowhere. New ones are made again.
fn find_gone(tree: &Tree, objects: &mut Objects, pending: &Pending, placed: &mut Placed) {
    let all: Vec<(ObjectId, u64, FileKind)> = objects
        .inodes
        .iter()
        .map(|(id, (inode, kind))| (*id, *inode, *kind))
        .collect();
    for (id, inode, kind) in all {
        let is_staged = tree.staged(id) == Some(inode);
        let is_there = is_staged || tree.kind(inode).is_some_and(|there| there == kind);
        if is_there {
            continue;
        }
        let is_created = pending.object(id).is_some_and(|object| object.created);
        objects.remove(id);
        if !is_created {
            placed.gone.insert(id);
        }
    }
    // What no record places.
    for (id, object) in pending.objects() {
        if !object.created && *id != ObjectId::ROOT && !objects.inodes.contains_key(id) {
            placed.gone.insert(*id);
        }
    }
    for ((parent, _), child) in pending.dentries() {
        for id in [Some(*parent), *child].into_iter().flatten() {
            let is_created = pending.object(id).is_some_and(|object| object.created);
            if !is_created && id != ObjectId::ROOT && !objects.inodes.contains_key(&id) {
                placed.gone.insert(id);
            }
        }
    }
}

/// New objects that a lost transaction knew the inodes of: an apply has given them their names.
fn find_made<L: Lower>(
    lower: &L,
    tree: &mut Tree,
    objects: &mut Objects,
    pending: &Pending,
    placed: &mut Placed,
) -> Result<(), StoreError> {
    let is_sought = |id: &ObjectId| {
        let object = pending.object(*id);
        object.is_some_and(|object| {
            let kind = object.attributes.map(|attributes| attributes.kind);
            let is_needed = !object.direct.is_empty() || kind == Some(FileKind::Directory);
            object.created && is_needed && pending.is_linked(*id)
        })
    };
    let mut sought: BTreeSet<ObjectId> = pending.objects().keys().copied().collect();
    sought.retain(|id| {
        is_sought(id) && !objects.inodes.contains_key(id) && tree.staged(*id).is_none()
    });
    loop {
        let mut made = Vec::new();
        for id in &sought {
            for (parent, name) in pending.names_of(*id) {
                let Some(directory) = objects.inode(*parent, tree) else {
                    continue;
                };
                let there = tree.stat_at(lower, directory, name.as_bytes())?;
                let there = there.filter(|stat| {
                    Some(stat.kind) == pending.kind_of(*id) && objects.id(stat.inode).is_none()
                });
                if let Some(stat) = there {
                    made.push((*id, stat, directory, name.clone()));
                    break;
                }
            }
        }
        if made.is_empty() {
            break;
        }
        for (id, stat, directory, name) in made {
            sought.remove(&id);
            if objects.id(stat.inode).is_none() {
                objects.add(id, stat.inode, stat.kind);
                objects.bound.insert(id);
                tree.record(&stat, directory, name.as_bytes());
            }
        }
    }
    placed.without_content = sought
        .into_iter()
        .filter(|id| {
            pending
                .object(*id)
                .is_some_and(|object| !object.direct.is_empty())
        })
        .collect();
    Ok(())
}

/// Entries that objects had before a lost transaction took them away, where the intact ones do not
/// change them.
fn restored<L: Lower>(
    lower: &L,
    tree: &Tree,
    objects: &Objects,
    pending: &Pending,
    placed: &mut Placed,
) -> Result<Vec<Record>, StoreError> {
    let mut entries = BTreeMap::new();
    let mut removed = BTreeMap::new();
    for (id, parent, name) in objects.recorded() {
        let place = (*parent, name.clone());
        let Some(directory) = objects.inode(*parent, tree) else {
            continue;
        };
        let Some(inode) = objects.inode(*id, tree) else {
            continue;
        };
        let is_there = tree.is_at(inode, directory, name.as_bytes());
        if pending.dentries().contains_key(&place) || is_there {
            continue;
        }
        // A new one has no place of its own but those that transactions give it.
        if objects.bound.contains(id) || entries.contains_key(&place) {
            continue;
        }
        entries.insert(place, *id);
        let there = tree.stat_at(lower, directory, name.as_bytes())?;
        if there.is_some_and(|stat| {
            stat.kind != FileKind::Directory && objects.id(stat.inode).is_none()
        }) {
            placed.replaced.push((directory, name.clone()));
        }
        // Its other names came later, unless it is one with several.
        if lower_links(lower, tree, inode)? <= 1 || tree.kind(inode) == Some(FileKind::Directory) {
            for (at, name) in tree.places(inode) {
                let parent = if *at == tree.root() {
                    Some(ObjectId::ROOT)
                } else {
                    objects.id(*at)
                };
                if let (Some(parent), Ok(name)) = (parent, Name::new(name)) {
                    removed.insert((parent, name), ());
                }
            }
        }
    }
    let removed = removed
        .into_keys()
        .filter(|place| !entries.contains_key(place) && !pending.dentries().contains_key(place));
    let removed: Vec<Record> = removed
        .map(|(parent, name)| Record::Dentry {
            parent,
            name,
            child: None,
        })
        .collect();
    let given = entries
        .into_iter()
        .map(|((parent, name), id)| Record::Dentry {
            parent,
            name,
            child: Some(id),
        });
    Ok(removed.into_iter().chain(given).collect())
}

/// Files at names that intact transactions give or take away, of which no whole transaction says
/// what they are: a damaged one may have brought them there, and nothing else may have their content.
fn keep_unknown<L: Lower>(
    lower: &L,
    tree: &Tree,
    objects: &Objects,
    pending: &Pending,
    placed: &mut Placed,
) -> Result<(), StoreError> {
    for ((parent, name), child) in pending.dentries() {
        let Some(directory) = objects.inode(*parent, tree) else {
            continue;
        };
        let there = tree.stat_at(lower, directory, name.as_bytes())?;
        let unknown = there.filter(|stat| {
            // A directory that is not empty is kept in any case.
            stat.kind != FileKind::Directory && objects.id(stat.inode).is_none()
        });
        let is_made = |stat: &LowerStat| {
            let object = child.and_then(|child| pending.object(child));
            let object = object.filter(|object| object.created);
            let attributes = object.and_then(|object| object.attributes);
            attributes.is_some_and(|made| {
                (stat.kind, stat.size, stat.mode, stat.mtime)
                    == (made.kind, made.size, made.mode, made.mtime)
            })
        };
        let place = (directory, name.clone());
        if unknown.is_some_and(|stat| !is_made(&stat)) && !placed.replaced.contains(&place) {
            placed.replaced.push(place);
        }
    }
    Ok(())
}

/// Forgets objects in `limbo/` that only lost transactions concern, and that get no name: the next
/// mount would take them for deleted. What is not known is kept.
fn leave_nameless(tree: &Tree, objects: &mut Objects, given: &[Record]) {
    let named: HashSet<ObjectId> = given
        .iter()
        .filter_map(|record| match record {
            Record::Dentry { child, .. } => *child,
            _ => None,
        })
        .collect();
    let nameless = objects.from_lost.iter().filter(|id| {
        let inode = objects.inodes.get(id).map(|(inode, _)| *inode);
        let is_waiting =
            inode.is_some_and(|inode| tree.places(inode).is_empty() && tree.is_in_limbo(inode));
        is_waiting && !named.contains(id)
    });
    let nameless: Vec<ObjectId> = nameless.copied().collect();
    nameless.into_iter().for_each(|id| objects.remove(id));
}

fn lower_links<L: Lower>(lower: &L, tree: &Tree, inode: u64) -> Result<u32, StoreError> {
    let handle = tree.open_object(lower, inode)?;
    let stat = handle.map(|handle| lower.stat(&handle)).transpose();
    let stat = stat.map_err(StoreError::lower("looking at a file of the store"))?;
    Ok(stat.map_or(1, |stat| stat.nlink))
}

/// Numbers for directories that the journal did not know.
struct Ids {
    used: HashSet<ObjectId>,
    next: u64,
}

impl Ids {
    fn of(objects: &Objects, pending: &Pending) -> Self {
        let used: HashSet<ObjectId> = objects
            .inodes
            .keys()
            .copied()
            .chain(pending.ids())
            .collect();
        let max = used.iter().map(|id| id.0).max().unwrap_or(0);
        // Odd offsets are the store's.
        let next = max.max(ObjectId::FIRST_NEW.0) + 1;
        Self {
            used,
            next: next | 1,
        }
    }

    fn give(&mut self, inode: u64) -> ObjectId {
        let id = ObjectId(inode);
        let is_usable = (ObjectId::ROOT.0 + 1..ObjectId::FIRST_NEW.0).contains(&inode);
        let id = if is_usable && !self.used.contains(&id) {
            id
        } else {
            let id = ObjectId(self.next);
            self.next += 2;
            id
        };
        self.used.insert(id);
        id
    }
}

/// Records of where all objects are, and the directories above them.
fn record_places(tree: &Tree, objects: &mut Objects, ids: &mut Ids, records: &mut Vec<Record>) {
    let mut waiting: Vec<u64> = objects.inodes.values().map(|(inode, _)| *inode).collect();
    let mut done = HashSet::new();
    while let Some(inode) = waiting.pop() {
        if inode == tree.root() || !done.insert(inode) {
            continue;
        }
        let Some(id) = objects.id(inode) else {
            continue;
        };
        let Some((_, kind)) = objects.inodes.get(&id).copied() else {
            continue;
        };
        for (parent, name) in tree.places(inode) {
            let parent_id = if *parent == tree.root() {
                ObjectId::ROOT
            } else {
                objects.id(*parent).unwrap_or_else(|| {
                    let id = ids.give(*parent);
                    objects.add(id, *parent, FileKind::Directory);
                    id
                })
            };
            waiting.push(*parent);
            records.push(Record::Known {
                id,
                inode,
                kind,
                parent: parent_id,
                name: name.clone(),
            });
        }
        if tree.places(inode).is_empty() && tree.is_in_limbo(inode) {
            records.push(Record::Known {
                id,
                inode,
                kind,
                parent: ObjectId::ROOT,
                name: Vec::new(),
            });
        }
    }
}
