//! Attributes and extended attributes.

use alloc::sync::Arc;
use alloc::vec::Vec;

use mobifs_base::{MODE_MASK, ObjectId, Room, S_ISGID, Timestamp, xattr_room_bytes};

use super::Engine;
use crate::accounting::{Charge, ENTRY_BYTES};
use crate::acl::{self, Acl};
use crate::error::{FsError, Need, Stop};
use crate::inode::{Inode, Xattrs};
use crate::request::{AttributeChange, Moment, Node, SetIdBits, TimeChange, XattrMode};

/// Longest name, with its namespace prefix (`XATTR_NAME_MAX`).
const NAME_BYTES_MAX: usize = 255;
/// Longest value (`XATTR_SIZE_MAX`).
const VALUE_BYTES_MAX: usize = 65_536;

/// Attributes and extended attributes: they concern the object and the transaction of its app.
impl Engine {
    /// Changes attributes, all at once.
    ///
    /// # Errors
    /// `NotPermitted` where the lower filesystem does not let the daemon give files away,
    /// `IsDirectory` or `InvalidArgument` for a size of something that has none, `FileTooBig`,
    /// `CrossDevice`, `ReadOnly`, `Stale`, or a [`Need`].
    pub fn set_attributes(
        &mut self,
        moment: Moment,
        id: ObjectId,
        change: &AttributeChange,
    ) -> Result<Node, Stop> {
        let inode = self.namespace.inode(id)?;
        if inode.foreign {
            return Err(FsError::CrossDevice.into());
        }
        self.namespace.check_changeable(id)?;
        let gives_away = change.uid.is_some_and(|uid| uid != inode.attributes.uid);
        if gives_away && !self.limits.privileged {
            return Err(FsError::NotPermitted.into());
        }
        if change.mode.is_some() && inode.xattrs.is_none() && self.limits.xattr_bytes_max > 0 {
            // A chmod changes the ACL too, if there is one.
            return Err(Stop::Need(Need::Xattrs {
                id,
                epoch: self.namespace.epoch(),
            }));
        }
        if let Some(size) = change.size {
            self.require_resize(id, size)?;
            self.check_capability(id)?;
        } else {
            self.require_change(id)?;
        }
        let transaction = self.begin_change(id, moment.now)?;
        if let Some(size) = change.size {
            self.resize(id, transaction, size)?;
            self.content_changed(id, moment, SetIdBits::Stay)?;
        }
        let inode = self.namespace.inode_mut(id)?;
        let room = apply(inode, change, moment);
        let node = inode.node(id);
        self.charge(transaction, Charge::room(room));
        self.finish(transaction, moment.now);
        Ok(node)
    }

    fn known_xattrs(&self, id: ObjectId) -> Result<&Xattrs, Stop> {
        let inode = self.namespace.inode(id)?;
        if inode.foreign {
            return Err(FsError::CrossDevice.into());
        }
        if self.limits.xattr_bytes_max == 0 {
            return Err(FsError::NotSupported.into());
        }
        let need = Stop::Need(Need::Xattrs {
            id,
            epoch: self.namespace.epoch(),
        });
        inode.xattrs.as_ref().ok_or(need)
    }

    /// Value of one extended attribute.
    ///
    /// # Errors
    /// `NoXattr`, `NotSupported` (also for an unknown namespace), `InvalidArgument` for a
    /// namespace without a name, `Stale`, or a [`Need`].
    pub fn get_xattr(&self, id: ObjectId, name: &[u8]) -> Result<Arc<[u8]>, Stop> {
        check_has_name(name)?;
        let known = self.known_xattrs(id)?;
        Ok(known.get(name).cloned().ok_or_else(|| absent(name))?)
    }

    /// Names of all extended attributes.
    ///
    /// # Errors
    /// `NotSupported`, `Stale`, or a [`Need`].
    pub fn list_xattrs(&self, id: ObjectId) -> Result<Vec<Arc<[u8]>>, Stop> {
        Ok(self.known_xattrs(id)?.keys().cloned().collect())
    }

