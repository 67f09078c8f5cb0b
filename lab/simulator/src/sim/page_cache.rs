//! The filesystems to compare with: a page cache that is flushed every few seconds and by
//! `fsync`.

use mobifs_trace::DeviceState;

use super::device::{Flush, FlushShape, Storage};
use super::dirty::Dirty;
use super::error::SimulationError;
use super::outcome::{FlushReason, Outcome};
use super::stream::{Action, AppNumber, ObjectNumber, Step, Stream};

/// How a filesystem flushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushRules {
    /// Everything is flushed at each multiple of this, in nanoseconds.
    pub interval_ns: u64,
    /// What a flush looks like to the device.
    pub shape: FlushShape,
}

/// A page cache under [`FlushRules`].
pub struct PageCache<'s> {
    rules: FlushRules,
    dirty: Dirty<'s>,
    next_flush_ns: u64,
    outcome: Outcome,
    storage: Storage,
}

impl<'s> PageCache<'s> {
    /// Runs a stream through it; flushes everything at the end.
    ///
    /// # Errors
    /// The device refuses what is written to it.
    pub fn run(
        stream: &'s Stream,
        rules: FlushRules,
        storage: Storage,
    ) -> Result<(Outcome, Storage), SimulationError> {
        let mut cache = Self {
            rules,
            dirty: Dirty::new(stream),
            next_flush_ns: rules.interval_ns,
            outcome: Outcome::new(stream.apps.len()),
            storage,
        };
        for step in &stream.steps {
            cache.flush_due(step.time_ns)?;
            cache.perform(step)?;
        }
        cache.flush_due(stream.duration_ns)?;
        cache.flush_all(stream.duration_ns, FlushReason::EndOfTrace)?;
        cache.outcome.end(stream.duration_ns);
        Ok((cache.outcome, cache.storage))
    }

    fn flush_due(&mut self, now_ns: u64) -> Result<(), SimulationError> {
        while self.next_flush_ns <= now_ns {
            self.flush_all(self.next_flush_ns, FlushReason::Wanted)?;
            // Quiet hours need no rounds: nothing is dirty until the next operation.
            let rounds = (now_ns - self.next_flush_ns) / self.rules.interval_ns + 1;
            self.next_flush_ns += rounds * self.rules.interval_ns;
        }
        Ok(())
    }

    fn perform(&mut self, step: &Step) -> Result<(), SimulationError> {
        let now_ns = step.time_ns;
        self.dirty.perform(now_ns, &step.action, &mut self.outcome);
        match step.action {
            Action::Sync { object } => self.sync(now_ns, step.app, object),
            // The kernel syncs before it sleeps, and init before it switches off.
            Action::SyncAll | Action::Device(DeviceState::Suspend | DeviceState::Shutdown) => {
                self.flush_all(now_ns, FlushReason::Wanted)
            }
            _ => Ok(()),
        }
    }

    /// `fsync`: the file's pages, and with the journal all names and attributes.
    fn sync(
        &mut self,
        now_ns: u64,
        caller: AppNumber,
        object: ObjectNumber,
    ) -> Result<(), SimulationError> {
        let pages = self.dirty.take_file(now_ns, object, &mut self.outcome);
        let entries = self.dirty.take_entries(now_ns, &mut self.outcome);
        if pages.is_empty() && entries == 0 {
            return Ok(());
        }
        let counts = self.outcome.app_mut(self.dirty.app_of(object));
        counts.note_flush(now_ns, FlushReason::Wanted);
        self.storage.flush(&Flush {
            at_ns: now_ns,
            pages: &pages,
            entries,
            shape: self.rules.shape,
            waiting: Some(caller),
        })?;
        Ok(())
    }

    fn flush_all(&mut self, now_ns: u64, reason: FlushReason) -> Result<(), SimulationError> {
        let taken = self.dirty.take_all(now_ns, &mut self.outcome);
        if taken.is_empty() {
            return Ok(());
        }
        for &app in &taken.apps {
            self.outcome.app_mut(app).note_flush(now_ns, reason);
        }
        self.storage.flush(&Flush {
            at_ns: now_ns,
            pages: &taken.pages,
            entries: taken.entries,
            shape: self.rules.shape,
            waiting: None,
        })?;
        Ok(())
    }
}
