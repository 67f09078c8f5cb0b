//! Names: lookup, listing, new objects, links and removal.

use alloc::sync::Arc;
use alloc::vec::Vec;

use mobifs_base::{FileKind, ObjectId, Room, TransactionId};

use super::rename::Side;
use super::{Engine, RemovalMemory};
use crate::RESERVED_NAME;
use crate::accounting::Charge;
use crate::directory::Slot;
use crate::error::{FsError, Need, Stop};
use crate::inode::{Body, Inode};
use crate::namespace::room_of;
use crate::request::{Caller, Moment, Node, NodeSpec, ReadDirEntry};
use crate::versions::{Change, ORPHAN};

/// Entries of directories, and the objects that they name.
impl Engine {
    /// Finds an entry and counts a reference to its object
    /// (given back by [`Engine::forget`]).
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NameTooLong`, `Stale`, or a [`Need`].
    pub fn lookup(&mut self, parent: ObjectId, name: &[u8]) -> Result<Node, Stop> {
        if parent == ObjectId::ROOT && name == RESERVED_NAME {
            return Err(FsError::NotFound.into());
        }
        let slot = self
            .namespace
            .entry(parent, name)?
            .ok_or(FsError::NotFound)?;
        let id = self.adopt(parent, name, slot)?;
        let inode = self.namespace.inode_mut(id)?;
        inode.usage.look_up();
        Ok(inode.node(id))
    }

    /// The parent of a directory (the root is its own), with a reference counted.
    ///
    /// # Errors
    /// `NotDirectory`, `Stale`.
    pub fn lookup_parent(&mut self, directory: ObjectId) -> Result<Node, Stop> {
        let inode = self.namespace.inode(directory)?;
        if !inode.is_directory() {
            return Err(FsError::NotDirectory.into());
        }
        let parent = if directory == ObjectId::ROOT {
            directory
        } else {
            inode.home
        };
        let inode = self.namespace.inode_mut(parent)?;
        inode.usage.look_up();
        Ok(inode.node(parent))
    }

    /// Attributes of an object in use.
    ///
    /// # Errors
    /// `Stale`.
    pub fn attributes(&self, id: ObjectId) -> Result<Node, Stop> {
        Ok(self.namespace.inode(id)?.node(id))
    }

    /// Up to `entries_max` entries after `after_cookie` (0: from the start).
    ///
    /// # Errors
    /// `NotDirectory`, `Stale`, or a [`Need`].
    pub fn read_directory(
        &self,
        id: ObjectId,
        after_cookie: u64,
        entries_max: usize,
    ) -> Result<Vec<ReadDirEntry>, Stop> {
        if self.namespace.inode(id)?.is_orphan() {
            return Ok(Vec::new());
        }
        let listed = self
            .namespace
            .entries(id)?
            .after(after_cookie)
            .take(entries_max);
        Ok(listed
            .map(|(cookie, name, slot)| ReadDirEntry {
                cookie,
                name: name.clone(),
                id: slot.id,
                kind: slot.kind,
            })
            .collect())
    }

    /// Target of a symlink.
    ///
    /// # Errors
    /// `InvalidArgument` for other kinds, `Stale`, or a [`Need`].
    pub fn read_link(&self, id: ObjectId) -> Result<Arc<[u8]>, Stop> {
        match &self.namespace.inode(id)?.body {
            Body::Symlink(Some(target)) => Ok(target.clone()),
            Body::Symlink(None) => Err(Stop::Need(Need::SymlinkTarget {
                id,
                epoch: self.namespace.epoch(),
            })),
            _ => Err(FsError::InvalidArgument.into()),
        }
    }

    /// Creates a file, directory, symlink or node and counts a reference to it.
    ///
    /// # Errors
    /// `Exists`, `NotFound` if the directory was removed, `NotDirectory`,
    /// `NameTooLong`, `NotPermitted` for devices where the lower filesystem gives us
    /// none, `ReadOnly`, or a [`Need`].
    pub fn create(
        &mut self,
        caller: &Caller,
        moment: Moment,
        parent: ObjectId,
        name: &[u8],
        spec: &NodeSpec<'_>,
    ) -> Result<Node, Stop> {
        self.namespace.check_directory(parent)?;
        if self.namespace.entry(parent, name)?.is_some() {
            return Err(FsError::Exists.into());
        }
        let name = self.limits.new_name(parent, name)?;
        self.limits.check_spec(spec)?;
        let inheritance = self.namespace.inherit(&self.limits, caller, parent, spec)?;
        self.require_entry(parent, &name)?;
        let target = spec
            .symlink_target
            .filter(|_| spec.kind == FileKind::Symlink);
        let target_bytes = target.map_or(0, |target| target.len() as u64);
        let inherited = inheritance.room();
        self.require_new(parent, Charge::of(target_bytes, inherited))?;
        // Checks that can still fail (an app that is read-only) come before anything is in memory.
        self.check_apps(parent, name.as_bytes(), spec.kind)?;
        let id = self.namespace.new_object_id();
        let is_directory = spec.kind == FileKind::Directory;
        let nlink = if is_directory { 2 } else { 1 };
        let mut inode = self
            .namespace
            .new_inode(caller, moment, parent, spec, inheritance, nlink);
        inode.name = Some(name.clone());
        inode.usage.look_up();
        self.namespace.insert_inode(id, inode)?;
        let transaction = self.begin_entry(parent, id, moment)?;
        let transaction = self.touch_new(transaction, id)?;
        self.charge(transaction, Charge::memory(target_bytes));
        let (transaction, parent_transaction) =
            self.touch_parent(transaction, parent, moment, i32::from(is_directory))?;
        self.namespace.set_entry(parent, &name, id, spec.kind)?;
        let mut transaction = self.record_dentry(transaction, (parent, &name), None, Some(id));
        if spec.kind == FileKind::Regular {
            transaction = self.follow_super_journal(transaction, id, &name);
        }
        let node = self.namespace.inode(id)?.node(id);
        self.finish(parent_transaction, moment.now);
        self.finish(transaction, moment.now);
        Ok(node)
    }

    /// Creates a file without a name (`O_TMPFILE`), with a reference counted, which is all
    /// that keeps it. [`Engine::link`] may give it a name.
    ///
    /// # Errors
    /// `NotFound` if the directory was removed, `NotDirectory`, `ReadOnly`, or a
    /// [`Need`].
    pub fn create_unnamed(
        &mut self,
        caller: &Caller,
        moment: Moment,
        parent: ObjectId,
        mode: u16,
    ) -> Result<Node, Stop> {
        self.namespace.check_directory(parent)?;
        let spec = NodeSpec {
            kind: FileKind::Regular,
            mode,
            rdev: mobifs_base::DeviceNumber(0),
            symlink_target: None,
        };
        let inheritance = self
            .namespace
            .inherit(&self.limits, caller, parent, &spec)?;
        let inherited = inheritance.room();
        self.require_entries(parent, 1, inherited.saturating_add(Room::INODE))?;
        let id = self.namespace.new_object_id();
        let mut inode = self
            .namespace
            .new_inode(caller, moment, parent, &spec, inheritance, 0);
        inode.unnamed = true;
        inode.usage.look_up();
        let app = self.namespace.app_of(parent, &mut self.apps);
        (inode.app, inode.app_epoch) = self.namespace.current_app(app);
        let mut change = Change::new(ORPHAN, self.namespace.is_tracked());
        let inherited = inode.xattrs.iter().flatten().map(|(key, _)| key.clone());
        for name in inherited {
            change.add_xattr(name);
        }
        inode.versions.begin_change(change);
        let node = inode.node(id);
        self.namespace.insert_inode(id, inode)?;
        Ok(node)
    }

    /// What [`RenameMode::Whiteout`](crate::RenameMode::Whiteout) leaves in a directory, which the
    /// kernel does not know yet.
    pub(super) fn whiteout(
        &self,
        caller: &Caller,
        moment: Moment,
        side: &Side,
    ) -> Result<Inode, Stop> {
        let spec = NodeSpec {
            kind: FileKind::CharDevice,
            mode: 0,
            rdev: mobifs_base::DeviceNumber(0),
            symlink_target: None,
        };
        self.limits.check_spec(&spec)?;
        let inheritance = self
            .namespace
            .inherit(&self.limits, caller, side.parent, &spec)?;
        let mut inode =
            self.namespace
                .new_inode(caller, moment, side.parent, &spec, inheritance, 1);
        inode.name = Some(side.name.clone());
        Ok(inode)
    }

    /// A new object takes part in a transaction, with the attributes that it inherited.
    pub(super) fn touch_new(
        &mut self,
        transaction: TransactionId,
        id: ObjectId,
    ) -> Result<TransactionId, Stop> {
        let transaction = self.touch(transaction, id)?;
        let inode = self.namespace.inode_mut(id)?;
        let room = room_of(inode.xattrs.iter().flatten().map(|(_, value)| value));
        let inherited = inode.xattrs.iter().flatten().map(|(key, _)| key.clone());
        let inherited: Vec<_> = inherited.collect();
        if !inherited.is_empty()
            && let Some(change) = inode.versions.change_mut()
        {
            for name in inherited {
                change.add_xattr(name);
            }
        }
        let room = room.saturating_add(Room::INODE);
        self.charge(transaction, Charge::room(room));
        Ok(transaction)
    }

    /// Whether the apps that a new entry would belong to accept changes.
    fn check_apps(&mut self, parent: ObjectId, name: &[u8], kind: FileKind) -> Result<(), Stop> {
        let app = self.namespace.app_of(parent, &mut self.apps);
        self.check_app(app)?;
        if kind == FileKind::Directory
            && let Some(path) = self.namespace.app_place(parent, name, &self.apps)
        {
            let app = self.apps.at(path);
            self.check_app(app)?;
        }
        Ok(())
    }

    /// Gives an object another name.
    ///
    /// # Errors
    /// `Exists`, `NotPermitted` for directories, `TooManyLinks`, `NotFound` if the
    /// object has no link and was not made for getting one, `NotDirectory`,
    /// `NameTooLong`, `ReadOnly`, or a [`Need`].
    pub fn link(
        &mut self,
        moment: Moment,
        id: ObjectId,
        parent: ObjectId,
        name: &[u8],
    ) -> Result<Node, Stop> {
        self.namespace.check_directory(parent)?;
        let name = self.limits.new_name(parent, name)?;
        if self.namespace.entry(parent, name.as_bytes())?.is_some() {
            return Err(FsError::Exists.into());
        }
        self.require_entry(parent, &name)?;
        let inode = self.namespace.inode(id)?;
        if inode.is_directory() {
            return Err(FsError::NotPermitted.into());
        }
        if inode.foreign {
            return Err(FsError::CrossDevice.into());
        }
        if inode.is_orphan() && !inode.unnamed {
            return Err(FsError::NotFound.into());
        }
        self.namespace.check_changeable(id)?;
        if inode.attributes.nlink >= self.limits.links_max {
            return Err(FsError::TooManyLinks.into());
        }
        let (kind, was_orphan, creation_closed) = (
            inode.attributes.kind,
            inode.is_orphan(),
            inode.creation_closed,
        );
        if was_orphan {
            let held = self.namespace.inode(id)?.orphan_room();
            self.require_entries(parent, 3, held.saturating_add(Room::INODE))?;
            // It had no name so far; its app is that of its first link.
            self.namespace.set_home(id, parent)?;
            self.namespace.inode_mut(id)?.app_epoch = 0;
        } else {
            self.require_moves(parent, 3)?;
            let app = self.namespace.app_of(parent, &mut self.apps);
            if app != self.namespace.app_of(id, &mut self.apps)
                && !self.namespace.inode(id)?.linked_apps.contains(&app)
            {
                self.namespace.inode_mut(id)?.linked_apps.push(app);
            }
        }
        let mut transaction = self.begin(&[id, parent], moment.now)?;
        let inode = self.namespace.inode_mut(id)?;
        inode.attributes.nlink += 1;
        inode.attributes.ctime = moment.wall;
        inode.unnamed = false;
        if inode.attributes.nlink > 1 {
            self.namespace.set_had_several_names(id)?;
        }
        if was_orphan {
            transaction = self.adopt_orphan(transaction, id)?;
            if !creation_closed {
                self.charge(transaction, Charge::room(Room::INODE));
            }
        }
        transaction = self.touch(transaction, id)?;
        transaction = self.touch_entries(transaction, parent, moment, 0)?;
        self.namespace.set_entry(parent, &name, id, kind)?;
        transaction = self.record_dentry(transaction, (parent, &name), None, Some(id));
        self.finish(transaction, moment.now);
        let inode = self.namespace.inode_mut(id)?;
        inode.usage.look_up();
        Ok(inode.node(id))
    }

    /// Makes sure that the object which `parent`/`name` names is in memory.
    pub(super) fn adopt(
        &mut self,
        parent: ObjectId,
        name: &[u8],
        slot: Slot,
    ) -> Result<ObjectId, Stop> {
        let id = slot.id;
        if self.namespace.load_named(parent, name, slot)? {
            let inode = self.namespace.inode(id)?;
            if !inode.is_directory() && inode.home != parent {
                self.namespace.add_linked_app(id, parent, &mut self.apps)?;
            }
        }
        Ok(id)
    }

    /// A directory's entries change: its times, and its links by subdirectories that
    /// come or go.
    pub(super) fn touch_entries(
        &mut self,
        transaction: TransactionId,
        directory: ObjectId,
        moment: Moment,
        subdirectories: i32,
    ) -> Result<TransactionId, Stop> {
        let transaction = self.touch(transaction, directory)?;
        let inode = self.namespace.inode_mut(directory)?;
        inode.attributes.mtime = moment.wall;
        inode.attributes.ctime = moment.wall;
        // Filesystems that do not count subdirectories show one link; leave it so.
        if inode.attributes.nlink >= 2 {
            inode.attributes.nlink = inode
                .attributes
                .nlink
                .saturating_add_signed(subdirectories)
                .max(2);
        }
        Ok(transaction)
    }

    /// Removes an entry that is not a directory.
    ///
    /// # Errors
    /// `NotFound`, `IsDirectory`, `Busy` for what lies on another filesystem,
    /// `NameTooLong`, `ReadOnly`, or a [`Need`].
    pub fn unlink(
        &mut self,
        moment: Moment,
        parent: ObjectId,
        name: &[u8],
        memory: RemovalMemory,
    ) -> Result<(), Stop> {
        self.remove(moment, parent, name, false, memory)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`, `NotEmpty`, `Busy` for what lies on another
    /// filesystem, `NameTooLong`, `ReadOnly`, or a [`Need`].
    pub fn remove_directory(
        &mut self,
        moment: Moment,
        parent: ObjectId,
        name: &[u8],
        memory: RemovalMemory,
    ) -> Result<(), Stop> {
        self.remove(moment, parent, name, true, memory)
    }

