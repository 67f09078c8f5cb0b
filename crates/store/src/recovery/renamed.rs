//! Where an interrupted apply has left the objects that it moves.

use std::collections::{BTreeSet, HashMap};

use mobifs_base::{Name, ObjectId};

use crate::StoreError;
use crate::log::epoch::{Epoch, RenameMark};
use crate::lower::Lower;
use crate::overlay::Overlay;
use crate::overlay::lookup;
use crate::overlay::search::Search;

/// Updates the table to where an interrupted apply has left objects: after a kill between a call
/// and its report, or a power cut anywhere. Commits from now on record the places that were found,
/// because they may remove the names that the journal records.
///
/// Returns whether every object has an inode of its own, as is the case unless the journal is
/// forged.
pub(crate) fn find_renamed<L: Lower>(
    overlay: &Overlay<L>,
    epoch: &mut Epoch<L::Handle>,
) -> Result<bool, StoreError> {
    let _tree = overlay.lock_names();
    let has_begun = epoch.rename_mark() != RenameMark::NotBegun;
    let is_valid = !has_begun || adopt_bound(overlay);
    check_own_names(overlay)?;
    if has_begun {
        drop_stale_names(overlay)?;
        add_reached_names(overlay)?;
        epoch.forget_recorded();
    }
    Ok(is_valid)
}

/// New objects that the journal knows by their inodes are objects of the lower filesystem.
fn adopt_bound<L: Lower>(overlay: &Overlay<L>) -> bool {
    let mut state = overlay.state_mut();
    let objects = state.pending.objects().iter();
    let bound = objects.filter_map(|(&id, object)| {
        let kind = object.attributes?.kind;
        Some((id, object.bound?, kind))
    });
    let mut bound: Vec<_> = bound.collect();
    bound.sort_unstable_by_key(|(id, ..)| *id);
    let mut is_valid = true;
    for (id, inode, kind) in bound {
        is_valid &= state.table.agrees(id, inode, kind);
        if state.table.get(id).is_none() {
            state.table.insert(id, inode, kind);
        }
    }
    is_valid
}

/// Which objects really have a name in `limbo/` or `stage/`. An object that had one, and has no
/// other, is deleted, unless the journal gives it a name: then it has that one already. Not so a new
/// object whose inode the journal does not have: it was not renamed yet, so an apply has deleted
/// it from `stage/`, because it was refused, and is to make it again.
fn check_own_names<L: Lower>(overlay: &Overlay<L>) -> Result<(), StoreError> {
    let list = |directory: &L::Handle, what: &str| {
        let entries = overlay
            .lower()
            .list(directory)
            .map_err(StoreError::lower(what));
        let named = |entries: Vec<crate::lower::LowerEntry>| {
            let entries = entries.into_iter();
            entries.map(|entry| (entry.name, entry.inode)).collect()
        };
        entries.map(named)
    };
    let limbo: HashMap<Vec<u8>, u64> = list(overlay.limbo(), "listing .mobifs/limbo")?;
    let stage: HashMap<Vec<u8>, u64> = list(overlay.stage(), "listing stage")?;
    let mut state = overlay.state_mut();
    let ids: BTreeSet<ObjectId> = state.table.ids().collect();
    for id in ids {
        let Some(location) = state.table.get(id) else {
            continue;
        };
        let inode = location.inode;
        let is_in = |entries: &HashMap<Vec<u8>, u64>, name: u64| {
            entries.get(name.to_string().as_bytes()) == Some(&inode)
        };
        // Of two objects that had the same inode number, one after the other, only
        // the later one can be there.
        let is_later = state.table.id_of(inode) == Some(id);
        let in_limbo = is_later && is_in(&limbo, inode);
        let in_stage = is_in(&stage, id.0);
        let had_one = location.in_limbo() || location.in_stage();
        if (location.in_limbo(), location.in_stage()) == (in_limbo, in_stage) {
            continue;
        }
        let is_nowhere = !in_limbo && !in_stage && location.names().is_empty();
        let object = state.pending.object(id);
        let is_to_be_made = object.is_some_and(|object| object.created && object.bound.is_none());
        let may_be_named = state.pending.is_linked(id) && !is_to_be_made;
        if is_nowhere && had_one && !may_be_named {
            state.table.remove(id);
        } else {
            state.table.set_in_limbo(id, in_limbo);
            state.table.set_in_stage(id, in_stage);
        }
    }
    Ok(())
}

/// Forgets names that the journal changes and that their objects do not have any more.
fn drop_stale_names<L: Lower>(overlay: &Overlay<L>) -> Result<(), StoreError> {
    let doubtful: Vec<(ObjectId, ObjectId, Name, u64)> = {
        let state = overlay.state();
        let mut doubtful = Vec::new();
        for id in state.table.ids().collect::<BTreeSet<_>>() {
            let Some(location) = state.table.get(id) else {
                continue;
            };
            let changed = location
                .names()
                .iter()
                .filter(|entry| state.pending.dentries().contains_key(*entry));
            doubtful
                .extend(changed.map(|(parent, name)| (id, *parent, name.clone(), location.inode)));
        }
        doubtful
    };
    let mut search = Search::default();
    for (id, parent, name, inode) in doubtful {
        let there = match lookup::handle_in(overlay, parent, &mut search)? {
            Some(directory) => overlay.stat_at(&directory, name.as_bytes())?,
            None => None,
        };
        if there.is_none_or(|stat| stat.inode != inode) {
            overlay.state_mut().table.remove_name(id, parent, &name);
        }
    }
    Ok(())
}

/// Adds the names that the journal gives to objects and that these have already.
fn add_reached_names<L: Lower>(overlay: &Overlay<L>) -> Result<(), StoreError> {
    let given: Vec<(ObjectId, Name, ObjectId, u64)> = {
        let state = overlay.state();
        let entries = state.pending.dentries().iter();
        let given = entries.filter_map(|((parent, name), child)| {
            let child = (*child)?;
            Some((*parent, name.clone(), child, state.inode_of(child)?))
        });
        given.collect()
    };
    let mut search = Search::default();
    let mut reached = Vec::new();
    for (parent, name, child, inode) in given {
        let Some(directory) = lookup::handle_in(overlay, parent, &mut search)? else {
            continue;
        };
        let there = overlay.stat_at(&directory, name.as_bytes())?;
        if there.is_some_and(|stat| (stat.device, stat.inode) == (overlay.device(), inode)) {
            reached.push((child, parent, name));
        }
    }
    overlay.state_mut().table.add_names(reached.into_iter());
    Ok(())
}
