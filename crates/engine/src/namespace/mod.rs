//! The namespace: the objects in memory, directories and their entries, and references.

mod apps;
mod creation;
mod entries;
mod eviction;
mod eviction_log;
mod loading;

use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use foldhash::fast::FixedState;
use mobifs_base::{FileKind, ObjectId, ObjectInfo};

pub(crate) use creation::room_of;
pub(crate) use eviction::OBJECT_MEMORY_BYTES;
pub use eviction::{KernelHeld, References, Trimmed};
use eviction_log::EvictionLog;

use crate::HashMap;
use crate::directory::{Directory, Listing};
use crate::error::{FsError, Stop};
use crate::inode::{Body, Inode};
use crate::persist::Kind;
use crate::persist::dirty_tracking::UnsavedKeys;
use crate::versions::Change;

/// A table with room for more objects than this shrinks when most of it is unused.
const KEPT_OBJECTS: usize = 4096;

/// The objects in memory: their places in the tree, their users, and what left memory.
///
/// Invariants:
/// * the root is in memory;
/// * the `home` of every object is, and counts it among its children;
/// * an object with a hold, a lookup or an open stays.
pub(crate) struct Namespace {
    /// Boxed: the table has up to twice as many places as objects.
    map: HashMap<ObjectId, Box<Inode>>,
    /// Objects with their stamps, in the order in which eviction looks at them. Entries with an
    /// outdated stamp are skipped.
    eviction_queue: VecDeque<(ObjectId, u64)>,
    next_stamp: u64,
    /// Entries of all listings that are loaded.
    listed_entries: usize,
    is_tracked: bool,
    pub(crate) unsaved: UnsavedKeys<ObjectId>,
    /// Unsaved parts of objects that were removed together with others: entries (by cookie) of
    /// directories that left memory, or whose listing did; pages of files that left memory; ranges
    /// (by their start) of changes that ended.
    gone: Vec<(Kind, ObjectId, u64)>,
    hash_seed: u64,
    hasher: FixedState,
    /// The id of the next object that is created.
    next_object: u64,
    /// Grows when a directory moves: cached apps are looked up anew.
    app_epoch: u64,
    /// What has left memory: answers about it that were asked for before are stale.
    eviction_log: EvictionLog,
    /// Attributes fetched for objects that the retried operation will adopt.
    fetched: HashMap<ObjectId, ObjectInfo>,
    /// Directories and deleted objects that left memory since [`Namespace::take_forgotten`].
    forgotten: BTreeSet<ObjectId>,
    /// The store is forgetting what was taken.
    is_forgetting: bool,
    /// Objects in memory with [`Inode::had_several_names`].
    several_names: BTreeSet<ObjectId>,
    /// Pinned objects that went out of use since [`Namespace::take_unpinned`].
    unpinned: Vec<ObjectId>,
}

/// The table of objects, which marks what changes as unsaved.
impl Namespace {
    /// The root alone, which the kernel refers to from the beginning. `hash_seed`: of hash tables
    /// and of the order of listings.
    pub(crate) fn new(root: &ObjectInfo, hash_seed: u64, is_tracked: bool) -> Self {
        let hasher = FixedState::with_seed(hash_seed);
        let mut namespace = Self {
            hash_seed,
            hasher: hasher.clone(),
            map: HashMap::with_hasher(hasher.clone()),
            eviction_queue: VecDeque::new(),
            next_stamp: 0,
            listed_entries: 0,
            is_tracked,
            unsaved: UnsavedKeys::new(is_tracked),
            gone: Vec::new(),
            next_object: ObjectId::FIRST_NEW.0,
            app_epoch: 1,
            eviction_log: EvictionLog::default(),
            fetched: HashMap::with_hasher(hasher),
            forgotten: BTreeSet::new(),
            is_forgetting: false,
            several_names: BTreeSet::new(),
            unpinned: Vec::new(),
        };
        let mut root = Inode::from_store(root, ObjectId::ROOT, None);
        root.usage.look_up();
        namespace.insert(ObjectId::ROOT, root);
        namespace
    }

    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    pub(crate) fn contains_key(&self, id: &ObjectId) -> bool {
        self.map.contains_key(id)
    }

