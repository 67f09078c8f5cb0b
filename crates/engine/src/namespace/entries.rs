//! Entries of directories.

use mobifs_base::{FileKind, Name, ObjectId};

use super::Namespace;
use crate::directory::{Directory, Slot};
use crate::error::{FsError, Need, Stop};

impl Namespace {
    /// The entries of a directory.
    pub(crate) fn entries(&self, id: ObjectId) -> Result<&Directory, Stop> {
        let inode = self.inode(id)?;
        if !inode.is_directory() {
            return Err(FsError::NotDirectory.into());
        }
        if inode.foreign {
            return Err(FsError::CrossDevice.into());
        }
        inode.directory().ok_or(Stop::Need(Need::Directory {
            id,
            epoch: self.epoch(),
        }))
    }

    /// What `name` in `parent` names, if anything.
    pub(crate) fn entry(&self, parent: ObjectId, name: &[u8]) -> Result<Option<Slot>, Stop> {
        if name.len() > mobifs_base::NAME_BYTES_MAX {
            return Err(FsError::NameTooLong.into());
        }
        Ok(self.entries(parent)?.get(name))
    }

    /// Adds an entry to a directory that was found loaded before, or lets an existing one name
    /// another object.
    pub(crate) fn set_entry(
        &mut self,
        parent: ObjectId,
        name: &Name,
        id: ObjectId,
        kind: FileKind,
    ) -> Result<(), Stop> {
        self.edit_entries(parent, |entries| entries.insert(name.clone(), id, kind))
    }

    /// Removes an entry from a directory that was found loaded before.
    pub(crate) fn remove_entry(&mut self, parent: ObjectId, name: &Name) -> Result<(), Stop> {
        self.edit_entries(parent, |entries| entries.remove(name.as_bytes()))
    }

    fn edit_entries(
        &mut self,
        id: ObjectId,
        edit: impl FnOnce(&mut Directory),
    ) -> Result<(), Stop> {
        let epoch = self.epoch();
        let edited = self.edit_listing(id, edit);
        edited.ok_or(Stop::Need(Need::Directory { id, epoch }))
    }
}
