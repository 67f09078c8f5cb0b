//! Which object an apply has failed at, in words for people.

use std::collections::HashSet;

use mobifs_types::{Name, ObjectId};

use super::super::JournalStore;
use super::super::state::State;
use crate::StoreError;
use crate::lower::Lower;

/// Longer paths are shown from this many directories above the object.
const NAMES_MAX: usize = 64;

impl<L: Lower> JournalStore<L> {
    /// Adds the path of the object that something failed for.
    pub(super) fn failed_for(&self, id: ObjectId) -> impl FnOnce(StoreError) -> StoreError {
        move |error| match self.state.read().path_of(id) {
            Some(path) => error.applying(&path),
            None => error,
        }
    }

    /// As [`Self::failed_for`], for an entry.
    pub(super) fn failed_at(
        &self,
        parent: ObjectId,
        name: &Name,
    ) -> impl FnOnce(StoreError) -> StoreError {
        move |error| match self.state.read().path_of(parent) {
            Some(path) if path.is_empty() => error.applying(&name.to_string()),
            Some(path) => error.applying(&format!("{path}/{name}")),
            None => error,
        }
    }
}

impl State {
    /// A path of an object as the mount shows it, empty for the root; none where it has no name,
    /// or none that is known.
    fn path_of(&self, id: ObjectId) -> Option<String> {
        let mut names: Vec<String> = Vec::new();
        let mut seen = HashSet::new();
        let mut at = id;
        while at != ObjectId::ROOT {
            // Names may lead in circles where an apply was interrupted.
            if names.len() == NAMES_MAX || !seen.insert(at) {
                names.push("…".to_owned());
                break;
            }
            let (parent, name) = self.name_of(at)?;
            names.push(name.to_string());
            at = *parent;
        }
        names.reverse();
        Some(names.join("/"))
    }

    fn name_of(&self, id: ObjectId) -> Option<&(ObjectId, Name)> {
        let is_current = |place: &&(ObjectId, Name)| !self.pending.dentries.contains_key(*place);
        let known = || self.table.get(id)?.names.iter().find(is_current);
        self.pending.names_of(id).first().or_else(known)
    }
}
