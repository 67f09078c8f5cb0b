//! What is known of SQLite's logs and rollback journals: of which database they are, and where the pages of it are
//! in them. It need not be true: a wrong place to copy from only makes a record larger.

pub(super) mod layout;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use mobifs_base::{FileKind, Name, ObjectId, Transaction};

use crate::commit::database_logs::layout::Kind;
use crate::lower::Lower;
use crate::overlay::Overlay;

/// Logs that are known at a time.
const LOGS_MAX: usize = 256;

/// The logs and rollback journals that were committed.
#[derive(Debug, Default)]
pub(crate) struct DatabaseLogs {
    known: HashMap<ObjectId, DatabaseLog>,
}

/// What is known of one.
#[derive(Debug)]
pub(super) struct DatabaseLog {
    pub(super) database: ObjectId,
    pub(super) kind: Kind,
    /// The salt of the frames that count: each time a log begins anew it has another one.
    pub(super) salt: [u8; 8],
    /// By number of the page: where the last frame of it begins.
    pub(super) frames: HashMap<u32, u64>,
}

impl DatabaseLogs {
    pub(super) fn get(&self, id: ObjectId) -> Option<&DatabaseLog> {
        self.known.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: ObjectId) -> Option<&mut DatabaseLog> {
        self.known.get_mut(&id)
    }

    /// What is known of this log is not true any more.
    pub(super) fn remove(&mut self, id: ObjectId) {
        self.known.remove(&id);
    }

    /// The log that this object is, if it is one.
    pub(super) fn find<L: Lower>(
        &mut self,
        overlay: &Overlay<L>,
        transaction: &Transaction,
        id: ObjectId,
    ) -> Option<&mut DatabaseLog> {
        if !self.known.contains_key(&id) {
            let (kind, database) = identify(overlay, transaction, id)?;
            if self.known.len() >= LOGS_MAX {
                self.known.clear();
            }
            let log = DatabaseLog {
                database,
                kind,
                salt: [0; 8],
                frames: HashMap::new(),
            };
            self.known.insert(id, log);
        }
        self.known.get_mut(&id)
    }
}

/// By its name: whether an object is a log, and of which database.
fn identify<L: Lower>(
    overlay: &Overlay<L>,
    transaction: &Transaction,
    id: ObjectId,
) -> Option<(Kind, ObjectId)> {
    let state = overlay.state();
    let new = transaction.dentries.iter();
    let new = new.filter(|(.., child)| *child == Some(id));
    let new = new.map(|(parent, name, _)| (*parent, name));
    let known = state.table.get(id).into_iter();
    let known = known.flat_map(|location| location.names());
    let mut names = new.chain(known.map(|(parent, name)| (*parent, name)));
    let child = |parent: ObjectId, name: &[u8]| {
        let name = Name::new(name).ok()?;
        let mut new = transaction.dentries.iter();
        if let Some((.., child)) = new.find(|(at, known, _)| *at == parent && *known == name) {
            return *child;
        }
        let key = (parent, name);
        match state.pending.dentries().get(&key) {
            Some(child) => *child,
            None => state.table.child(key.0, &key.1),
        }
    };
    let is_file = |id: ObjectId| {
        let mut new = transaction.objects.iter();
        let new = new.find(|object| object.id == id);
        let kind = new.map(|object| object.attributes.kind);
        let pending = || state.pending.kind_of(id);
        let known = || state.table.get(id).map(|location| location.kind);
        kind.or_else(pending).or_else(known) == Some(FileKind::Regular)
    };
    names.find_map(|(parent, name)| {
        let (kind, databases) = Kind::of_name(name.as_bytes())?;
        let mut databases = databases.into_iter().flatten();
        let database = databases.find_map(|name| child(parent, name))?;
        (database != id && is_file(database)).then_some((kind, database))
    })
}
