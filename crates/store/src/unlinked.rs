//! Objects without a link that are still in use, and objects that the engine forgot.

use std::collections::BTreeSet;

use mobifs_base::{ByteRange, FileKind, ObjectId, PAGE_BYTES_U64, Page, PageIndex};
use rustix::io::Errno;

use crate::StoreError;
use crate::apply;
use crate::apply::limbo;
use crate::apply::materialize;
use crate::apply::stage;
use crate::apply::work::Applier;
use crate::locks::RankedMutex;
use crate::log::epoch::Epoch;
use crate::lower::Lower;
use crate::overlay::Overlay;
use crate::overlay::lookup;
use crate::overlay::table::Location;

/// Writes pages of an object that no committed state links: they need not be durable, and no crash
/// makes them visible.
pub(crate) fn spill<L: Lower>(
    overlay: &Overlay<L>,
    applier: &Applier,
    epoch: &RankedMutex<Epoch<L::Handle>>,
    id: ObjectId,
    pages: &[(PageIndex, Page)],
) -> Result<(), StoreError> {
    // Not while an apply moves or deletes names.
    let mut epoch = epoch.lock();
    let has_pending = {
        let mut state = overlay.state_mut();
        state.pin(id);
        state.pending.object(id).is_some()
    };
    if has_pending {
        // Earlier transactions have older content of it, which must not hide the spilled pages,
        // neither here nor in a successor of this process. It has no name any more, so this happens
        // once.
        apply::apply_what_is_possible(overlay, applier, &mut epoch)?;
        if overlay.state().pending.object(id).is_some() {
            let action = format!("applying {id} before pages are spilled");
            return Err(StoreError::lower(action)(Errno::NOSPC.into()));
        }
    }
    if epoch.outstanding_copies().is_source(id, ByteRange::from(0)) {
        // It had a name when content of it was copied.
        epoch.invalidate_tail(overlay.lower(), overlay.sink())?;
        materialize::materialize(overlay, applier, &mut epoch)?;
    }
    let _tree = overlay.hold_names();
    let handle = match lookup::handle(overlay, id)? {
        Some(handle) => handle,
        None => stage::stage_file(overlay, id)?,
    };
    for (index, page) in pages {
        overlay
            .lower()
            .write_at(&handle, &page.to_array(), index.offset())
            .map_err(StoreError::lower(format!("spilling pages of {id}")))?;
    }
    let stat = overlay
        .lower()
        .stat(&handle)
        .map_err(StoreError::lower("stat of a spilled file"))?;
    let ranges = pages
        .iter()
        .map(|(index, _)| ByteRange::new(index.offset(), index.offset() + PAGE_BYTES_U64));
    let mut state = overlay.state_mut();
    if state
        .table
        .get(id)
        .is_none_or(|location| location.in_stage())
    {
        state.record_spilled(id, ranges);
    }
    if state.table.get(id).is_none() {
        state.table.insert(id, stat.inode, FileKind::Regular);
        state.table.set_in_stage(id, true);
    }
    Ok(())
}

/// An unlinked object is not in use any more: its space may be freed.
pub(crate) fn release<L: Lower>(
    overlay: &Overlay<L>,
    epoch: &RankedMutex<Epoch<L::Handle>>,
    id: ObjectId,
) {
    let _writer = epoch.lock();
    let Some(location) = take_orphan(overlay, id) else {
        return;
    };
    // Freeing a large file takes long; look-ups do not wait for it.
    let result = if location.in_limbo() {
        limbo::delete_from_limbo(overlay, location.inode.to_string().as_bytes())
    } else if location.in_stage() {
        limbo::delete_from_stage(overlay, id.0.to_string().as_bytes(), location.kind)
            .map_err(StoreError::lower(format!("deleting {id}")))
    } else {
        Ok(())
    };
    if let Err(error) = result {
        tracing::warn!(%error, "the store could not delete an unlinked object; it tries again");
    }
}

/// Forgets an unlinked object that is not in use any more; where it is, unless an apply
/// is to see that it has no name.
fn take_orphan<L: Lower>(overlay: &Overlay<L>, id: ObjectId) -> Option<Location> {
    let _tree = overlay.lock_names();
    let mut state = overlay.state_mut();
    state.unpin(id);
    let location = state.table.get(id)?;
    if !location.names().is_empty() || state.pending.mentions(id) {
        return None;
    }
    let location = location.clone();
    state.table.remove(id);
    overlay.lower().handles().remove(id);
    Some(location)
}

