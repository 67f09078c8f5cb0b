//! Transactions on their way: close, hand out, committed.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use mobifs_base::{AppId, FileKind, MonotonicNs, ObjectId, ObjectState, TransactionId};

use super::{Engine, age_ms};
use crate::FsError;
use crate::app::Class;
use crate::inode::{Body, Inode};
use crate::namespace::Namespace;
use crate::policy::schedule::Waiting;
use crate::transactions::{
    ClosedTransaction, ClosedUntil, Commit, Content, Merged, OpenTransaction, SizeChange,
};
use crate::versions::Change;

/// The pages of objects without a link are counted anew, in debug builds, if no more objects are
/// in memory.
const CHECKED_OBJECTS_MAX: usize = 256;

/// What a caller of `fsync` has to wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncPoint {
    /// Nothing.
    Now,
    /// Until these transactions (and those that they depend on) are committed.
    Committed(Vec<TransactionId>),
}

/// Closed transactions whose commit must not be put off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overdue {
    /// Which, in the order of closing.
    pub transactions: Vec<TransactionId>,
    /// When the next of those that wait will be, by its age.
    pub next_at: Option<MonotonicNs>,
}

/// The way of transactions out of the engine: what closes, merges or ends here leaves each part.
impl Engine {
    /// Closes every transaction that has reached a limit; returns
    /// [when the next one will](Self::next_closing).
    pub fn tick(&mut self, now: MonotonicNs) -> Option<MonotonicNs> {
        if self.keeps_open() {
            return None;
        }
        let open = self.transactions.all_open();
        let is_due = |open: &OpenTransaction| open.closing.is_due(age_ms(now, open.opened_at));
        let due = open.filter(|(_, open)| is_due(open)).map(|(id, _)| id);
        let due: Vec<TransactionId> = due.collect();
        due.into_iter().for_each(|id| self.close(id));
        self.next_closing()
    }

    /// When the next open transaction reaches its limit by its age.
    pub fn next_closing(&self) -> Option<MonotonicNs> {
        if self.keeps_open() {
            return None;
        }
        let deadline = |(_, open): (TransactionId, &OpenTransaction)| {
            let age_ns = open.closing.due_age_ms()?.saturating_mul(1_000_000);
            Some(MonotonicNs(open.opened_at.0.saturating_add(age_ns)))
        };
        self.transactions.all_open().filter_map(deadline).min()
    }

    /// Closes all open transactions; the answer stands for everything uncommitted.
    pub fn close_all(&mut self) -> ClosedUntil {
        let open = self.transactions.open_ids();
        open.into_iter().for_each(|id| self.close(id));
        self.transactions.closed_until_now()
    }

    /// Closes what the app at `path` has open; none if there is no such app.
    pub fn close_app(&mut self, path: &[u8]) -> Option<SyncPoint> {
        let app = self.apps.find(path)?;
        Some(self.sync_point_with(&[app], &[]))
    }

    /// Closes transactions that may affect an app that this mount has not used yet: changes of
    /// files with names that no lookup has found.
    pub fn close_everywhere(&mut self) -> SyncPoint {
        self.sync_point_with(&[], &[])
    }

    /// Closes the transaction that has taken most memory, to make room.
    pub fn close_largest(&mut self) {
        if let Some(largest) = self.transactions.largest_open() {
            self.close(largest);
        }
    }

    /// What `fsync` of this object means: nothing to wait for in a relaxed app, although
    /// its policy may close its transaction here. In a durable one what the app has done
    /// must be committed, and every change of the object, whichever app's transaction has
    /// it: an entry that names the root of another app is that app's
    /// ([`Engine::begin_entry`]), and the directory is mentioned there.
    pub fn sync_point(&mut self, id: ObjectId) -> SyncPoint {
        let mut apps = self.apps_of(id);
        for &app in &apps {
            self.close_at_fsync(app);
        }
        apps.retain(|app| self.apps.get(*app).policy.class == Class::Durable);
        if apps.is_empty() {
            return SyncPoint::Now;
        }
        self.durable_syncs.record();
        // Each transaction that mentions it holds the object once, so where none does there is
        // nothing to look for, and the last one ends the search.
        let holds = self
            .namespace
            .get(&id)
            .map_or(0, |inode| inode.usage.transactions());
        let holds = usize::try_from(holds).unwrap_or(usize::MAX);
        let mentioning = self.transactions.with_object(id, holds);
        self.sync_point_with(&apps, &mentioning)
    }

