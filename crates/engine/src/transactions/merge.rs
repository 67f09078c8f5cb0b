//! Merging closed transactions of which one found no room in the lower filesystem.
//!
//! A transaction is committed before those that depend on it. So one for which there is no room
//! blocks later deletions of its apps, which may be the very content that there is no room for. The
//! two, and what must be committed between them, become one transaction then, with the net effect
//! of all: what was deleted in the later ones is not written and takes no room.
//!
//! Why that is allowed: an app shows a state after a crash that it really had, and its state at the
//! end of the merged transaction is one. The states between were not promised: a promise (`fsync`
//! in a durable app, `sync`) is given when a transaction is committed, and none of these was. What
//! an `fsync` waits for is part of the merged transaction, so it waits for that.
//!
//! Why the order of commits stays right: the group is the last transaction with all that it
//! [needs](Transactions::needed_by). None of the group depends on a transaction outside, so the
//! merged one can have the place of the group's first. A transaction outside that depends on one
//! of the group was closed after that one, and so comes after the merged one.
//!
//! The merged transaction has the number of the group's last, which was never handed out because
//! it depends on one that failed. So a number stands for one content at every attempt: a daemon
//! that is killed can see by it whether that content is committed
//! ([`Commit::transaction`](super::Commit::transaction)).

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use mobifs_base::{
    ByteRange, Name, ObjectId, ObjectState, PAGE_BYTES_U64, Page, PageIndex, RangeSet,
    TransactionId,
};

use super::{ClosedTransaction, Content, Transactions};
use crate::FsError;

/// What a merge leaves to the owner of the objects and of the accounting.
pub(crate) struct Merged {
    /// The transaction that the group has become.
    pub(crate) id: TransactionId,
    /// The objects that it mentions.
    pub(crate) held: Vec<ObjectId>,
    /// Objects that it deletes.
    pub(crate) orphaned: BTreeSet<ObjectId>,
    /// A hold to release for each of these: several of the group held it.
    pub(crate) released: Vec<ObjectId>,
    /// Pages that are not written any more.
    pub(crate) dropped: Vec<(ObjectId, PageIndex, Page)>,
}

/// The net effect of transactions that follow each other.
#[derive(Default)]
struct NetEffect {
    objects: BTreeMap<ObjectId, ObjectState>,
    dentries: BTreeMap<(ObjectId, Name), Option<ObjectId>>,
    pages: BTreeMap<(ObjectId, PageIndex), Page>,
    dropped: Vec<(ObjectId, PageIndex, Page)>,
}

impl NetEffect {
    /// Adds the next transaction.
    fn add(&mut self, content: &Content, orphaned: &BTreeSet<ObjectId>) {
        for state in &content.objects {
            // The state zeroes first: the pages that come with it are newer.
            for range in &state.zeroed {
                self.drop_pages(state.id, *range);
            }
            match self.objects.get_mut(&state.id) {
                Some(before) => follow(before, state),
                None => {
                    self.objects.insert(state.id, state.clone());
                }
            }
        }
        for (parent, name, child) in &content.dentries {
            // Also where a name is gone again that an earlier one has made: it is not known here
            // whether the store has that name, and there it does no harm to remove none.
            self.dentries.insert((*parent, name.clone()), *child);
        }
        for (id, index, page) in &content.pages {
            let before = self.pages.insert((*id, *index), page.clone());
            self.dropped.extend(before.map(|page| (*id, *index, page)));
        }
        for &id in orphaned {
            self.delete(id);
        }
    }

    /// An object lost its last link: it need not be written.
    fn delete(&mut self, id: ObjectId) {
        self.drop_pages(id, ByteRange::from(0));
        if self.objects.remove(&id).is_some_and(|state| state.created) {
            // Its entries as a directory, all of which are removed by now, were never in the lower
            // filesystem.
            self.dentries.retain(|(parent, _), _| *parent != id);
        }
    }

    fn drop_pages(&mut self, id: ObjectId, range: ByteRange) {
        debug_assert!(
            range.start.is_multiple_of(PAGE_BYTES_U64),
            "whole pages are zeroed"
        );
        let first = (id, PageIndex::of_offset(range.start));
        let inside = self.pages.range(first..=(id, PageIndex(u64::MAX)));
        let inside = inside.map(|(key, _)| *key);
        let inside = inside.take_while(|(_, index)| index.offset() < range.end);
        for key in inside.collect::<Vec<_>>() {
            if let Some(page) = self.pages.remove(&key) {
                self.dropped.push((key.0, key.1, page));
            }
        }
    }

    fn into_content(self) -> Content {
        let dentries = self.dentries.into_iter();
        let pages = self.pages.into_iter();
        Content {
            objects: self.objects.into_values().collect(),
            dentries: dentries
                .map(|((parent, name), child)| (parent, name, child))
                .collect(),
            pages: pages.map(|((id, index), page)| (id, index, page)).collect(),
        }
    }
}

