//! Going on after a process was killed, with the ids that its kernel connection knows.
//!
//! No power was lost: the lower filesystem is as the killed process left it, between two
//! calls. What it knew was told to a witness, but what its very last call did may not
//! have been noted any more; that is found out first. What is pending is served as before;
//! only if names had begun to move it is applied first, as after an error of the lower
//! filesystem. `docs/DESIGN.md` has the cases.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use mobifs_types::{Name, ObjectId};

use super::apply::Unnamed;
use super::recovery::{Loaded, Moves};
use super::search::Search;
use super::state::State;
use super::{JournalOptions, JournalStore, RecoveryReport};
use crate::lower::Lower;
use crate::{Saved, StoreError, Witness};

/// What resuming a store found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resumed {
    /// As of any opened store.
    pub report: RecoveryReport,
    /// The tag of the saved intent, if its transaction is committed; it must not be
    /// handed over again. Else it left no trace and has to be.
    pub committed: Option<u64>,
}

impl<L: Lower> JournalStore<L> {
    /// Opens the store that a killed process had open. Every id that it knew names the
    /// same object as before, and what is pinned is readable. `witness` is taken to have heard
    /// `saved` already, so that the successor of this process, should it be killed too, may be
    /// given what the witness knows then.
    ///
    /// # Errors
    /// As [`JournalStore::open`], and [`StoreError::Copied`]. The witness has heard what was
    /// done until then.
    pub fn resume(
        lower: L,
        options: &JournalOptions,
        witness: Arc<dyn Witness>,
        saved: Saved,
    ) -> Result<(Self, Resumed), StoreError> {
        let Loaded {
            mut store,
            mut report,
            committed,
            ..
        } = Self::load(lower, options, Some(&saved))?;
        if report.copied {
            return Err(StoreError::Copied);
        }
        if committed.is_none() && saved.intent.is_some() {
            // Before a new epoch begins, which would make it look committed.
            witness.intent(None);
        }
        drop(saved);
        store.state.watch(witness);
        store.go_on(&mut report)?;
        Ok((store, Resumed { report, committed }))
    }

    fn go_on(&self, report: &mut RecoveryReport) -> Result<(), StoreError> {
        if !self.read_only {
            self.check_possible()?;
            self.settle_found(report)?;
            self.sweep_foreign_stage(is_staged_by_us)?;
            let mut writer = self.writer.lock();
            self.find_what_moved(writer.moves)?;
            if writer.moves != Moves::NotBegun {
                self.apply_all(&mut writer)?;
            }
            report.applied = writer.log.is_empty();
            if report.applied {
                self.empty_limbo(Unnamed::PinnedOrLinked);
                self.sweep_stage();
            }
        }
        self.publish_log(&self.writer.lock().log);
        report.lost = self.list_lost()?;
        Ok(())
    }

    /// Brings the table in line with what the last call of the killed process did.
    fn find_what_moved(&self, moves: Moves) -> Result<(), StoreError> {
        let _tree = self.tree.write();
        self.check_own_names()?;
        if moves == Moves::NotBegun {
            return Ok(());
        }
        self.check_pending_names()
    }

    /// Which objects really have a name in `limbo/` or `stage/`. What had one, and has no
    /// other, is gone, unless the journal gives it a name: then it has that one already.
    fn check_own_names(&self) -> Result<(), StoreError> {
        let list = |directory: &L::Handle, what: &str| {
            let entries = self.lower.list(directory).map_err(StoreError::lower(what));
            let named = |entries: Vec<crate::lower::LowerEntry>| {
                let entries = entries.into_iter();
                entries.map(|entry| (entry.name, entry.inode)).collect()
            };
            entries.map(named)
        };
        let limbo: HashMap<Vec<u8>, u64> = list(&self.own.limbo, "listing limbo")?;
        let stage: HashMap<Vec<u8>, u64> = list(&self.own.stage, "listing stage")?;
        let mut state = self.state.write();
        let ids: BTreeSet<ObjectId> = state.table.ids().collect();
        for id in ids {
            let Some(location) = state.table.get(id) else {
                continue;
            };
            let inode = location.inode;
            let is_in = |entries: &HashMap<Vec<u8>, u64>, name: u64| {
                entries.get(name.to_string().as_bytes()) == Some(&inode)
            };
            // Of two objects that had the same inode number, one after the other, only
            // the later one can be there.
            let is_later = state.table.id_of(inode) == Some(id);
            let in_limbo = is_later && is_in(&limbo, inode);
            let in_stage = is_in(&stage, id.0);
            let had_one = location.in_limbo || location.in_stage;
            if (location.in_limbo, location.in_stage) == (in_limbo, in_stage) {
                continue;
            }
            let is_nowhere = !in_limbo && !in_stage && location.names.is_empty();
            if is_nowhere && had_one && !state.pending.is_linked(id) {
                state.table.remove(id);
            } else if let Some(location) = state.table.get_mut(id) {
                (location.in_limbo, location.in_stage) = (in_limbo, in_stage);
            }
        }
        Ok(())
    }

    /// Which of the names that the journal changes their objects really have still.
    fn check_pending_names(&self) -> Result<(), StoreError> {
        let doubtful: Vec<(ObjectId, ObjectId, Name, u64)> = {
            let state = self.state.read();
            let mut doubtful = Vec::new();
            for id in state.table.ids().collect::<BTreeSet<_>>() {
                let Some(location) = state.table.get(id) else {
                    continue;
                };
                let changed = location
                    .names
                    .iter()
                    .filter(|entry| state.pending.dentries.contains_key(*entry));
                doubtful.extend(
                    changed.map(|(parent, name)| (id, *parent, name.clone(), location.inode)),
                );
            }
            doubtful
        };
        let mut search = Search::default();
        for (id, parent, name, inode) in doubtful {
            let there = match self.handle_in(parent, &mut search)? {
                Some(directory) => self.stat_at(&directory, name.as_bytes())?,
                None => None,
            };
            if there.is_none_or(|stat| stat.inode != inode) {
                self.state.write().table.remove_name(id, parent, &name);
            }
        }
        Ok(())
    }
}

/// Whether a name in `stage/` belongs to an object that the killed process was making, or
/// that is in use. Not so what was made for a transaction that did not get to the journal.
fn is_staged_by_us(state: &State, id: ObjectId) -> bool {
    let is_pending = |object: &super::pending::PendingObject| {
        object.created || object.bound.is_some() || !object.direct.is_empty()
    };
    let is_in_use = state.is_pinned(id) || state.spilled(id).is_some();
    // Else it is half of a spill, which will be done again.
    let is_noted = state
        .table
        .get(id)
        .is_some_and(|location| location.in_stage);
    (is_in_use && is_noted) || state.pending.object(id).is_some_and(is_pending)
}