    fn remove(
        &mut self,
        moment: Moment,
        parent: ObjectId,
        name: &[u8],
        directory: bool,
        memory: RemovalMemory,
    ) -> Result<(), Stop> {
        self.namespace.check_directory(parent)?;
        let slot = self
            .namespace
            .entry(parent, name)?
            .ok_or(FsError::NotFound)?;
        match (directory, slot.kind) {
            (true, FileKind::Directory) => {}
            (true, _) => return Err(FsError::NotDirectory.into()),
            (false, FileKind::Directory) => return Err(FsError::IsDirectory.into()),
            (false, _) => {}
        }
        let id = self.adopt(parent, name, slot)?;
        if self.namespace.inode(id)?.foreign {
            return Err(FsError::Busy.into());
        }
        self.namespace.check_changeable(id)?;
        if directory && !self.namespace.entries(id)?.is_empty() {
            return Err(FsError::NotEmpty.into());
        }
        let name = self.limits.new_name(parent, name)?;
        // Removing frees room in the lower filesystem, so only missing room for the commit itself
        // could prevent it.
        self.require_removal(parent, memory)?;
        let concerns_all = self.end_super_journal(id, &name, moment.now)?;
        let mut transaction = self.begin_entry(parent, id, moment)?;
        if concerns_all {
            transaction = self.reach_everywhere(transaction);
        }
        let transaction = self.touch(transaction, id)?;
        let (transaction, parent_transaction) =
            self.touch_parent(transaction, parent, moment, -i32::from(directory))?;
        self.namespace.remove_entry(parent, &name)?;
        let transaction = self.record_dentry(transaction, (parent, &name), Some(id), None);
        self.super_journals.removed(id);
        self.drop_link(transaction, id, moment)?;
        self.finish(parent_transaction, moment.now);
        self.finish(transaction, moment.now);
        Ok(())
    }

