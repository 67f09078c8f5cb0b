//! Changing things inside open transactions.

use alloc::vec::Vec;

use mobifs_base::{AppId, MonotonicNs, Name, ObjectId, Room, TransactionId};

use super::{Engine, age_ms};
use crate::accounting::{Charge, ENTRY_BYTES};
use crate::apps::App;
use crate::error::{FsError, Stop};
use crate::policy::transactioning::Closing;
use crate::transactions::OpenTransaction;
use crate::versions::{Change, ORPHAN, Taken};

/// A transaction that mentions so many objects closes, whatever its policy says. Closing it and
/// dropping it when it is committed take time for each of them, in which no other thread can do
/// anything; and the store takes it as a whole.
pub(super) const MEMBERS_MAX: usize = 4096;

/// The steps that operations are made of: they tie objects, apps and transactions together, and
/// charge for it.
impl Engine {
    /// The transaction for a change of these objects: that of their app, or, if they
    /// are of several, the apps' joined one. Fails if one of the apps may not change.
    pub(super) fn begin(
        &mut self,
        objects: &[ObjectId],
        now: MonotonicNs,
    ) -> Result<TransactionId, Stop> {
        if self.limits.read_only {
            return Err(FsError::ReadOnly.into());
        }
        if let [id] = objects {
            // Nearly every operation: one object, one app.
            let app = self.namespace.app_of(*id, &mut self.apps);
            if self
                .namespace
                .get(id)
                .is_some_and(|inode| inode.linked_apps.is_empty() && !inode.has_unknown_names)
            {
                return self.begin_app(app, now);
            }
        }
        let mut apps: Vec<AppId> = Vec::with_capacity(objects.len());
        for &id in objects {
            apps.push(self.namespace.app_of(id, &mut self.apps));
            if let Some(inode) = self.namespace.get(&id) {
                apps.extend_from_slice(&inode.linked_apps);
            }
        }
        if objects.iter().any(|id| self.may_have_unknown_names(id)) {
            // The change affects all apps: none of the others is to wait for room because of one
            // that has none.
            apps.iter().try_for_each(|&app| self.check_app(app))?;
        }
        let transaction = self.begin_apps(apps, now)?;
        Ok(self.reach_unknown_names(transaction, objects))
    }

    fn may_have_unknown_names(&self, id: &ObjectId) -> bool {
        let inode = self.namespace.get(id);
        inode.is_some_and(|inode| inode.has_unknown_names)
    }

    /// If one of the objects came with more names than we know, a change of it may be
    /// seen in any app's tree: so everything that is changed at the same time, in
    /// whatever app, must be committed with it.
    pub(super) fn reach_unknown_names(
        &mut self,
        transaction: TransactionId,
        objects: &[ObjectId],
    ) -> TransactionId {
        if objects.iter().any(|id| self.may_have_unknown_names(id)) {
            return self.reach_everywhere(transaction);
        }
        transaction
    }

    /// All that is changed at the same time, in whatever app, is committed with this
    /// transaction, and nothing later before it.
    pub(super) fn reach_everywhere(&mut self, transaction: TransactionId) -> TransactionId {
        let all = self.transactions.open_ids();
        let transaction = all
            .into_iter()
            .fold(transaction, |joined, other| self.join(joined, other));
        self.transactions.set_everywhere(transaction);
        transaction
    }

    /// The transaction for a change of one object's content or attributes, with the
    /// object marked as changed; [`ORPHAN`] if the object has no link.
    pub(super) fn begin_change(
        &mut self,
        id: ObjectId,
        now: MonotonicNs,
    ) -> Result<TransactionId, Stop> {
        let is_tracked = self.namespace.is_tracked();
        let inode = self.namespace.inode_mut(id)?;
        if inode.is_orphan() {
            inode.versions.begin_orphan_change(is_tracked);
            return Ok(ORPHAN);
        }
        let transaction = self.begin(&[id], now)?;
        self.touch(transaction, id)
    }

    /// As [`Engine::begin`], for apps.
    pub(super) fn begin_apps(
        &mut self,
        mut apps: Vec<AppId>,
        now: MonotonicNs,
    ) -> Result<TransactionId, Stop> {
        apps.sort_unstable();
        apps.dedup();
        if apps.len() > 1 {
            // A transaction that waits for room must not make another one wait.
            apps.iter().try_for_each(|&app| self.check_app(app))?;
        }
        let mut joined = None;
        for app in apps {
            let transaction = self.begin_app(app, now)?;
            joined = Some(match joined {
                Some(other) => self.join(other, transaction),
                None => transaction,
            });
        }
        joined.ok_or(Stop::Fail(FsError::InvalidArgument))
    }

