//! Transactions on their way: close, hand out, committed.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use mobifs_base::{AppId, MonotonicNs, ObjectId, ObjectState, TransactionId};

use super::Engine;
use crate::FsError;
use crate::app::{App, Class};
use crate::inode::{Change, Inode};
use crate::transaction::{ClosedTransaction, Commit, Content, OpenTransaction};

/// What a caller of `fsync` has to wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyncPoint {
    /// Nothing.
    Now,
    /// Until these transactions (and those that they depend on) are committed.
    Committed(Vec<TransactionId>),
}

/// All transactions that were closed at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedUntil {
    /// The place in the order of closing that the next one gets.
    next_order: u64,
}

impl Engine {
    /// Closes every transaction that has reached a limit; returns
    /// [when the next one will](Self::next_closing).
    pub fn tick(&mut self, now: MonotonicNs) -> Option<MonotonicNs> {
        if self.keeps_open() {
            return None;
        }
        let due: Vec<TransactionId> = self
            .open
            .iter()
            .filter(|(_, open)| Self::is_due(open, now))
            .map(|(&transaction, _)| transaction)
            .collect();
        due.into_iter()
            .for_each(|transaction| self.close(transaction));
        self.next_closing()
    }

    /// When the next open transaction reaches its limit by its age.
    pub fn next_closing(&self) -> Option<MonotonicNs> {
        if self.keeps_open() {
            return None;
        }
        let deadline = |open: &OpenTransaction| {
            let age_ns = open.closing.due_age_ms()?.saturating_mul(1_000_000);
            Some(MonotonicNs(open.opened_at.0.saturating_add(age_ns)))
        };
        self.open.values().filter_map(deadline).min()
    }

    /// Closes all open transactions; the answer stands for everything uncommitted.
    pub fn close_all(&mut self) -> ClosedUntil {
        let open: Vec<TransactionId> = self.open.keys().copied().collect();
        open.into_iter()
            .for_each(|transaction| self.close(transaction));
        ClosedUntil {
            next_order: self.next_transaction,
        }
    }

    /// Closes what the app at `path` has open; none if there is no such app.
    pub fn close_app(&mut self, path: &[u8]) -> Option<SyncPoint> {
        let app = self.app_ids.get(path).copied()?;
        Some(self.sync_point_of(&[app]))
    }

    /// Closes what may concern an app that this mount has not used yet: changes of
    /// files with names that no lookup has found.
    pub fn close_everywhere(&mut self) -> SyncPoint {
        self.sync_point_of(&[])
    }

    /// Closes the transaction that has taken most memory, to make room.
    pub fn close_largest(&mut self) {
        let largest = self
            .open
            .iter()
            .max_by_key(|(_, open)| open.bytes)
            .map(|(&transaction, _)| transaction);
        if let Some(transaction) = largest {
            self.close(transaction);
        }
    }

    /// What `fsync` of this object means: nothing to wait for in a relaxed app, although
    /// its policy may close its transaction here. In a durable one what the app has done
    /// must be committed, and every change of the object, whichever app's transaction has
    /// it: an entry that names the root of another app is that app's
    /// ([`Engine::begin_entry`]), and the directory is mentioned there.
    pub fn sync_point(&mut self, id: ObjectId) -> SyncPoint {
        let mut apps = alloc::vec![self.app_of(id)];
        if let Some(inode) = self.inodes.get(&id) {
            apps.extend_from_slice(&inode.linked_apps);
        }
        for &app in &apps {
            self.close_at_fsync(app);
        }
        apps.retain(|app| self.apps[app.0 as usize].policy.class == Class::Durable);
        if apps.is_empty() {
            return SyncPoint::Now;
        }
        let mentioning = self.transactions_with(id);
        self.sync_point_with(&apps, &mentioning)
    }

    /// The transactions that mention an object, open and closed.
    fn transactions_with(&self, id: ObjectId) -> Vec<TransactionId> {
        // Each of them holds the object once, so where none does there is nothing to look
        // for, and the last one ends the search.
        let holds = self.inodes.get(&id).map_or(0, |inode| inode.holds);
        let open = self.open.iter().filter(|(_, open)| open.held.contains(&id));
        let closed = self.closed.iter();
        let closed = closed.filter(|(_, closed)| closed.held.contains(&id));
        let all = open
            .map(|(&transaction, _)| transaction)
            .chain(closed.map(|(&transaction, _)| transaction));
        all.take(usize::try_from(holds).unwrap_or(usize::MAX))
            .collect()
    }

