//! The journal store: a checkpointer over any POSIX filesystem.
//!
//! A transaction is one sequential write to the journal ([`log`](crate::log)); its records are
//! merged into [`overlay`](crate::overlay), where reads find it, and is brought to the lower tree
//! later ([`apply`](crate::apply)), when many transactions have become one. After a crash the
//! journal is merged and applied the same way. `docs/DESIGN.md` argues why every crash ends in a
//! state that existed; `docs/FORMAT.md` has the bytes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mobifs_base::{
    ByteRange, DirectoryEntry, FullDisk, ObjectId, ObjectInfo, Page, PageIndex, SpaceInfo, Xattr,
};

use crate::apply::limbo::{self, Unnamed};
use crate::apply::preallocation::give_back::{GivenBack, give_back};
use crate::apply::work::Applier;
use crate::apply::{self, ahead, reserve};
use crate::calibration::shared::Measuring;
use crate::calibration::{Calibration, measure};
use crate::commit;
use crate::commit::counters::CommitCounters;
use crate::locks::{Rank, RankedMutex};
use crate::log::epoch::{Epoch, Usage};
use crate::lower::{Gate, Lower};
use crate::options::JournalOptions;
use crate::overlay::{Overlay, read};
use crate::recovery::report::{RecoveryReport, Resumed};
use crate::recovery::{self, Opened};
use crate::unlinked;
use crate::{
    Capabilities, PendingWork, RestartSink, RestartState, Seek, Store, StoreError, Transaction,
};

/// Facts about an open journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalInfo {
    /// Identity of the store.
    pub uuid: [u8; 16],
    /// Bytes for transactions: the size of the journal file without its superblocks.
    pub log_bytes: u64,
    /// The journal bypasses the page cache (`O_DIRECT`). Where the filesystem cannot,
    /// it is written through the cache and flushed: slower, not less safe.
    pub direct_io: bool,
    /// Largest transaction that is one durable write.
    pub direct_bytes_max: u64,
}

/// A store over a POSIX filesystem. See the module's documentation.
///
/// It only puts its parts together. Their locks are taken in the order of [`Rank`]: that of the epoch,
/// of content in place (in the [`Applier`]), of names and of the state (in the [`Overlay`]), and of
/// the handles that are kept.
pub struct JournalStore<L: Lower> {
    epoch: RankedMutex<Epoch<L::Handle>>,
    applier: Applier,
    overlay: Overlay<L>,
    capabilities: Capabilities,
    first_new: ObjectId,
    usage: Arc<Usage>,
    counters: CommitCounters,
    /// The largest durable write is configured.
    has_configured_threshold: bool,
    measuring: Measuring,
    /// The device is to be measured after an apply. Changed by the holder of the epoch only.
    is_unmeasured: AtomicBool,
}

impl<L: Lower> std::fmt::Debug for JournalStore<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JournalStore")
            .field("read_only", &self.overlay.is_read_only())
            .finish_non_exhaustive()
    }
}

impl<L: Lower> JournalStore<L> {
    #[cfg(test)]
    pub(crate) const fn overlay(&self) -> &Overlay<L> {
        &self.overlay
    }

    #[cfg(test)]
    pub(crate) const fn epoch(&self) -> &RankedMutex<Epoch<L::Handle>> {
        &self.epoch
    }

    fn new(opened: Opened<L>, options: &JournalOptions) -> Self {
        let Opened {
            order,
            overlay,
            applier,
            epoch,
            capabilities,
            first_new,
            is_unmeasured,
        } = opened;
        Self {
            usage: epoch.usage(),
            epoch: RankedMutex::new(order, Rank::Epoch, epoch),
            applier,
            overlay,
            capabilities,
            first_new,
            counters: CommitCounters::default(),
            has_configured_threshold: options.direct_bytes_max.is_some(),
            measuring: options.measuring,
            is_unmeasured: AtomicBool::new(is_unmeasured),
        }
    }

    /// After an apply: measures the device, if that was deferred and is due.
    fn measure_if_due(&self, epoch: &mut Epoch<L::Handle>) {
        let Measuring::Deferred {
            committed_bytes_min,
            devices,
        } = self.measuring
        else {
            return;
        };
        if !self.is_unmeasured.load(Ordering::Relaxed) {
            return;
        }
        let is_due = self.counters.written_bytes() >= committed_bytes_min;
        let is_done = measure::after_apply(&self.overlay, epoch, devices, is_due);
        self.is_unmeasured.store(!is_done, Ordering::Relaxed);
    }

