//! Where files lie, for those who must know a program's protocol by its files.

use mobifs_base::{FileKind, Name, ObjectId};

use super::Engine;
use crate::app::Class;

/// Questions about names that nothing has to be loaded for.
impl Engine {
    /// The place of a regular file with one name, in a directory of the same app, if that app is
    /// durable; none also where that is not known without loading something.
    pub fn durable_place(&mut self, id: ObjectId) -> Option<(ObjectId, Name)> {
        if !self.has_durable_apps() {
            return None;
        }
        let inode = self.namespace.get(&id)?;
        let is_simple = inode.attributes.kind == FileKind::Regular
            && !inode.is_orphan()
            && !inode.had_several_names
            && inode.linked_apps.is_empty();
        if !is_simple {
            return None;
        }
        let (directory, name) = (inode.home, inode.name.clone()?);
        let app = self.namespace.app_of(id, &mut self.apps);
        let is_durable = self.apps.get(app).policy.class == Class::Durable;
        let is_alike = self.namespace.app_of(directory, &mut self.apps) == app;
        let is_there = self.known_entry(directory, name.as_bytes()) == Some(id);
        (is_durable && is_alike && is_there).then_some((directory, name))
    }

    /// What an entry of a directory names, as far as that is in memory.
    pub fn known_entry(&self, directory: ObjectId, name: &[u8]) -> Option<ObjectId> {
        let slot = self.namespace.entry(directory, name).ok()??;
        self.namespace.contains_key(&slot.id).then_some(slot.id)
    }

    /// Whether nothing of the directory is uncommitted, or entries of it are, each of a name that is
    /// accepted. It is not known, so false, where a closed transaction mentions the directory, or
    /// one that changes none of its entries: that may have its attributes.
    pub fn changes_only_entries(
        &self,
        directory: ObjectId,
        accepts: impl Fn(&[u8]) -> bool,
    ) -> bool {
        let holds = self
            .namespace
            .get(&directory)
            .map_or(0, |inode| inode.usage.transactions());
        let holds = usize::try_from(holds).unwrap_or(usize::MAX);
        let mut mentioning = self.transactions.with_object(directory, holds).into_iter();
        mentioning.all(|id| {
            self.transactions.open(id).is_some_and(|open| {
                let changed = open.dentries.keys();
                let mut names = changed
                    .filter(|(parent, _)| *parent == directory)
                    .peekable();
                names.peek().is_some() && names.all(|(_, name)| accepts(name.as_bytes()))
            })
        })
    }
}
