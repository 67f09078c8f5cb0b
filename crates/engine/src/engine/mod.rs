//! The engine: one mount's state, and what every operation needs.
//!
//! Every operation first makes sure that all it needs is in memory (else it stops
//! with [`Need`] having changed nothing), then changes everything at once, then lets
//! the policy look at the transaction. So a transaction never ends inside an
//! operation.

mod attributes;
mod checkpoint;
mod create;
mod file;
mod loading;
mod memory;
mod namespace;
mod range;
mod read;
mod rename;
mod schedule;
mod status;
mod transaction;
mod trim;
mod xattr;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use foldhash::fast::FixedState;
use mobifs_base::{
    AppId, ByteRange, MonotonicNs, Name, ObjectId, ObjectInfo, Page, PageIndex, TransactionId,
};

pub(crate) use checkpoint::object_state;
pub use checkpoint::{ClosedUntil, SyncPoint};
pub(crate) use memory::Room;
pub use memory::{FullDisk, Limits, RemovalMemory};
pub use read::{ReadPlan, ReadSegment};
pub use schedule::Overdue;
pub use status::{AppStatus, EngineStatus};
pub use trim::{KernelHeld, References, Trimmed};

use crate::app::{App, AppRules, Class};
use crate::error::{FsError, Stop};
use crate::inode::Inode;
use crate::persist::dirty_tracking::{Closed, Inodes, Open, UnsavedKeys};
use crate::{HashMap, RESERVED_NAME};

/// Bytes of an object, and the object's version.
type PlaceAsked = (ObjectId, ByteRange, u64);

/// The app of everything that lies in no app directory.
const ROOT_APP: AppId = AppId(0);

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
    pub(crate) rules: Box<dyn AppRules>,
    pub(crate) limits: Limits,
    pub(crate) hash_seed: u64,
    pub(crate) hasher: FixedState,
    pub(crate) inodes: Inodes,
    pub(crate) apps: Vec<App>,
    pub(crate) app_ids: BTreeMap<Vec<u8>, AppId>,
    /// Some app is durable: its `fsync` waits for the commits of others.
    pub(crate) has_durable_apps: bool,
    /// Grows when a directory moves: cached apps are looked up anew.
    pub(crate) app_epoch: u64,
    pub(crate) open: Open,
    pub(crate) closed: Closed,
    /// The open transaction that all apps' changes go to, if there is one.
    pub(crate) everywhere: Option<TransactionId>,
    pub(crate) next_transaction: u64,
    /// Transactions closed by this engine.
    pub(crate) closings: u64,
    pub(crate) next_object: u64,
    /// What has left memory: answers about it that were asked for before are stale.
    pub(crate) departures: loading::Departures,
    /// Attributes that arrived for objects that the retried operation will adopt.
    pub(crate) arrivals: HashMap<ObjectId, ObjectInfo>,
    /// Committed pages that arrived for partial writes, with the inode's version.
    pub(crate) page_arrivals: Vec<(ObjectId, PageIndex, u64, Page)>,
    /// Whether bytes have their blocks below, of an object's version.
    pub(crate) place_arrivals: Vec<(PlaceAsked, bool)>,
    /// Directories and deleted objects that left memory since
    /// [`Engine::take_forgotten`].
    pub(crate) forgotten: BTreeSet<ObjectId>,
    /// Objects in memory with [`Inode::had_several_names`].
    pub(crate) several_names: BTreeSet<ObjectId>,
    /// The store is forgetting what was taken.
    pub(crate) is_forgetting: bool,
    /// Pinned objects that went out of use since [`Engine::take_unpinned`].
    pub(crate) unpinned: Vec<ObjectId>,
    pub(crate) room: memory::Room,
    /// Apps whose record in the restart image is not up to date.
    pub(crate) unsaved_apps: UnsavedKeys<AppId>,
    /// What the restart image's record of the engine itself says.
    pub(crate) saved_counters: Option<crate::persist::Counters>,
    /// Memory for records.
    pub(crate) scratch: crate::persist::codec::Writer,
}