    /// Closes what the app has open, if its policy wants that at an `fsync`.
    fn close_at_fsync(&mut self, app: AppId) {
        let App { open, policy, .. } = &self.apps[app.0 as usize];
        if let Some(transaction) = *open
            && let Some(open) = self.open.get(&transaction)
            && open.closing.closes_at_fsync(policy)
        {
            self.close(transaction);
        }
    }

    /// Closes what these apps have open, and what may concern any app.
    fn sync_point_of(&mut self, apps: &[AppId]) -> SyncPoint {
        self.sync_point_with(apps, &[])
    }

    /// As [`Engine::sync_point_of`], and these transactions.
    fn sync_point_with(&mut self, apps: &[AppId], others: &[TransactionId]) -> SyncPoint {
        let open = apps.iter().filter_map(|app| self.apps[app.0 as usize].open);
        let open: BTreeSet<TransactionId> = open
            .chain(self.everywhere)
            .chain(
                others
                    .iter()
                    .copied()
                    .filter(|transaction| self.open.contains_key(transaction)),
            )
            .collect();
        // One commit is cheaper than several.
        let joined = open.into_iter().reduce(|one, other| self.join(one, other));
        // Closed or not, what was joined is no more.
        let others = others
            .iter()
            .filter(|transaction| self.closed.contains_key(transaction));
        let others: Vec<TransactionId> = others.copied().chain(joined).collect();
        if let Some(transaction) = joined {
            self.close(transaction);
        }
        // The last of each app: it depends on those of its own app before it, but not on
        // those of the others.
        let of_apps = apps
            .iter()
            .filter_map(|app| self.last_closed(|closed| closed.apps.contains(app)));
        let everywhere = self.last_closed(|closed| closed.is_everywhere);
        // What is closed without an effect is committed already.
        let others = others
            .into_iter()
            .filter(|transaction| self.is_uncommitted(*transaction));
        let mut last: Vec<TransactionId> = of_apps.chain(everywhere).chain(others).collect();
        last.sort_unstable_by_key(|transaction| {
            self.closed.get(transaction).map(|closed| closed.order)
        });
        last.dedup();
        if last.is_empty() {
            SyncPoint::Now
        } else {
            SyncPoint::Committed(last)
        }
    }

    fn last_closed(&self, is_meant: impl Fn(&ClosedTransaction) -> bool) -> Option<TransactionId> {
        let meant = self.closed.iter().filter(|(_, closed)| is_meant(closed));
        let last = meant.max_by_key(|(_, closed)| closed.order);
        last.map(|(&transaction, _)| transaction)
    }

    /// Whether a transaction still waits for its commit.
    pub fn is_uncommitted(&self, transaction: TransactionId) -> bool {
        self.closed.contains_key(&transaction)
    }

    /// Why a transaction, or one that it depends on, failed to commit, if one did.
    pub fn refusal_of(&self, transaction: TransactionId) -> Option<FsError> {
        let needed = self.needed_by(transaction);
        let mut closed = needed
            .iter()
            .filter_map(|transaction| self.closed.get(transaction));
        closed.find_map(|closed| closed.refusal)
    }

    /// Whether any closed transaction waits.
    pub fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Whether any closed transaction waits for its commit.
    pub fn has_waiting(&self) -> bool {
        let mut closed = self.closed.values();
        closed.any(|closed| !closed.in_flight && closed.refusal.is_none())
    }

    /// Closes a transaction: its net effect is fixed, and nothing changes it any more.
    pub(crate) fn close(&mut self, transaction: TransactionId) {
        let Some(open) = self.open.remove(&transaction) else {
            return;
        };
        self.closings += 1;
        if open.is_everywhere {
            self.everywhere = None;
        }
        for &app in &open.apps {
            let state = &mut self.apps[app.0 as usize];
            state.open = None;
            state.written_bytes += open.written_bytes;
            self.unsaved_apps.mark(app);
        }
        let content = self.take_content(transaction, &open);
        let order = self.next_transaction;
        self.next_transaction += 1;
        let closed = ClosedTransaction {
            order,
            is_everywhere: open.is_everywhere,
            apps: open.apps,
            opened_at: open.opened_at,
            orphaned: open.orphaned.into_set(),
            held: open.held.into_set(),
            efficiency: *open.closing.efficiency(),
            bytes: open.bytes,
            reserved_bytes: open.reserved_bytes,
            reserved_inodes: open.reserved_inodes,
            content: Arc::new(content),
            in_flight: false,
            refusal: None,
        };
        let is_empty = closed.content.objects.is_empty() && closed.content.dentries.is_empty();
        self.closed.insert(transaction, closed);
        if is_empty {
            // Everything that happened in it was undone in it.
            self.committed(transaction);
        }
    }

