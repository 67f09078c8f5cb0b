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
mod joint_transactions;
mod limits;
mod memory;
mod names;
mod placed;
mod rename;
mod status;

use alloc::boxed::Box;

use mobifs_base::{MonotonicNs, ObjectId, ObjectInfo};

pub(crate) use commit::object_state;
pub use commit::{Overdue, SyncPoint};
pub use limits::RemovalMemory;
pub use status::{AppStatus, EngineStatus};

use self::commit_size::DurableSyncs;
use crate::accounting::Accounting;
use crate::app::AppRules;
use crate::apps::Apps;
use crate::limits::Limits;
use crate::namespace::Namespace;
use crate::persist::restore::{Parts, restore};
use crate::persist::save::SaveState;
use crate::persist::{Key, PageAt, RestartImage, RestartImageError};
use crate::super_journals::SuperJournals;
use crate::transactions::Transactions;
use crate::versions::FetchedContent;

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
    fetched_content: FetchedContent,
    durable_syncs: DurableSyncs,
    super_journals: SuperJournals,
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

/// Its life: making one, its rules, its restart image.
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
            fetched_content: FetchedContent::default(),
            durable_syncs: DurableSyncs::default(),
            super_journals: SuperJournals::default(),
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
        engine.super_journals = SuperJournals::restored(&engine.namespace);
        engine.refresh_policies();
        Ok(engine)
    }
}

/// Milliseconds from an earlier moment.
const fn age_ms(now: MonotonicNs, then: MonotonicNs) -> u64 {
    now.ms_since(then)
}