/// Drops the knowledge of directories whose listings have left the engine, of deleted objects that
/// have left it, and of objects that are known only as entries of these directories; unless an
/// object is `in_use`, or a pending change, or a known object of the lower filesystem, still needs
/// it.
pub(crate) fn forget<L: Lower>(
    overlay: &Overlay<L>,
    epoch: &RankedMutex<Epoch<L::Handle>>,
    ids: &[ObjectId],
    in_use: &BTreeSet<ObjectId>,
) {
    let dropped = {
        let mut state = overlay.state_mut();
        let dropped = state.forget(ids, in_use);
        let mut handles = overlay.lower().handles();
        dropped.iter().for_each(|(id, _)| handles.remove(*id));
        dropped
    };
    delete_dropped(
        overlay,
        epoch,
        dropped.into_iter().filter_map(|(_, inode)| inode).collect(),
    );
}

/// Deletes from `limbo/` the objects that had these inodes and are not known any more.
///
/// Names there are inode numbers, which the lower filesystem reuses: only the holder of the epoch's
/// lock knows that such a name is not that of a later object. An apply that holds it ends by
/// deleting unknown objects, so this does not wait for it: readers wait for this thread.
fn delete_dropped<L: Lower>(
    overlay: &Overlay<L>,
    epoch: &RankedMutex<Epoch<L::Handle>>,
    inodes: Vec<u64>,
) {
    if inodes.is_empty() {
        return;
    }
    let Some(_writer) = epoch.try_lock() else {
        return;
    };
    for inode in inodes {
        if overlay.state().table.id_of(inode).is_some() {
            continue;
        }
        if let Err(error) = limbo::delete_from_limbo(overlay, inode.to_string().as_bytes()) {
            tracing::warn!(
                %error,
                "the store could not delete an unlinked file; the next mount does it"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use mobifs_base::{Entry, Name};

    use super::*;
    use crate::lower::{Gate, PosixLower};
    use crate::{JournalOptions, JournalStore, Store, Transaction};

    fn open(directory: &std::path::Path) -> JournalStore<Gate<PosixLower>> {
        let options = JournalOptions {
            journal_bytes: 1 << 20,
            uuid_if_new: [7; 16],
            ..JournalOptions::default()
        };
        let lower = PosixLower::open(directory).unwrap();
        JournalStore::open(Gate::new(lower), &options).unwrap().0
    }

    fn remove(store: &impl Store, parent: ObjectId, name: &[u8]) {
        let mut transaction = Transaction::default();
        let entry = Entry::Dentry {
            parent,
            name: Name::new(name).unwrap(),
            child: None,
        };
        transaction.push(entry);
        store.commit(transaction).unwrap();
    }

    /// Found on a full disk: an apply and this deleted the same name in `limbo/`. In between
    /// it could have become that of a later file, which had got the inode of the first.
    #[test]
    fn what_is_forgotten_is_not_deleted_beside_an_apply() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for name in ["seen", "unseen"] {
            std::fs::create_dir(path(name)).unwrap();
        }
        std::fs::write(path("seen/file"), "x").unwrap();
        std::fs::hard_link(path("seen/file"), path("unseen/file")).unwrap();
        let in_limbo = || std::fs::read_dir(path(".mobifs/limbo")).unwrap().count();
        let store = open(directory.path());
        let names = store.list_directory(ObjectId::ROOT).unwrap();
        let id = |name: &[u8]| names.iter().find(|e| e.name.as_bytes() == name).unwrap().id;
        let file = store.list_directory(id(b"seen")).unwrap()[0].id;
        remove(&store, id(b"seen"), b"file");
        store.apply().unwrap();
        assert_eq!(in_limbo(), 1, "it has another name");
        {
            let _applying = store.epoch().lock();
            store.forget(&[file], &BTreeSet::new());
        }
        assert_eq!(in_limbo(), 1, "an apply moves and deletes there");
        remove(&store, id(b"unseen"), b"nothing");
        store.apply().unwrap();
        assert_eq!(in_limbo(), 0, "it is not known any more");
        assert_eq!(std::fs::read(path("unseen/file")).unwrap(), b"x");
    }
}
