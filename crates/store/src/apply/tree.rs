//! Names: detaches wrong objects and attaches the final ones.

use std::collections::{HashMap, HashSet};

use mobifs_base::{FileKind, Name, ObjectId};

use crate::StoreError;
use crate::apply::backoff::Backoff;
use crate::apply::refused::Refused;
use crate::apply::rename_steps::RenameSteps;
use crate::apply::work::Work;
use crate::error::missing;
use crate::lower::Lower;
use crate::overlay::Overlay;
use crate::overlay::lookup;
use crate::overlay::paths;
use crate::overlay::search::Search;

/// Gives every pending entry its final object.
pub(super) fn rearrange<L: Lower>(
    overlay: &Overlay<L>,
    work: &Work,
    refused: &mut Refused,
    renames: &mut RenameSteps<'_>,
) -> Result<(), StoreError> {
    let mut missing_names: Vec<(ObjectId, &Name, ObjectId)> = Vec::new();
    let mut detached = false;
    let mut surplus: Vec<((ObjectId, &Name), Option<ObjectId>)> = Vec::new();
    let mut search = Search::default();
    // All are renamed to one directory, so room for one is room for all.
    let mut backoff = Backoff::default();
    for ((parent, name), child) in &work.dentries {
        if refused.is_absent(*parent) {
            if child.is_some() {
                refused.wait(((*parent, name.clone()), *child));
            }
            continue;
        }
        let there = detach_entry(overlay, (*parent, name), *child, &mut search, &mut backoff);
        let there = match there.map_err(paths::failed_at(overlay, *parent, name)) {
            Ok(there) => there,
            Err(error) => {
                refused.record_entry(((*parent, name.clone()), *child), error)?;
                continue;
            }
        };
        detached |= matches!(there, There::Detached | There::Surplus);
        if there == There::Detached {
            search.begin_anew();
        }
        if there == There::Surplus {
            surplus.push(((*parent, name), *child));
        }
        if let Some(child) = *child
            && there != There::Final
        {
            missing_names.push((*parent, name, child));
        }
        renames.end_step();
    }
    if detached {
        renames
            .meanwhile(|| overlay.lower().sync_all())
            .map_err(StoreError::lower("making detached entries durable"))?;
    }
    let kept = drop_surplus(overlay, &surplus, refused, renames)?;
    missing_names.retain(|(parent, name, _)| !kept.contains(&(*parent, *name)));
    attach_missing(overlay, missing_names, refused, renames)
}

/// Gives objects the names that they are to have and that are free now.
fn attach_missing<L: Lower>(
    overlay: &Overlay<L>,
    missing_names: Vec<(ObjectId, &Name, ObjectId)>,
    refused: &mut Refused,
    renames: &mut RenameSteps<'_>,
) -> Result<(), StoreError> {
    let mut wanted: HashMap<ObjectId, usize> = HashMap::new();
    for (_, _, child) in &missing_names {
        *wanted.entry(*child).or_default() += 1;
    }
    let mut links = Vec::new();
    // One directory may be full, and another one not.
    let mut backoffs: HashMap<ObjectId, Backoff> = HashMap::new();
    let mut outcome = Ok(());
    // From the leaves up: an object that is attached to a detached directory moves with it later.
    // In the other order the kernel would walk up the whole tree for each rename.
    for (parent, name, child) in missing_names.into_iter().rev() {
        let left = wanted.entry(child).or_default();
        *left = left.saturating_sub(1);
        let last = *left == 0;
        let entry = ((parent, name.clone()), Some(child));
        if refused.is_absent(child) || (refused.continues() && is_stuck(overlay, child)?) {
            refused.wait(entry);
            continue;
        }
        let backoff = backoffs.entry(parent).or_default();
        let attached = attach(overlay, (parent, name), child, last, backoff);
        match attached.map_err(paths::failed_at(overlay, parent, name)) {
            Ok(true) => {}
            Ok(false) => links.push((child, parent, name.clone())),
            Err(error) => {
                outcome = refused.record_entry(entry, error);
                if outcome.is_err() {
                    break;
                }
            }
        }
        renames.end_step();
    }
    // All in one call: each call of the sink has all names of an object.
    overlay.state_mut().table.add_names(links.into_iter());
    outcome
}

