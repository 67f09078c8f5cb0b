//! Finding a listed file in the lower tree by its inode number.

use std::sync::Arc;

use mobifs_base::{FileKind, Name, ObjectId};

use crate::StoreError;
use crate::apply::preallocation::list::{Listed, PATH_BYTES_MAX};
use crate::lower::{Lower, LowerStat, OWN_DIRECTORY};
use crate::overlay::Overlay;
use crate::overlay::lookup;
use crate::overlay::state::State;

/// A listed file, open for writing.
pub(super) struct FoundFile<H> {
    pub(super) id: ObjectId,
    pub(super) handle: Arc<H>,
    pub(super) stat: LowerStat,
}

/// Where an object is once everything pending is applied, as a path from the root; empty if that is
/// not known, or too long.
pub(super) fn path_of(state: &State, id: ObjectId) -> Vec<u8> {
    let mut names: Vec<Name> = Vec::new();
    let mut at = id;
    let mut bytes = 0;
    while at != ObjectId::ROOT {
        let pending = state.pending.names_of(at).first();
        let known = || state.table.get(at)?.names().first();
        let Some((parent, name)) = pending.or_else(known) else {
            return Vec::new();
        };
        bytes += name.as_bytes().len() + 1;
        if bytes > PATH_BYTES_MAX + 1 {
            return Vec::new();
        }
        names.push(name.clone());
        at = *parent;
    }
    names.reverse();
    let names: Vec<&[u8]> = names.iter().map(Name::as_bytes).collect();
    names.join(&b'/')
}

/// The listed file where the store knows it, or at its recorded path; none if it is at neither.
/// The caller holds the names.
pub(super) fn find<L: Lower>(
    overlay: &Overlay<L>,
    file: &Listed,
) -> Result<Option<FoundFile<L::Handle>>, StoreError> {
    let known = overlay.state().table.id_of(file.inode);
    let id = match known {
        Some(id) => Some(id),
        None => at_path(overlay, file)?,
    };
    let Some(id) = id else { return Ok(None) };
    let Some(handle) = lookup::handle(overlay, id)? else {
        return Ok(None);
    };
    let stat = overlay.lower().stat(&handle);
    let stat = stat.map_err(StoreError::lower(format!("looking at {id}")))?;
    let is_it = file.is_same_object(&stat) && stat.device == overlay.device();
    Ok(is_it.then_some(FoundFile { id, handle, stat }))
}

/// The listed file at its recorded path, which the store knows from then on.
fn at_path<L: Lower>(overlay: &Overlay<L>, file: &Listed) -> Result<Option<ObjectId>, StoreError> {
    let mut at = ObjectId::ROOT;
    let mut names = file.path.split(|&byte| byte == b'/').peekable();
    while let Some(name) = names.next() {
        let (Ok(name), Some(directory)) = (Name::new(name), lookup::handle(overlay, at)?) else {
            return Ok(None);
        };
        let is_outside = at == ObjectId::ROOT
            && (name.as_bytes() == OWN_DIRECTORY || !overlay.lower().is_in_scope(name.as_bytes()));
        let key = (at, name);
        if is_outside || overlay.state().pending.dentries().contains_key(&key) {
            return Ok(None);
        }
        let (_, name) = key;
        let Some(stat) = overlay.stat_at(&directory, name.as_bytes())? else {
            return Ok(None);
        };
        let is_last = names.peek().is_none();
        let is_wanted = if is_last {
            file.is_same_object(&stat)
        } else {
            stat.kind == FileKind::Directory
        };
        if !is_wanted || stat.device != overlay.device() {
            return Ok(None);
        }
        let mut state = overlay.state_mut();
        at = state.table.adopt(stat.inode, stat.kind, at, &name);
    }
    Ok(Some(at))
}