    /// One link less; a directory loses all at once.
    pub(super) fn drop_link(
        &mut self,
        transaction: TransactionId,
        id: ObjectId,
        moment: Moment,
    ) -> Result<(), Stop> {
        let inode = self.namespace.inode_mut(id)?;
        let links = inode.attributes.nlink;
        inode.attributes.nlink = if inode.is_directory() {
            0
        } else {
            links.saturating_sub(1)
        };
        inode.attributes.ctime = moment.wall;
        if inode.is_orphan() {
            inode.linked_apps.clear();
            self.orphan(transaction, id);
        }
        Ok(())
    }

    /// The transaction for a change of the entry that names `child` in `parent`. It
    /// is the child's app's. The directory takes part only if it is of the same app,
    /// or if the store does not have it yet, so that the entry could not exist
    /// without it.
    pub(super) fn begin_entry(
        &mut self,
        parent: ObjectId,
        child: ObjectId,
        moment: Moment,
    ) -> Result<TransactionId, Stop> {
        if self.is_own_app(parent, child)?
            && self.namespace.inode(parent)?.versions.is_known_to_store()
        {
            self.begin(&[child], moment.now)
        } else {
            self.begin(&[child, parent], moment.now)
        }
    }

    /// Whether `child` is the root of an app while `parent` belongs to another.
    fn is_own_app(&mut self, parent: ObjectId, child: ObjectId) -> Result<bool, Stop> {
        Ok(self.namespace.inode(child)?.is_directory()
            && self.namespace.app_of(parent, &mut self.apps)
                != self.namespace.app_of(child, &mut self.apps))
    }

