//! Whether a store that goes on is the one that was killed.

use std::collections::BTreeMap;

use mobifs_base::{FileKind, ObjectId};
use mobifs_store::Store;

use super::super::run::text;
use super::super::tree::{NodeId, ROOT, Tree, difference, push_name};
use super::super::walk::{see_object, walk_store};

/// Ids of a tree's objects, as far as the store has reported them.
pub(super) type Ids = BTreeMap<NodeId, ObjectId>;

/// Compares what a store shows with a tree whose objects have these ids.
pub(super) fn compare(store: &impl Store, tree: &Tree, ids: &Ids) -> Result<(), String> {
    compare_by_id(store, tree, ids)?;
    compare_listed(store, tree, ids, ROOT)?;
    let found = walk_store(store).map_err(text)?;
    match tree.seen().first_difference(&found) {
        Some(difference) => Err(format!("the tree is wrong: {difference}")),
        None => Ok(()),
    }
}

/// Asks for every known object by its id, before anything is listed.
fn compare_by_id(store: &impl Store, tree: &Tree, ids: &Ids) -> Result<(), String> {
    let mut paths = BTreeMap::new();
    find_paths(tree, ROOT, &mut paths);
    let seen = tree.seen();
    for (node, path) in &paths {
        let Some(&id) = ids.get(node) else { continue };
        let shown = path.escape_ascii();
        let found = see_object(store, id, path.is_empty(), path.clone())
            .map_err(|error| format!("{id}, \"{shown}\": {error}"))?;
        if let Some(what) = difference(&seen.0[path], &found) {
            return Err(format!("{id}, \"{shown}\": {what}"));
        }
    }
    Ok(())
}

fn find_paths(tree: &Tree, node: NodeId, paths: &mut BTreeMap<NodeId, Vec<u8>>) {
    let mut waiting = vec![(node, Vec::new())];
    while let Some((node, path)) = waiting.pop() {
        let entries = tree.node(node).entries.iter().rev();
        let below = entries.map(|(name, &child)| {
            let mut path = path.clone();
            push_name(&mut path, name.as_bytes());
            (child, path)
        });
        waiting.extend(below);
        paths.entry(node).or_insert(path);
    }
}

/// Lists the known directories: entries have the ids that are known.
fn compare_listed(store: &impl Store, tree: &Tree, ids: &Ids, node: NodeId) -> Result<(), String> {
    let mut waiting = vec![node];
    while let Some(node) = waiting.pop() {
        let Some(&id) = ids.get(&node) else {
            continue;
        };
        let entries = &tree.node(node).entries;
        for entry in store.list_directory(id).map_err(text)? {
            let child = entries.get(&entry.name);
            let child =
                *child.ok_or_else(|| format!("{id} lists an unknown object {}", entry.name))?;
            match ids.get(&child) {
                Some(&known) if known != entry.id => {
                    return Err(format!(
                        "{id} lists {} as {}, which was {known}",
                        entry.name, entry.id
                    ));
                }
                _ => {}
            }
            if tree.node(child).attributes.kind == FileKind::Directory {
                waiting.push(child);
            }
        }
    }
    Ok(())
}
