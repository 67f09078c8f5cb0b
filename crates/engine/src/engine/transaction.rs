//! Changing things inside open transactions.

use alloc::boxed::Box;
use alloc::vec::Vec;

use mobifs_base::{AppId, MonotonicNs, Name, ObjectId, PAGE_BYTES_U64, VctId};

use super::Engine;
use super::memory::{DENTRY_ROOM_BYTES, ENTRY_BYTES, OBJECT_ROOM_BYTES};
use crate::error::{FsError, Stop};
use crate::inode::{Change, ORPHAN};
use crate::policy::transactioning::Closing;
use crate::transaction::OpenVct;

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
    pub(super) fn begin(&mut self, objects: &[ObjectId], now: MonotonicNs) -> Result<VctId, Stop> {
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
        let vct = self.begin_apps(apps, now)?;
        Ok(self.reach_unknown_names(vct, objects))
    }

    /// If one of the objects came with more names than we know, a change of it may be
    /// seen in any app's tree: so everything that is changed at the same time, in
    /// whatever app, must be committed with it.
    pub(super) fn reach_unknown_names(&mut self, vct: VctId, objects: &[ObjectId]) -> VctId {
        let is_concerned = |id: &ObjectId| {
            self.inodes
                .get(id)
                .is_some_and(|inode| inode.has_unknown_names)
        };
        if !objects.iter().any(is_concerned) {
            return vct;
        }
        self.reach_everywhere(vct)
    }

    /// All that is changed at the same time, in whatever app, is committed with this
    /// transaction, and nothing later before it.
    pub(super) fn reach_everywhere(&mut self, vct: VctId) -> VctId {
        let all: Vec<VctId> = self.open.keys().copied().collect();
        let vct = all
            .into_iter()
            .fold(vct, |joined, other| self.join(joined, other));
        if let Some(open) = self.open.get_mut(&vct) {
            open.is_everywhere = true;
            self.everywhere = Some(vct);
        }
        vct
    }

    /// The transaction for a change of one object's content or attributes, with the
    /// object marked as changed; [`ORPHAN`] if the object has no link.
    pub(super) fn begin_change(&mut self, id: ObjectId, now: MonotonicNs) -> Result<VctId, Stop> {
        let is_noted = self.inodes.is_noted();
        let inode = self.inode_mut(id)?;
        if inode.is_orphan() {
            inode
                .change
                .get_or_insert_with(|| Box::new(Change::new(ORPHAN, is_noted)));
            return Ok(ORPHAN);
        }
        let vct = self.begin(&[id], now)?;
        self.touch(vct, id)
    }

    /// As [`Engine::begin`], for apps.
    pub(super) fn begin_apps(
        &mut self,
        mut apps: Vec<AppId>,
        now: MonotonicNs,
    ) -> Result<VctId, Stop> {
        apps.sort_unstable();
        apps.dedup();
        apps.iter().try_for_each(|&app| self.check_app(app))?;
        let mut joined = None;
        for app in apps {
            let vct = self.begin_app(app, now)?;
            joined = Some(match joined {
                Some(other) => self.join(other, vct),
                None => vct,
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

    fn begin_app(&mut self, app: AppId, now: MonotonicNs) -> Result<VctId, Stop> {
        self.check_app(app)?;
        let state = &mut self.apps[app.0 as usize];
        if let Some(vct) = state.open {
            return Ok(vct);
        }
        if let Some(vct) = self.everywhere
            && let Some(open) = self.open.get_mut(&vct)
        {
            open.apps.push(app);
            open.closing.add_policy(&state.policy);
            state.open = Some(vct);
            return Ok(vct);
        }
        let vct = VctId(self.next_vct);
        self.next_vct += 1;
        state.open = Some(vct);
        let closing = Closing::new(&state.policy);
        let open = OpenVct::new(app, closing, now, self.open.is_noted());
        self.open.insert(vct, open);
        Ok(vct)
    }

    /// Makes two open transactions one; the one that mentions more survives.
    pub(super) fn join(&mut self, one: VctId, other: VctId) -> VctId {
        if one == other {
            return one;
        }
        let mentions = |vct| self.open.get(&vct).map_or(0, |open| open.held.len());
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
        let Some(vct) = self.open.get_mut(&stays) else {
            return stays;
        };
        if absorbed.is_everywhere {
            vct.is_everywhere = true;
            self.everywhere = Some(stays);
        }
        vct.apps.extend(absorbed.apps);
        vct.opened_at = vct.opened_at.min(absorbed.opened_at);
        vct.dirty.extend(absorbed.dirty.iter().copied());
        vct.dentries.absorb(absorbed.dentries);
        vct.orphaned.extend(absorbed.orphaned.iter().copied());
        vct.closing.absorb(absorbed.closing);
        vct.written_bytes += absorbed.written_bytes;
        vct.bytes += absorbed.bytes;
        vct.reserved_bytes += absorbed.reserved_bytes;
        vct.reserved_inodes += absorbed.reserved_inodes;
        for id in absorbed.held.into_set() {
            if !vct.held.insert(id)
                && let Some(inode) = self.inodes.get_mut(&id)
            {
                // Both held it; one hold is left.
                inode.holds -= 1;
            }
        }
        stays
    }

    /// Lets an object's uncommitted change and pages belong to another transaction.
    fn relabel(&mut self, id: ObjectId, from: VctId, to: VctId) {
        let Some(inode) = self.inodes.get_mut(&id) else {
            return;
        };
        let Some(change) = inode.change.as_mut().filter(|change| change.vct == from) else {
            return;
        };
        change.vct = to;
        for index in &change.log {
            if let Some(slot) = inode.pages.get_mut(index)
                && slot.vct == from
            {
                slot.vct = to;
            }
        }
    }

    /// Keeps an object in memory until the transaction is committed.
    pub(super) fn hold(&mut self, vct: VctId, id: ObjectId) {
        if let Some(open) = self.open.get_mut(&vct)
            && open.held.insert(id)
            && let Some(inode) = self.inodes.get_mut(&id)
        {
            inode.holds += 1;
        }
    }

    /// Marks an object as changed in the transaction. Should the object already be
    /// part of another open one (its app changed by a rename meanwhile), the two are
    /// joined; the returned id is the one to go on with.
    pub(super) fn touch(&mut self, vct: VctId, id: ObjectId) -> Result<VctId, Stop> {
        let inode = self.inode(id)?;
        let mut vct = vct;
        match inode.change.as_ref().map(|change| change.vct) {
            Some(ORPHAN) => return Ok(vct),
            Some(current) if current == vct => {}
            Some(other) => vct = self.join(vct, other),
            None => {
                let change_of = if inode.is_orphan() { ORPHAN } else { vct };
                let change = Change::new(change_of, self.inodes.is_noted());
                self.inode_mut(id)?.change = Some(Box::new(change));
                if change_of == ORPHAN {
                    return Ok(vct);
                }
            }
        }
        self.hold(vct, id);
        if let Some(open) = self.open.get_mut(&vct) {
            let is_new = open.dirty.insert(id);
            if is_new {
                open.bytes += ENTRY_BYTES;
                open.reserved_bytes += OBJECT_ROOM_BYTES;
                self.room.dirty_bytes += ENTRY_BYTES;
                self.room.reserved_bytes += OBJECT_ROOM_BYTES;
            }
        }
        Ok(vct)
    }

    /// Records the net effect on one directory entry. A change of an entry is one
    /// unit of staleness; changing it again is an overwrite.
    pub(super) fn record_dentry(
        &mut self,
        vct: VctId,
        (parent, name): (ObjectId, &Name),
        before: Option<ObjectId>,
        now: Option<ObjectId>,
    ) -> VctId {
        let vct = self.join_dentry(vct, parent, name);
        for id in [Some(parent), before, now].into_iter().flatten() {
            self.hold(vct, id);
        }
        let Some(open) = self.open.get_mut(&vct) else {
            return vct;
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
        vct
    }

    /// An entry where an app may lie can be changed by two apps in turn: as the app's
    /// directory, and as a file of the app above. Two open transactions must not both
    /// have it.
    fn join_dentry(&mut self, vct: VctId, parent: ObjectId, name: &Name) -> VctId {
        if self.open.len() < 2 || self.app_place(parent, name.as_bytes()).is_none() {
            return vct;
        }
        let key = (parent, name.clone());
        let other = self
            .open
            .iter()
            .find(|&(&other, open)| other != vct && open.dentries.contains_key(&key))
            .map(|(&other, _)| other);
        other.map_or(vct, |other| self.join(vct, other))
    }

    /// Path of `name` in `parent`; none if that has no place, or one where no app can be.
    pub(super) fn path_in(&self, parent: ObjectId, name: &[u8]) -> Option<Vec<u8>> {
        let mut path = self.app_path_of(parent)?;
        path.push(name);
        Some(path.bytes)
    }

    /// The object lost its last link: nothing of it needs to reach the store any
    /// more. Its pages stay readable as long as somebody uses it; what the
    /// transaction had of them counts as overwritten.
    pub(super) fn orphan(&mut self, vct: VctId, id: ObjectId) {
        let (Some(inode), Some(open)) = (self.inodes.get_mut(&id), self.open.get_mut(&vct)) else {
            return;
        };
        open.orphaned.insert(id);
        if open.dirty.remove(&id)
            && let Some(change) = inode.change.as_mut()
        {
            let (mut pages, mut bytes) = (0, 0);
            for index in &change.log {
                if let Some(slot) = inode.pages.get_mut(index)
                    && slot.vct == vct
                {
                    slot.vct = ORPHAN;
                    pages += 1;
                    bytes += slot.page.stored_bytes() as u64;
                }
            }
            change.vct = ORPHAN;
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
    pub(super) fn adopt_orphan(&mut self, vct: VctId, id: ObjectId) -> Result<VctId, Stop> {
        let inode = self.inode_mut(id)?;
        let Some(change) = inode.change.as_mut().filter(|change| change.vct == ORPHAN) else {
            return self.touch(vct, id);
        };
        change.vct = vct;
        let (mut pages, mut bytes) = (0, 0);
        inode.pages.change_each(|slot| {
            let is_adopted = slot.vct == ORPHAN;
            if is_adopted {
                slot.vct = vct;
                pages += 1;
                bytes += slot.page.stored_bytes() as u64;
            }
            is_adopted
        });
        self.room.orphan_bytes -= bytes;
        let reserved = pages * PAGE_BYTES_U64;
        self.room.reserved_bytes += reserved;
        if let Some(open) = self.open.get_mut(&vct) {
            open.bytes += bytes;
            open.reserved_bytes += reserved;
        }
        self.touch(vct, id)
    }

    /// Ends an operation: closes the transaction if its policy says so.
    pub(super) fn finish(&mut self, vct: VctId, now: MonotonicNs) {
        let due = self.open.get_mut(&vct).is_some_and(|open| {
            let age_ms = Self::age_ms(now, open.opened_at);
            open.closing.operation_ended(age_ms);
            open.closing.is_due(age_ms)
                || open.held.len() >= MEMBERS_MAX
                || self.has_durable_apps && open.bytes >= BYTES_BESIDE_DURABLE_MAX
        });
        if due && !self.keeps_open() {
            self.close(vct);
        }
    }

    /// Whether a transaction has reached a limit of one of its apps, or the policy of one
    /// says that it closes.
    pub(super) fn is_due(open: &OpenVct, now: MonotonicNs) -> bool {
        open.closing.is_due(Self::age_ms(now, open.opened_at))
    }
}