    /// Whether an app accepts all changes.
    pub(super) fn check_app(&self, app: AppId) -> Result<(), Stop> {
        match self.apps.get(app).refusal {
            Some(refusal) => Err(refusal.into()),
            None => Ok(()),
        }
    }

    /// The transaction for a change of one app. An app whose uncommitted changes have found no room
    /// accepts changes that need none: [`Engine::require`] has refused the others.
    fn begin_app(&mut self, app: AppId, now: MonotonicNs) -> Result<TransactionId, Stop> {
        if self.apps.get(app).refusal != Some(FsError::NoSpace) {
            self.check_app(app)?;
        }
        let App { open, policy, .. } = self.apps.get(app);
        if let Some(transaction) = *open {
            return Ok(transaction);
        }
        let transaction = if let Some(everywhere) = self.transactions.everywhere()
            && let Some(open) = self.transactions.open_mut(everywhere)
        {
            open.apps.push(app);
            open.closing.add_policy(policy);
            everywhere
        } else {
            self.transactions.begin(app, Closing::new(policy), now)
        };
        self.apps.set_open(&[app], transaction);
        Ok(transaction)
    }

    /// Makes two open transactions one; the one that mentions more survives.
    pub(super) fn join(&mut self, one: TransactionId, other: TransactionId) -> TransactionId {
        if one == other {
            return one;
        }
        let mentions = |transaction| {
            self.transactions
                .open(transaction)
                .map_or(0, |open| open.held.len())
        };
        let one_is_smaller = mentions(one) < mentions(other);
        let (gone, stays) = if one_is_smaller {
            (one, other)
        } else {
            (other, one)
        };
        let Some(absorbed) = self.transactions.take_open(gone) else {
            return stays;
        };
        for id in absorbed.held.iter() {
            if let Some(inode) = self.namespace.get_mut(id) {
                inode.versions.join(gone, stays);
            }
        }
        self.apps.set_open(&absorbed.apps, stays);
        if absorbed.is_everywhere {
            self.transactions.set_everywhere(stays);
        }
        let Some(transaction) = self.transactions.open_mut(stays) else {
            return stays;
        };
        transaction.apps.extend(absorbed.apps);
        transaction.opened_at = transaction.opened_at.min(absorbed.opened_at);
        transaction.dirty.extend(absorbed.dirty.iter().copied());
        transaction.dentries.absorb(absorbed.dentries);
        transaction
            .orphaned
            .extend(absorbed.orphaned.iter().copied());
        transaction.closing.absorb(absorbed.closing);
        transaction.written_bytes += absorbed.written_bytes;
        transaction.brought_bytes += absorbed.brought_bytes;
        transaction.charged.absorb(absorbed.charged);
        for id in absorbed.held.into_set() {
            if !transaction.held.insert(id) {
                // Both held it; one hold remains.
                self.namespace.release_hold(id);
            }
        }
        stays
    }

    /// Keeps an object in memory until the transaction is committed.
    pub(super) fn hold(&mut self, transaction: TransactionId, id: ObjectId) {
        if let Some(open) = self.transactions.open_mut(transaction)
            && open.held.insert(id)
            && let Some(inode) = self.namespace.get_mut(&id)
        {
            inode.usage.hold();
        }
    }

    /// Marks an object as changed in the transaction. Should the object already be
    /// part of another open one (its app changed by a rename meanwhile), the two are
    /// joined; the returned id is the one to go on with.
    pub(super) fn touch(
        &mut self,
        transaction: TransactionId,
        id: ObjectId,
    ) -> Result<TransactionId, Stop> {
        let inode = self.namespace.inode(id)?;
        let mut transaction = transaction;
        match inode.versions.change().map(Change::transaction) {
            Some(ORPHAN) => return Ok(transaction),
            Some(current) if current == transaction => {}
            Some(other) => transaction = self.join(transaction, other),
            None => {
                let change_of = if inode.is_orphan() {
                    ORPHAN
                } else {
                    transaction
                };
                let change = Change::new(change_of, self.namespace.is_tracked());
                self.namespace.inode_mut(id)?.versions.begin_change(change);
                if change_of == ORPHAN {
                    return Ok(transaction);
                }
            }
        }
        self.hold(transaction, id);
        if let Some(open) = self.transactions.open_mut(transaction) {
            let is_new = open.dirty.insert(id);
            if is_new {
                let charge = Charge::of(ENTRY_BYTES, Room::OBJECT);
                self.accounting.charge(open, charge);
            }
        }
        Ok(transaction)
    }

