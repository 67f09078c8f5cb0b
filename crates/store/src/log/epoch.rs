//! The journal's epoch under way, as commits and applies write it.
//!
//! An epoch begins with its superblock and ends when everything in it is applied, or carried over
//! to the next one. The holder of the epoch is the only writer.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mobifs_base::{ObjectId, PAGE_BYTES_U64};
use parking_lot::Mutex;

use crate::calibration::{Calibration, WriteTimes};
use crate::log::Log;
use crate::log::outstanding_copies::OutstandingCopies;
use crate::log::overflow::{self, Overflow};
use crate::log::record::Record;
use crate::lower::Lower;
use crate::{Intent, RestartSink, StoreError};

/// Journal that every commit leaves free: apply records the inodes of new objects in one
/// more transaction, or in an overflow file and one block that mentions it.
pub(crate) const BIND_RESERVE_BYTES: u64 = 2 * PAGE_BYTES_U64;

/// How far the renames of an apply of this epoch may have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RenameMark {
    /// Nothing was renamed.
    NotBegun,
    /// Everything but names is applied; names may have moved; nothing was committed since.
    ContentDone,
    /// Names may have moved, and what else is applied is not known: transactions were committed since,
    /// or the mark covers a part only.
    Unknown,
}

/// The carried records of an epoch, as soon as its superblock is in force.
pub(crate) struct Carried {
    /// The file with the records.
    pub(crate) file: Overflow,
    pub(crate) records: Vec<Record>,
    /// Objects whose places these record.
    pub(crate) recorded: HashSet<ObjectId>,
    /// The error of the apply.
    pub(crate) error: StoreError,
}

/// Copies of the journal's figures, so that reading them does not wait for a commit.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    used_bytes: AtomicU64,
    total_bytes: AtomicU64,
    direct_bytes_max: AtomicU64,
    /// Locked only while it is copied or replaced.
    calibration: Mutex<Option<Arc<Calibration>>>,
}

impl Usage {
    pub(crate) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn total_bytes(&self) -> u64 {
        self.total_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn direct_bytes_max(&self) -> u64 {
        self.direct_bytes_max.load(Ordering::Relaxed)
    }

    /// What was measured of the device, if it was.
    pub(crate) fn calibration(&self) -> Option<Arc<Calibration>> {
        self.calibration.lock().clone()
    }
}

/// Shows that the epoch has no transaction, so that nothing which the journal mentioned before is
/// needed any more.
pub(crate) struct EmptyEpoch {
    /// Number of the overflow file that the epoch has begun with.
    pub(crate) carried_file: u64,
}

/// The epoch under way.
pub(crate) struct Epoch<H> {
    log: Log<H>,
    /// Objects whose place the journal's epoch records already.
    recorded: HashSet<ObjectId>,
    /// Number of the next overflow file.
    next_overflow: u64,
    /// The journal's record of renames in this epoch.
    rename_mark: RenameMark,
    outstanding: OutstandingCopies,
    /// Names were renamed since the lower filesystem was last synced as a whole.
    has_unsynced_renames: bool,
    /// The carried records of the next epoch, while its superblock is not in force.
    carried: Option<Carried>,
    /// Memory of the records that the epoch has begun with: applying does not free it.
    carried_bytes: u64,
    /// The sink has the intent of a transaction that is not known to be in the journal.
    has_open_intent: bool,
    usage: Arc<Usage>,
}

impl<H> Epoch<H> {
    /// The epoch of a journal that was opened.
    pub(crate) fn found(
        log: Log<H>,
        recorded: HashSet<ObjectId>,
        next_overflow: u64,
        rename_mark: RenameMark,
        outstanding: OutstandingCopies,
    ) -> Self {
        let epoch = Self {
            log,
            recorded,
            next_overflow,
            rename_mark,
            outstanding,
            // The log is made durable before it is used.
            has_unsynced_renames: false,
            carried: None,
            carried_bytes: 0,
            has_open_intent: false,
            usage: Arc::default(),
        };
        epoch.publish();
        epoch
    }

    pub(crate) const fn log(&self) -> &Log<H> {
        &self.log
    }

    /// The journal's figures, as they are at any time.
    pub(crate) fn usage(&self) -> Arc<Usage> {
        Arc::clone(&self.usage)
    }

    pub(crate) const fn rename_mark(&self) -> RenameMark {
        self.rename_mark
    }

    /// The copies in the journal that need their sources.
    pub(crate) const fn outstanding_copies(&self) -> &OutstandingCopies {
        &self.outstanding
    }

    /// No record of a copy in the journal needs its source any more, and there will be none.
    pub(crate) fn mark_materialized(&mut self) {
        self.outstanding.clear();
        self.publish();
    }