    /// Changes the directory of an entry: in the entry's transaction, or, if the
    /// directory belongs to another app and need not take part (see
    /// [`Engine::begin_entry`]), in its own app's.
    pub(super) fn touch_parent(
        &mut self,
        transaction: TransactionId,
        parent: ObjectId,
        moment: Moment,
        subdirectories: i32,
    ) -> Result<(TransactionId, TransactionId), Stop> {
        let app = self.namespace.app_of(parent, &mut self.apps);
        let open = self.transactions.open(transaction);
        let takes_part = open.is_some_and(|open| open.apps.contains(&app));
        if takes_part {
            let transaction = self.touch_entries(transaction, parent, moment, subdirectories)?;
            return Ok((transaction, transaction));
        }
        let own = self.begin(&[parent], moment.now)?;
        let own = self.touch_entries(own, parent, moment, subdirectories)?;
        // Touching may have joined the two.
        let transaction = if self.transactions.is_open(transaction) {
            transaction
        } else {
            own
        };
        Ok((transaction, own))
    }

    /// An object is opened: it stays also without links.
    ///
    /// # Errors
    /// `Stale`, `CrossDevice`.
    pub fn open(&mut self, id: ObjectId) -> Result<(), Stop> {
        let inode = self.namespace.inode_mut(id)?;
        if inode.foreign {
            return Err(FsError::CrossDevice.into());
        }
        inode.usage.open();
        Ok(())
    }

    /// Ends [`Engine::open`].
    pub fn release(&mut self, id: ObjectId) {
        self.namespace.release(id);
        self.dispose_if_unused(id);
    }
}
