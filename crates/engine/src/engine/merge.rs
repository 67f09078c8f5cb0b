//! Merging transactions that found no room in the lower filesystem with later deletions of their
//! apps: see [`crate::transactions::Transactions::to_merge`].

use alloc::boxed::Box;
use alloc::vec::Vec;

use mobifs_base::{ByteRange, ObjectId, TransactionId};

use super::Engine;
use crate::FsError;
use crate::inode::Inode;
use crate::transactions::Merged;
use crate::versions::{Change, ORPHAN};

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
                relabel(inode, group, merged.id);
                if merged.orphaned.contains(id) {
                    keep_zeroed(inode, merged.id, is_tracked);
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
            let slot = inode.and_then(|inode| inode.pages.get_mut(index));
            match slot.filter(|slot| slot.transaction == merged.id && slot.page == *page) {
                Some(slot) => {
                    slot.transaction = ORPHAN;
                    orphan_bytes += bytes;
                }
                None => freed_bytes += bytes,
            }
        }
        (orphan_bytes, freed_bytes)
    }
}

/// Lets an object's closed changes belong to the transaction into which theirs was merged.
fn relabel(inode: &mut Inode, group: &[TransactionId], to: TransactionId) {
    inode.pages.change_each(|slot| {
        let is_merged = slot.transaction != to && group.contains(&slot.transaction);
        if is_merged {
            slot.transaction = to;
        }
        is_merged
    });
    for (of, _) in &mut inode.closed_zeroed {
        if group.contains(of) {
            *of = to;
        }
    }
}

/// Ranges that the transaction zeroed in a file that it deletes are never zeroed in the store,
/// whose content would show as long as a program has the file open: they stay hidden here.
fn keep_zeroed(inode: &mut Inode, transaction: TransactionId, is_tracked: bool) {
    let (zeroed, others): (Vec<_>, Vec<_>) = core::mem::take(&mut inode.closed_zeroed)
        .into_iter()
        .partition(|(of, _)| *of == transaction);
    inode.closed_zeroed = others;
    let mut ranges = zeroed.into_iter().flat_map(|(_, ranges)| ranges).peekable();
    if ranges.peek().is_none() {
        return;
    }
    let new = || Box::new(Change::new(ORPHAN, is_tracked));
    let change = inode.change.get_or_insert_with(new);
    debug_assert_eq!(change.transaction, ORPHAN, "a deleted file is in none");
    ranges.for_each(|range: ByteRange| change.zeroed.insert(range));
}