impl core::fmt::Debug for Engine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Engine")
            .field("objects", &self.inodes.len())
            .field("open", &self.open.len())
            .field("closed", &self.closed.len())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// An engine over a store whose root directory is `root`.
    pub fn new(config: EngineConfig, root: &ObjectInfo) -> Self {
        let hasher = FixedState::with_seed(config.hash_seed);
        let is_saved = config.is_saved;
        let mut inodes = Inodes::new(hasher.clone(), is_saved);
        let mut root_inode = Inode::from_store(root, ObjectId::ROOT, None);
        root_inode.lookups = 1;
        inodes.insert(ObjectId::ROOT, root_inode);
        let root_app = App::new(b".".to_vec(), config.rules.policy(b"."));
        let has_durable_apps = root_app.policy.class == Class::Durable;
        let mut app_ids = BTreeMap::new();
        app_ids.insert(b".".to_vec(), ROOT_APP);
        let mut unsaved_apps = UnsavedKeys::new(is_saved);
        unsaved_apps.mark(ROOT_APP);
        Self {
            rules: config.rules,
            limits: config.limits,
            hash_seed: config.hash_seed,
            hasher: hasher.clone(),
            inodes,
            apps: alloc::vec![root_app],
            app_ids,
            has_durable_apps,
            app_epoch: 1,
            open: Open::new(is_saved),
            closed: Closed::new(is_saved),
            everywhere: None,
            next_transaction: 1,
            closings: 0,
            next_object: ObjectId::FIRST_NEW.0,
            departures: loading::Departures::default(),
            arrivals: HashMap::with_hasher(hasher),
            page_arrivals: Vec::new(),
            place_arrivals: Vec::new(),
            forgotten: BTreeSet::new(),
            several_names: BTreeSet::new(),
            is_forgetting: false,
            unpinned: Vec::new(),
            room: memory::Room::default(),
            unsaved_apps,
            saved_counters: None,
            scratch: crate::persist::codec::Writer::default(),
        }
    }

    /// Objects that are created from now on get ids from `first` on: an even offset, and
    /// above every id that the store knows. To be called before any is created.
    pub const fn number_objects_from(&mut self, first: ObjectId) {
        self.next_object = first.0;
    }

    /// Replaces the app rules while mounted; open transactions go on under the new
    /// limits.
    pub fn set_rules(&mut self, rules: Box<dyn AppRules>) {
        self.rules = rules;
        for app in &mut self.apps {
            app.policy = self.rules.policy(&app.path);
        }
        let mut apps = self.apps.iter();
        self.has_durable_apps = apps.any(|app| app.policy.class == Class::Durable);
        self.refresh_policies();
    }

    /// Tells the open transactions what the policies of their apps are.
    pub(crate) fn refresh_policies(&mut self) {
        let open: Vec<TransactionId> = self.open.keys().copied().collect();
        for transaction in open {
            if let Some(open) = self.open.get_mut(&transaction) {
                let policies = open.apps.iter();
                let policies = policies.map(|app| &self.apps[app.0 as usize].policy);
                open.closing.set_policies(policies);
            }
        }
    }

    /// The inode of an object that must be in memory because the kernel (or another
    /// caller) holds a reference to it.
    fn inode(&self, id: ObjectId) -> Result<&Inode, Stop> {
        self.inodes.get(&id).ok_or(Stop::Fail(FsError::Stale))
    }

    fn inode_mut(&mut self, id: ObjectId) -> Result<&mut Inode, Stop> {
        self.inodes.get_mut(&id).ok_or(Stop::Fail(FsError::Stale))
    }

    /// The next id for a created object: even offsets are the engine's, odd ones the
    /// store's.
    fn new_object_id(&mut self) -> ObjectId {
        let id = ObjectId(self.next_object);
        self.next_object += 2;
        id
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

    /// Milliseconds from an earlier moment.
    fn age_ms(now: MonotonicNs, then: MonotonicNs) -> u64 {
        now.ms_since(then)
    }
}