    /// Sets an extended attribute. An access ACL changes the permission bits with it;
    /// `kill_sgid` then takes the set-group-id bit away.
    ///
    /// # Errors
    /// `Exists` or `NoXattr` by `mode`, `XattrTooBig`, `BufferTooSmall` for a name too long,
    /// `NoSpace` where the lower filesystem could not store it, `NotSupported` for an unknown
    /// namespace, `NotPermitted` for one that needs privileges we lack, `InvalidArgument` for a
    /// malformed ACL or a namespace without a name, `ReadOnly`, `Stale`, or a [`Need`].
    pub fn set_xattr(
        &mut self,
        moment: Moment,
        id: ObjectId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        kill_sgid: bool,
    ) -> Result<(), Stop> {
        let known = self.known_xattrs(id)?;
        self.check_xattr_name(name)?;
        self.namespace.check_changeable(id)?;
        match (mode, known.contains_key(name)) {
            (XattrMode::Create, true) => return Err(FsError::Exists.into()),
            (XattrMode::Replace, false) => return Err(FsError::NoXattr.into()),
            _ => {}
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err(FsError::XattrTooBig.into());
        }
        let others: usize = known
            .iter()
            .filter(|(other, _)| other.as_ref() != name)
            .map(|(name, value)| xattr_room_bytes(name.len(), value.len()))
            .sum();
        if others + xattr_room_bytes(name.len(), value.len()) > self.limits.xattr_bytes_max {
            return Err(FsError::NoSpace.into());
        }
        let is_acl = name == acl::ACCESS || name == acl::DEFAULT;
        let list = is_acl
            .then(|| Acl::parse(value).ok_or(FsError::InvalidArgument))
            .transpose()?;
        if name == acl::DEFAULT && !self.namespace.inode(id)?.is_directory() {
            return Err(FsError::AccessDenied.into());
        }
        let memory_bytes = ENTRY_BYTES + value.len() as u64;
        let room = Room::of_xattr(value.len());
        let with_object = room.saturating_add(Room::OBJECT);
        self.require(id, Charge::of(memory_bytes, with_object))?;
        let transaction = self.begin_change(id, moment.now)?;
        self.charge(transaction, Charge::of(memory_bytes, room));
        let inode = self.namespace.inode_mut(id)?;
        inode.attributes.ctime = moment.wall;
        let mut keep = true;
        if let Some(list) = list.filter(|_| name == acl::ACCESS) {
            let bits = list.permission_bits();
            inode.attributes.mode = (inode.attributes.mode & !0o777 & MODE_MASK) | bits;
            if kill_sgid {
                inode.attributes.mode &= !S_ISGID;
            }
            // The permission bits express the whole ACL: no list is stored, as on ext4.
            keep = !list.is_equivalent_to_mode();
        }
        let name: Arc<[u8]> = Arc::from(name);
        if let Some(change) = inode.versions.change_mut() {
            change.add_xattr(Arc::clone(&name));
        }
        if let Some(xattrs) = &mut *inode.xattrs {
            if keep {
                xattrs.insert(name, Arc::from(value));
            } else {
                xattrs.remove(&name);
            }
        }
        self.finish(transaction, moment.now);
        Ok(())
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `NoXattr`, `NotSupported`, `NotPermitted`, `ReadOnly`, `Stale`, or a [`Need`].
    pub fn remove_xattr(&mut self, moment: Moment, id: ObjectId, name: &[u8]) -> Result<(), Stop> {
        let known = self.known_xattrs(id)?;
        self.check_xattr_name(name)?;
        self.namespace.check_changeable(id)?;
        if !known.contains_key(name) {
            // Removing an ACL that is not there is no error (acl(5)).
            let is_acl = name == acl::ACCESS || name == acl::DEFAULT;
            return if is_acl {
                Ok(())
            } else {
                Err(FsError::NoXattr.into())
            };
        }
        self.require_change(id)?;
        let transaction = self.begin_change(id, moment.now)?;
        let inode = self.namespace.inode_mut(id)?;
        inode.attributes.ctime = moment.wall;
        inode.remove_xattr(name);
        self.finish(transaction, moment.now);
        Ok(())
    }

    /// Fails for names that the lower filesystem could not store.
    fn check_xattr_name(&self, name: &[u8]) -> Result<(), Stop> {
        if name.len() > NAME_BYTES_MAX {
            return Err(FsError::BufferTooSmall.into());
        }
        check_has_name(name)?;
        let in_namespace = |prefix: &[u8]| name.starts_with(prefix);
        if in_namespace(b"user.") || name == acl::ACCESS || name == acl::DEFAULT {
            Ok(())
        } else if in_namespace(b"security.") || in_namespace(b"trusted.") {
            let allowed = self.limits.privileged;
            if allowed {
                Ok(())
            } else {
                Err(FsError::NotPermitted.into())
            }
        } else {
            Err(FsError::NotSupported.into())
        }
    }
}

/// Applies the change; returns room that it takes for extended attributes.
fn apply(inode: &mut Inode, change: &AttributeChange, moment: Moment) -> Room {
    inode.change_set_id(change.set_id);
    if change.uid.is_some() || change.gid.is_some() {
        inode.kill_capability();
    }
    let attributes = &mut inode.attributes;
    attributes.uid = change.uid.unwrap_or(attributes.uid);
    attributes.gid = change.gid.unwrap_or(attributes.gid);
    attributes.atime = time(change.atime, attributes.atime, moment);
    attributes.mtime = time(change.mtime, attributes.mtime, moment);
    attributes.ctime = change.ctime.unwrap_or(moment.wall);
    change.mode.map_or(Room::NONE, |mode| {
        inode.attributes.mode = mode & MODE_MASK;
        follow_mode(inode, mode)
    })
}

/// Lets the ACL, if there is one, follow a chmod; returns the room that it takes.
fn follow_mode(inode: &mut Inode, mode: u16) -> Room {
    let xattrs = inode.xattrs.as_ref();
    let value = xattrs.and_then(|xattrs| xattrs.get(acl::ACCESS));
    let Some(mut list) = value.and_then(|value| Acl::parse(value)) else {
        return Room::NONE;
    };
    list.set_permission_bits(mode);
    inode.set_xattr(Arc::from(acl::ACCESS), list.to_bytes())
}

fn time(change: Option<TimeChange>, current: Timestamp, moment: Moment) -> Timestamp {
    match change {
        None => current,
        Some(TimeChange::Now) => moment.wall,
        Some(TimeChange::At(time)) => time,
    }
}

/// Why there is no such attribute.
fn absent(name: &[u8]) -> FsError {
    const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    let is_acl = name == acl::ACCESS || name == acl::DEFAULT;
    if is_acl || NAMESPACES.iter().any(|space| name.starts_with(space)) {
        FsError::NoXattr
    } else {
        FsError::NotSupported
    }
}

/// The kernel looks at this where it knows the namespaces, which it leaves to us.
fn check_has_name(name: &[u8]) -> Result<(), FsError> {
    const NAMESPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    if NAMESPACES.contains(&name) {
        return Err(FsError::InvalidArgument);
    }
    Ok(())
}
