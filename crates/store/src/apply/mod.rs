//! Bringing committed state to the lower tree.
//!
//! Redo by state: every step looks at what is there and brings it to the final
//! state, so it may be repeated from any partial earlier attempt. The order matters
//! for crashes only at the barriers:
//!
//! 1. New objects are made in `stage/`, complete, unless their commit has done so.
//! 2. Content of existing files is brought up to date in place, as far as that was not done
//!    ahead, while others committed ([`ahead`]). *Barrier*, then the
//!    journal records that names move from here on, and the inodes of new objects: they
//!    can be recognised wherever they are.
//! 3. Every entry that does not name its final object is moved to `limbo/`, under
//!    its inode number. *Barrier*: nothing can take a place that is not free. Further
//!    names of what was moved are removed behind it, and have a barrier of their own.
//! 4. Every entry gets its final object, from `limbo/`, `stage/` or another name.
//!    Directories get their final attributes.
//! 5. *Barrier*, then the journal starts a new epoch. Only now is `limbo/` emptied:
//!    no inode number that the journal mentions is ever used again before.
//!
//! Until names move, what is pending lies rightly over the lower tree, however much of it
//! was applied: see "Why a store is served before its journal is applied" in
//! `docs/DESIGN.md`.

pub(crate) mod ahead;
mod carry;
pub(crate) mod content;
mod deleted;
mod externally_modified;
mod failure;
mod limbo;
mod name_moves;
pub(crate) mod refused;
pub(crate) mod reserve;
mod stage;
mod tree;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mobifs_base::{Name, ObjectId};

use crate::StoreError;
pub(crate) use crate::apply::carry::Carried;
use crate::apply::name_moves::MovingTurn;
pub(crate) use crate::apply::refused::Refused;
use crate::journal_store::{JournalStore, Writer};
use crate::log::record::Record;
use crate::lower::Lower;
use crate::overlay::pending::PendingObject;
use crate::recovery::Moves;

/// Which objects without a known name are kept in `limbo/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unnamed {
    /// Those in use.
    Pinned,
    /// Also those that have a name in the lower filesystem at which nobody looked yet, and
    /// through which they may be used any time.
    PinnedOrLinked,
}

/// What an apply has to do, taken at its start. Nothing is committed while it runs.
struct Work {
    objects: HashMap<ObjectId, Arc<PendingObject>>,
    dentries: Vec<((ObjectId, Name), Option<ObjectId>)>,
}

/// Objects that have no name any more and that no program uses: their content needs no place.
pub(crate) type Deleted = HashSet<ObjectId>;

impl<L: Lower> JournalStore<L> {
    /// Applies everything pending and starts a new epoch of the journal, if there is room.
    ///
    /// # Errors
    /// [`StoreError::Unapplied`] if the new epoch has begun with what was `refused`.
    pub(crate) fn apply_pending(
        &self,
        writer: &mut Writer<L>,
        deleted: &Deleted,
        refused: &mut Refused,
    ) -> Result<(), StoreError> {
        let mut content = self.content.lock();
        content.begin_apply();
        let work = self.take_work();
        // Where only the new epoch failed, everything was applied and is durable. Doing it
        // again would change files in place that no journal protects any more.
        if !writer.log.is_unsettled() {
            let is_nothing = work.objects.is_empty() && work.dentries.is_empty();
            if is_nothing && writer.log.is_empty() && writer.log.carried().is_none() {
                return Ok(());
            }
            // A record of inodes that failed may be found after a crash: not when other
            // inodes have taken their place.
            self.take_back(writer)?;
            // What the journal calls done must not be begun again: in the middle of it a
            // crash would leave what recovery does not look at.
            if writer.moves != Moves::OnlyNamesAreLeft {
                self.bring_to_place(writer, &work, deleted, refused)?;
            }
            self.move_names(writer, &work, refused)?;
            if !refused.is_empty() {
                self.carry_over(writer, &work, refused)?;
            }
        }
        self.begin_epoch(writer, &work)
    }