    fn take_content(&mut self, transaction: TransactionId, open: &OpenTransaction) -> Content {
        let mut content = Content {
            objects: Vec::new(),
            dentries: Vec::new(),
            pages: Vec::new(),
        };
        for &id in open.dirty.iter() {
            let Some(mut change) = self.inodes.take_change(id) else {
                continue;
            };
            let Some(inode) = self.inodes.get_mut(&id) else {
                continue;
            };
            debug_assert_eq!(
                change.transaction, transaction,
                "a dirty object's change is in its transaction"
            );
            // A page may be named twice: dropped, then written again.
            change.log.sort_unstable();
            change.log.dedup();
            for &index in &change.log {
                if let Some(slot) = inode
                    .pages
                    .get(&index)
                    .filter(|slot| slot.transaction == transaction)
                {
                    content.pages.push((id, index, slot.page.clone()));
                }
            }
            content.objects.push(object_state(id, inode, &change));
            inode.announced = true;
            let zeroed: Vec<_> = change.zeroed.iter().collect();
            if !zeroed.is_empty() {
                inode.closed_zeroed.push((transaction, zeroed));
            }
        }
        content.dentries = open
            .dentries
            .iter()
            .filter(|(_, change)| change.before != change.now)
            .map(|((parent, name), change)| (*parent, name.clone(), change.now))
            .collect();
        content
    }

    /// The closed transactions that must be committed before `transaction` may be, and
    /// itself.
    fn needed_by(&self, transaction: TransactionId) -> BTreeSet<TransactionId> {
        let mut needed = BTreeSet::new();
        let Some(target) = self.closed.get(&transaction) else {
            return needed;
        };
        needed.insert(transaction);
        let mut earlier: Vec<(TransactionId, &ClosedTransaction)> = self
            .closed
            .iter()
            .filter(|(_, closed)| closed.order < target.order)
            .map(|(&id, closed)| (id, closed))
            .collect();
        earlier.sort_unstable_by_key(|(_, closed)| core::cmp::Reverse(closed.order));
        let mut found = alloc::vec![target];
        for (id, closed) in earlier {
            if found.iter().any(|later| later.depends_on(closed)) {
                needed.insert(id);
                found.push(closed);
            }
        }
        needed
    }

    /// The next transaction to commit: the first closed one, or, with `towards`, the
    /// first that this one needs. None if nothing can be committed now.
    pub fn next_commit(&mut self, towards: Option<TransactionId>) -> Option<Commit> {
        let wanted = towards.map(|transaction| self.needed_by(transaction));
        self.next_commit_of(wanted.as_ref())
    }

    /// The next of these transactions to commit. None if none is left or can be committed
    /// now. It is not enough to wait for the last of them: one that an `fsync` waits for is
    /// committed before older ones on which it does not depend.
    pub fn next_commit_until(&mut self, point: ClosedUntil) -> Option<Commit> {
        let closed = self.closed.iter();
        let until = closed.filter(|(_, closed)| closed.order < point.next_order);
        let wanted = until.map(|(&transaction, _)| transaction).collect();
        self.next_commit_of(Some(&wanted))
    }

