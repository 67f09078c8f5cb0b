//! Native mode in virtual time: a filesystem of the kernel that commits when the daemon says so.
//!
//! The kernel is a model: one running transaction over all files, which takes every change, and on
//! ext4 a journal from which pages go to their place later ([`checkpoint`]). What the daemon
//! decides, it decides with the types of the product ([`steering`]), on the same little that it sees:
//! the first change after a commit, how many pages became dirty, and how often the kernel committed.

mod checkpoint;
mod steering;

#[cfg(test)]
mod tests;

use std::collections::HashSet;

use mobifs_base::PAGE_BYTES_U64;
use mobifs_engine::{AppPolicy, Class, MachineEvent, PacingRules};
use mobifs_trace::DeviceState;

use super::device::{Flush, FlushShape, Storage};
use super::dirty::Dirty;
use super::error::SimulationError;
use super::machine::machine_event;
use super::outcome::{FlushReason, Outcome};
use super::stream::{Action, AppNumber, ObjectNumber, PageChange, Step, Stream};
use checkpoint::{Checkpoint, TRANSACTION_BLOCKS_MAX};
use steering::{Counters, Steering};

/// The kernel's interval counts in seconds, and it commits at a whole one.
const SECOND_NS: u64 = 1_000_000_000;

/// What is steered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NativeFilesystem {
    /// ext4 with `data=journal`.
    Ext4,
    /// btrfs with `flushoncommit` and `notreelog`, of which nothing is promised: calls for durability
    /// wait.
    Btrfs,
}

impl NativeFilesystem {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Ext4, Self::Btrfs];

    /// What contenders on it are called.
    pub const fn contender(self) -> &'static str {
        match self {
            Self::Ext4 => "native-ext4",
            Self::Btrfs => "native-btrfs",
        }
    }
}

/// How a filesystem is steered.
#[derive(Clone, Copy, Debug)]
pub struct NativeRules {
    /// Which one.
    pub filesystem: NativeFilesystem,
    /// The policy of everything in it. Its limit of age is the kernel's interval as well.
    pub policy: AppPolicy,
    /// When what is closed is committed.
    pub pacing: PacingRules,
}

/// A steered filesystem, driven by a stream.
pub struct NativeRun<'s> {
    rules: NativeRules,
    /// The running transaction.
    running: Dirty<'s>,
    /// Objects that it changes.
    changed: HashSet<ObjectNumber>,
    /// Its first change, in nanoseconds.
    began_ns: Option<u64>,
    /// What ext4 has committed before, and not written to its place.
    checkpoint: Checkpoint,
    counters: Counters,
    steering: Steering,
    outcome: Outcome,
    storage: Storage,
}

impl<'s> NativeRun<'s> {
    /// Runs a stream through it; commits everything at the end, and writes it to its place.
    ///
    /// # Errors
    /// The device refuses what is written to it.
    pub fn run(
        stream: &'s Stream,
        rules: NativeRules,
        storage: Storage,
    ) -> Result<(Outcome, Storage), SimulationError> {
        let mut run = Self::new(stream, rules, storage);
        for step in &stream.steps {
            run.pass_time(step.time_ns)?;
            run.perform(step)?;
            // What happens at this moment may wake the daemon.
            run.pass_time(step.time_ns)?;
        }
        let end_ns = stream.duration_ns;
        run.pass_time(end_ns)?;
        run.commit(end_ns, FlushReason::EndOfTrace, None)?;
        run.write_all_back(end_ns)?;
        run.outcome.end(end_ns);
        Ok((run.outcome, run.storage))
    }

    fn new(stream: &'s Stream, rules: NativeRules, storage: Storage) -> Self {
        let is_ext4 = rules.filesystem == NativeFilesystem::Ext4;
        let largest = is_ext4.then_some(TRANSACTION_BLOCKS_MAX * PAGE_BYTES_U64);
        Self {
            rules,
            running: Dirty::new(stream),
            changed: HashSet::new(),
            began_ns: None,
            checkpoint: Checkpoint::default(),
            counters: Counters::default(),
            steering: Steering::new(rules.policy, rules.pacing, largest, is_ext4),
            outcome: Outcome::new(stream.apps.len()),
            storage,
        }
    }