    /// The journal is void from now on: all that it says is applied and durable, or carried over.
    fn begin_epoch(&self, writer: &mut Writer<L>, work: &Work) -> Result<(), StoreError> {
        match &writer.carried {
            Some(carried) => writer.log.reset_carrying(&self.lower, carried.file)?,
            None => writer.log.reset(&self.lower, false)?,
        }
        self.publish_log(&writer.log);
        let file = writer.log.carried().map_or(0, |carried| carried.file);
        self.carried_file.store(file, Ordering::Relaxed);
        writer.moves = Moves::NotBegun;
        writer.recorded.clear();
        let (records, outcome) = match writer.carried.take() {
            Some(carried) => {
                writer.recorded = carried.recorded;
                (carried.records, Err(carried.error))
            }
            None => (Vec::new(), Ok(())),
        };
        {
            let _tree = self.tree.write();
            self.settle(work, records);
        }
        writer.carried_bytes = self.state.read().pending.held_bytes();
        self.empty_limbo(Unnamed::PinnedOrLinked);
        self.sweep_stage();
        self.keep_room_to_carry_again(writer);
        outcome
    }

    fn take_work(&self) -> Work {
        let state = self.state.read();
        let dentries = state.pending.dentries.iter();
        let mut dentries: Vec<_> = dentries.map(|(k, v)| (k.clone(), *v)).collect();
        // From the root downwards: then the way to a directory is open already, or short, where
        // others would make it as long as the tree is deep for each of them.
        let depths = state.depths_of(dentries.iter().map(|((parent, _), _)| *parent));
        dentries.sort_by_cached_key(|((parent, _), _)| depths.get(parent).copied());
        Work {
            objects: state.pending.objects.clone(),
            dentries,
        }
    }

    /// Everything but names, durable before any of these moves.
    fn bring_to_place(
        &self,
        writer: &mut Writer<L>,
        work: &Work,
        deleted: &Deleted,
        refused: &mut Refused,
    ) -> Result<(), StoreError> {
        let _tree = self.tree.read();
        let mut bindings = self.stage_new_objects(work, refused)?;
        self.apply_contents(work, deleted, refused)?;
        if !refused.is_empty() {
            bindings = self.keep_room_to_carry(writer, work, refused, bindings)?;
        }
        if work.dentries.is_empty() {
            return Ok(());
        }
        self.announce_moves(writer, bindings, refused.is_empty())
    }

    /// Names, and what changes with them; all that was applied is durable on return.
    fn move_names(
        &self,
        writer: &mut Writer<L>,
        work: &Work,
        refused: &mut Refused,
    ) -> Result<(), StoreError> {
        {
            let mut turn = MovingTurn::begin(&self.tree);
            writer.has_unsynced_moves = true;
            // From here on objects move. Should something fail, the places that the
            // journal has recorded are not theirs any more: transactions that come
            // before the next attempt record the new ones.
            writer.recorded.clear();
            self.rearrange(work, refused, &mut turn)?;
            self.apply_directory_attributes(work, refused, &mut turn)?;
            self.park_nameless(refused, &mut turn)?;
        }
        self.sync_moves(writer)
    }

    /// Makes names that have moved durable, if any are not.
    ///
    /// After an apply that failed while they moved, this comes before the next transaction:
    /// recovery finds an object at a place that the journal records or gives it, and what is
    /// committed next may take the names away at which a crash would leave it.
    pub(crate) fn sync_moves(&self, writer: &mut Writer<L>) -> Result<(), StoreError> {
        if writer.has_unsynced_moves {
            self.lower
                .sync_all()
                .map_err(StoreError::lower("making applied changes durable"))?;
            writer.has_unsynced_moves = false;
        }
        Ok(())
    }

    /// The applied state is the lower tree's: nothing is pending any more but what is carried
    /// over, and staged objects are ordinary ones.
    fn settle(&self, work: &Work, carried: Vec<Record>) {
        let mut state = self.state.write();
        state.pending.clear();
        for record in carried {
            state.pending.merge_record(record);
        }
        let gone: Vec<ObjectId> = work
            .objects
            .iter()
            .filter(|(id, object)| {
                let is_known = state.table.get(**id).is_some() || state.pending.mentions(**id);
                object.created && !is_known
            })
            .map(|(&id, _)| id)
            .collect();
        drop(state);
        let mut handles = self.lower.handles();
        gone.into_iter().for_each(|id| handles.remove(id));
    }

    fn count_applied(&self, bytes: u64) {
        self.counters
            .apply_written_bytes
            .fetch_add(bytes, Ordering::Relaxed);
    }
}