    /// Opens the store at the root of `lower`, making it a store if it is none. Reads return its
    /// last committed state, applied or not.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`], [`StoreError::NewerFormat`] (nothing of what the journal speaks of
    /// was changed then), [`StoreError::Unsuitable`], [`StoreError::Lower`].
    pub fn open(lower: L, options: &JournalOptions) -> Result<(Self, RecoveryReport), StoreError> {
        let (opened, report) = recovery::open(lower, options)?;
        Ok((Self::new(opened, options), report))
    }

    /// As [`JournalStore::open`]; `sink` records everything that a successor of this
    /// process needs for [`JournalStore::resume`].
    ///
    /// # Errors
    /// As [`JournalStore::open`]; nothing was reported then.
    pub fn open_with_sink(
        lower: L,
        options: &JournalOptions,
        sink: Arc<dyn RestartSink>,
    ) -> Result<(Self, RecoveryReport), StoreError> {
        let (mut store, report) = Self::open(lower, options)?;
        store.overlay.watch(sink);
        Ok((store, report))
    }

    /// Opens the store that a killed process had open. Every id that it used names the same object
    /// as before, and what is pinned is readable. `sink` is expected to hold `saved` already, so
    /// that it has the whole state for a successor of this process.
    ///
    /// # Errors
    /// As [`JournalStore::open`], and [`StoreError::Copied`]. What was done until then is
    /// reported.
    pub fn resume(
        lower: L,
        options: &JournalOptions,
        sink: Arc<dyn RestartSink>,
        saved: RestartState,
    ) -> Result<(Self, Resumed), StoreError> {
        let (opened, resumed) = recovery::resume(lower, options, sink, saved)?;
        Ok((Self::new(opened, options), resumed))
    }

    /// Applies everything and marks the journal clean.
    ///
    /// # Errors
    /// As [`Store::apply`]. [`StoreError::Unapplied`]: all else is in its place, and the next mount
    /// goes on with it.
    pub fn close(&self) -> Result<(), StoreError> {
        let overlay = &self.overlay;
        if overlay.is_read_only() {
            return Ok(());
        }
        let mut epoch = self.epoch.lock();
        let mut applied = apply::apply_all(overlay, &self.applier, &mut epoch);
        if applied.is_ok() && give_back(overlay, &self.applier, &mut epoch, GivenBack::Everything) {
            applied = apply::apply_all(overlay, &self.applier, &mut epoch);
        }
        match &applied {
            Err(StoreError::Unapplied { .. }) => {}
            Err(_) => return applied,
            Ok(()) => {
                epoch.invalidate_tail(overlay.lower(), overlay.sink())?;
                epoch.close(overlay.lower())?;
            }
        }
        // Unknown names of an object will not be looked up any more.
        let empty = epoch.empty();
        limbo::empty_limbo(overlay, &empty, Unnamed::Pinned);
        limbo::sweep_stage(overlay, &empty, self.applier.reserve());
        applied
    }

    /// Before [`JournalStore::close`] where the mount has ended: nothing is in use any more, also
    /// objects that were never released.
    pub fn unpin_all(&self) {
        self.overlay.state_mut().unpin_all();
    }

    /// Facts about the journal.
    pub fn journal_info(&self) -> JournalInfo {
        let epoch = self.epoch.lock();
        JournalInfo {
            uuid: epoch.log().uuid(),
            log_bytes: epoch.log().total_bytes(),
            direct_io: epoch.log().direct_io(),
            direct_bytes_max: epoch.log().direct_bytes_max(),
        }
    }

    /// Writes content of what is pending to its place, as far as that can be done while others
    /// commit; [`Store::apply`] does so first. What is not done, or fails, is left to the apply.
    pub fn write_ahead(&self) {
        ahead::write_ahead(&self.overlay, &self.applier, &self.epoch, &self.counters);
    }
}

impl<L: Lower> Store for JournalStore<Gate<L>> {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn space(&self) -> Result<SpaceInfo, StoreError> {
        let space = self.overlay.lower().space();
        space
            .map(|space| reserve::without_reserve(&self.overlay, self.applier.reserve(), space))
            .map(|space| self.applier.preallocations().with_unused(space))
            .map_err(StoreError::lower("asking for free space"))
    }

    fn object(&self, id: ObjectId) -> Result<ObjectInfo, StoreError> {
        read::object(&self.overlay, id)
    }

