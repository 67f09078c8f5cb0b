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

/// Number of evictions that are remembered; more than answers can be under way.
const EVICTIONS_MAX: usize = 4096;

/// Which objects (or their listings) have left memory since answers about them were asked for.
/// While an object is not in memory, the store's answer about it stays valid; but it may be loaded,
/// changed and evicted while an answer is under way.
#[derive(Debug, Default)]
pub(crate) struct EvictionLog {
    /// Grows with every eviction.
    epoch: u64,
    /// Answers asked for before are all stale.
    floor: u64,
    evicted_at: BTreeMap<ObjectId, u64>,
}

impl EvictionLog {
    /// The present epoch of requests.
    pub(super) const fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(super) fn evicted(&mut self, id: ObjectId) {
        self.epoch += 1;
        if self.evicted_at.len() >= EVICTIONS_MAX {
            self.all_evicted();
        }
        self.evicted_at.insert(id, self.epoch);
    }

    /// No answer that is under way is valid any more.
    pub(super) fn all_evicted(&mut self) {
        self.epoch += 1;
        self.floor = self.epoch;
        self.evicted_at.clear();
    }

    fn stayed_since(&self, id: ObjectId, epoch: u64) -> bool {
        epoch >= self.floor && self.evicted_at.get(&id).is_none_or(|&left| left <= epoch)
    }
}

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
