//! Operations on names and attributes. The order of the checks is the kernel's.

use mobifs_base::{FileKind, S_ISGID, S_ISUID};
use rustix::io::Errno;

use super::{Body, Content, InodeNumber, State, only_with_user_xattrs};
use crate::operations::{NodeKind, RenameMode, XattrMode};
use crate::tree::Mtime;

type Done = Result<(), Errno>;

impl State {
    pub(super) fn create(&mut self, path: &str, mode: u16, body: Body) -> Done {
        let (directory, name) = self.walk_parent(path)?;
        if self.entry(directory, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        let number = self.add(directory, mode, body);
        self.entries_mut(directory).insert(name.to_owned(), number);
        Ok(())
    }

    pub(super) fn create_unnamed(
        &mut self,
        directory: &str,
        mode: u16,
    ) -> Result<InodeNumber, Errno> {
        let directory = self.walk(directory)?;
        self.entries(directory)?;
        let number = self.add(directory, mode, Body::Regular(Content::default()));
        self.inode_mut(number).never_named = true;
        Ok(number)
    }

    pub(super) fn link(&mut self, from: &str, to: &str) -> Done {
        let object = self.walk(from)?;
        self.link_object(object, to)
    }

    pub(super) fn link_object(&mut self, object: InodeNumber, to: &str) -> Done {
        let (directory, name) = self.walk_parent(to)?;
        if self.entry(directory, name)?.is_some() {
            return Err(Errno::EXIST);
        }
        let inode = self.inode(object);
        if inode.kind() == FileKind::Directory {
            return Err(Errno::PERM);
        }
        if self.link_count(object) == 0 && !inode.never_named {
            return Err(Errno::NOENT);
        }
        self.relink(object).never_named = false;
        self.entries_mut(directory).insert(name.to_owned(), object);
        Ok(())
    }

    /// Returns the object that lost a name.
    pub(super) fn unlink(&mut self, path: &str) -> Result<InodeNumber, Errno> {
        let (directory, name) = self.walk_parent(path)?;
        let object = self.entry(directory, name)?.ok_or(Errno::NOENT)?;
        if self.inode(object).kind() == FileKind::Directory {
            return Err(Errno::ISDIR);
        }
        self.entries_mut(directory).remove(name);
        self.relink(object);
        Ok(object)
    }

    /// Returns the directory that lost its name.
    pub(super) fn remove_directory(&mut self, path: &str) -> Result<InodeNumber, Errno> {
        let (directory, name) = self.walk_parent(path)?;
        let object = self.entry(directory, name)?.ok_or(Errno::NOENT)?;
        if !self.entries(object)?.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.entries_mut(directory).remove(name);
        self.relink(object);
        Ok(object)
    }

    /// Returns the object whose name was taken, if there was one.
    pub(super) fn rename(
        &mut self,
        from: &str,
        to: &str,
        mode: RenameMode,
    ) -> Result<Option<InodeNumber>, Errno> {
        let (from_directory, from_name) = self.walk_parent(from)?;
        let (to_directory, to_name) = self.walk_parent(to)?;
        let moved = self.entry(from_directory, from_name)?.ok_or(Errno::NOENT)?;
        let target = self.entry(to_directory, to_name)?;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST),
            (RenameMode::Exchange, None) => return Err(Errno::NOENT),
            _ => {}
        }
        let moves_into_itself = self.is_within(to_directory, moved);
        if moves_into_itself {
            return Err(Errno::INVAL);
        }
        let Some(target) = target else {
            self.take_name(from_directory, from_name, mode);
            self.entries_mut(to_directory)
                .insert(to_name.to_owned(), moved);
            return Ok(None);
        };
        if self.is_within(from_directory, target) {
            // The target is an ancestor of the source.
            let exchange = mode == RenameMode::Exchange;
            return Err(if exchange {
                Errno::INVAL
            } else {
                Errno::NOTEMPTY
            });
        }
        if target == moved {
            return Ok(None);
        }
        if mode == RenameMode::Exchange {
            self.entries_mut(from_directory)
                .insert(from_name.to_owned(), target);
            self.entries_mut(to_directory)
                .insert(to_name.to_owned(), moved);
            return Ok(None);
        }
        match (self.entries(moved).is_ok(), self.entries(target)) {
            (true, Err(_)) => return Err(Errno::NOTDIR),
            (false, Ok(_)) => return Err(Errno::ISDIR),
            (true, Ok(entries)) if !entries.is_empty() => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        self.take_name(from_directory, from_name, mode);
        self.entries_mut(to_directory)
            .insert(to_name.to_owned(), moved);
        self.relink(target);
        Ok(Some(target))
    }

    /// What is under a name moves away.
    fn take_name(&mut self, directory: InodeNumber, name: &str, mode: RenameMode) {
        self.entries_mut(directory).remove(name);
        if mode == RenameMode::Whiteout {
            let body = Body::Special(NodeKind::CharDevice(0, 0));
            let whiteout = self.add(directory, 0, body);
            self.entries_mut(directory)
                .insert(name.to_owned(), whiteout);
        }
    }

    /// Whether `inner` is `outer` or lies below it.
    fn is_within(&self, inner: InodeNumber, outer: InodeNumber) -> bool {
        inner == outer
            || self
                .entries(outer)
                .is_ok_and(|entries| entries.values().any(|&child| self.is_within(inner, child)))
    }

    pub(super) fn set_mode(&mut self, path: &str, mode: u16) -> Done {
        let number = self.walk(path)?;
        if self.inode(number).kind() == FileKind::Symlink {
            return Err(Errno::OPNOTSUPP);
        }
        self.inode_mut(number).mode = mode;
        Ok(())
    }

    pub(super) fn set_owner(&mut self, path: &str, uid: Option<u32>, gid: Option<u32>) -> Done {
        let number = self.walk(path)?;
        let inode = self.inode_mut(number);
        inode.uid = uid.unwrap_or(inode.uid);
        inode.gid = gid.unwrap_or(inode.gid);
        if inode.kind() != FileKind::Directory {
            // Linux clears them even for root; set-group-id without the right to
            // execute is not a privilege and stays.
            inode.mode &= !S_ISUID;
            if inode.mode & 0o010 != 0 {
                inode.mode &= !S_ISGID;
            }
        }
        Ok(())
    }

    pub(super) fn set_mtime(&mut self, path: &str, mtime: Mtime) -> Done {
        let number = self.walk(path)?;
        self.inode_mut(number).mtime = mtime;
        Ok(())
    }

    pub(super) fn set_xattr(
        &mut self,
        path: &str,
        name: &str,
        value: Vec<u8>,
        mode: XattrMode,
    ) -> Done {
        let number = self.walk(path)?;
        only_with_user_xattrs(self.inode(number).kind())?;
        match (mode, self.inode(number).xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(Errno::EXIST),
            (XattrMode::Replace, false) => return Err(Errno::NODATA),
            _ => {}
        }
        self.inode_mut(number).xattrs.insert(name.to_owned(), value);
        Ok(())
    }

    pub(super) fn remove_xattr(&mut self, path: &str, name: &str) -> Done {
        let number = self.walk(path)?;
        only_with_user_xattrs(self.inode(number).kind())?;
        if !self.inode(number).xattrs.contains_key(name) {
            return Err(Errno::NODATA);
        }
        self.inode_mut(number).xattrs.remove(name);
        Ok(())
    }
}
