//! Names: detach what does not belong, attach what does.

use std::collections::{HashMap, HashSet};

use mobifs_base::{FileKind, Name, ObjectId};

use crate::StoreError;
use crate::apply::name_moves::MovingTurn;
use crate::apply::{Refused, Work};
use crate::journal_store::JournalStore;
use crate::lower::Lower;
use crate::overlay::lookup::missing;
use crate::overlay::search::Search;

impl<L: Lower> JournalStore<L> {
    /// Gives every pending entry its final object.
    pub(super) fn rearrange(
        &self,
        work: &Work,
        refused: &mut Refused,
        turn: &mut MovingTurn<'_>,
    ) -> Result<(), StoreError> {
        let mut missing_names: Vec<(ObjectId, &Name, ObjectId)> = Vec::new();
        let mut detached = false;
        let mut surplus: Vec<((ObjectId, &Name), Option<ObjectId>)> = Vec::new();
        let mut search = Search::default();
        for ((parent, name), child) in &work.dentries {
            if refused.is_absent(*parent) {
                if child.is_some() {
                    refused.wait(((*parent, name.clone()), *child));
                }
                continue;
            }
            let there = self.settle_entry(*parent, name, *child, &mut search);
            let there = match there.map_err(self.failed_at(*parent, name)) {
                Ok(there) => there,
                Err(error) => {
                    refused.note_entry(((*parent, name.clone()), *child), error)?;
                    continue;
                }
            };
            detached |= matches!(there, There::Detached | There::Surplus);
            if there == There::Detached {
                search.begin_anew();
            }
            if there == There::Surplus {
                surplus.push(((*parent, name), *child));
            }
            if let Some(child) = *child
                && there != There::Final
            {
                missing_names.push((*parent, name, child));
            }
            turn.step_ended();
        }
        if detached {
            turn.meanwhile(|| self.lower.sync_all())
                .map_err(StoreError::lower("making detached entries durable"))?;
        }
        let kept = self.drop_surplus(&surplus, refused, turn)?;
        missing_names.retain(|(parent, name, _)| !kept.contains(&(*parent, *name)));
        let mut wanted: HashMap<ObjectId, usize> = HashMap::new();
        for (_, _, child) in &missing_names {
            *wanted.entry(*child).or_default() += 1;
        }
        let mut links = Vec::new();
        let mut outcome = Ok(());
        // From below: what is attached to a directory that has no place itself yet comes along with
        // it later. The other way round the kernel would walk up the whole tree for each rename.
        for (parent, name, child) in missing_names.into_iter().rev() {
            let left = wanted.entry(child).or_default();
            *left = left.saturating_sub(1);
            let last = *left == 0;
            let entry = ((parent, name.clone()), Some(child));
            if refused.is_absent(child) || (refused.goes_on() && self.is_stuck(child)?) {
                refused.wait(entry);
                continue;
            }
            let attached = self.attach(parent, name, child, last);
            match attached.map_err(self.failed_at(parent, name)) {
                Ok(true) => {}
                Ok(false) => links.push((child, parent, name.clone())),
                Err(error) => {
                    outcome = refused.note_entry(entry, error);
                    if outcome.is_err() {
                        break;
                    }
                }
            }
            turn.step_ended();
        }
        // All at once: each time, the witness hears of all names of an object.
        self.state.write().table.add_names(links.into_iter());
        outcome
    }

