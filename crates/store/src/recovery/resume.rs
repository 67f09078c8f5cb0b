//! Going on after a process was killed, with the ids that its kernel connection knows.
//!
//! No power was lost: the lower filesystem is as the killed process left it, between two
//! calls. What it knew was told to a witness, but what its very last call did may not
//! have been noted any more; that is found out first. What is pending is served as before;
//! only if names had begun to move it is applied first, as far as the lower filesystem allows.
//! `docs/DESIGN.md` has the cases.

use std::sync::Arc;

use mobifs_base::ObjectId;

use crate::apply::Unnamed;
use crate::journal_store::{JournalOptions, JournalStore};
use crate::lower::Lower;
use crate::overlay::state::State;
use crate::recovery::RecoveryReport;
use crate::recovery::{Loaded, Moves};
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
            self.find_what_moved(&mut writer)?;
            if writer.moves != Moves::NotBegun {
                self.apply_if_possible(&mut writer)?;
            }
            report.applied = self.is_applied(&writer);
            if report.applied {
                self.empty_limbo(Unnamed::PinnedOrLinked);
                self.sweep_stage();
            }
        }
        self.publish_log(&self.writer.lock().log);
        report.lost = self.list_lost()?;
        Ok(())
    }
}

/// Whether a name in `stage/` belongs to an object that the killed process was making, or
/// that is in use. Not so what was made for a transaction that did not get to the journal.
fn is_staged_by_us(state: &State, id: ObjectId) -> bool {
    let is_pending = |object: &crate::overlay::pending::PendingObject| {
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
