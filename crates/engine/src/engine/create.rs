//! New objects.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use mobifs_base::{Attributes, FileKind, ObjectId, Room, S_ISGID, TransactionId};

use super::Engine;
use super::rename::Side;
use crate::accounting::Charge;
use crate::acl::{self, Acl};
use crate::directory::Listing;
use crate::error::{FsError, Need, Stop};
use crate::inode::{Body, Inode};
use crate::request::{Caller, Moment, Node, NodeSpec};
use crate::versions::{Change, ORPHAN};

/// Owner, mode and ACLs that a new object gets.
struct Inheritance {
    mode: u16,
    gid: u32,
    xattrs: BTreeMap<Arc<[u8]>, Arc<[u8]>>,
}

/// Room for extended attributes with these values.
pub(super) fn room_of<'a>(values: impl Iterator<Item = &'a Arc<[u8]>>) -> Room {
    let each = values.map(|value| Room::of_xattr(value.len()));
    each.fold(Room::NONE, Room::saturating_add)
}

impl Engine {
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
        let name = self.new_name(parent, name)?;
        self.check_spec(spec)?;
        let inheritance = self.inherit(caller, parent, spec)?;
        self.require_entry(parent, &name)?;
        let target = spec
            .symlink_target
            .filter(|_| spec.kind == FileKind::Symlink);
        let target_bytes = target.map_or(0, |target| target.len() as u64);
        let inherited = room_of(inheritance.xattrs.values());
        self.require_new(parent, Charge::of(target_bytes, inherited))?;
        // Checks that can still fail (an app that is read-only) come before anything is in memory.
        self.check_apps(parent, name.as_bytes(), spec.kind)?;
        let id = self.namespace.new_object_id();
        let is_directory = spec.kind == FileKind::Directory;
        let nlink = if is_directory { 2 } else { 1 };
        let mut inode = self.new_inode(caller, moment, parent, spec, inheritance, nlink);
        inode.name = Some(name.clone());
        inode.lookups = 1;
        self.namespace.insert_inode(id, inode)?;
        let transaction = self.begin_entry(parent, id, moment)?;
        let transaction = self.touch_new(transaction, id)?;
        self.charge(transaction, Charge::memory(target_bytes));
        let (transaction, parent_transaction) =
            self.touch_parent(transaction, parent, moment, i32::from(is_directory))?;
        self.namespace.set_entry(parent, &name, id, spec.kind)?;
        let transaction = self.record_dentry(transaction, (parent, &name), None, Some(id));
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
        let inheritance = self.inherit(caller, parent, &spec)?;
        let inherited = room_of(inheritance.xattrs.values());
        self.require_entries(parent, 1, inherited.saturating_add(Room::INODE))?;
        let id = self.namespace.new_object_id();
        let mut inode = self.new_inode(caller, moment, parent, &spec, inheritance, 0);
        inode.unnamed = true;
        inode.lookups = 1;
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
        self.check_spec(&spec)?;
        let inheritance = self.inherit(caller, side.parent, &spec)?;
        let mut inode = self.new_inode(caller, moment, side.parent, &spec, inheritance, 1);
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

    fn check_spec(&self, spec: &NodeSpec<'_>) -> Result<(), Stop> {
        match (spec.kind, spec.symlink_target) {
            (FileKind::Symlink, None | Some([])) => Err(FsError::NotFound.into()),
            (FileKind::Symlink, Some(target)) if target.len() > self.limits.symlink_bytes_max => {
                Err(FsError::NameTooLong.into())
            }
            (FileKind::CharDevice | FileKind::BlockDevice, _) if !self.limits.privileged => {
                Err(FsError::NotPermitted.into())
            }
            (FileKind::CharDevice | FileKind::BlockDevice, _)
                if !spec.rdev.is_within(self.limits.device_max) =>
            {
                Err(FsError::InvalidArgument.into())
            }
            _ => Ok(()),
        }
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

    fn new_inode(
        &self,
        caller: &Caller,
        moment: Moment,
        parent: ObjectId,
        spec: &NodeSpec<'_>,
        inheritance: Inheritance,
        nlink: u32,
    ) -> Inode {
        let target = spec
            .symlink_target
            .filter(|_| spec.kind == FileKind::Symlink);
        let attributes = Attributes {
            kind: spec.kind,
            mode: inheritance.mode,
            uid: caller.uid,
            gid: inheritance.gid,
            rdev: spec.rdev,
            size: target.map_or(0, |target| target.len() as u64),
            nlink,
            atime: moment.wall,
            mtime: moment.wall,
            ctime: moment.wall,
        };
        let body = match spec.kind {
            FileKind::Regular => Body::File,
            FileKind::Directory => Body::Directory(Listing::Loaded(self.namespace.new_directory())),
            FileKind::Symlink => Body::Symlink(target.map(Arc::from)),
            _ => Body::Special,
        };
        let mut inode = Inode::created(attributes, body, parent, None);
        if !inheritance.xattrs.is_empty() {
            *inode.xattrs = Some(inheritance.xattrs);
        }
        inode
    }

    /// Applies set-group-id inheritance, the default ACL or the umask (acl(5),
    /// inode(7)).
    fn inherit(
        &self,
        caller: &Caller,
        parent: ObjectId,
        spec: &NodeSpec<'_>,
    ) -> Result<Inheritance, Stop> {
        if caller.uid != self.limits.owner_uid && !self.limits.privileged {
            // The object cannot belong to the caller.
            return Err(FsError::NotPermitted.into());
        }
        let directory = self.namespace.inode(parent)?;
        let mut mode = spec.mode & mobifs_base::MODE_MASK;
        let mut gid = caller.gid;
        if directory.attributes.mode & S_ISGID != 0 {
            gid = directory.attributes.gid;
            if spec.kind == FileKind::Directory {
                mode |= S_ISGID;
            }
        }
        let mut xattrs = BTreeMap::new();
        if spec.kind == FileKind::Symlink {
            return Ok(Inheritance {
                mode: 0o777,
                gid,
                xattrs,
            });
        }
        let default = if self.limits.xattr_bytes_max == 0 {
            None
        } else {
            let epoch = self.namespace.epoch();
            let known = directory.xattrs.as_ref();
            let known = known.ok_or(Stop::Need(Need::Xattrs { id: parent, epoch }))?;
            known.get(acl::DEFAULT).cloned()
        };
        match default.as_ref().and_then(|value| Acl::parse(value)) {
            None => mode &= !caller.umask,
            Some(mut list) => {
                if spec.kind == FileKind::Directory
                    && let Some(value) = default
                {
                    xattrs.insert(Arc::from(acl::DEFAULT), value);
                }
                mode = (mode & !0o777) | list.inherit(mode);
                if !list.is_equivalent_to_mode() {
                    xattrs.insert(Arc::from(acl::ACCESS), list.to_bytes());
                }
            }
        }
        Ok(Inheritance { mode, gid, xattrs })
    }
}