    pub(crate) fn get(&self, id: &ObjectId) -> Option<&Inode> {
        self.map.get(id).map(|inode| &**inode)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&ObjectId, &Inode)> {
        self.map.iter().map(|(id, inode)| (id, &**inode))
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Inode> {
        self.map.values().map(|inode| &**inode)
    }

    pub(crate) fn is_tracked(&self) -> bool {
        self.is_tracked
    }

    /// Marks everything as unsaved.
    pub(crate) fn mark_all_unsaved(&mut self) {
        for (id, inode) in &mut self.map {
            self.unsaved.mark(*id);
            inode.versions.mark_all_unsaved();
            inode.xattrs.mark_unsaved();
            if let Some(directory) = inode.directory_mut() {
                directory.mark_all_unsaved();
            }
        }
    }

    pub(crate) fn get_mut(&mut self, id: &ObjectId) -> Option<&mut Inode> {
        let inode = self.map.get_mut(id)?;
        self.unsaved.mark(*id);
        Some(inode)
    }

    /// For what saving does itself, and for what the restart image does not hold.
    pub(crate) fn get_mut_untracked(&mut self, id: &ObjectId) -> Option<&mut Inode> {
        self.map.get_mut(id).map(|inode| &mut **inode)
    }

    fn insert(&mut self, id: ObjectId, mut inode: Inode) {
        inode.versions.track(self.is_tracked);
        self.unsaved.mark(id);
        inode.stamp = self.next_stamp;
        self.eviction_queue.push_back((id, inode.stamp));
        self.next_stamp += 1;
        self.listed_entries += inode.directory().map_or(0, Directory::len);
        self.map.insert(id, Box::new(inode));
    }

    /// The next object for eviction to look at; it moves to the end of the queue.
    fn next_to_evict(&mut self) -> Option<ObjectId> {
        while let Some((id, stamp)) = self.eviction_queue.pop_front() {
            if self.get(&id).is_some_and(|inode| inode.stamp == stamp) {
                self.eviction_queue.push_back((id, stamp));
                return Some(id);
            }
        }
        None
    }

    /// Entries of all listings that are loaded.
    pub(crate) const fn listed_entries(&self) -> usize {
        self.listed_entries
    }

    /// Changes the entries of a directory; none if its listing is not loaded.
    pub(crate) fn edit_listing(
        &mut self,
        id: ObjectId,
        edit: impl FnOnce(&mut Directory),
    ) -> Option<()> {
        self.unsaved.mark(id);
        let directory = self.map.get_mut(&id)?.directory_mut()?;
        let before = directory.len();
        edit(directory);
        self.listed_entries = self.listed_entries + directory.len() - before;
        Some(())
    }

    /// Loads the listing of a directory that is in memory.
    fn load_entries(&mut self, id: ObjectId, directory: Box<Directory>) {
        if let Some(inode) = self.get_mut(&id)
            && let Body::Directory(listing) = &mut inode.body
        {
            let entries = directory.len();
            *listing = Listing::Loaded(directory);
            self.listed_entries += entries;
        }
    }

    /// The change that an open transaction had of an object ends.
    pub(crate) fn take_change(&mut self, id: ObjectId) -> Option<Box<Change>> {
        let inode = self.get_mut(&id)?;
        let mut change = inode.versions.take_change()?;
        if !change.xattrs().is_empty() {
            inode.xattrs.mark_unsaved();
        }
        if self.is_tracked {
            change.mark_ranges_unsaved();
            let gone = &mut self.gone;
            change.take_unsaved_ranges(|kind, start, _| gone.push((kind, id, start)));
        }
        Some(change)
    }

    fn remove(&mut self, id: &ObjectId) -> Option<Box<Inode>> {
        self.unload(*id);
        self.take_change(*id);
        self.unsaved.mark(*id);
        let mut inode = self.map.remove(id)?;
        if self.is_tracked {
            let pages = inode.versions.take_page_records();
            self.gone
                .extend(pages.map(|index| (Kind::Page, *id, index.0)));
            if inode.xattrs.take_unsaved() || inode.has_xattr_record() {
                self.gone.push((Kind::Xattrs, *id, 0));
            }
        }
        self.shrink();
        Some(inode)
    }

    /// Gives the table's memory back when little of it is used: after many objects were in memory
    /// it would stay for ever. The cost of moving the rest is amortised by the many removals since
    /// it grew.
    fn shrink(&mut self) {
        let queued = self.eviction_queue.len();
        if queued > KEPT_OBJECTS && queued > self.map.len() * 2 {
            let map = &self.map;
            self.eviction_queue
                .retain(|(id, stamp)| map.get(id).is_some_and(|inode| inode.stamp == *stamp));
            self.eviction_queue.shrink_to(self.map.len() * 2);
        }
        let capacity = self.map.capacity();
        if capacity > KEPT_OBJECTS && self.map.len() < capacity / 8 {
            self.map.shrink_to(capacity / 4);
        }
    }

    /// Drops a directory's listing; false if it was not loaded.
    fn unload(&mut self, id: ObjectId) -> bool {
        let Some(inode) = self.map.get_mut(&id) else {
            return false;
        };
        let Some(mut directory) = inode.take_directory() else {
            return false;
        };
        self.unsaved.mark(id);
        self.listed_entries -= directory.len();
        if self.is_tracked {
            let cookies = directory.after(0).map(|(cookie, ..)| cookie);
            self.gone
                .extend(cookies.map(|cookie| (Kind::Dentry, id, cookie)));
            let marked = directory.unsaved.take().into_iter();
            self.gone
                .extend(marked.map(|cookie| (Kind::Dentry, id, cookie)));
        }
        true
    }
}

/// Objects by id.
impl Namespace {
    /// An object that must be in memory because the kernel (or another caller) holds a reference
    /// to it.
    pub(crate) fn inode(&self, id: ObjectId) -> Result<&Inode, Stop> {
        self.get(&id).ok_or(Stop::Fail(FsError::Stale))
    }