    /// What the daemon and the kernel do of their own accord until `time_ns`.
    fn pass_time(&mut self, time_ns: u64) -> Result<(), SimulationError> {
        loop {
            let look_ns = self.steering.look_at_ns();
            let commit_ns = self.kernel_commit_ns();
            let write_back_ns = self.checkpoint.next_write_back_ns();
            let moments = [look_ns, commit_ns, write_back_ns];
            let Some(next_ns) = moments.into_iter().flatten().min() else {
                return Ok(());
            };
            if next_ns > time_ns {
                return Ok(());
            }
            if look_ns == Some(next_ns) {
                self.look(next_ns)?;
            } else if commit_ns == Some(next_ns) {
                self.commit(next_ns, FlushReason::Wanted, None)?;
            } else {
                let pages = self.checkpoint.take_expired(next_ns, &self.running);
                self.write_back(next_ns, &pages)?;
            }
        }
    }

    /// When the kernel commits by itself, as the transaction has become too old.
    fn kernel_commit_ns(&self) -> Option<u64> {
        let interval_ns = (self.rules.policy.age_max_ms / 1000).saturating_mul(SECOND_NS);
        let due_ns = self.began_ns?.saturating_add(interval_ns);
        Some(due_ns.div_ceil(SECOND_NS).saturating_mul(SECOND_NS))
    }

    /// The daemon looks, and commits what is due.
    fn look(&mut self, now_ns: u64) -> Result<(), SimulationError> {
        while self.steering.look(now_ns, self.counters) {
            self.commit_for_daemon(now_ns)?;
        }
        Ok(())
    }

    fn commit_for_daemon(&mut self, now_ns: u64) -> Result<(), SimulationError> {
        self.steering.commit_begins(now_ns);
        let ended_ns = self.commit(now_ns, FlushReason::Wanted, None)?;
        self.steering.commit_ended(now_ns, ended_ns, self.counters);
        Ok(())
    }

    fn perform(&mut self, step: &Step) -> Result<(), SimulationError> {
        let now_ns = step.time_ns;
        match step.action {
            Action::Sync { object } => self.sync(now_ns, step.app, object),
            Action::SyncAll if self.calls_wait() => self.sync_all(now_ns),
            Action::SyncAll => Ok(()),
            Action::User => {
                self.steering.user_acted(now_ns);
                Ok(())
            }
            Action::Device(state) => self.device_state(now_ns, state),
            _ => self.change(now_ns, &step.action),
        }
    }

    /// Whether calls for durability wait.
    fn calls_wait(&self) -> bool {
        self.rules.filesystem == NativeFilesystem::Btrfs
            || self.rules.policy.class == Class::Durable
            || self.steering.is_battery_low()
    }

    fn change(&mut self, now_ns: u64, action: &Action) -> Result<(), SimulationError> {
        let change = action.page_change();
        let written = change.as_ref().filter(|change| change.is_written);
        let changed = action
            .changed_entry()
            .or(written.map(|change| change.object));
        if changed.is_some() && self.began_ns.is_none() {
            self.began_ns = Some(now_ns);
            let pages = self.checkpoint.take_for_room();
            self.write_back(now_ns, &pages)?;
        }
        match change {
            Some(change) if change.is_written => self.count_dirtied(now_ns, &change),
            Some(change) => self.checkpoint.drop_pages(change.object, change.pages),
            None => {}
        }
        self.running.perform(now_ns, action, &mut self.outcome);
        if let Some(object) = changed {
            self.changed.insert(object);
            self.steering.changed(now_ns);
        }
        self.commit_if_full(now_ns)
    }