    fn next_commit_of(&mut self, wanted: Option<&BTreeSet<TransactionId>>) -> Option<Commit> {
        let mut in_order: Vec<TransactionId> = self.closed.keys().copied().collect();
        in_order.sort_unstable_by_key(|transaction| {
            self.closed.get(transaction).map(|closed| closed.order)
        });
        let mut blocked: Vec<&ClosedTransaction> = Vec::new();
        let mut chosen = None;
        for transaction in in_order {
            let Some(closed) = self.closed.get(&transaction) else {
                continue;
            };
            let waits = closed.in_flight
                || closed.refusal.is_some()
                || blocked.iter().any(|earlier| closed.depends_on(earlier));
            if waits || wanted.is_some_and(|wanted| !wanted.contains(&transaction)) {
                blocked.push(closed);
            } else {
                chosen = Some(transaction);
                break;
            }
        }
        let transaction = chosen?;
        let closed = self.closed.get_mut(&transaction)?;
        closed.in_flight = true;
        let mut pins = Vec::new();
        for &id in &closed.orphaned {
            // Also a directory that is here only because of what has, or had, its place in it:
            // as long as it is, its number below must not become that of something else.
            if let Some(inode) = self.inodes.get_mut(&id)
                && inode.is_orphan()
                && inode.known_to_store
                && (inode.lookups > 0 || inode.opens > 0 || inode.residents > 0)
            {
                inode.pinned = true;
                pins.push(id);
            }
        }
        let apps = closed
            .apps
            .iter()
            .map(|app| self.apps[app.0 as usize].path.clone())
            .collect();
        Some(Commit {
            transaction,
            pins,
            apps,
            content: Arc::clone(&closed.content),
        })
    }

    /// The store has the transaction, durably: its pages leave memory unless they
    /// were written again.
    pub fn committed(&mut self, transaction: TransactionId) {
        let Some(closed) = self.closed.remove(&transaction) else {
            return;
        };
        self.room.dirty_bytes -= closed.bytes;
        self.room
            .hand_over(closed.reserved_bytes, closed.reserved_inodes);
        let mut page_bytes = 0;
        for (id, index, page) in &closed.content.pages {
            page_bytes += page.stored_bytes() as u64;
            if let Some(inode) = self.inodes.get_mut(id)
                && inode
                    .pages
                    .get(index)
                    .is_some_and(|slot| slot.transaction == transaction)
            {
                inode.pages.remove(index);
            }
        }
        for state in &closed.content.objects {
            if let Some(inode) = self.inodes.get_mut(&state.id) {
                inode.known_to_store = true;
                inode.store_bytes = state.attributes.size;
                inode.version += 1;
                inode.closed_zeroed.retain(|(of, _)| *of != transaction);
            }
        }
        for &app in &closed.apps {
            let mut others = self.closed.values().filter(|c| c.apps.contains(&app));
            let refusal = others.find_map(|other| other.refusal);
            self.unsaved_apps.mark(app);
            let state = &mut self.apps[app.0 as usize];
            state.refusal = refusal;
            state.committed_transactions += 1;
            state.committed_bytes += page_bytes;
            state.committed_written_pages += closed.efficiency.written_pages();
            state.committed_overwritten_pages += closed.efficiency.overwritten_pages();
        }
        for id in closed.held {
            if let Some(inode) = self.inodes.get_mut(&id) {
                inode.holds -= 1;
                self.dispose_if_unused(id);
            }
        }
    }

    /// The store could not take the transaction: it stays in memory, and its apps
    /// accept no changes until a retry succeeds, and refuse them with `refusal`.
    pub fn commit_failed(&mut self, transaction: TransactionId, refusal: FsError) {
        let Some(closed) = self.closed.get_mut(&transaction) else {
            return;
        };
        closed.in_flight = false;
        closed.refusal = Some(refusal);
        for app in &closed.apps {
            self.apps[app.0 as usize].refusal = Some(refusal);
        }
    }

    /// A commit failed that may wait: its apps go on, and it is handed out again.
    pub fn commit_put_back(&mut self, transaction: TransactionId) {
        if let Some(closed) = self.closed.get_mut(&transaction) {
            closed.in_flight = false;
        }
    }

    /// Lets transactions that failed so be handed out again; with none, all that failed.
    pub fn retry_failed(&mut self, only: Option<FsError>) {
        for closed in self.closed.values_mut() {
            if only.is_none() || closed.refusal == only {
                closed.refusal = None;
            }
        }
    }
}

/// The final state of a changed object.
pub(crate) fn object_state(id: ObjectId, inode: &Inode, change: &Change) -> ObjectState {
    let symlink_target = match &inode.body {
        crate::inode::Body::Symlink(target) if !inode.announced => target.clone(),
        _ => None,
    };
    let xattrs = change
        .xattrs
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
        created: !inode.announced,
        attributes: inode.attributes,
        symlink_target,
        zeroed: change.zeroed.iter().collect(),
        allocated: change.allocated.iter().collect(),
        xattrs,
    }
}
