//! The changes of an apply that the lower filesystem refuses.

use std::collections::BTreeSet;

use mobifs_base::{Name, ObjectId};

use crate::StoreError;

/// The number of refusals in an error message.
const SHOWN_MAX: usize = 3;

/// A pending entry: a name in a directory and its final object.
pub(super) type Entry = ((ObjectId, Name), Option<ObjectId>);

/// The refused changes, and those that depend on them.
///
/// An apply either fails at the first refusal, or continues with everything else.
#[derive(Debug, Default)]
pub(crate) struct Refused {
    continues: bool,
    /// New objects that could not be created: they are empty, and have no name.
    absent: BTreeSet<ObjectId>,
    /// Objects whose content or attributes are applied in part.
    incomplete: BTreeSet<ObjectId>,
    /// Entries that are unchanged, or removed.
    entries: Vec<Entry>,
    shown: Vec<String>,
    count: usize,
    errno: i32,
    has_freed: bool,
}

impl Refused {
    /// An apply fails where something is refused.
    pub(crate) fn failing() -> Self {
        Self::default()
    }

    /// An apply continues where something is refused, and collects the refusals.
    pub(crate) fn collecting() -> Self {
        Self {
            continues: true,
            ..Self::default()
        }
    }

    pub(super) fn continues(&self) -> bool {
        self.continues
    }

    /// Everything is in its place.
    pub(super) fn is_empty(&self) -> bool {
        self.absent.is_empty() && self.incomplete.is_empty() && self.entries.is_empty()
    }

    pub(super) fn is_absent(&self, id: ObjectId) -> bool {
        self.absent.contains(&id)
    }

    pub(super) fn absent(&self) -> &BTreeSet<ObjectId> {
        &self.absent
    }

    pub(super) fn incomplete(&self) -> &BTreeSet<ObjectId> {
        &self.incomplete
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// A new object cannot be made.
    pub(super) fn record_absent(
        &mut self,
        id: ObjectId,
        error: StoreError,
    ) -> Result<(), StoreError> {
        self.record(error)?;
        self.absent.insert(id);
        Ok(())
    }

    /// Not all changes of an object can be applied.
    pub(super) fn record_incomplete(
        &mut self,
        id: ObjectId,
        error: StoreError,
    ) -> Result<(), StoreError> {
        self.record(error)?;
        self.incomplete.insert(id);
        Ok(())
    }

    /// An entry cannot be changed.
    pub(super) fn record_entry(
        &mut self,
        entry: Entry,
        error: StoreError,
    ) -> Result<(), StoreError> {
        self.record(error)?;
        self.entries.push(entry);
        Ok(())
    }

    /// An entry depends on a refused change.
    pub(super) fn wait(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    fn record(&mut self, error: StoreError) -> Result<(), StoreError> {
        if !self.continues || !error.is_refusal() {
            return Err(error);
        }
        if self.count == 0 {
            self.errno = error.errno();
        }
        self.count += 1;
        if self.shown.len() < SHOWN_MAX {
            self.shown.push(error.to_string());
        }
        Ok(())
    }

    /// The epoch has ended, and inodes and blocks of the objects that it deleted are free.
    pub(super) fn mark_freed(&mut self) {
        self.has_freed = true;
    }

    /// Whether there may be room now for changes that were refused for lack of it.
    pub(super) fn has_freed(&self) -> bool {
        self.has_freed
    }

    /// The error of the apply.
    pub(super) fn error(&self) -> StoreError {
        StoreError::Unapplied {
            count: self.count,
            shown: self.shown.clone(),
            errno: self.errno,
        }
    }
}
