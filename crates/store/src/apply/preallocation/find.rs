//! Finding a listed file in the lower tree by its inode number.

use std::sync::Arc;

use mobifs_base::{FileKind, Name, ObjectId};

use crate::StoreError;
use crate::apply::preallocation::list::{Listed, PATH_BYTES_MAX};
use crate::lower::{Lower, LowerStat, OWN_DIRECTORY, found};
use crate::overlay::Overlay;
use crate::overlay::lookup;
use crate::overlay::state::State;

/// So many entries of directories are read at most in search of files that are nowhere else.
const SEARCHED_ENTRIES_MAX: usize = 50_000;

/// A listed file, open for writing.
pub(super) struct FoundFile<H> {
    pub(super) handle: Arc<H>,
    pub(super) stat: LowerStat,
}

/// Where a known object is, as a path from the root; empty if that is not known, or too long.
pub(super) fn path_of(state: &State, inode: u64) -> Vec<u8> {
    let mut names: Vec<Name> = Vec::new();
    let Some(mut at) = state.table.id_of(inode) else {
        return Vec::new();
    };
    let mut bytes = 0;
    while at != ObjectId::ROOT {
        let pending = state.pending.names_of(at).first();
        let known = || state.table.get(at)?.names.first();
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

/// The listed file where the store knows it, in `limbo/`, or at its recorded path; none if it is
/// at none of these.
pub(super) fn find<L: Lower>(
    overlay: &Overlay<L>,
    file: &Listed,
) -> Result<Option<FoundFile<L::Handle>>, StoreError> {
    let id = overlay.state().table.id_of(file.inode);
    if let Some(id) = id
        && let Some(handle) = lookup::handle(overlay, id)?
        && let Some(found) = validated(overlay, file, handle)
    {
        return Ok(Some(found));
    }
    let limbo_name = file.inode.to_string().into_bytes();
    if let Some(found) = open(overlay, overlay.limbo(), &limbo_name, file) {
        return Ok(Some(found));
    }
    Ok(at_path(overlay, file))
}

/// The object of this handle, if it is the listed file.
fn validated<L: Lower>(
    overlay: &Overlay<L>,
    file: &Listed,
    handle: Arc<L::Handle>,
) -> Option<FoundFile<L::Handle>> {
    let stat = overlay.lower().stat(&handle).ok()?;
    let is_it = file.is_same_object(&stat) && stat.device == overlay.device();
    is_it.then_some(FoundFile { handle, stat })
}

fn open<L: Lower>(
    overlay: &Overlay<L>,
    directory: &L::Handle,
    name: &[u8],
    file: &Listed,
) -> Option<FoundFile<L::Handle>> {
    let there = found(overlay.lower().stat_at(directory, name)).ok()??;
    if !file.is_same_object(&there) || there.device != overlay.device() {
        return None;
    }
    let handle = overlay.lower().open(directory, name, true).ok()?;
    validated(overlay, file, Arc::new(handle))
}

fn at_path<L: Lower>(overlay: &Overlay<L>, file: &Listed) -> Option<FoundFile<L::Handle>> {
    let mut names: Vec<&[u8]> = file.path.split(|&byte| byte == b'/').collect();
    let last = names.pop()?;
    let is_name = |name: &&[u8]| Name::check(name).is_ok();
    if !is_name(&last) || !names.iter().all(is_name) || !is_in_store(overlay, &names, last) {
        return None;
    }
    let directory = open_directory(overlay, &names)?;
    open(overlay, &directory, last, file)
}

fn is_in_store<L: Lower>(overlay: &Overlay<L>, names: &[&[u8]], last: &[u8]) -> bool {
    let first = names.first().copied().unwrap_or(last);
    first != OWN_DIRECTORY && overlay.lower().is_in_scope(first)
}

fn open_directory<L: Lower>(overlay: &Overlay<L>, names: &[&[u8]]) -> Option<L::Handle> {
    let mut directory = overlay.lower().root().ok()?;
    for name in names {
        directory = overlay.lower().open(&directory, name, false).ok()?;
        let stat = overlay.lower().stat(&directory).ok()?;
        if stat.kind != FileKind::Directory || stat.device != overlay.device() {
            return None;
        }
    }
    Some(directory)
}

/// The result of a search of the tree.
pub(super) struct Searched {
    /// The files that were found, with their paths now.
    pub(super) paths: Vec<(u64, Vec<u8>)>,
    /// All of the tree was searched: what was not found is gone.
    pub(super) is_complete: bool,
}

/// Searches the tree for files with these inode numbers, up to so many entries.
pub(super) fn search<L: Lower>(overlay: &Overlay<L>, inodes: &[u64]) -> Searched {
    let mut searched = Searched {
        paths: Vec::new(),
        is_complete: true,
    };
    let mut budget = SEARCHED_ENTRIES_MAX;
    let mut directories: Vec<Vec<u8>> = vec![Vec::new()];
    while let Some(path) = directories.pop() {
        let names: Vec<&[u8]> = path
            .split(|&byte| byte == b'/')
            .filter(|name| !name.is_empty())
            .collect();
        let entries = open_directory(overlay, &names)
            .and_then(|directory| overlay.lower().list(&directory).ok());
        let Some(entries) = entries else {
            searched.is_complete = false;
            continue;
        };
        for entry in entries {
            let Some(rest) = budget.checked_sub(1) else {
                searched.is_complete = false;
                return searched;
            };
            budget = rest;
            if !is_in_store(overlay, &names, &entry.name) {
                continue;
            }
            let mut below = path.clone();
            if !below.is_empty() {
                below.push(b'/');
            }
            below.extend_from_slice(&entry.name);
            if inodes.contains(&entry.inode) {
                searched.paths.push((entry.inode, below.clone()));
            }
            if entry.kind.is_none_or(|kind| kind == FileKind::Directory) {
                directories.push(below);
            }
        }
        if searched.paths.len() >= inodes.len() {
            return searched;
        }
    }
    searched
}
