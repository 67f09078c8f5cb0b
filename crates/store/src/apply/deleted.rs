//! Room of deleted files, for an apply without room.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use mobifs_base::{FileKind, Name, ObjectId};

use crate::StoreError;
use crate::lower::{Lower, LowerStat};
use crate::overlay::Overlay;
use crate::overlay::lookup;
use crate::overlay::search::Search;

/// Objects without a name that no program uses: their content is not applied.
pub(crate) type Deleted = HashSet<ObjectId>;

/// A file, and how many of its names the journal removes.
struct Candidate {
    /// Where it is: a directory of the tree, or none for `limbo/`. Not a handle, because there may
    /// be too many.
    directory: Option<ObjectId>,
    name: Vec<u8>,
    stat: LowerStat,
    names: u32,
}

/// Frees the blocks of files that the journal deletes and that no program uses; the files
/// themselves stay until the next epoch, because the journal may mention their inodes. No state
/// that a crash can leave shows their content. Returns these files, as far as they are known, and
/// whether any had blocks.
pub(crate) fn free_deleted<L: Lower>(
    overlay: &Overlay<L>,
) -> Result<(HashSet<ObjectId>, bool), StoreError> {
    let _tree = overlay.hold_names();
    let mut deleted = HashSet::new();
    let mut had_blocks = false;
    for candidate in files_without_names(overlay)? {
        if let Some(id) = overlay.state().table.id_of(candidate.stat.inode) {
            deleted.insert(id);
        }
        if candidate.stat.allocated_bytes == 0 {
            continue;
        }
        let failed = || StoreError::lower("emptying a deleted file");
        let directory = match candidate.directory {
            Some(id) => lookup::require_handle(overlay, id)?,
            None => Arc::clone(overlay.limbo()),
        };
        let file = overlay.lower().open(&directory, &candidate.name, true);
        let file = file.map_err(failed())?;
        overlay.lower().truncate(&file, 0).map_err(failed())?;
        had_blocks = true;
    }
    if had_blocks {
        // They are free when the filesystem's own journal says so.
        overlay
            .lower()
            .sync_all()
            .map_err(StoreError::lower("emptying deleted files"))?;
    }
    Ok((deleted, had_blocks))
}

/// Files of which every name is one that the journal removes, or one in `limbo/`.
fn files_without_names<L: Lower>(overlay: &Overlay<L>) -> Result<Vec<Candidate>, StoreError> {
    let changed: Vec<(ObjectId, Name)> = {
        let state = overlay.state();
        state.pending.dentries().keys().cloned().collect()
    };
    let kept = inodes_in_use(overlay);
    let mut candidates: HashMap<u64, Candidate> = HashMap::new();
    let mut look = |at, directory: &L::Handle, name: &[u8]| -> Result<(), StoreError> {
        let stat = overlay.stat_at(directory, name)?;
        let is_ours = |stat: &LowerStat| {
            stat.kind == FileKind::Regular
                && stat.device == overlay.device()
                && !kept.contains(&stat.inode)
        };
        if let Some(stat) = stat.filter(is_ours) {
            let found = candidates.entry(stat.inode).or_insert_with(|| Candidate {
                directory: at,
                name: name.to_vec(),
                stat,
                names: 0,
            });
            found.names += 1;
        }
        Ok(())
    };
    let mut search = Search::default();
    for (parent, name) in changed {
        if let Some(directory) = lookup::handle_in(overlay, parent, &mut search)? {
            look(Some(parent), &directory, name.as_bytes())?;
        }
    }
    let waiting = overlay.lower().list(overlay.limbo());
    for entry in waiting.map_err(StoreError::lower("listing .mobifs/limbo"))? {
        look(None, overlay.limbo(), &entry.name)?;
    }
    // Others have names that stay, or that the store has not looked up.
    let candidates = candidates.into_values();
    let mut found: Vec<_> = candidates
        .filter(|candidate| candidate.stat.nlink <= candidate.names)
        .collect();
    // In a fixed order, so that a simulated crash can be repeated.
    found.sort_unstable_by_key(|candidate| candidate.stat.inode);
    Ok(found)
}

/// Inodes of objects that the journal gives a name, and of objects that programs use without one.
fn inodes_in_use<L: Lower>(overlay: &Overlay<L>) -> HashSet<u64> {
    let state = overlay.state();
    let named = state.pending.dentries().values().flatten().copied();
    let used = state.used();
    named
        .chain(used)
        .filter_map(|id| state.inode_of(id))
        .collect()
}
