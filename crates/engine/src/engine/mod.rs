//! The engine: one mount's state, and what every operation needs.
//!
//! Every operation first makes sure that all it needs is in memory (else it stops
//! with [`Need`](crate::Need) having changed nothing), then changes everything at once, then lets
//! the policy look at the transaction. So a transaction never ends inside an
//! operation.
//!
//! [`Engine`] is made of parts that own their state, each with a module of its own: the apps, the
//! namespace, the transactions, the accounting of memory and room, and what arrived from the
//! store. The operations here are what spans them.

mod attributes;
mod change;
mod commit;
mod commit_size;
mod content;
mod create;
mod limits;
mod merge;
mod names;
mod rename;
mod status;
mod xattr;

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use mobifs_base::{
    ByteRange, DirectoryEntry, MonotonicNs, Name, ObjectId, ObjectInfo, Page, PageIndex, Xattr,
};

pub(crate) use commit::object_state;
pub use commit::{Overdue, SyncPoint};
pub use limits::{Limits, RemovalMemory};
pub use status::{AppStatus, EngineStatus};

use self::commit_size::DurableSyncs;
use crate::RESERVED_NAME;
use crate::accounting::Accounting;
use crate::app::AppRules;
use crate::apps::Apps;
use crate::error::{FsError, Stop};
use crate::namespace::{Namespace, References, Trimmed};
use crate::persist::restore::{Parts, restore};
use crate::persist::save::SaveState;
use crate::persist::{Key, PageAt, RestartImage, RestartImageError};
use crate::transactions::Transactions;
use crate::versions::Arrivals;

/// What an [`Engine`] is made with.
pub struct EngineConfig {
    /// Which directories are apps, and their limits.
    pub rules: Box<dyn AppRules>,
    /// Limits of memory and of the lower filesystem.
    pub limits: Limits,
    /// Seed of the hash tables and of the order of listings; a random number where names may
    /// be hostile.
    pub hash_seed: u64,
    /// Changes are tracked, for [`Engine::save`].
    pub is_saved: bool,
}

/// One mount's state. See the crate documentation.
pub struct Engine {
    limits: Limits,
    apps: Apps,
    namespace: Namespace,
    transactions: Transactions,
    accounting: Accounting,
    arrivals: Arrivals,
    durable_syncs: DurableSyncs,
    save_state: SaveState,
}

impl core::fmt::Debug for Engine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Engine")
            .field("objects", &self.namespace.len())
            .field("transactions", &self.transactions)
            .finish_non_exhaustive()
    }
}

/// Making one, and its rules.
impl Engine {
    /// An engine over a store whose root directory is `root`.
    pub fn new(config: EngineConfig, root: &ObjectInfo) -> Self {
        let is_tracked = config.is_saved;
        Self {
            limits: config.limits,
            apps: Apps::new(config.rules, is_tracked),
            namespace: Namespace::new(root, config.hash_seed, is_tracked),
            transactions: Transactions::new(is_tracked),
            accounting: Accounting::default(),
            arrivals: Arrivals::default(),
            durable_syncs: DurableSyncs::default(),
            save_state: SaveState::default(),
        }
    }

    /// Objects that are created from now on get ids from `first` on: an even offset, and
    /// above every id that the store knows. To be called before any is created.
    pub const fn number_objects_from(&mut self, first: ObjectId) {
        self.namespace.number_from(first);
    }

    /// Replaces the app rules while mounted; open transactions continue under the new limits.
    pub fn set_rules(&mut self, rules: Box<dyn AppRules>) {
        self.apps.set_rules(rules);
        self.refresh_policies();
    }

    /// Applies the current policies of the apps to their open transactions.
    fn refresh_policies(&mut self) {
        for id in self.transactions.open_ids() {
            if let Some(open) = self.transactions.open_mut(id) {
                open.closing.set_policies(self.apps.policies(&open.apps));
            }
        }
    }

    /// Checks a name given for a new entry.
    fn new_name(&self, parent: ObjectId, name: &[u8]) -> Result<Name, Stop> {
        let name = Name::new(name)?;
        if name.as_bytes().len() > self.limits.name_bytes_max {
            return Err(FsError::NameTooLong.into());
        }
        if parent == ObjectId::ROOT && name.as_bytes() == RESERVED_NAME {
            return Err(FsError::NotPermitted.into());
        }
        Ok(name)
    }
}

/// The restart image.
impl Engine {
    /// Whether something changed since the last [`Engine::save`].
    pub fn is_unsaved(&self) -> bool {
        let state = &self.save_state;
        state.is_unsaved(&self.apps, &self.namespace, &self.transactions)
    }

    /// Hands out everything that changed since the last call. `image` stores the dirty pages. The
    /// engine must have been made with [`EngineConfig::is_saved`].
    pub fn save(&mut self, image: &mut dyn RestartImage) {
        self.save_state.save(
            &mut self.apps,
            &mut self.namespace,
            &mut self.transactions,
            image,
        );
    }

    /// Hands out everything, for an empty restart image.
    pub fn save_all(&mut self, image: &mut dyn RestartImage) {
        self.save_state.mark_unsaved();
        self.apps.mark_all_unsaved();
        self.namespace.mark_all_unsaved();
        self.transactions.mark_all_unsaved();
        self.save(image);
    }

    /// Makes the engine whose records these are.
    ///
    /// `page_at` gives back the page that [`RestartImage::keep`] stored at a place. `spilled` are
    /// the objects with pages in the store ([`Engine::spilled`]).
    ///
    /// # Errors
    /// [`RestartImageError`] if the records contradict each other.
    pub fn restore(
        config: EngineConfig,
        root: &ObjectInfo,
        records: &mut dyn Iterator<Item = (Key, &[u8])>,
        page_at: PageAt<'_>,
        spilled: &[ObjectId],
    ) -> Result<Self, RestartImageError> {
        let mut engine = Self::new(config, root);
        let parts = Parts {
            apps: &mut engine.apps,
            namespace: &mut engine.namespace,
            transactions: &mut engine.transactions,
            accounting: &mut engine.accounting,
        };
        restore(parts, records, page_at, spilled)?;
        engine.refresh_policies();
        Ok(engine)
    }
}

/// Answers to [`Need`](crate::Need)s.
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
        self.arrivals.add_page(object, index, version, page);
    }

    /// Answers [`Need::Place`](crate::Need::Place).
    pub fn provide_place(
        &mut self,
        object: ObjectId,
        range: ByteRange,
        version: u64,
        is_in_place: bool,
    ) {
        self.arrivals
            .add_place((object, range, version), is_in_place);
    }
}

/// What is in memory, and what leaves it.
impl Engine {
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

    fn dispose_if_unused(&mut self, id: ObjectId) {
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
}

/// Milliseconds from an earlier moment.
const fn age_ms(now: MonotonicNs, then: MonotonicNs) -> u64 {
    now.ms_since(then)
}