/// The state of an object after two transactions.
fn follow(before: &mut ObjectState, after: &ObjectState) {
    debug_assert!(!after.created, "an object is created once");
    before.attributes = after.attributes;
    if after.symlink_target.is_some() {
        before.symlink_target.clone_from(&after.symlink_target);
    }
    let mut zeroed: RangeSet = before.zeroed.iter().copied().collect();
    let mut allocated: RangeSet = before.allocated.iter().copied().collect();
    for &range in &after.zeroed {
        zeroed.insert(range);
        allocated.remove(range);
    }
    let ranges = after.allocated.iter();
    ranges.for_each(|&range| allocated.insert(range));
    before.zeroed = zeroed.iter().collect();
    before.allocated = allocated.iter().collect();
    for (name, value) in &after.xattrs {
        before.xattrs.retain(|(of, _)| of != name);
        before.xattrs.push((Arc::clone(name), value.clone()));
    }
}

impl ClosedTransaction {
    /// Whether it deletes or truncates something.
    fn gives_back(&self) -> bool {
        let cuts = |state: &ObjectState| !state.zeroed.is_empty();
        !self.orphaned.is_empty() || self.content.objects.iter().any(cuts)
    }

    fn has_no_room(&self) -> bool {
        self.refusal == Some(FsError::NoSpace)
    }

    /// Takes over a later transaction, except for its content; returns the objects that both held.
    fn absorb(&mut self, later: &Self) -> Vec<ObjectId> {
        self.is_everywhere |= later.is_everywhere;
        for &app in &later.apps {
            if !self.apps.contains(&app) {
                self.apps.push(app);
            }
        }
        self.opened_at = self.opened_at.min(later.opened_at);
        self.orphaned.extend(&later.orphaned);
        self.efficiency.absorb(&later.efficiency);
        self.brought_bytes += later.brought_bytes;
        self.charged.absorb(later.charged);
        let held_twice = later.held.intersection(&self.held).copied().collect();
        self.held.extend(&later.held);
        held_twice
    }
}

impl Transactions {
    /// The transactions to merge next, in the order of closing: one that found no room, the last
    /// one that frees something in the same apps, and all that this one needs. None if there are no
    /// such, or if one of them is being committed or failed for another reason.
    pub(crate) fn to_merge(&self) -> Option<Vec<TransactionId>> {
        let in_order = self.closed.values();
        let mut without_room = in_order.filter(|closed| closed.has_no_room());
        without_room.find_map(|closed| self.mergeable_after(closed))
    }

    fn mergeable_after(&self, failed: &ClosedTransaction) -> Option<Vec<TransactionId>> {
        let gives_room = |closed: &ClosedTransaction| {
            closed.order > failed.order
                && closed.apps.iter().any(|app| failed.apps.contains(app))
                && closed.gives_back()
        };
        let last = self.last_closed(gives_room)?;
        let needed = self.needed_by(last);
        let mut group: Vec<(u64, TransactionId)> = Vec::with_capacity(needed.len());
        for id in needed {
            let closed = self.closed.get(&id)?;
            let is_waiting_or_starved = closed.is_waiting() || closed.has_no_room();
            if closed.in_flight || !is_waiting_or_starved {
                return None;
            }
            group.push((closed.order, id));
        }
        group.sort_unstable();
        Some(group.into_iter().map(|(_, id)| id).collect())
    }

    /// Makes one of closed transactions, which are all that the last of them needs.
    pub(crate) fn merge(&mut self, group: &[TransactionId]) -> Option<Merged> {
        let (&id, _) = group.split_last()?;
        let (&first, others) = group.split_first()?;
        let mut into = self.closed.remove(&first)?;
        let mut net = NetEffect::default();
        net.add(&into.content, &into.orphaned);
        let mut released = Vec::new();
        for other in others {
            let Some(later) = self.closed.remove(other) else {
                continue;
            };
            debug_assert!(later.order > into.order, "a group is in order");
            net.add(&later.content, &later.orphaned);
            released.extend(into.absorb(&later));
        }
        self.record_merged(group, id);
        let dropped = core::mem::take(&mut net.dropped);
        into.refusal = None;
        into.content = Arc::new(net.into_content());
        let merged = Merged {
            id,
            held: into.held.iter().copied().collect(),
            orphaned: into.orphaned.clone(),
            released,
            dropped,
        };
        self.closed.insert(id, into);
        self.merges += 1;
        Some(merged)
    }

    fn record_merged(&mut self, group: &[TransactionId], id: TransactionId) {
        for into in self.merged_into.values_mut() {
            if group.contains(into) {
                *into = id;
            }
        }
        let others = group.iter().filter(|other| **other != id);
        self.merged_into.extend(others.map(|other| (*other, id)));
    }

    /// The transaction into which this one was merged.
    pub(crate) fn after_merges(&self, id: TransactionId) -> TransactionId {
        self.merged_into.get(&id).copied().unwrap_or(id)
    }

    /// A closed transaction, and the accounting of the pages that it does not write any more.
    pub(crate) fn closed_mut(&mut self, id: TransactionId) -> Option<&mut ClosedTransaction> {
        self.closed.get_mut(&id)
    }

    /// How often transactions were merged.
    pub(crate) const fn merges(&self) -> u64 {
        self.merges
    }
}
