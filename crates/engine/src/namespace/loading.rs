//! Bringing objects into memory: answers of the store, and which of them still hold.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use mobifs_base::{DirectoryEntry, Name, ObjectId, ObjectInfo, Xattr};

use super::Namespace;
use crate::RESERVED_NAME;
use crate::directory::{Listing, Slot};
use crate::error::{Need, Stop};
use crate::inode::{Body, Inode};

impl Namespace {
    /// The present epoch of requests about an object: its answer must bring it back.
    pub(crate) const fn epoch(&self) -> u64 {
        self.eviction_log.epoch()
    }

    /// Answers [`Need::Object`].
    pub(crate) fn provide_object(&mut self, id: ObjectId, epoch: u64, info: ObjectInfo) {
        if self.accepts(id, epoch) && !self.contains_key(&id) {
            self.fetched.insert(id, info);
        }
    }

    /// Answers [`Need::Directory`].
    pub(crate) fn provide_directory(
        &mut self,
        id: ObjectId,
        epoch: u64,
        mut entries: Vec<DirectoryEntry>,
    ) {
        if !self.accepts(id, epoch) {
            return;
        }
        let mut directory: Box<_> = self.new_directory();
        let Some(inode) = self.get(&id) else {
            return;
        };
        if let Body::Directory(Listing::NotLoaded(displaced)) = &inode.body {
            if id == ObjectId::ROOT {
                entries.retain(|entry| entry.name.as_bytes() != RESERVED_NAME);
            }
            directory.load(entries, displaced);
            self.load_entries(id, directory);
            // Known again before the store forgot it.
            self.forgotten.remove(&id);
        }
    }

    /// Whether an answer that names objects and was asked for at `epoch` is still valid.
    fn accepts(&self, id: ObjectId, epoch: u64) -> bool {
        self.eviction_log.stayed_since(id, epoch) && !self.is_forgetting
    }

    /// Answers [`Need::Xattrs`].
    pub(crate) fn provide_xattrs(&mut self, id: ObjectId, epoch: u64, xattrs: Vec<Xattr>) {
        if !self.eviction_log.stayed_since(id, epoch) {
            return;
        }
        if let Some(inode) = self.get_mut(&id)
            && inode.xattrs.is_none()
        {
            *inode.xattrs = Some(xattrs.into_iter().collect::<BTreeMap<_, _>>());
        }
    }

    /// Answers [`Need::SymlinkTarget`].
    pub(crate) fn provide_symlink_target(&mut self, id: ObjectId, epoch: u64, target: Vec<u8>) {
        if !self.eviction_log.stayed_since(id, epoch) {
            return;
        }
        if let Some(Inode {
            body: Body::Symlink(loaded @ None),
            ..
        }) = self.get_mut(&id)
        {
            *loaded = Some(Arc::from(target));
        }
    }

    /// Makes sure that the object which `parent`/`name` names is in memory; true if it was
    /// already.
    pub(crate) fn load_named(
        &mut self,
        parent: ObjectId,
        name: &[u8],
        slot: Slot,
    ) -> Result<bool, Stop> {
        let id = slot.id;
        if self.contains_key(&id) {
            return Ok(true);
        }
        let Some(info) = self.fetched.remove(&id) else {
            let epoch = self.epoch();
            return Err(Stop::Need(Need::Object { id, epoch }));
        };
        let inode = Inode::from_store(&info, parent, Some(Name::new(name)?));
        self.insert_inode(id, inode)?;
        Ok(false)
    }
}