    /// Whether an app that has this object is durable: then [`Engine::sync_point`] is what an
    /// `fsync` waits for.
    pub fn is_durable(&mut self, id: ObjectId) -> bool {
        self.has_durable_apps() && {
            let apps = self.apps_of(id);
            let mut classes = apps.iter().map(|app| self.apps.get(*app).policy.class);
            classes.any(|class| class == Class::Durable)
        }
    }

    /// The apps in which the object has a name, as far as its names are known.
    pub(super) fn apps_of(&mut self, id: ObjectId) -> Vec<AppId> {
        let mut apps = alloc::vec![self.namespace.app_of(id, &mut self.apps)];
        if let Some(inode) = self.namespace.get(&id) {
            apps.extend_from_slice(&inode.linked_apps);
        }
        apps
    }

    /// Closes what the app has open, if its policy wants that at an `fsync`.
    fn close_at_fsync(&mut self, app: AppId) {
        let app = self.apps.get(app);
        if let Some(id) = app.open
            && let Some(open) = self.transactions.open(id)
            && open.closing.closes_at_fsync(&app.policy)
        {
            self.close(id);
        }
    }

    /// Closes what these apps have open, what may concern any app, and these transactions.
    fn sync_point_with(&mut self, apps: &[AppId], others: &[TransactionId]) -> SyncPoint {
        let others_open = others.iter().copied();
        let others_open = others_open.filter(|id| self.transactions.is_open(*id));
        let open = apps.iter().filter_map(|app| self.apps.open_of(*app));
        let open: BTreeSet<TransactionId> = open
            .chain(self.transactions.everywhere())
            .chain(others_open)
            .collect();
        // One commit is cheaper than several.
        let joined = open.into_iter().reduce(|one, other| self.join(one, other));
        // Closed or not, a transaction that was joined to another does not exist any more.
        let others = others.iter().copied();
        let others = others.filter(|id| self.transactions.is_closed(*id));
        let others: Vec<TransactionId> = others.chain(joined).collect();
        if let Some(id) = joined {
            self.close(id);
        }
        // The last of each app: it depends on those of its own app before it, but not on
        // those of the others.
        let transactions = &self.transactions;
        let of_apps = apps
            .iter()
            .filter_map(|app| transactions.last_closed(|closed| closed.apps.contains(app)));
        let everywhere = transactions.last_closed(|closed| closed.is_everywhere);
        // What is closed without an effect is committed already, and what closes may be merged.
        let others = others.into_iter().map(|id| transactions.after_merges(id));
        let others = others.filter(|id| transactions.is_closed(*id));
        let mut last: Vec<TransactionId> = of_apps.chain(everywhere).chain(others).collect();
        last.sort_unstable_by_key(|id| transactions.closed(*id).map(|closed| closed.order));
        last.dedup();
        if last.is_empty() {
            SyncPoint::Now
        } else {
            SyncPoint::Committed(last)
        }
    }

    /// Closes a transaction: its net effect is fixed, and nothing changes it any more.
    pub(crate) fn close(&mut self, id: TransactionId) {
        let Some(open) = self.transactions.take_open(id) else {
            return;
        };
        self.apps.closed(&open.apps, id, open.written_bytes);
        let content = self.take_content(id, &open);
        debug_assert!(
            content.page_bytes() <= open.charged.memory_bytes(),
            "a transaction is charged for all of its pages"
        );
        let is_empty = content.is_empty();
        self.transactions.insert_closed(id, open, content);
        self.check_accounting();
        if is_empty {
            // All of its changes were undone in it.
            self.committed(id);
        }
        self.merge_starved();
    }