    /// Records the net effect on one directory entry. A change of an entry is one
    /// unit of staleness; changing it again is an overwrite.
    pub(super) fn record_dentry(
        &mut self,
        transaction: TransactionId,
        (parent, name): (ObjectId, &Name),
        before: Option<ObjectId>,
        now: Option<ObjectId>,
    ) -> TransactionId {
        let transaction = self.join_dentry(transaction, parent, name);
        for id in [Some(parent), before, now].into_iter().flatten() {
            self.hold(transaction, id);
        }
        let Some(open) = self.transactions.open_mut(transaction) else {
            return transaction;
        };
        let earlier = open.dentries.record((parent, name.clone()), before, now);
        open.closing.page_written(earlier.is_some());
        let accounting = &mut self.accounting;
        if let Some(earlier) = earlier {
            accounting.charge(open, Charge::room(Room::of_dentry(now)));
            accounting.refund_room(open, Room::of_dentry(earlier));
        } else {
            accounting.charge(open, Charge::of(ENTRY_BYTES, Room::of_dentry(now)));
            if !open.dirty.contains(&parent) {
                // The directory's own change is in the transaction of the app above.
                accounting.charge(open, Charge::room(Room::OBJECT));
            }
        }
        transaction
    }

    /// An entry where an app may lie can be changed by two apps in turn: as the app's
    /// directory, and as a file of the app above. Two open transactions must not both
    /// have it.
    fn join_dentry(
        &mut self,
        transaction: TransactionId,
        parent: ObjectId,
        name: &Name,
    ) -> TransactionId {
        let has_others = self.transactions.all_open().nth(1).is_some();
        let namespace = &self.namespace;
        if !has_others
            || namespace
                .app_place(parent, name.as_bytes(), &self.apps)
                .is_none()
        {
            return transaction;
        }
        let key = (parent, name.clone());
        let has_entry = |(other, open): &(TransactionId, &OpenTransaction)| {
            *other != transaction && open.dentries.contains_key(&key)
        };
        let other = self.transactions.all_open().find(has_entry);
        let other = other.map(|(other, _)| other);
        other.map_or(transaction, |other| self.join(transaction, other))
    }

    /// The object lost its last link: it need not reach the store any more. Its pages stay readable
    /// as long as it is in use; what the transaction had of them counts as overwritten.
    pub(super) fn orphan(&mut self, transaction: TransactionId, id: ObjectId) {
        let (Some(inode), Some(open)) = (
            self.namespace.get_mut(&id),
            self.transactions.open_mut(transaction),
        ) else {
            return;
        };
        open.orphaned.insert(id);
        if open.dirty.remove(&id)
            && let Some(Taken { pages, bytes }) = inode.versions.orphan(transaction)
        {
            open.closing.pages_dropped(pages);
            self.accounting.orphan(open, bytes);
            self.accounting.refund_room(open, Room::of_blocks(pages));
            if !inode.creation_closed {
                self.accounting.refund_room(open, Room::INODE);
            }
        }
        self.dispose_if_unused(id);
    }

    /// An unnamed object (`O_TMPFILE`) gets its first link: what it holds belongs to
    /// the transaction from now on.
    pub(super) fn adopt_orphan(
        &mut self,
        transaction: TransactionId,
        id: ObjectId,
    ) -> Result<TransactionId, Stop> {
        let inode = self.namespace.inode_mut(id)?;
        let room = inode.orphan_room();
        if let Some(Taken { bytes, .. }) = inode.versions.adopt(transaction)
            && let Some(open) = self.transactions.open_mut(transaction)
        {
            open.brought_bytes += bytes;
            self.accounting.adopt(open, Charge::of(bytes, room));
        }
        self.touch(transaction, id)
    }

    /// Ends an operation: closes the transaction if its policy says so.
    pub(super) fn finish(&mut self, transaction: TransactionId, now: MonotonicNs) {
        // Where no app is durable, longer transactions let more be overwritten before it is committed.
        let bytes_max = if self.apps.has_durable() {
            self.durable_syncs.transaction_bytes_max(now)
        } else {
            u64::MAX
        };
        let due = self.transactions.open_mut(transaction).is_some_and(|open| {
            let age_ms = age_ms(now, open.opened_at);
            open.closing.operation_ended(age_ms);
            open.closing.is_due(age_ms)
                || open.held.len() >= MEMBERS_MAX
                || open.charged.memory_bytes() >= bytes_max
        });
        if due && !self.keeps_open() {
            self.close(transaction);
        }
    }
}
