//! Merging transactions that found no room in the lower filesystem with later deletions of their
//! apps: see [`crate::transactions::Transactions::to_merge`].

use mobifs_base::{ObjectId, TransactionId};

use super::Engine;
use crate::FsError;
use crate::inode::Inode;
use crate::transactions::Merged;

impl Engine {
    /// How often transactions were merged since the engine was made.
    pub const fn merges(&self) -> u64 {
        self.transactions.merges()
    }

    /// Whether changes of an object that need room are refused: the uncommitted ones of its app
    /// have found none. An object without a link is in no transaction.
    pub(super) fn is_starved(&mut self, id: ObjectId) -> bool {
        if self.namespace.get(&id).is_some_and(Inode::is_orphan) {
            return false;
        }
        let app = self.namespace.app_of(id, &mut self.apps);
        self.apps.get(app).refusal == Some(FsError::NoSpace)
    }

    /// Merges transactions that found no room with those that free some, if there are any.
    pub(super) fn merge_starved(&mut self) {
        // It ends: each merge leaves fewer closed transactions.
        while let Some(group) = self.transactions.to_merge()
            && let Some(merged) = self.transactions.merge(&group)
        {
            self.take_over_merged(&group, &merged);
        }
    }

    /// Lets objects and accounting follow a merge.
    fn take_over_merged(&mut self, group: &[TransactionId], merged: &Merged) {
        for &id in &merged.released {
            self.namespace.release_hold(id);
        }
        let is_tracked = self.namespace.is_tracked();
        for id in &merged.held {
            if let Some(inode) = self.namespace.get_mut(id) {
                inode.versions.merge(group, merged.id);
                if merged.orphaned.contains(id) {
                    inode.versions.keep_zeroed(merged.id, is_tracked);
                }
            }
        }
        let (orphan_bytes, freed_bytes) = self.let_dropped_pages_go(merged);
        if let Some(closed) = self.transactions.closed_mut(merged.id) {
            self.accounting
                .shrink_merged(closed, orphan_bytes, freed_bytes);
        }
        self.check_accounting();
        for &id in &merged.orphaned {
            self.dispose_if_unused(id);
        }
    }

    /// Pages that a merged transaction does not write any more leave memory, but for the newest
    /// ones of deleted files, which stay readable as long as a program has the file. Returns the
    /// memory of the latter, and that of the others.
    fn let_dropped_pages_go(&mut self, merged: &Merged) -> (u64, u64) {
        let (mut orphan_bytes, mut freed_bytes) = (0, 0);
        for (id, index, page) in &merged.dropped {
            let bytes = page.stored_bytes() as u64;
            let inode = self.namespace.get_mut(id);
            let inode = inode.filter(|inode| inode.is_orphan());
            if inode.is_some_and(|inode| inode.versions.orphan_page(merged.id, *index, page)) {
                orphan_bytes += bytes;
            } else {
                freed_bytes += bytes;
            }
        }
        (orphan_bytes, freed_bytes)
    }
}