    /// Whether the next transaction may have records of copies.
    pub(crate) fn may_copy(&self) -> bool {
        self.outstanding.may_copy() && self.rename_mark == RenameMark::NotBegun
    }

    /// A transaction with these records is written next. Also if that fails they count: they may be
    /// found after a power cut.
    pub(crate) fn add_copies(&mut self, records: &[Record]) {
        records
            .iter()
            .for_each(|record| self.outstanding.add(record));
    }

    /// Journal that commits leave free: an apply needs it.
    pub(crate) fn kept_bytes(&self) -> u64 {
        BIND_RESERVE_BYTES + self.outstanding.materialized_bytes_max()
    }

    /// Bytes that are free for the next transaction.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.log.free_bytes().saturating_sub(self.kept_bytes())
    }

    pub(crate) const fn recorded(&self) -> &HashSet<ObjectId> {
        &self.recorded
    }

    /// These objects' places are in the journal, durably.
    pub(crate) fn add_recorded(&mut self, recorded: HashSet<ObjectId>) {
        self.recorded.extend(recorded);
    }

    /// Objects are not at the places that the journal has recorded any more: later commits record
    /// the new ones.
    pub(crate) fn forget_recorded(&mut self) {
        self.recorded.clear();
    }

    pub(crate) const fn next_overflow(&self) -> u64 {
        self.next_overflow
    }

    /// The number of the next overflow file, which nothing refers to yet.
    pub(crate) fn take_overflow(&mut self) -> u64 {
        let number = self.next_overflow;
        self.next_overflow += 1;
        number
    }

    /// Number of the overflow file that the epoch begins with; 0: none.
    pub(crate) fn carried_file(&self) -> u64 {
        self.log.carried().map_or(0, |carried| carried.file)
    }

    /// Memory of the records that the epoch has begun with.
    pub(crate) const fn carried_bytes(&self) -> u64 {
        self.carried_bytes
    }

    pub(crate) const fn set_carried_bytes(&mut self, bytes: u64) {
        self.carried_bytes = bytes;
    }

    /// The next epoch begins with this.
    pub(crate) fn carry(&mut self, carried: Carried) {
        self.carried = Some(carried);
    }

    /// Whether the journal has the room that every commit leaves free.
    pub(crate) fn has_room_to_apply(&self) -> bool {
        self.log.free_bytes() >= BIND_RESERVE_BYTES
    }

    /// Whether an apply that cannot apply everything may begin the next epoch with the rest.
    pub(crate) fn may_carry(&self) -> bool {
        !self.log.is_epoch_unknown() && self.log.may_carry()
    }

    /// Whether nothing was written to the journal, and nothing was renamed, since the epoch began.
    pub(crate) fn is_new(&self) -> bool {
        let has_begun = self.rename_mark != RenameMark::NotBegun || self.has_unsynced_renames;
        !self.log.is_epoch_unknown() && self.log.is_empty() && !has_begun
    }

    /// Whether the journal has room for this transaction, leaving some after it.
    pub(crate) fn fits(&self, records: &[Record], reserve_bytes: u64) -> bool {
        let room = self.log.free_bytes().saturating_sub(reserve_bytes);
        Log::<H>::transaction_bytes(records) <= room
    }

    /// Writes one transaction, durably, leaving some room after it; returns the bytes written. A
    /// transaction that is too large for the journal is written to an overflow file in `stage`.
    ///
    /// # Errors
    /// [`StoreError::Lower`].
    pub(crate) fn append(
        &mut self,
        lower: &impl Lower<Handle = H>,
        stage: &H,
        records: &[Record],
        reserve_bytes: u64,
    ) -> Result<u64, StoreError> {
        let (epoch, sequence) = self.log.next();
        let written = if self.fits(records, reserve_bytes) {
            self.log.append(lower, records)?
        } else {
            // Where this fails, the number stays that of the next file.
            let file = self.next_overflow;
            let written = overflow::write(lower, stage, file, records)
                .inspect_err(|_| overflow::give_up(lower, stage, file));
            let (written, bytes) = written?;
            self.next_overflow += 1;
            bytes + self.log.append(lower, &[written.into()])?
        };
        debug_assert_eq!(
            self.log.next(),
            (epoch, sequence + 1),
            "one transaction, of this epoch"
        );
        if self.rename_mark == RenameMark::ContentDone {
            // The mark does not cover this transaction.
            self.rename_mark = RenameMark::Unknown;
        }
        self.publish();
        Ok(written)
    }