    fn list_directory(&self, id: ObjectId) -> Result<Vec<DirectoryEntry>, StoreError> {
        self.overlay.state_mut().mark_listed(id);
        read::entries(&self.overlay, id)
    }

    fn xattrs(&self, id: ObjectId) -> Result<Vec<Xattr>, StoreError> {
        read::xattrs(&self.overlay, id)
    }

    fn read_link(&self, id: ObjectId) -> Result<Vec<u8>, StoreError> {
        read::link_target(&self.overlay, id)
    }

    fn read(&self, id: ObjectId, offset: u64, out: &mut [u8]) -> Result<(), StoreError> {
        read::content(&self.overlay, id, offset, out)
    }

    fn seek(&self, id: ObjectId, offset: u64, what: Seek) -> Result<Option<u64>, StoreError> {
        read::seek(&self.overlay, id, offset, what)
    }

    fn is_in_place(&self, id: ObjectId, range: ByteRange) -> Result<bool, StoreError> {
        read::is_in_place(&self.overlay, &self.applier, id, range)
    }

    fn commit(&self, transaction: Transaction) -> Result<(), StoreError> {
        let mut epoch = self.epoch.lock();
        commit::commit(
            &self.overlay,
            &self.applier,
            &self.counters,
            &mut epoch,
            transaction,
        )
    }

    fn apply(&self) -> Result<(), StoreError> {
        if self.overlay.is_read_only() {
            return Ok(());
        }
        self.write_ahead();
        let mut epoch = self.epoch.lock();
        apply::apply_all(&self.overlay, &self.applier, &mut epoch)?;
        self.measure_if_due(&mut epoch);
        Ok(())
    }

    fn calibration(&self) -> Option<Calibration> {
        self.usage.calibration().map(|measured| (*measured).clone())
    }

    fn calibrate(&self) -> Result<Calibration, StoreError> {
        let overlay = &self.overlay;
        if overlay.is_read_only() {
            return Err(StoreError::Unsuitable(
                "the store is read-only: measuring the device writes to its journal".to_owned(),
            ));
        }
        if self.has_configured_threshold {
            return Err(StoreError::Unsuitable(
                "direct_write_max_bytes is configured: what is measured would have no effect; remove it \
                 from the configuration and mount the store again"
                    .to_owned(),
            ));
        }
        self.write_ahead();
        let mut epoch = self.epoch.lock();
        apply::apply_all(overlay, &self.applier, &mut epoch)?;
        epoch.invalidate_tail(overlay.lower(), overlay.sink())?;
        let measured = measure::on_request(overlay, &mut epoch)?;
        self.is_unmeasured.store(false, Ordering::Relaxed);
        Ok((*measured).clone())
    }

    fn pending(&self) -> PendingWork {
        let state = self.overlay.state();
        PendingWork {
            journal_used_bytes: self.usage.used_bytes(),
            journal_total_bytes: self.usage.total_bytes(),
            held_bytes: state.pending.held_bytes(),
            reserved: state.pending.reserved(),
            commit_written_bytes: self.counters.written_bytes(),
            apply_written_bytes: self.applier.counters().written_bytes(),
            externally_modified: self.applier.counters().externally_modified(),
            commits: self.counters.commits(),
            preallocated_bytes: self.applier.preallocations().unused_bytes(),
            moved_bytes: self.applier.counters().moved_bytes(),
            journal: self.counters.journal(),
            durable_write_max_bytes: self.usage.direct_bytes_max(),
            on_full_disk: FullDisk {
                overwritten_bytes_max: self.usage.total_bytes() / 2,
                entries_bytes_max: self.applier.reserve().promised_bytes(),
            },
        }
    }

    fn first_new_object(&self) -> ObjectId {
        self.first_new
    }

    fn pin(&self, id: ObjectId) {
        self.overlay.state_mut().pin(id);
    }

    fn unpin(&self, id: ObjectId) {
        unlinked::release(&self.overlay, &self.epoch, id);
    }

    fn spill(&self, id: ObjectId, pages: &[(PageIndex, Page)]) -> Result<(), StoreError> {
        unlinked::spill(&self.overlay, &self.applier, &self.epoch, id, pages)
    }

    fn forget(&self, ids: &[ObjectId], in_use: &BTreeSet<ObjectId>) {
        unlinked::forget(&self.overlay, &self.epoch, ids, in_use);
    }

    fn cut_power(&self) {
        self.overlay.lower().inner().cut_power();
    }
}
