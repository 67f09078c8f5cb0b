//! Finding objects in the lower tree.

use std::sync::Arc;

use mobifs_base::{Name, ObjectId};

use crate::StoreError;
use crate::error::missing;
use crate::lower::Lower;
use crate::overlay::search::{self, Search};
use crate::overlay::{Overlay, Place};

/// A handle on an object, if the lower filesystem has it.
pub(crate) fn handle<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
) -> Result<Option<Arc<L::Handle>>, StoreError> {
    handle_in(overlay, id, &mut Search::default())
}

/// As [`handle`], for one of many.
pub(crate) fn handle_in<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
    search: &mut Search,
) -> Result<Option<Arc<L::Handle>>, StoreError> {
    if let Some(handle) = overlay.open_handle(id)? {
        return Ok(Some(handle));
    }
    match place_in(overlay, id, search)? {
        Some(place) => overlay.open_at(&place.directory, &place.name, id),
        None => Ok(None),
    }
}

/// A handle on an object that must exist.
pub(crate) fn require_handle<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
) -> Result<Arc<L::Handle>, StoreError> {
    handle(overlay, id)?.ok_or_else(|| missing(id))
}

/// A name of the object in the lower filesystem, and what is there.
pub(crate) fn place<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
) -> Result<Option<Place<L::Handle>>, StoreError> {
    place_in(overlay, id, &mut Search::default())
}

/// As [`place`], for one of many.
pub(crate) fn place_in<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
    search: &mut Search,
) -> Result<Option<Place<L::Handle>>, StoreError> {
    let inode = overlay.state().inode_of(id);
    // Checked one after the other: the first is almost always right, and there may be many.
    let known = |number: usize| {
        let state = overlay.state();
        state.table.get(id)?.names().get(number).cloned()
    };
    if let Some(place) = named_place(overlay, (0..).map_while(known), inode, search)? {
        return Ok(Some(place));
    }
    if let Some(place) = overlay.own_place(id, inode)? {
        return Ok(Some(place));
    }
    if inode.is_none() {
        return Ok(None);
    }
    // An earlier, interrupted apply may have attached it at a name that is pending.
    let names = overlay.state().pending.names_of(id).to_vec();
    named_place(overlay, names.into_iter(), inode, search)
}

/// The first of these names that is the object's.
fn named_place<L: Lower>(
    overlay: &Overlay<L>,
    names: impl Iterator<Item = (ObjectId, Name)>,
    inode: Option<u64>,
    search: &mut Search,
) -> Result<Option<Place<L::Handle>>, StoreError> {
    for (parent, name) in names {
        let Some(directory) = search::directory(overlay, parent, search)? else {
            continue;
        };
        if let Some(stat) = overlay.stat_of(&directory, name.as_bytes(), inode)? {
            let name = name.as_bytes().to_vec();
            return Ok(Some(Place {
                directory,
                name,
                kind: stat.kind,
                is_own: false,
            }));
        }
    }
    Ok(None)
}

/// The place from which an object gets the last name that it lacks: a name in `stage/` or `limbo/`,
/// if there is one, so that none of these is left; else any other name.
pub(crate) fn last_place<L: Lower>(
    overlay: &Overlay<L>,
    id: ObjectId,
) -> Result<Option<Place<L::Handle>>, StoreError> {
    let inode = overlay.state().inode_of(id);
    match overlay.own_place(id, inode)? {
        Some(place) => Ok(Some(place)),
        None => place(overlay, id),
    }
}
