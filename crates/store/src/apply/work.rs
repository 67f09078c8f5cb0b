//! The work of an apply, and the state that all applies share.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mobifs_base::{Name, ObjectId};
use parking_lot::MutexGuard;

use crate::apply::backoff::rotate_for_apply;
use crate::apply::preallocation::Preallocations;
use crate::apply::reserve::Reserve;
use crate::locks::{Order, Rank, Ranked, RankedMutex};
use crate::lower::Lower;
use crate::overlay::Overlay;
use crate::overlay::pending::PendingObject;

/// Figures of applies since the store was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    written_bytes: AtomicU64,
    moved_bytes: AtomicU64,
    externally_modified: AtomicU64,
}

impl Counters {
    pub(crate) fn add_written(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn add_externally_modified(&self) {
        self.externally_modified.fetch_add(1, Ordering::Relaxed);
    }

    /// Content that has moved to another place: it was written, too.
    pub(crate) fn add_moved(&self, bytes: u64) {
        self.moved_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.add_written(bytes);
    }

    pub(crate) fn moved_bytes(&self) -> u64 {
        self.moved_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn externally_modified(&self) -> u64 {
        self.externally_modified.load(Ordering::Relaxed)
    }
}

/// State that is shared by all operations that change content in place.
#[derive(Debug, Default)]
pub(crate) struct Content {
    /// Applies that have begun.
    pub(super) applies: u64,
    /// A thread writes ahead; there is at most one.
    pub(super) is_ahead: bool,
}

impl Content {
    /// An apply begins: writing ahead ends, because its list of pending pages is outdated.
    pub(crate) const fn begin_apply(&mut self) {
        self.applies += 1;
    }
}

/// State that applies share with each other, and with commits.
pub(crate) struct Applier {
    content: RankedMutex<Content>,
    reserve: Reserve,
    preallocations: Preallocations,
    /// Memory that committed, unapplied pages may hold.
    held_bytes_max: u64,
    /// Fewer pages of existing files are not written ahead.
    ahead_pages_min: usize,
    /// Applies that have begun and continue after a refusal.
    partial_applies: AtomicU64,
    counters: Counters,
}

impl Applier {
    pub(crate) fn new(
        order: Order,
        reserve: Reserve,
        preallocations: Preallocations,
        held_bytes_max: u64,
        ahead_pages_min: usize,
    ) -> Self {
        Self {
            content: RankedMutex::new(order, Rank::Content, Content::default()),
            reserve,
            preallocations,
            held_bytes_max,
            ahead_pages_min,
            partial_applies: AtomicU64::new(0),
            counters: Counters::default(),
        }
    }

    /// Locked while content is changed in place.
    pub(crate) fn content(&self) -> Ranked<MutexGuard<'_, Content>> {
        self.content.lock()
    }

    pub(crate) const fn reserve(&self) -> &Reserve {
        &self.reserve
    }

    pub(crate) const fn preallocations(&self) -> &Preallocations {
        &self.preallocations
    }

    pub(crate) const fn held_bytes_max(&self) -> u64 {
        self.held_bytes_max
    }

    pub(crate) const fn ahead_pages_min(&self) -> usize {
        self.ahead_pages_min
    }

    pub(crate) const fn counters(&self) -> &Counters {
        &self.counters
    }
}

/// The work of an apply, as of its start. Nothing is committed while it runs.
pub(crate) struct Work {
    pub(crate) objects: HashMap<ObjectId, Arc<PendingObject>>,
    pub(crate) dentries: Vec<((ObjectId, Name), Option<ObjectId>)>,
}

impl Work {
    /// All that is pending.
    pub(crate) fn take<L: Lower>(overlay: &Overlay<L>) -> Self {
        let state = overlay.state();
        #[cfg(debug_assertions)]
        state.pending.assert_consistent();
        let dentries = state.pending.dentries().iter();
        let mut dentries: Vec<_> = dentries.map(|(k, v)| (k.clone(), *v)).collect();
        // From the root downwards: then the path to each directory is open already, or short; in
        // another order each path might be as long as the tree is deep.
        let depths = state.depths_of(dentries.iter().map(|((parent, _), _)| *parent));
        dentries.sort_by_cached_key(|((parent, _), _)| depths.get(parent).copied());
        Self {
            objects: state.pending.objects().clone(),
            dentries,
        }
    }

    /// Entries are a ring, and each apply that continues after a refusal begins at a later one: the
    /// entries that it skips differ from apply to apply.
    pub(super) fn rotate_entries(&mut self, applier: &Applier) {
        let number = applier.partial_applies.fetch_add(1, Ordering::Relaxed);
        rotate_for_apply(&mut self.dentries, number);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.dentries.is_empty()
    }
}