    /// Counts as the kernel does: pages that were clean.
    fn count_dirtied(&mut self, now_ns: u64, change: &PageChange) {
        let object = change.object;
        let is_clean =
            |page: &u64| !self.running.has(object, *page) && !self.checkpoint.has(object, *page);
        let clean = change.pages.clone().filter(is_clean).count() as u64;
        self.counters.dirtied_pages += clean;
        if clean > 0 && self.rules.filesystem == NativeFilesystem::Ext4 {
            self.checkpoint.became_dirty(now_ns, object);
        }
    }

    /// No transaction may be larger than a part of the journal.
    fn commit_if_full(&mut self, now_ns: u64) -> Result<(), SimulationError> {
        let blocks = FlushShape::journaled_blocks(self.running.pages());
        if self.rules.filesystem == NativeFilesystem::Ext4 && blocks >= TRANSACTION_BLOCKS_MAX {
            self.commit(now_ns, FlushReason::Wanted, None)?;
        }
        Ok(())
    }

    /// A program asks for durability of one object. Where it has to wait for that, everything is
    /// committed.
    fn sync(
        &mut self,
        now_ns: u64,
        caller: AppNumber,
        object: ObjectNumber,
    ) -> Result<(), SimulationError> {
        if !self.calls_wait() || !self.changed.contains(&object) {
            return Ok(());
        }
        self.commit(now_ns, FlushReason::Wanted, Some(caller))?;
        // The kernel's `fsync` writes the file to its place as well.
        let pages = self.checkpoint.take_file(object, &self.running);
        self.write_back(now_ns, &pages)
    }

    /// Commits everything and writes it to its place, as the kernel does for `sync`.
    fn sync_all(&mut self, now_ns: u64) -> Result<(), SimulationError> {
        self.commit(now_ns, FlushReason::Wanted, None)?;
        self.write_all_back(now_ns)
    }

    fn device_state(&mut self, now_ns: u64, state: DeviceState) -> Result<(), SimulationError> {
        let Some(event) = machine_event(state) else {
            return Ok(());
        };
        if self.steering.machine_event(now_ns, event) {
            self.commit_for_daemon(now_ns)?;
        }
        if event == MachineEvent::PowerGoes {
            // The kernel syncs before it sleeps, and init before it switches off.
            self.sync_all(now_ns)?;
        }
        Ok(())
    }

    /// Commits the running transaction, if it has anything; says when that has ended.
    fn commit(
        &mut self,
        now_ns: u64,
        reason: FlushReason,
        waiting: Option<AppNumber>,
    ) -> Result<u64, SimulationError> {
        if self.began_ns.take().is_none() {
            return Ok(now_ns);
        }
        self.counters.commits += 1;
        self.changed.clear();
        let taken = self.running.take_all(now_ns, &mut self.outcome);
        if taken.is_empty() {
            // All of it was dropped.
            return Ok(now_ns);
        }
        for &app in &taken.apps {
            self.outcome.app_mut(app).note_flush(now_ns, reason);
        }
        let shape = match self.rules.filesystem {
            NativeFilesystem::Ext4 => FlushShape::JournaledData,
            NativeFilesystem::Btrfs => FlushShape::CopyOnWrite,
        };
        if shape == FlushShape::JournaledData {
            self.checkpoint.logged(&taken.pages);
        }
        self.storage.flush(&Flush {
            at_ns: now_ns,
            pages: &taken.pages,
            entries: taken.entries,
            shape,
            waiting,
        })
    }

    fn write_all_back(&mut self, now_ns: u64) -> Result<(), SimulationError> {
        let pages = self.checkpoint.take_all();
        self.write_back(now_ns, &pages)
    }

    fn write_back(
        &mut self,
        now_ns: u64,
        pages: &[(ObjectNumber, u64)],
    ) -> Result<(), SimulationError> {
        if pages.is_empty() {
            return Ok(());
        }
        self.storage.write_back(now_ns, pages)
    }
}
