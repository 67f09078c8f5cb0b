//! Changing things inside open transactions.

use alloc::boxed::Box;
use alloc::vec::Vec;

use mobifs_base::{AppId, MonotonicNs, Name, ObjectId, PAGE_BYTES_U64, TransactionId};

use super::Engine;
use super::memory::{DENTRY_ROOM_BYTES, ENTRY_BYTES, OBJECT_ROOM_BYTES};
use crate::error::{FsError, Stop};
use crate::inode::{Change, ORPHAN};
use crate::policy::transactioning::Closing;
use crate::transaction::OpenTransaction;

/// A transaction that mentions so many objects closes, whatever its policy says. Closing it and
/// letting go of it when it is committed take time for each of them, in which no other thread can do
/// anything; and the store takes it as a whole.
pub(super) const MEMBERS_MAX: usize = 4096;
/// As long as some app is durable, a transaction that has taken so much memory closes: its commit
/// is what a durable `fsync` of another app may have to wait for. Where none is, longer ones let
/// more be overwritten before it is committed.
pub(super) const BYTES_BESIDE_DURABLE_MAX: u64 = 4 << 20;

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
            let app = self.app_of(*id);
            if self
                .inodes
                .get(id)
                .is_some_and(|inode| inode.linked_apps.is_empty() && !inode.has_unknown_names)
            {
                return self.begin_app(app, now);
            }
        }
        let mut apps: Vec<AppId> = Vec::with_capacity(objects.len());
        for &id in objects {
            apps.push(self.app_of(id));
            if let Some(inode) = self.inodes.get(&id) {
                apps.extend_from_slice(&inode.linked_apps);
            }
        }
        let transaction = self.begin_apps(apps, now)?;
        Ok(self.reach_unknown_names(transaction, objects))
    }

    /// If one of the objects came with more names than we know, a change of it may be
    /// seen in any app's tree: so everything that is changed at the same time, in
    /// whatever app, must be committed with it.
    pub(super) fn reach_unknown_names(
        &mut self,
        transaction: TransactionId,
        objects: &[ObjectId],
    ) -> TransactionId {
        let is_concerned = |id: &ObjectId| {
            self.inodes
                .get(id)
                .is_some_and(|inode| inode.has_unknown_names)
        };
        if !objects.iter().any(is_concerned) {
            return transaction;
        }
        self.reach_everywhere(transaction)
    }

    /// All that is changed at the same time, in whatever app, is committed with this
    /// transaction, and nothing later before it.
    pub(super) fn reach_everywhere(&mut self, transaction: TransactionId) -> TransactionId {
        let all: Vec<TransactionId> = self.open.keys().copied().collect();
        let transaction = all
            .into_iter()
            .fold(transaction, |joined, other| self.join(joined, other));
        if let Some(open) = self.open.get_mut(&transaction) {
            open.is_everywhere = true;
            self.everywhere = Some(transaction);
        }
        transaction
    }

    /// The transaction for a change of one object's content or attributes, with the
    /// object marked as changed; [`ORPHAN`] if the object has no link.
    pub(super) fn begin_change(
        &mut self,
        id: ObjectId,
        now: MonotonicNs,
    ) -> Result<TransactionId, Stop> {
        let is_tracked = self.inodes.is_tracked();
        let inode = self.inode_mut(id)?;
        if inode.is_orphan() {
            inode
                .change
                .get_or_insert_with(|| Box::new(Change::new(ORPHAN, is_tracked)));
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
        apps.iter().try_for_each(|&app| self.check_app(app))?;
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

    /// Whether an app accepts changes.
    pub(super) fn check_app(&self, app: AppId) -> Result<(), Stop> {
        match self.apps[app.0 as usize].refusal {
            Some(refusal) => Err(refusal.into()),
            None => Ok(()),
        }
    }

    fn begin_app(&mut self, app: AppId, now: MonotonicNs) -> Result<TransactionId, Stop> {
        self.check_app(app)?;
        let state = &mut self.apps[app.0 as usize];
        if let Some(transaction) = state.open {
            return Ok(transaction);
        }
        if let Some(transaction) = self.everywhere
            && let Some(open) = self.open.get_mut(&transaction)
        {
            open.apps.push(app);
            open.closing.add_policy(&state.policy);
            state.open = Some(transaction);
            return Ok(transaction);
        }
        let transaction = TransactionId(self.next_transaction);
        self.next_transaction += 1;
        state.open = Some(transaction);
        let closing = Closing::new(&state.policy);
        let open = OpenTransaction::new(app, closing, now, self.open.is_tracked());
        self.open.insert(transaction, open);
        Ok(transaction)
    }

    /// Makes two open transactions one; the one that mentions more survives.
    pub(super) fn join(&mut self, one: TransactionId, other: TransactionId) -> TransactionId {
        if one == other {
            return one;
        }
        let mentions = |transaction| {
            self.open
                .get(&transaction)
                .map_or(0, |open| open.held.len())
        };
        let one_is_smaller = mentions(one) < mentions(other);
        let (gone, stays) = if one_is_smaller {
            (one, other)
        } else {
            (other, one)
        };
        let Some(absorbed) = self.open.remove(&gone) else {
            return stays;
        };
        for &id in absorbed.held.iter() {
            self.relabel(id, gone, stays);
        }
        for &app in &absorbed.apps {
            self.apps[app.0 as usize].open = Some(stays);
        }
        let Some(transaction) = self.open.get_mut(&stays) else {
            return stays;
        };
        if absorbed.is_everywhere {
            transaction.is_everywhere = true;
            self.everywhere = Some(stays);
        }
        transaction.apps.extend(absorbed.apps);
        transaction.opened_at = transaction.opened_at.min(absorbed.opened_at);
        transaction.dirty.extend(absorbed.dirty.iter().copied());
        transaction.dentries.absorb(absorbed.dentries);
        transaction
            .orphaned
            .extend(absorbed.orphaned.iter().copied());
        transaction.closing.absorb(absorbed.closing);
        transaction.written_bytes += absorbed.written_bytes;
        transaction.bytes += absorbed.bytes;
        transaction.reserved_bytes += absorbed.reserved_bytes;
        transaction.reserved_inodes += absorbed.reserved_inodes;
        for id in absorbed.held.into_set() {
            if !transaction.held.insert(id)
                && let Some(inode) = self.inodes.get_mut(&id)
            {
                // Both held it; one hold is left.
                inode.holds -= 1;
            }
        }
        stays
    }

    /// Lets an object's uncommitted change and pages belong to another transaction.
    fn relabel(&mut self, id: ObjectId, from: TransactionId, to: TransactionId) {
        let Some(inode) = self.inodes.get_mut(&id) else {
            return;
        };
        let Some(change) = inode
            .change
            .as_mut()
            .filter(|change| change.transaction == from)
        else {
            return;
        };
        change.transaction = to;
        for index in &change.log {
            if let Some(slot) = inode.pages.get_mut(index)
                && slot.transaction == from
            {
                slot.transaction = to;
            }
        }
    }

    /// Keeps an object in memory until the transaction is committed.
    pub(super) fn hold(&mut self, transaction: TransactionId, id: ObjectId) {
        if let Some(open) = self.open.get_mut(&transaction)
            && open.held.insert(id)
            && let Some(inode) = self.inodes.get_mut(&id)
        {
            inode.holds += 1;
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
        let inode = self.inode(id)?;
        let mut transaction = transaction;
        match inode.change.as_ref().map(|change| change.transaction) {
            Some(ORPHAN) => return Ok(transaction),
            Some(current) if current == transaction => {}
            Some(other) => transaction = self.join(transaction, other),
            None => {
                let change_of = if inode.is_orphan() {
                    ORPHAN
                } else {
                    transaction
                };
                let change = Change::new(change_of, self.inodes.is_tracked());
                self.inode_mut(id)?.change = Some(Box::new(change));
                if change_of == ORPHAN {
                    return Ok(transaction);
                }
            }
        }
        self.hold(transaction, id);
        if let Some(open) = self.open.get_mut(&transaction) {
            let is_new = open.dirty.insert(id);
            if is_new {
                open.bytes += ENTRY_BYTES;
                open.reserved_bytes += OBJECT_ROOM_BYTES;
                self.room.dirty_bytes += ENTRY_BYTES;
                self.room.reserved_bytes += OBJECT_ROOM_BYTES;
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
        let Some(open) = self.open.get_mut(&transaction) else {
            return transaction;
        };
        let overwritten = open.dentries.record((parent, name.clone()), before, now);
        open.closing.page_written(overwritten);
        if !overwritten {
            let room_bytes = if now.is_some() {
                DENTRY_ROOM_BYTES
            } else {
                ENTRY_BYTES
            };
            open.bytes += ENTRY_BYTES;
            open.reserved_bytes += room_bytes;
            self.room.dirty_bytes += ENTRY_BYTES;
            self.room.reserved_bytes += room_bytes;
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
        if self.open.len() < 2 || self.app_place(parent, name.as_bytes()).is_none() {
            return transaction;
        }
        let key = (parent, name.clone());
        let other = self
            .open
            .iter()
            .find(|&(&other, open)| other != transaction && open.dentries.contains_key(&key))
            .map(|(&other, _)| other);
        other.map_or(transaction, |other| self.join(transaction, other))
    }

    /// Path of `name` in `parent`; none if that has no place, or one where no app can be.
    pub(super) fn path_in(&self, parent: ObjectId, name: &[u8]) -> Option<Vec<u8>> {
        let mut path = self.app_path_of(parent)?;
        path.push(name);
        Some(path.bytes)
    }

    /// The object lost its last link: nothing of it needs to reach the store any
    /// more. Its pages stay readable as long as it is in use; what the
    /// transaction had of them counts as overwritten.
    pub(super) fn orphan(&mut self, transaction: TransactionId, id: ObjectId) {
        let (Some(inode), Some(open)) = (self.inodes.get_mut(&id), self.open.get_mut(&transaction))
        else {
            return;
        };
        open.orphaned.insert(id);
        if open.dirty.remove(&id)
            && let Some(change) = inode.change.as_mut()
        {
            let (mut pages, mut bytes) = (0, 0);
            for index in &change.log {
                if let Some(slot) = inode.pages.get_mut(index)
                    && slot.transaction == transaction
                {
                    slot.transaction = ORPHAN;
                    pages += 1;
                    bytes += slot.page.stored_bytes() as u64;
                }
            }
            change.transaction = ORPHAN;
            open.closing.pages_dropped(pages);
            open.bytes -= bytes;
            self.room.orphan_bytes += bytes;
            let reserved = (pages * PAGE_BYTES_U64).min(open.reserved_bytes);
            open.reserved_bytes -= reserved;
            self.room.reserved_bytes -= reserved;
            if !inode.announced && open.reserved_inodes > 0 {
                open.reserved_inodes -= 1;
                self.room.reserved_inodes -= 1;
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
        let inode = self.inode_mut(id)?;
        let Some(change) = inode
            .change
            .as_mut()
            .filter(|change| change.transaction == ORPHAN)
        else {
            return self.touch(transaction, id);
        };
        change.transaction = transaction;
        let (mut pages, mut bytes) = (0, 0);
        inode.pages.change_each(|slot| {
            let is_adopted = slot.transaction == ORPHAN;
            if is_adopted {
                slot.transaction = transaction;
                pages += 1;
                bytes += slot.page.stored_bytes() as u64;
            }
            is_adopted
        });
        self.room.orphan_bytes -= bytes;
        let reserved = pages * PAGE_BYTES_U64;
        self.room.reserved_bytes += reserved;
        if let Some(open) = self.open.get_mut(&transaction) {
            open.bytes += bytes;
            open.reserved_bytes += reserved;
        }
        self.touch(transaction, id)
    }

    /// Ends an operation: closes the transaction if its policy says so.
    pub(super) fn finish(&mut self, transaction: TransactionId, now: MonotonicNs) {
        let due = self.open.get_mut(&transaction).is_some_and(|open| {
            let age_ms = Self::age_ms(now, open.opened_at);
            open.closing.operation_ended(age_ms);
            open.closing.is_due(age_ms)
                || open.held.len() >= MEMBERS_MAX
                || self.has_durable_apps && open.bytes >= BYTES_BESIDE_DURABLE_MAX
        });
        if due && !self.keeps_open() {
            self.close(transaction);
        }
    }

    /// Whether a transaction has reached a limit of one of its apps, or the policy of one
    /// says that it closes.
    pub(super) fn is_due(open: &OpenTransaction, now: MonotonicNs) -> bool {
        open.closing.is_due(Self::age_ms(now, open.opened_at))
    }
}
