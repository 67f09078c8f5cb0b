//! New objects: what they are made of, and what they inherit.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;

use mobifs_base::{Attributes, FileKind, Name, ObjectId, Room, S_ISGID};

use super::Namespace;
use crate::RESERVED_NAME;
use crate::acl::{self, Acl};
use crate::directory::Listing;
use crate::error::{FsError, Need, Stop};
use crate::inode::{Body, Inode, Xattrs};
use crate::limits::Limits;
use crate::request::{Caller, Moment, NodeSpec};

/// Owner, mode and ACLs that a new object gets.
pub(crate) struct Inheritance {
    mode: u16,
    gid: u32,
    xattrs: Xattrs,
}

impl Inheritance {
    /// Room that the extended attributes take.
    pub(crate) fn room(&self) -> Room {
        room_of(self.xattrs.values())
    }
}

/// Room for extended attributes with these values.
pub(crate) fn room_of<'a>(values: impl Iterator<Item = &'a Arc<[u8]>>) -> Room {
    let each = values.map(|value| Room::of_xattr(value.len()));
    each.fold(Room::NONE, Room::saturating_add)
}

impl Limits {
    /// Checks a name given for a new entry.
    pub(crate) fn new_name(&self, parent: ObjectId, name: &[u8]) -> Result<Name, Stop> {
        let name = Name::new(name)?;
        if name.as_bytes().len() > self.name_bytes_max {
            return Err(FsError::NameTooLong.into());
        }
        if parent == ObjectId::ROOT && name.as_bytes() == RESERVED_NAME {
            return Err(FsError::NotPermitted.into());
        }
        Ok(name)
    }

    /// Fails for an object that the lower filesystem could not store.
    pub(crate) fn check_spec(&self, spec: &NodeSpec<'_>) -> Result<(), Stop> {
        match (spec.kind, spec.symlink_target) {
            (FileKind::Symlink, None | Some([])) => Err(FsError::NotFound.into()),
            (FileKind::Symlink, Some(target)) if target.len() > self.symlink_bytes_max => {
                Err(FsError::NameTooLong.into())
            }
            (FileKind::CharDevice | FileKind::BlockDevice, _) if !self.privileged => {
                Err(FsError::NotPermitted.into())
            }
            (FileKind::CharDevice | FileKind::BlockDevice, _)
                if !spec.rdev.is_within(self.device_max) =>
            {
                Err(FsError::InvalidArgument.into())
            }
            _ => Ok(()),
        }
    }
}

impl Namespace {
    /// A new object with what it inherits in a directory, without a name.
    pub(crate) fn new_inode(
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
            FileKind::Directory => Body::Directory(Listing::Loaded(self.new_directory())),
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
    pub(crate) fn inherit(
        &self,
        limits: &Limits,
        caller: &Caller,
        parent: ObjectId,
        spec: &NodeSpec<'_>,
    ) -> Result<Inheritance, Stop> {
        if caller.uid != limits.owner_uid && !limits.privileged {
            // The object cannot belong to the caller.
            return Err(FsError::NotPermitted.into());
        }
        let directory = self.inode(parent)?;
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
        let default = if limits.xattr_bytes_max == 0 {
            None
        } else {
            let epoch = self.epoch();
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