/// Removes further names of objects in `limbo/`. Not before these are durably there: the journal
/// records one name of an object, and it may be one of these. Returns those that could not be
/// removed.
fn drop_surplus<'a, L: Lower>(
    overlay: &Overlay<L>,
    surplus: &[((ObjectId, &'a Name), Option<ObjectId>)],
    refused: &mut Refused,
    renames: &mut RenameSteps<'_>,
) -> Result<HashSet<(ObjectId, &'a Name)>, StoreError> {
    let mut kept = HashSet::new();
    for &((parent, name), child) in surplus {
        renames.end_step();
        let dropped = drop_name(overlay, parent, name);
        if let Err(error) = dropped.map_err(paths::failed_at(overlay, parent, name)) {
            refused.record_entry(((parent, name.clone()), child), error)?;
            kept.insert((parent, name));
        }
    }
    if !surplus.is_empty() {
        // The next object to be attached may take one of these names.
        renames
            .meanwhile(|| overlay.lower().sync_all())
            .map_err(StoreError::lower("making detached entries durable"))?;
    }
    Ok(kept)
}

fn drop_name<L: Lower>(
    overlay: &Overlay<L>,
    parent: ObjectId,
    name: &Name,
) -> Result<(), StoreError> {
    let directory = lookup::require_handle(overlay, parent)?;
    let Some(stat) = overlay.stat_at(&directory, name.as_bytes())? else {
        return Ok(());
    };
    if let Err(error) = overlay.lower().unlink(&directory, name.as_bytes()) {
        record_held(overlay, parent, name, stat.inode);
        return Err(StoreError::lower(format!("detaching \"{name}\""))(error));
    }
    let mut state = overlay.state_mut();
    if let Some(id) = state.table.id_of(stat.inode) {
        state.table.remove_name(id, parent, name);
        state.table.set_in_limbo(id, true);
    }
    Ok(())
}

/// Records a name that could not be removed: an earlier attempt may have made it.
fn record_held<L: Lower>(overlay: &Overlay<L>, parent: ObjectId, name: &Name, inode: u64) {
    let mut state = overlay.state_mut();
    if let Some(id) = state.table.id_of(inode) {
        state.table.add_name(id, parent, name);
    }
}

/// Whether a directory is still at a name from which it could not be detached: it cannot get
/// another one.
fn is_stuck<L: Lower>(overlay: &Overlay<L>, id: ObjectId) -> Result<bool, StoreError> {
    if overlay.kind_of(id) != Some(FileKind::Directory) {
        return Ok(false);
    }
    Ok(lookup::last_place(overlay, id)?.is_some_and(|place| !place.is_own))
}

/// Moves the object of an entry away, unless it is its final object.
fn detach_entry<L: Lower>(
    overlay: &Overlay<L>,
    (parent, name): (ObjectId, &Name),
    child: Option<ObjectId>,
    search: &mut Search,
    backoff: &mut Backoff,
) -> Result<There, StoreError> {
    let Some(directory) = lookup::handle_in(overlay, parent, search)? else {
        // The directory was made and deleted within the epoch, or deleted by an earlier attempt: it
        // has no entries.
        return if child.is_none() {
            Ok(There::Nothing)
        } else {
            Err(missing(parent))
        };
    };
    let Some(stat) = overlay.stat_at(&directory, name.as_bytes())? else {
        return Ok(There::Nothing);
    };
    if let Some(child) = child
        && overlay.state().inode_of(child) == Some(stat.inode)
        && stat.device == overlay.device()
    {
        let mut state = overlay.state_mut();
        state.table.insert(child, stat.inode, stat.kind);
        state.table.add_name(child, parent, name);
        return Ok(There::Final);
    }
    let limbo_name = stat.inode.to_string().into_bytes();
    let waiting = overlay.stat_at(overlay.limbo(), &limbo_name)?;
    match waiting {
        // Another name of it was detached before.
        Some(waiting) if waiting.inode == stat.inode && stat.kind != FileKind::Directory => {
            return Ok(There::Surplus);
        }
        _ => {
            let (from, to) = (name.as_bytes(), &*limbo_name);
            let lower = overlay.lower();
            let moved = backoff.attempt(|| lower.rename(&directory, from, overlay.limbo(), to));
            if let Err(error) = moved {
                record_held(overlay, parent, name, stat.inode);
                return Err(StoreError::lower(format!("detaching \"{name}\""))(error));
            }
        }
    }
    let mut state = overlay.state_mut();
    if let Some(id) = state.table.id_of(stat.inode) {
        state.table.remove_name(id, parent, name);
        state.table.set_in_limbo(id, true);
    }
    Ok(There::Detached)
}

/// Gives an object one of its final names. If it is the `last` one missing, a name in our own
/// directories is renamed to it, otherwise another link is made. Returns whether the name is
/// recorded; a further link need not be recorded at once, because the object is still found where
/// it was, and the next attempt finds the link.
fn attach<L: Lower>(
    overlay: &Overlay<L>,
    (parent, name): (ObjectId, &Name),
    child: ObjectId,
    last: bool,
    backoff: &mut Backoff,
) -> Result<bool, StoreError> {
    let directory = lookup::require_handle(overlay, parent)?;
    let place = if last {
        lookup::last_place(overlay, child)?
    } else {
        lookup::place(overlay, child)?
    };
    let place = place.ok_or_else(|| missing(child))?;
    let is_directory = overlay.kind_of(child) == Some(FileKind::Directory);
    // Read before the rename: nothing may fail between the rename and its record.
    let stat = overlay
        .stat_at(&place.directory, &place.name)?
        .ok_or_else(|| missing(child))?;
    let (from, to) = (
        (&place.directory, &place.name),
        (&directory, name.as_bytes()),
    );
    let moves = place.is_own && (last || is_directory);
    let lower = overlay.lower();
    let attached = backoff.attempt(|| match moves {
        true => lower.rename(from.0, from.1, to.0, to.1),
        false => lower.link(from.0, from.1, to.0, to.1),
    });
    attached.map_err(StoreError::lower(format!("attaching \"{name}\"")))?;
    let mut state = overlay.state_mut();
    state.table.insert(child, stat.inode, stat.kind);
    if !moves && !last {
        return Ok(false);
    }
    state.table.add_name(child, parent, name);
    if moves {
        state.table.set_in_limbo(child, false);
        state.table.set_in_stage(child, false);
    }
    Ok(true)
}

/// What [`detach_entry`] found.
#[derive(Clone, Copy, PartialEq, Eq)]
enum There {
    /// No entry.
    Nothing,
    /// Another object, which is in `limbo/` now.
    Detached,
    /// Another object, which is in `limbo/` already under another of its names.
    Surplus,
    /// The final object.
    Final,
}