    /// Asserts, in debug builds, that what is charged in total is charged to some transaction, or
    /// is a page of an object without a link.
    pub(super) fn check_accounting(&self) {
        if cfg!(debug_assertions) {
            self.accounting.check(&self.transactions);
            if self.namespace.len() <= CHECKED_OBJECTS_MAX {
                let files = self.namespace.values();
                let orphan_bytes: u64 = files.map(|inode| inode.versions.orphan_bytes()).sum();
                assert_eq!(self.accounting.orphan_bytes(), orphan_bytes);
            }
        }
    }

    fn take_content(&mut self, transaction: TransactionId, open: &OpenTransaction) -> Content {
        let mut content = Content {
            objects: Vec::new(),
            dentries: Vec::new(),
            pages: Vec::new(),
        };
        for &id in open.dirty.iter() {
            let Some(change) = self.namespace.take_change(id) else {
                continue;
            };
            let Some(inode) = self.namespace.get_mut(&id) else {
                continue;
            };
            debug_assert_eq!(
                change.transaction(),
                transaction,
                "a dirty object's change is in its transaction"
            );
            content.objects.push(object_state(id, inode, &change));
            inode.creation_closed = true;
            inode.versions.close(*change, |index, page| {
                content.pages.push((id, index, page.clone()));
            });
        }
        content.dentries = open
            .dentries
            .iter()
            .filter(|(_, change)| change.before != change.now)
            .map(|((parent, name), change)| (*parent, name.clone(), change.now))
            .collect();
        content
    }

