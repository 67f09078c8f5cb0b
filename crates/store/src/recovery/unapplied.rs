//! Serving a journal's transactions without applying them first: which objects must exist for that,
//! and which may be deleted.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashSet};

use mobifs_base::{FileKind, ObjectId};

use crate::StoreError;
use crate::apply::externally_modified;
use crate::apply::limbo;
use crate::error::missing;
use crate::lower::Lower;
use crate::overlay::Overlay;
use crate::overlay::search::Search;
use crate::overlay::{lookup, paths};

/// Objects of the lower filesystem that a journal's changes belong to.
#[derive(Default)]
struct Wanted {
    /// Objects without which the journal cannot be applied.
    needed: BTreeSet<ObjectId>,
    /// If they are gone, their committed changes are dropped.
    changed: BTreeSet<ObjectId>,
}

/// What is at the places of an object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    AsRecorded,
    /// The object, and it is of another kind than in the record of its place.
    OtherKind,
    Nothing,
}

/// Looks for the objects that the journal's changes belong to. Another program may have
/// removed them while the store was not mounted; without this only the next apply
/// would notice, and another object under the same inode number would meanwhile be
/// taken for the one that is gone.
///
/// Returns false if one is of another kind than the journal says, which only a forged one
/// does, or another program that has put another object in its place.
///
/// # Errors
/// [`StoreError::Corrupt`] where applying would not be possible.
pub(crate) fn check_found<L: Lower>(overlay: &Overlay<L>) -> Result<bool, StoreError> {
    let _tree = overlay.hold_names();
    let wanted = wanted(overlay)?;
    let mut search = Search::default();
    for id in wanted.needed {
        match find(overlay, id, &mut search)? {
            Found::AsRecorded => {}
            Found::OtherKind => return Ok(false),
            Found::Nothing => return Err(missing(id)),
        }
    }
    for id in wanted.changed {
        if find(overlay, id, &mut search)? == Found::Nothing {
            drop_missing(overlay, id);
            // It may have been opened as a directory on the way to others.
            overlay.lower().handles().remove(id);
        }
    }
    Ok(true)
}

/// An object is at none of its places, so its committed changes are dropped. Where the journal
/// removes all names that are known of it, it deletes the object: an interrupted apply may have done
/// so, or have moved it to a name that a later transaction removes. Otherwise another program has.
fn drop_missing<L: Lower>(overlay: &Overlay<L>, id: ObjectId) {
    let is_deleted = externally_modified::undisputed_name(overlay, id).is_none();
    let mut state = overlay.state_mut();
    if is_deleted && !state.pending.is_linked(id) {
        state.pending.mark_deleted(id);
    } else {
        let path = paths::path_of(&state, id);
        tracing::warn!(%id, path, "another program removed a changed object from the store");
    }
    state.table.lose(id);
}

/// Looks for an object at its places. One of another kind than its changes are for has got its
/// inode number: then the object is gone.
fn find<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
    search: &mut Search,
) -> Result<Found, StoreError> {
    let Some(place) = lookup::place_in(overlay, id, search)? else {
        return Ok(Found::Nothing);
    };
    let state = overlay.state();
    let kind = state.pending.kind_of(id);
    let is_directory = state.pending.dentries_of(id).next().is_some();
    let is_other = kind.is_some_and(|kind| kind != place.kind)
        || (is_directory && place.kind != FileKind::Directory);
    let recorded = state.table.get(id).map(|location| location.kind);
    Ok(if is_other {
        Found::Nothing
    } else if recorded.is_some_and(|recorded| recorded != place.kind) {
        Found::OtherKind
    } else {
        Found::AsRecorded
    })
}

fn wanted<L: Lower>(overlay: &Overlay<L>) -> Result<Wanted, StoreError> {
    let staged = overlay.lower().list(overlay.stage());
    let staged = staged.map_err(StoreError::lower("listing stage"))?;
    let staged: HashSet<Vec<u8>> = staged.into_iter().map(|entry| entry.name).collect();
    let state = overlay.state();
    let pending = &state.pending;
    let is_below = |id: ObjectId| {
        id != ObjectId::ROOT && pending.object(id).is_none_or(|object| !object.created)
    };
    let mut wanted = Wanted::default();
    for (&id, object) in pending.objects() {
        if is_below(id) {
            wanted.changed.insert(id);
        } else if object.bound.is_some() {
            // An apply has made it, and may have moved it.
            if pending.is_linked(id) {
                wanted.needed.insert(id);
            }
        } else if !object.direct.is_empty()
            && pending.is_linked(id)
            && !staged.contains(id.0.to_string().as_bytes())
        {
            return Err(missing(id));
        }
    }
    for ((parent, _), child) in pending.dentries() {
        match child {
            Some(child) => {
                let both = [*parent, *child].into_iter();
                wanted.needed.extend(both.filter(|id| is_below(*id)));
            }
            None if is_below(*parent) => {
                wanted.changed.insert(*parent);
            }
            None => {}
        }
    }
    Ok(wanted)
}

/// Deletes what lies in `limbo/` and is not known to the journal: it is not in use. An object that
/// the journal knows may get its name from there, unless that is not its inode number: a mount of a copied store
/// has deleted it, and a power cut undid that.
///
/// # Errors
/// [`StoreError::Lower`]; the rest is left for the next time.
pub(crate) fn clear_limbo_but_known<L: Lower>(overlay: &Overlay<L>) -> Result<(), StoreError> {
    let entries = overlay.lower().list(overlay.limbo());
    for entry in entries.map_err(StoreError::lower("listing .mobifs/limbo"))? {
        let is_known = {
            let mut state = overlay.state_mut();
            let is_its_number = entry.name == entry.inode.to_string().as_bytes();
            let id = state.table.id_of(entry.inode).filter(|_| is_its_number);
            id.is_some_and(|id| state.table.set_in_limbo(id, true))
        };
        if !is_known {
            limbo::delete_from_limbo(overlay, &entry.name)?;
        }
    }
    Ok(())
}
