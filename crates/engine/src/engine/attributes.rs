//! Changing attributes.

use mobifs_base::{MODE_MASK, ObjectId, Room, Timestamp};

use super::Engine;
use crate::accounting::Charge;
use crate::acl::{self, Acl};
use crate::error::{FsError, Need, Stop};
use crate::inode::Inode;
use crate::request::{AttributeChange, Moment, Node, SetIdBits, TimeChange};

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
    inode.set_xattr(alloc::sync::Arc::from(acl::ACCESS), list.to_bytes())
}

fn time(change: Option<TimeChange>, current: Timestamp, moment: Moment) -> Timestamp {
    match change {
        None => current,
        Some(TimeChange::Now) => moment.wall,
        Some(TimeChange::At(time)) => time,
    }
}