    /// How often transactions were merged since the engine was made.
    pub const fn merges(&self) -> u64 {
        self.transactions.merges()
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

    /// Whether a transaction still waits for its commit.
    pub fn is_uncommitted(&self, transaction: TransactionId) -> bool {
        self.transactions.is_closed(transaction)
    }

    /// Why a transaction, or one that it depends on, failed to commit, if one did.
    pub fn refusal_of(&self, transaction: TransactionId) -> Option<FsError> {
        self.transactions.refusal_of(transaction)
    }

    /// Whether any closed transaction waits, or is in flight.
    pub fn has_closed(&self) -> bool {
        self.transactions.has_closed()
    }

    /// Whether any closed transaction waits for its commit.
    pub fn has_waiting(&self) -> bool {
        self.transactions.has_waiting()
    }

    /// How often a transaction was closed since the engine was made.
    pub const fn closings(&self) -> u64 {
        self.transactions.closings()
    }

    /// The closed transactions that can be handed out, in the order of closing.
    pub fn waiting(&self) -> Vec<Waiting> {
        let waiting = self.transactions.closed_in_order().into_iter();
        let waiting = waiting.filter(|(_, closed)| closed.is_waiting());
        waiting
            .filter_map(|(id, closed)| {
                Some(Waiting {
                    id,
                    app: *closed.apps.first()?,
                    pages: (closed.content.pages.len() + closed.content.dentries.len()) as u64,
                })
            })
            .collect()
    }

    /// The closed transactions of which an app has reached a limit, counted from the
    /// first change and with what came after: what is promised about age and staleness
    /// holds for what is not committed, not for what is not closed. No limit of age below
    /// `age_min_ms` milliseconds counts: where that is more than 0, an age is promised that
    /// is longer than the apps' own.
    pub fn overdue(&self, now: MonotonicNs, age_min_ms: u64) -> Overdue {
        let mut overdue = Overdue::default();
        for (id, closed) in self.transactions.closed_in_order() {
            if !closed.is_waiting() {
                continue;
            }
            let due_at = self.due_at(closed, age_min_ms);
            if due_at.is_some_and(|at| at <= now) || self.is_too_stale(closed) {
                overdue.transactions.push(id);
            } else {
                let next = [overdue.next_at, due_at].into_iter().flatten().min();
                overdue.next_at = next;
            }
        }
        overdue
    }

    /// When the first of its apps reaches its limit of age; none if none has one.
    fn due_at(&self, closed: &ClosedTransaction, age_min_ms: u64) -> Option<MonotonicNs> {
        let policies = self.apps.policies(&closed.apps);
        let bounded = policies.filter(|policy| policy.transactioning.name.is_bounded());
        let age_ms = bounded.map(|policy| policy.age_max_ms).min()?;
        let age_ms = age_ms.max(age_min_ms);
        let age_ns = age_ms.saturating_mul(1_000_000);
        Some(MonotonicNs(closed.opened_at.0.saturating_add(age_ns)))
    }

    /// Whether one of its apps has reached its limit of staleness.
    fn is_too_stale(&self, closed: &ClosedTransaction) -> bool {
        closed.apps.iter().any(|&id| {
            let app = self.apps.get(id);
            let open = app.open.and_then(|open| self.transactions.open(open));
            let open = open.map_or(0, |open| open.closing.efficiency().written_pages());
            let of_app = self.transactions.all_closed();
            let of_app = of_app.filter(|(_, other)| other.apps.contains(&id));
            let waiting: u64 = of_app
                .map(|(_, other)| other.efficiency.written_pages())
                .sum();
            app.policy.transactioning.name.is_bounded()
                && open + waiting >= app.policy.staleness_max_pages
        })
    }

    /// The next transaction to commit: the first closed one, or, with `towards`, the
    /// first that this one needs. None if nothing can be committed now.
    pub fn next_commit(&mut self, towards: Option<TransactionId>) -> Option<Commit> {
        let wanted = towards.map(|id| self.transactions.needed_by(id));
        self.next_commit_of(wanted.as_ref())
    }

    /// The next of these transactions to commit. None if none is left or can be committed
    /// now. It is not enough to wait for the last of them: one that an `fsync` waits for is
    /// committed before older ones on which it does not depend.
    pub fn next_commit_until(&mut self, point: ClosedUntil) -> Option<Commit> {
        let wanted = self.transactions.closed_before(point);
        self.next_commit_of(Some(&wanted))
    }

    /// As [`Engine::next_commit`]; none, too, if it is larger than this ([`Commit::bytes`]).
    pub fn next_commit_within(&mut self, towards: TransactionId, bytes_max: u64) -> Option<Commit> {
        let wanted = self.transactions.needed_by(towards);
        let id = self.transactions.next_of(Some(&wanted))?;
        let closed = self.transactions.closed(id)?;
        (closed.content.bytes() <= bytes_max).then(|| self.hand_out(id))?
    }

    fn next_commit_of(&mut self, wanted: Option<&BTreeSet<TransactionId>>) -> Option<Commit> {
        let id = self.transactions.next_of(wanted)?;
        self.hand_out(id)
    }

    fn hand_out(&mut self, id: TransactionId) -> Option<Commit> {
        let closed = self.transactions.start_commit(id)?;
        let mut pins = Vec::new();
        for &id in &closed.orphaned {
            // Also a directory that is here only because of what has, or had, its place in it:
            // as long as it is, its inode number in the lower filesystem must not become another
            // object's.
            if let Some(inode) = self.namespace.get_mut(&id)
                && inode.is_orphan()
                && inode.versions.is_known_to_store()
                && (inode.usage.is_referenced() || inode.usage.children() > 0)
            {
                inode.pinned = true;
                pins.push(id);
            }
        }
        let apps = closed.apps.iter();
        let apps = apps.map(|app| self.apps.get(*app).path.clone()).collect();
        Some(Commit {
            transaction: id,
            pins,
            apps,
            sizes: size_changes(closed, &self.namespace),
            promised: closed.charged.room(),
            content: Arc::clone(&closed.content),
        })
    }

    /// The store has the transaction, durably: its pages leave memory unless they
    /// were written again.
    pub fn committed(&mut self, transaction: TransactionId) {
        let Some(closed) = self.transactions.take_committed(transaction) else {
            return;
        };
        self.accounting.committed(&closed);
        self.check_accounting();
        let sent_bytes = closed.sent_bytes();
        for (id, index, _) in &closed.content.pages {
            if let Some(inode) = self.namespace.get_mut(id) {
                inode.versions.page_committed(transaction, *index);
            }
        }
        for state in &closed.content.objects {
            if let Some(inode) = self.namespace.get_mut(&state.id) {
                let size = state.attributes.size;
                inode.versions.committed(transaction, size);
            }
        }
        let transactions = &self.transactions;
        self.apps
            .committed(&closed, sent_bytes, |app| transactions.refusal_of_app(app));
        for id in closed.held {
            self.namespace.release_hold(id);
            self.dispose_if_unused(id);
        }
        self.merge_starved();
    }

    /// The store could not take the transaction: it stays in memory, and its apps
    /// accept no changes until a retry succeeds, and refuse them with `refusal`.
    ///
    /// With [`FsError::NoSpace`] they still accept what needs no room: removals, holes, smaller
    /// sizes. When that is closed it is merged with what found no room, and the result, which
    /// needs less, is handed out again.
    pub fn commit_failed(&mut self, transaction: TransactionId, refusal: FsError) {
        let apps = self.transactions.commit_failed(transaction, refusal);
        self.apps.refuse(&apps, refusal);
        self.merge_starved();
    }

    /// A commit failed that may wait: its apps stay writable, and it is handed out again.
    pub fn commit_put_back(&mut self, transaction: TransactionId) {
        self.transactions.put_back(transaction);
        self.merge_starved();
    }

    /// Hands transactions that failed this way out again; with none, all that failed.
    pub fn retry_failed(&mut self, only: Option<FsError>) {
        self.transactions.retry_failed(only);
    }
}

/// What a transaction changes of the room that files take.
fn size_changes(closed: &ClosedTransaction, namespace: &Namespace) -> Vec<SizeChange> {
    // The store's size of a file; zero for a new one.
    let stored_bytes = |id: &ObjectId| {
        let inode = namespace.get(id);
        inode.map_or(0, |inode| inode.versions.stored_bytes())
    };
    let deleted = closed.orphaned.iter().map(|id| {
        let allocated_bytes = namespace.get(id).map_or(0, |inode| inode.allocated_bytes);
        SizeChange {
            id: *id,
            is_deleted: true,
            freed_bytes: stored_bytes(id).min(allocated_bytes),
            grown_bytes: 0,
        }
    });
    let files = closed.content.objects.iter();
    let files = files.filter(|state| state.attributes.kind == FileKind::Regular);
    let changed = files.map(|state| {
        let (before_bytes, zeroed) = (stored_bytes(&state.id), state.zeroed.iter());
        let cut = zeroed.map(|range| range.end.min(before_bytes).saturating_sub(range.start));
        let to_end = state.zeroed.last();
        let to_end = to_end.filter(|range| range.end >= before_bytes);
        let kept_until = to_end.map_or(before_bytes, |range| range.start.min(before_bytes));
        SizeChange {
            id: state.id,
            is_deleted: false,
            freed_bytes: cut.fold(0, u64::saturating_add),
            grown_bytes: state.attributes.size.saturating_sub(kept_until),
        }
    });
    let has_effect = |change: &SizeChange| change.freed_bytes > 0 || change.grown_bytes > 0;
    let changes = deleted.chain(changed);
    changes
        .filter(|change| change.is_deleted || has_effect(change))
        .collect()
}

/// The final state of a changed object.
pub(crate) fn object_state(id: ObjectId, inode: &Inode, change: &Change) -> ObjectState {
    let symlink_target = match &inode.body {
        Body::Symlink(target) if !inode.creation_closed => target.clone(),
        _ => None,
    };
    let xattrs = change
        .xattrs()
        .iter()
        .map(|name| {
            let value = inode
                .xattrs
                .as_ref()
                .and_then(|known| known.get(name).cloned());
            (Arc::clone(name), value)
        })
        .collect();
    ObjectState {
        id,
        created: !inode.creation_closed,
        attributes: inode.attributes,
        symlink_target,
        zeroed: change.zeroed().iter().collect(),
        allocated: change.allocated().iter().collect(),
        xattrs,
    }
}
