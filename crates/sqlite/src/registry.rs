//! The databases that are open in this process.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::database::{Database, OpenRequest};
use crate::failure::Failure;
use crate::fork;

struct Slot {
    database: Arc<Database>,
    /// Open files.
    users: usize,
}

/// Held while a database is opened or closed, and while the process forks.
static DATABASES: Mutex<Option<HashMap<PathBuf, Slot>>> = Mutex::new(None);

/// Keeps everybody from opening or closing databases until [`release`].
pub(crate) fn hold() {
    std::mem::forget(DATABASES.lock());
}

/// Ends [`hold`].
#[expect(
    unsafe_code,
    reason = "a lock is let go in another function than it was taken in"
)]
pub(crate) fn release() {
    // SAFETY: this thread, or the one that forked, has taken it in `hold`.
    unsafe { DATABASES.force_unlock() };
}

/// A use of a database: one open file. Give it back with [`Lease::end`].
#[derive(Debug)]
pub(crate) struct Lease {
    database: Arc<Database>,
}

impl Lease {
    /// The database, unless it is another process's.
    ///
    /// # Errors
    /// [`Failure::Forked`].
    pub(crate) fn database(&self) -> Result<&Arc<Database>, Failure> {
        if self.database.is_ours() {
            Ok(&self.database)
        } else {
            Err(Failure::Forked)
        }
    }

    /// Ends this use without closing anything; there must be no other.
    pub(crate) fn abandon(self) {
        let mut databases = DATABASES.lock();
        let path = self.database.path();
        databases.get_or_insert_default().remove(path);
    }

    /// Ends this use; the last one closes the database.
    ///
    /// # Errors
    /// As [`Database::close`].
    pub(crate) fn end(self) -> Result<(), Failure> {
        if !self.database.is_ours() {
            // Its threads are the parent's, and so is what it would write.
            std::mem::forget(self.database);
            return Ok(());
        }
        let mut databases = DATABASES.lock();
        let databases = databases.get_or_insert_default();
        let path = self.database.path();
        let Some(slot) = databases.get_mut(path) else {
            return Ok(());
        };
        slot.users -= 1;
        if slot.users > 0 {
            return Ok(());
        }
        let closed = slot.database.close();
        databases.remove(path);
        closed
    }
}

/// Uses a database: the one that is open in this process, or a newly opened one.
///
/// # Errors
/// As [`Database::open`]; [`Failure::OpenOtherwise`].
pub(crate) fn open(request: &OpenRequest<'_>) -> Result<Lease, Failure> {
    fork::watch();
    let mut databases = DATABASES.lock();
    let databases = databases.get_or_insert_default();
    forget_parents(databases);
    if let Some(slot) = databases.get_mut(request.path) {
        let database = Arc::clone(&slot.database);
        if let Some(name) = request.options.contradicts(database.options()) {
            let path = request.path.to_owned();
            return Err(Failure::OpenOtherwise { path, name });
        }
        database.change(&request.options)?;
        slot.users += 1;
        return Ok(Lease { database });
    }
    let database = Arc::new(Database::open(request)?);
    let slot = Slot {
        database: Arc::clone(&database),
        users: 1,
    };
    databases.insert(request.path.to_owned(), slot);
    Ok(Lease { database })
}

/// Uses a database that somebody has made.
pub(crate) fn adopt(database: Database) -> Lease {
    let database = Arc::new(database);
    let slot = Slot {
        database: Arc::clone(&database),
        users: 1,
    };
    let mut databases = DATABASES.lock();
    let path = database.path().to_owned();
    databases.get_or_insert_default().insert(path, slot);
    Lease { database }
}

/// Uses a database that is open in this process; none if it is not.
pub(crate) fn find(path: &Path) -> Option<Lease> {
    let mut databases = DATABASES.lock();
    let slot = databases.as_mut()?.get_mut(path)?;
    if !slot.database.is_ours() {
        return None;
    }
    slot.users += 1;
    Some(Lease {
        database: Arc::clone(&slot.database),
    })
}

/// What was open when this process was forked is not this process's. It is not dropped
/// either: that would wait for threads that are not there.
fn forget_parents(databases: &mut HashMap<PathBuf, Slot>) {
    let parents: Vec<PathBuf> = databases
        .iter()
        .filter(|(_, slot)| !slot.database.is_ours())
        .map(|(path, _)| path.clone())
        .collect();
    for path in parents {
        std::mem::forget(databases.remove(&path));
    }
}
