//! What comes into memory, and what leaves it.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use mobifs_base::{ByteRange, DirectoryEntry, ObjectId, ObjectInfo, Page, PageIndex, Xattr};

use super::Engine;
use crate::namespace::{References, Trimmed};

/// Most pages returned by one [`Engine::spill_candidate`].
const SPILL_PAGES_MAX: usize = 4096;

/// What the namespace and the page versions take from the store, and give back.
impl Engine {
    /// Answers [`Need::Object`](crate::Need::Object).
    pub fn provide_object(&mut self, id: ObjectId, epoch: u64, info: ObjectInfo) {
        self.namespace.provide_object(id, epoch, info);
    }

    /// Answers [`Need::Directory`](crate::Need::Directory).
    pub fn provide_directory(&mut self, id: ObjectId, epoch: u64, entries: Vec<DirectoryEntry>) {
        self.namespace.provide_directory(id, epoch, entries);
    }

    /// Answers [`Need::Xattrs`](crate::Need::Xattrs).
    pub fn provide_xattrs(&mut self, id: ObjectId, epoch: u64, xattrs: Vec<Xattr>) {
        self.namespace.provide_xattrs(id, epoch, xattrs);
    }

    /// Answers [`Need::SymlinkTarget`](crate::Need::SymlinkTarget).
    pub fn provide_symlink_target(&mut self, id: ObjectId, epoch: u64, target: Vec<u8>) {
        self.namespace.provide_symlink_target(id, epoch, target);
    }

    /// Answers [`Need::Page`](crate::Need::Page).
    pub fn provide_page(&mut self, object: ObjectId, index: PageIndex, version: u64, page: Page) {
        self.fetched_content.add_page(object, index, version, page);
    }

    /// Answers [`Need::Place`](crate::Need::Place).
    pub fn provide_place(
        &mut self,
        object: ObjectId,
        range: ByteRange,
        version: u64,
        is_in_place: bool,
    ) {
        self.fetched_content
            .add_place((object, range, version), is_in_place);
    }

    /// Objects in memory.
    pub fn objects(&self) -> u64 {
        self.namespace.len() as u64
    }

    /// Objects that may be in memory although no program uses them.
    pub fn objects_allowed(&self) -> u64 {
        self.limits.objects_allowed() as u64
    }

    /// Entries of all listings in memory.
    pub const fn listed_entries(&self) -> u64 {
        self.namespace.listed_entries() as u64
    }

    /// Whether more objects, or more entries of directories, than allowed are in memory, so
    /// that [`Engine::trim`] would look for some to evict.
    pub fn is_crowded(&self) -> bool {
        self.namespace.is_crowded(self.limits.objects_allowed())
    }

    /// Whether more objects than allowed are in memory.
    pub fn has_many_objects(&self) -> bool {
        self.namespace.len() > self.limits.objects_allowed()
    }

    /// One step towards the limits, if they are exceeded: looks at no more than `objects_max`
    /// objects, evicts unused ones, and the listings of directories without entries in memory, and
    /// returns those that only the kernel still refers to.
    ///
    /// Above the limit an eighth more than necessary is taken, so that not each new object
    /// makes a step necessary.
    pub fn trim(&mut self, objects_max: usize) -> Trimmed {
        let limit = self.limits.objects_allowed();
        self.namespace
            .trim(limit, objects_max, &mut self.accounting)
    }

    /// The kernel dropped `count` references to an object.
    pub fn forget(&mut self, id: ObjectId, count: u64) {
        self.namespace.forget(id, count);
        self.dispose_if_unused(id);
        let limit = self.limits.objects_allowed();
        self.namespace
            .evict_if_crowded(id, limit, &mut self.accounting);
    }

    pub(super) fn dispose_if_unused(&mut self, id: ObjectId) {
        self.namespace.dispose_if_unused(id, &mut self.accounting);
    }

    /// Objects that are looked up or open, and how often.
    pub fn references(&self) -> impl Iterator<Item = (ObjectId, References)> {
        self.namespace.references()
    }

    /// Directories whose listing, and deleted objects that, left memory since the last call: the
    /// store may forget them, and objects that it knows only as their entries.
    ///
    /// Until [`Engine::forgotten`] says that the store has done so, no answer that
    /// names objects is accepted, because the store may be about to forget these.
    pub fn take_forgotten(&mut self) -> Vec<ObjectId> {
        self.namespace.take_forgotten()
    }

    /// Whether [`Engine::take_forgotten`] would return any.
    pub fn has_forgotten(&self) -> bool {
        self.namespace.has_forgotten()
    }

    /// The store has forgotten what [`Engine::take_forgotten`] named.
    pub fn forgotten(&mut self) {
        self.namespace.forgotten();
    }

    /// Objects in memory of which the directory whose listing is kept for them need not be one
    /// that names them: the store must know these as long as they are here, whichever listings
    /// leave memory.
    pub const fn objects_with_several_names(&self) -> &BTreeSet<ObjectId> {
        self.namespace.several_names()
    }

    /// Pinned objects that went out of use since the last call: to be unpinned.
    pub fn take_unpinned(&mut self) -> Vec<ObjectId> {
        self.namespace.take_unpinned()
    }

    /// Whether [`Engine::take_unpinned`] would return any.
    pub const fn has_unpinned(&self) -> bool {
        self.namespace.has_unpinned()
    }

    /// Whether the store keeps the content of this object for us.
    pub fn has_pinned(&self, id: ObjectId) -> bool {
        self.namespace.get(&id).is_some_and(|inode| inode.pinned)
    }

    /// Whether the listing of this directory is in memory.
    pub fn has_listing(&self, id: ObjectId) -> bool {
        let inode = self.namespace.get(&id);
        inode.is_some_and(|inode| inode.directory().is_some())
    }

    /// Pages of an object without links that may leave memory by
    /// `Store::spill`: nothing uncommitted mentions it.
    pub fn spill_candidate(&self) -> Option<(ObjectId, Vec<(PageIndex, Page)>)> {
        self.namespace
            .iter()
            .filter(|(_, inode)| inode.is_orphan() && inode.usage.transactions() == 0)
            .map(|(&id, inode)| (id, inode.versions.spillable(SPILL_PAGES_MAX)))
            // The choice must not depend on the order of a hash table.
            .max_by_key(|(id, pages)| (pages.len(), id.0))
            .filter(|(_, pages)| !pages.is_empty())
    }

    /// The store now holds these pages of an orphan.
    pub fn spilled(&mut self, id: ObjectId, pages: &[(PageIndex, Page)]) {
        let Some(inode) = self.namespace.get_mut(&id) else {
            return;
        };
        inode.pinned = true;
        let bytes = inode.versions.spilled(pages);
        self.accounting.drop_orphan_pages(bytes);
    }
}