    /// As [`Namespace::inode`], to change it.
    pub(crate) fn inode_mut(&mut self, id: ObjectId) -> Result<&mut Inode, Stop> {
        self.get_mut(&id).ok_or(Stop::Fail(FsError::Stale))
    }

    /// Objects that are created from now on get ids from `first` on.
    pub(crate) const fn number_from(&mut self, first: ObjectId) {
        assert!(first.0.is_multiple_of(2), "even offsets are the engine's");
        self.next_object = first.0;
    }

    /// The next id for a created object: even offsets are the engine's, odd ones the
    /// store's.
    pub(crate) fn new_object_id(&mut self) -> ObjectId {
        let id = ObjectId(self.next_object);
        debug_assert!(!self.contains_key(&id), "{id} is the id of another object");
        self.next_object += 2;
        id
    }

    /// An empty directory.
    pub(crate) fn new_directory(&self) -> Box<Directory> {
        Box::new(Directory::new(self.hasher.clone(), self.is_tracked))
    }

    /// Puts an inode into memory, keeping the count of its home.
    pub(crate) fn insert_inode(&mut self, id: ObjectId, inode: Inode) -> Result<(), Stop> {
        self.inode_mut(inode.home)?.usage.add_child();
        if inode.had_several_names {
            self.several_names.insert(id);
        }
        self.insert(id, inode);
        Ok(())
    }

    /// Moves an inode's home, keeping the counts.
    pub(crate) fn set_home(&mut self, id: ObjectId, home: ObjectId) -> Result<(), Stop> {
        let before = core::mem::replace(&mut self.inode_mut(id)?.home, home);
        if before != home {
            self.inode_mut(home)?.usage.add_child();
            if let Some(inode) = self.get_mut(&before) {
                inode.usage.remove_child();
            }
        }
        Ok(())
    }

    /// The object has, or had, more names than one.
    pub(crate) fn set_had_several_names(&mut self, id: ObjectId) -> Result<(), Stop> {
        self.inode_mut(id)?.had_several_names = true;
        self.several_names.insert(id);
        Ok(())
    }

    /// Objects in memory of which the directory whose listing is kept for them need not be one
    /// that names them.
    pub(crate) const fn several_names(&self) -> &BTreeSet<ObjectId> {
        &self.several_names
    }

    /// An uncommitted transaction mentions the object no more.
    pub(crate) fn release_hold(&mut self, id: ObjectId) {
        if let Some(inode) = self.get_mut(&id) {
            inode.usage.release_hold();
        }
    }

    /// Fails unless the object is a directory that still exists and may be changed.
    pub(crate) fn check_directory(&self, id: ObjectId) -> Result<(), Stop> {
        let inode = self.inode(id)?;
        if !inode.is_directory() {
            return Err(FsError::NotDirectory.into());
        }
        if inode.foreign {
            return Err(FsError::CrossDevice.into());
        }
        if inode.is_orphan() {
            return Err(FsError::NotFound.into());
        }
        self.check_changeable(id)
    }

    /// Fails for what is immutable in the lower filesystem.
    pub(crate) fn check_changeable(&self, id: ObjectId) -> Result<(), Stop> {
        if self.inode(id)?.immutable {
            return Err(FsError::NotPermitted.into());
        }
        Ok(())
    }

    /// Fails unless the object is a regular file that may be used.
    pub(crate) fn check_file(&self, id: ObjectId) -> Result<(), Stop> {
        let inode = self.inode(id)?;
        match inode.attributes.kind {
            _ if inode.foreign => Err(FsError::CrossDevice.into()),
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(FsError::IsDirectory.into()),
            _ => Err(FsError::InvalidArgument.into()),
        }
    }
}

/// Restoring.
impl Namespace {
    /// The restart image's record of the namespace itself, besides objects.
    pub(crate) const fn counters(&self) -> (u64, u64, u64) {
        (self.next_object, self.app_epoch, self.hash_seed)
    }

    /// Continues with these. Listings continue at their cookies, by the same seed.
    pub(crate) fn restore_counters(&mut self, next_object: u64, app_epoch: u64, hash_seed: u64) {
        (self.next_object, self.app_epoch) = (next_object, app_epoch);
        self.hash_seed = hash_seed;
        self.hasher = FixedState::with_seed(hash_seed);
    }

    /// The hasher of directories.
    pub(crate) const fn hasher(&self) -> &FixedState {
        &self.hasher
    }

    /// Puts back an object; its home may come later.
    pub(crate) fn restore(&mut self, id: ObjectId, inode: Inode) {
        self.insert(id, inode);
    }

    /// Whether something is not saved.
    pub(crate) fn is_unsaved(&self) -> bool {
        !self.unsaved.is_empty()
    }

    /// Parts of objects that were removed since the last save.
    pub(crate) fn take_gone(&mut self) -> Vec<(Kind, ObjectId, u64)> {
        core::mem::take(&mut self.gone)
    }

    /// Recomputes the values that are derived from the objects.
    pub(crate) fn restore_several_names(&mut self) {
        let several = self.iter().filter(|(_, inode)| inode.had_several_names);
        self.several_names = several.map(|(&id, _)| id).collect();
    }
}