    /// Removes further names of what waits in `limbo/`. Not before it is certain to be
    /// there: the journal records one name of an object, and it may be one of these. Answers which
    /// could not be removed.
    fn drop_surplus<'a>(
        &self,
        surplus: &[((ObjectId, &'a Name), Option<ObjectId>)],
        refused: &mut Refused,
        turn: &mut MovingTurn<'_>,
    ) -> Result<HashSet<(ObjectId, &'a Name)>, StoreError> {
        let mut kept = HashSet::new();
        for &((parent, name), child) in surplus {
            turn.step_ended();
            let dropped = self.drop_name(parent, name);
            if let Err(error) = dropped.map_err(self.failed_at(parent, name)) {
                refused.note_entry(((parent, name.clone()), child), error)?;
                kept.insert((parent, name));
            }
        }
        if !surplus.is_empty() {
            // What is attached next may take one of these names.
            turn.meanwhile(|| self.lower.sync_all())
                .map_err(StoreError::lower("making detached entries durable"))?;
        }
        Ok(kept)
    }

    fn drop_name(&self, parent: ObjectId, name: &Name) -> Result<(), StoreError> {
        let directory = self.require_handle(parent)?;
        let Some(stat) = self.stat_at(&directory, name.as_bytes())? else {
            return Ok(());
        };
        if let Err(error) = self.lower.unlink(&directory, name.as_bytes()) {
            self.note_held(parent, name, stat.inode);
            return Err(StoreError::lower(format!("detaching \"{name}\""))(error));
        }
        let mut state = self.state.write();
        if let Some(id) = state.table.id_of(stat.inode) {
            state.table.remove_name(id, parent, name);
            if let Some(location) = state.table.get_mut(id) {
                location.in_limbo = true;
            }
        }
        Ok(())
    }

    /// Takes note of a name that could not be taken away: an earlier attempt may have made it.
    fn note_held(&self, parent: ObjectId, name: &Name, inode: u64) {
        let mut state = self.state.write();
        if let Some(id) = state.table.id_of(inode) {
            state.table.add_name(id, parent, name);
        }
    }

    /// Whether a directory is still at a name from which it could not be detached: it cannot get
    /// another one.
    fn is_stuck(&self, id: ObjectId) -> Result<bool, StoreError> {
        if self.kind_of(id) != Some(FileKind::Directory) {
            return Ok(false);
        }
        Ok(self.last_place(id)?.is_some_and(|place| !place.is_own))
    }

    /// Moves away what an entry names, unless it is its final object.
    fn settle_entry(
        &self,
        parent: ObjectId,
        name: &Name,
        child: Option<ObjectId>,
        search: &mut Search,
    ) -> Result<There, StoreError> {
        let Some(directory) = self.handle_in(parent, search)? else {
            // The directory came and went within the epoch, or is gone with an
            // earlier attempt: it has no entries.
            return if child.is_none() {
                Ok(There::Nothing)
            } else {
                Err(missing(parent))
            };
        };
        let Some(stat) = self.stat_at(&directory, name.as_bytes())? else {
            return Ok(There::Nothing);
        };
        if let Some(child) = child
            && self.state.read().inode_of(child) == Some(stat.inode)
            && stat.device == self.device
        {
            let mut state = self.state.write();
            state.table.insert(child, stat.inode, stat.kind);
            state.table.add_name(child, parent, name);
            return Ok(There::Final);
        }
        let limbo_name = stat.inode.to_string().into_bytes();
        let waiting = self.stat_at(&self.own.limbo, &limbo_name)?;
        match waiting {
            // Another name of it was detached before.
            Some(waiting) if waiting.inode == stat.inode && stat.kind != FileKind::Directory => {
                return Ok(There::Surplus);
            }
            _ => {
                let (from, to) = (name.as_bytes(), &*limbo_name);
                let moved = self.lower.rename(&directory, from, &self.own.limbo, to);
                if let Err(error) = moved {
                    self.note_held(parent, name, stat.inode);
                    return Err(StoreError::lower(format!("detaching \"{name}\""))(error));
                }
            }
        }
        let mut state = self.state.write();
        if let Some(id) = state.table.id_of(stat.inode) {
            state.table.remove_name(id, parent, name);
            if let Some(location) = state.table.get_mut(id) {
                location.in_limbo = true;
            }
        }
        Ok(There::Detached)
    }

    /// Gives an object one of its final names. If it is the `last` one missing, a
    /// name that is only ours moves there, else another link is made. Answers whether the
    /// name is noted; of a further link it need not be at once, because the object is still
    /// found where it was, and who does all this again finds the link.
    fn attach(
        &self,
        parent: ObjectId,
        name: &Name,
        child: ObjectId,
        last: bool,
    ) -> Result<bool, StoreError> {
        let directory = self.require_handle(parent)?;
        let place = if last {
            self.last_place(child)?
        } else {
            self.place(child)?
        };
        let place = place.ok_or_else(|| missing(child))?;
        let is_directory = self.kind_of(child) == Some(FileKind::Directory);
        // Looked at before it moves: nothing may fail between the move and the note of it.
        let stat = self
            .stat_at(&place.directory, &place.name)?
            .ok_or_else(|| missing(child))?;
        let failed = || StoreError::lower(format!("attaching \"{name}\""));
        let (from, to) = (
            (&place.directory, &place.name),
            (&directory, name.as_bytes()),
        );
        let moves = place.is_own && (last || is_directory);
        if moves {
            self.lower
                .rename(from.0, from.1, to.0, to.1)
                .map_err(failed())?;
        } else {
            self.lower
                .link(from.0, from.1, to.0, to.1)
                .map_err(failed())?;
        }
        let mut state = self.state.write();
        state.table.insert(child, stat.inode, stat.kind);
        if !moves && !last {
            return Ok(false);
        }
        state.table.add_name(child, parent, name);
        if moves && let Some(location) = state.table.get_mut(child) {
            location.in_limbo = false;
            location.in_stage = false;
        }
        Ok(true)
    }
}

/// What [`JournalStore::settle_entry`] found, and left.
#[derive(Clone, Copy, PartialEq, Eq)]
enum There {
    /// No entry.
    Nothing,
    /// Something else, which is in `limbo/` now.
    Detached,
    /// Something else, which is in `limbo/` already under another of its names.
    Surplus,
    /// The final object.
    Final,
}
