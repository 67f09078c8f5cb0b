//! Finding directories of the lower tree that are not open yet.
//!
//! Where a directory is can only be found from its parent. After an interrupted apply each
//! may be at its old or at its new place, so that what is known of them leads in circles; and a
//! forged journal may name any number of places. So all ways up are gathered first, and then
//! gone downwards from what is open: every directory and every way once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use mobifs_base::{Name, ObjectId};

use crate::StoreError;
use crate::lower::Lower;
use crate::overlay::Overlay;

/// Results of looking for one object after the other. They are valid as long as no name moves.
#[derive(Debug, Default)]
pub(crate) struct Search {
    /// Directories that are at none of their places.
    nowhere: HashSet<ObjectId>,
}

impl Search {
    /// Names have moved: an object without a place may have one now.
    pub(crate) fn begin_anew(&mut self) {
        self.nowhere.clear();
    }
}

/// What may be in a directory: an object, its name, and its inode.
type Entry = (ObjectId, Name, u64);

/// All ways down to a directory.
struct Ways<H> {
    /// The open directories where they begin, the nearest last.
    open: Vec<(ObjectId, Arc<H>)>,
    /// The others, the nearest first.
    unopened: Vec<ObjectId>,
    /// By directory: where to go on from there.
    entries: HashMap<ObjectId, Vec<Entry>>,
}

/// A handle on a directory, if it is at one of its places.
pub(crate) fn directory<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
    search: &mut Search,
) -> Result<Option<Arc<L::Handle>>, StoreError> {
    if search.nowhere.contains(&id) {
        return Ok(None);
    }
    if let Some(handle) = overlay.open_handle(id)? {
        return Ok(Some(handle));
    }
    let mut ways = ways_to(overlay, id, search)?;
    let mut reached = HashSet::new();
    // Objects inside a directory that waits in `limbo/` or `stage/` need not be in the tree.
    let mut waiting = ways.unopened.clone();
    loop {
        let Some((at, handle)) = ways.open.pop() else {
            let Some(next) = waiting.pop() else { break };
            if !reached.contains(&next)
                && let Some(handle) = open_own(overlay, next)?
            {
                reached.insert(next);
                ways.open.push((next, handle));
            }
            continue;
        };
        if at == id {
            return Ok(Some(handle));
        }
        for (child, name, inode) in ways.entries.remove(&at).unwrap_or_default() {
            if !reached.contains(&child)
                && let Some(handle) = open_entry(overlay, &handle, &name, child, inode)?
            {
                reached.insert(child);
                ways.open.push((child, handle));
            }
        }
    }
    let unopened = ways.unopened.into_iter();
    let nowhere = unopened.filter(|id| !reached.contains(id));
    search.nowhere.extend(nowhere);
    Ok(None)
}

fn ways_to<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
    search: &Search,
) -> Result<Ways<L::Handle>, StoreError> {
    let mut ways = Ways {
        open: Vec::new(),
        unopened: vec![id],
        entries: HashMap::new(),
    };
    let mut seen = HashSet::from([id]);
    let mut next = 0;
    while let Some(&child) = ways.unopened.get(next) {
        next += 1;
        for (parent, name, inode) in places_of(overlay, child) {
            if search.nowhere.contains(&parent) {
                continue;
            }
            let entries = ways.entries.entry(parent).or_default();
            entries.push((child, name, inode));
            if seen.insert(parent) {
                match overlay.open_handle(parent)? {
                    Some(handle) => ways.open.push((parent, handle)),
                    None => ways.unopened.push(parent),
                }
            }
        }
    }
    ways.open.reverse();
    Ok(ways)
}

/// Where an object may be in the tree: directory, name, and the inode that it has.
fn places_of<L: Lower>(overlay: &Overlay<L>, id: ObjectId) -> Vec<(ObjectId, Name, u64)> {
    let state = overlay.state();
    let location = state.table.get(id);
    let known = location.map_or(&[][..], |location| location.names());
    let Some(inode) = state.inode_of(id) else {
        return Vec::new();
    };
    // An interrupted apply may have attached it at a name that is pending.
    let names = known.iter().chain(state.pending.names_of(id));
    names
        .map(|(parent, name)| (*parent, name.clone(), inode))
        .collect()
}

fn open_entry<L: Lower>(
    overlay: &Overlay<L>,
    directory: &L::Handle,
    name: &Name,
    id: ObjectId,
    inode: u64,
) -> Result<Option<Arc<L::Handle>>, StoreError> {
    if !overlay.is_there(directory, name.as_bytes(), Some(inode))? {
        return Ok(None);
    }
    overlay.open_at(directory, name.as_bytes(), id)
}

fn open_own<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
) -> Result<Option<Arc<L::Handle>>, StoreError> {
    let inode = overlay.state().inode_of(id);
    match overlay.own_place(id, inode)? {
        Some(place) => overlay.open_at(&place.directory, &place.name, id),
        None => Ok(None),
    }
}