    /// Appends one transaction, leaving the room that an apply takes; returns the bytes written. The sink has the
    /// intent of its `tags` as long as it is uncertain; the places that it records, of the objects `recorded`, need not
    /// be recorded again.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub(crate) fn commit(
        &mut self,
        (lower, stage): (&impl Lower<Handle = H>, &H),
        sink: Option<&dyn RestartSink>,
        tags: &[u64],
        records: &[Record],
        recorded: HashSet<ObjectId>,
    ) -> Result<u64, StoreError> {
        self.announce(sink, tags);
        let written = self.append(lower, stage, records, self.kept_bytes());
        self.conclude(sink, &written);
        let written = written?;
        self.add_recorded(recorded);
        Ok(written)
    }

    /// The journal has a durable record that renames begin; `is_everything`: and that everything
    /// else is applied.
    pub(crate) fn set_rename_mark(&mut self, is_everything: bool) {
        self.rename_mark = if is_everything {
            RenameMark::ContentDone
        } else {
            RenameMark::Unknown
        };
    }

    /// Renames begin.
    ///
    /// After a failure from here on, the places that the journal has recorded are outdated:
    /// transactions before the next attempt record the new ones.
    pub(crate) fn begin_renames(&mut self) {
        self.has_unsynced_renames = true;
        self.recorded.clear();
    }

    /// Makes renames durable, if any are not.
    ///
    /// After an apply that failed during renames, this is done before the next transaction:
    /// recovery finds an object at a place that the journal records or gives it, and the next
    /// transaction may remove the names at which a crash would leave it.
    pub(crate) fn sync_renames(
        &mut self,
        lower: &impl Lower<Handle = H>,
    ) -> Result<(), StoreError> {
        if self.has_unsynced_renames {
            lower
                .sync_all()
                .map_err(StoreError::lower("making applied changes durable"))?;
            self.has_unsynced_renames = false;
        }
        Ok(())
    }

    /// Invalidates the journal: all of it is applied and durable, or carried over; returns the
    /// records that the new epoch begins with.
    ///
    /// # Errors
    /// [`StoreError::Lower`]: it is open which epoch is in force; nothing is applied again, the new
    /// epoch alone is tried again.
    pub(crate) fn begin_next(
        &mut self,
        lower: &impl Lower<Handle = H>,
    ) -> Result<(EmptyEpoch, Option<Carried>), StoreError> {
        debug_assert!(
            !self.has_unsynced_renames,
            "a new epoch begins after a barrier"
        );
        match &self.carried {
            Some(carried) => self.log.reset_carrying(lower, carried.file)?,
            None => self.log.reset(lower, false)?,
        }
        let empty = self.empty();
        self.rename_mark = RenameMark::NotBegun;
        self.outstanding = OutstandingCopies::of_new_epoch(self.log.may_copy());
        self.publish();
        let mut carried = self.carried.take();
        self.recorded = carried.as_mut().map_or_else(HashSet::new, |carried| {
            std::mem::take(&mut carried.recorded)
        });
        Ok((empty, carried))
    }

    /// What the journal mentioned may be deleted.
    ///
    /// # Panics
    /// If the epoch has a transaction.
    pub(crate) fn empty(&self) -> EmptyEpoch {
        assert_eq!(
            self.log.used_bytes(),
            0,
            "no inode that a journal mentions is freed before the journal is void"
        );
        EmptyEpoch {
            carried_file: self.carried_file(),
        }
    }

    /// Marks the journal, in which nothing is left to be applied, as closed properly.
    pub(crate) fn close(&mut self, lower: &impl Lower<Handle = H>) -> Result<(), StoreError> {
        self.log.reset(lower, true)?;
        self.publish();
        Ok(())
    }

    /// In a copied store: removes the last transaction, which is replaced by one with the inodes of
    /// this copy.
    pub(crate) fn pop_last(&mut self) {
        self.log.pop_last();
    }

    /// In a copied store: binds the journal to this copy.
    pub(crate) fn rebind_to_copy(
        &mut self,
        lower: &impl Lower<Handle = H>,
    ) -> Result<(), StoreError> {
        self.log.rebind_to_copy(lower)
    }

    /// As [`Log::take_measured`].
    pub(crate) fn take_measured(&mut self) -> Option<Vec<WriteTimes>> {
        self.log.take_measured()
    }

    /// As [`Log::measure`].
    pub(crate) fn measure(
        &self,
        lower: &impl Lower<Handle = H>,
    ) -> Result<Vec<WriteTimes>, StoreError> {
        self.log.measure(lower)
    }

    /// As [`Log::set_direct_bytes_max`].
    pub(crate) fn set_direct_bytes_max(
        &mut self,
        lower: &impl Lower<Handle = H>,
        direct_bytes_max: u64,
    ) -> Result<(), StoreError> {
        self.log.set_direct_bytes_max(lower, direct_bytes_max)?;
        self.publish();
        Ok(())
    }

    /// What was measured of the device, to be shown.
    pub(crate) fn set_calibration(&self, calibration: Arc<Calibration>) {
        *self.usage.calibration.lock() = Some(calibration);
    }

    /// Makes the log durable as found, and invalidates the remains of a torn transaction.
    pub(crate) fn make_durable(
        &mut self,
        lower: &impl Lower<Handle = H>,
    ) -> Result<(), StoreError> {
        self.log.make_durable(lower)
    }

    fn publish(&self) {
        let (used_bytes, total_bytes) = (self.log.used_bytes(), self.log.total_bytes());
        debug_assert!(used_bytes <= total_bytes, "{used_bytes} of {total_bytes}");
        // What an apply needs first is not free either.
        let used_bytes = (used_bytes + self.outstanding.materialized_bytes_max()).min(total_bytes);
        self.usage.used_bytes.store(used_bytes, Ordering::Relaxed);
        self.usage.total_bytes.store(total_bytes, Ordering::Relaxed);
        let direct_bytes_max = self.log.direct_bytes_max();
        self.usage
            .direct_bytes_max
            .store(direct_bytes_max, Ordering::Relaxed);
    }

    // An intent records in the sink which tagged transaction is being written to the journal. It
    // has epoch and sequence, so it must not outlive a transaction that failed: the next one would
    // have the same. But as long as a failed transaction may still be found on the medium, the
    // successor of a killed process must be able to identify it. So the intent is withdrawn once
    // the transaction is invalidated, and before another one is written.

    /// To be called directly before a transaction is written; without `tags` it has no intent.
    fn announce(&mut self, sink: Option<&dyn RestartSink>, tags: &[u64]) {
        debug_assert!(!self.has_open_intent, "one transaction at a time");
        let Some(sink) = sink.filter(|_| !tags.is_empty()) else {
            return;
        };
        let (epoch, sequence) = self.log.next();
        self.has_open_intent = true;
        sink.intent(Some(Intent {
            tags: tags.to_vec(),
            epoch,
            sequence,
        }));
    }

    /// To be called directly after the transaction was written, or not.
    fn conclude<T>(&mut self, sink: Option<&dyn RestartSink>, written: &Result<T, StoreError>) {
        if written.is_ok() {
            // It names a committed transaction from now on.
            self.has_open_intent = false;
        } else if !self.log.is_tail_unknown() {
            self.withdraw(sink);
        }
    }

    /// Invalidates the possible remains of a failed transaction, if that is still to be done.
    ///
    /// # Errors
    /// [`StoreError::Lower`]: the content of the tail is not known, and nothing may be written.
    pub(crate) fn invalidate_tail(
        &mut self,
        lower: &impl Lower<Handle = H>,
        sink: Option<&dyn RestartSink>,
    ) -> Result<(), StoreError> {
        self.log.invalidate_tail(lower)?;
        self.withdraw(sink);
        Ok(())
    }

    fn withdraw(&mut self, sink: Option<&dyn RestartSink>) {
        if std::mem::take(&mut self.has_open_intent)
            && let Some(sink) = sink
        {
            sink.intent(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use mobifs_base::{Entry, Name};

    use super::*;
    use crate::fixtures::file_state;
    use crate::lower::{Gate, PosixLower};
    use crate::{JournalOptions, JournalStore, Store, Transaction};

    /// An apply that fails in a new epoch has changed nothing since the epoch before. An epoch with
    /// renames or commits that is mistaken for a new one would be reported as applied.
    #[test]
    fn an_epoch_is_new_until_it_has_a_transaction_or_names_move() {
        let directory = tempfile::tempdir().unwrap();
        let lower = || Gate::new(PosixLower::open(directory.path()).unwrap());
        let options = JournalOptions {
            journal_bytes: 1 << 20,
            uuid_if_new: [7; 16],
            ..JournalOptions::default()
        };
        let (store, _) = JournalStore::open(lower(), &options).unwrap();
        assert!(store.epoch().lock().is_new());
        let (parent, id) = (ObjectId::ROOT, store.first_new_object());
        let mut transaction = Transaction::default();
        transaction.extend([
            Entry::Object(file_state(id, true, 0)),
            Entry::Dentry {
                parent,
                name: Name::new(b"file").unwrap(),
                child: Some(id),
            },
        ]);
        store.commit(transaction).unwrap();
        assert!(!store.epoch().lock().is_new(), "a transaction is in it");
        store.apply().unwrap();
        let mut epoch = store.epoch().lock();
        assert!(epoch.is_new(), "the next one has begun");
        epoch.begin_renames();
        assert!(!epoch.is_new(), "names move");
        epoch.sync_renames(&lower()).unwrap();
        assert!(epoch.is_new(), "none has moved, durably");
        for is_everything in [false, true] {
            epoch.set_rename_mark(is_everything);
            assert!(!epoch.is_new(), "its journal says that names move");
        }
    }
}
