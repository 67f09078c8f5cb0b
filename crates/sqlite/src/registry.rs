//! The databases that are open in this process, and which VFS serves each: this is decided once,
//! when its first connection opens it, whether it and all its companions are the engine's or are
//! left to SQLite's own VFS. See `vfs_choice.rs`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::database::finish;
use crate::database::lower_file::FileIdentity;
use crate::database::{Database, OpenRequest, OpenedBy};
use crate::failure::Failure;
use crate::fork::{self, Generation, Handlers};

/// What distinguishes databases.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// A file, by whichever of its names it is opened.
    File(FileIdentity),
    /// The path of a database that is no file: see `simulation.rs`.
    Simulated(PathBuf),
}

/// The VFS that serves a database as long as a connection has it open.
#[derive(Debug)]
enum Owner {
    Engine(Arc<Database>),
    /// SQLite's own VFS.
    Sqlite(Generation),
}

#[derive(Debug)]
struct Slot {
    owner: Owner,
    /// Open files.
    users: usize,
    /// Paths by which it was opened.
    paths: Vec<PathBuf>,
    /// A connection, if one has opened it since it was not open.
    opened_by: OpenedBy,
}

impl Slot {
    fn is_ours(&self) -> bool {
        match &self.owner {
            Owner::Engine(database) => database.is_ours(),
            Owner::Sqlite(generation) => generation.is_current(),
        }
    }
}

#[derive(Debug)]
struct Table {
    slots: HashMap<Key, Slot>,
    paths: HashMap<PathBuf, Key>,
}

impl Table {
    fn insert(&mut self, key: Key, owner: Owner, path: &Path, by: OpenedBy) {
        let paths = vec![path.to_owned()];
        self.paths.insert(path.to_owned(), key.clone());
        let users = 1;
        self.slots.insert(
            key,
            Slot {
                owner,
                users,
                paths,
                opened_by: by,
            },
        );
    }

    fn remove(&mut self, key: &Key) -> Option<Slot> {
        let slot = self.slots.remove(key)?;
        for path in &slot.paths {
            self.paths.remove(path);
        }
        Some(slot)
    }

    /// What a path names: what was opened by it, or what lies there and was opened by another
    /// name.
    fn key_of(&self, path: &Path) -> Option<Key> {
        if let Some(key) = self.paths.get(path) {
            return Some(key.clone());
        }
        let key = Key::File(FileIdentity::of(path).ok()?);
        self.slots.contains_key(&key).then_some(key)
    }

    /// Databases that were open when this process was forked belong to the parent. They are not
    /// dropped either: that would wait for threads that do not exist here.
    fn forget_parents(&mut self) {
        let parents = self.slots.iter().filter(|(_, slot)| !slot.is_ours());
        let parents: Vec<Key> = parents.map(|(key, _)| key.clone()).collect();
        for key in parents {
            std::mem::forget(self.remove(&key));
        }
    }
}

/// Held while a database is opened or closed, and while the process forks.
static DATABASES: Mutex<Option<Table>> = Mutex::new(None);

/// No thread forks while a database is being opened or closed.
const AT_FORK: Handlers = Handlers {
    before: hold,
    in_parent: release,
    in_child: begin_child,
};

extern "C" fn begin_child() {
    Generation::begin();
    release();
}

/// Keeps all threads from opening or closing databases until [`release`].
extern "C" fn hold() {
    std::mem::forget(DATABASES.lock());
}

/// Ends [`hold`].
#[expect(
    unsafe_code,
    reason = "a lock is released in another function than it was taken in"
)]
extern "C" fn release() {
    // SAFETY: this thread, or the one that forked, has taken it in `hold`.
    unsafe { DATABASES.force_unlock() };
}

/// A use of a database: one open file. Give it back with [`Lease::end`].
#[derive(Debug)]
pub(crate) struct Lease {
    database: Arc<Database>,
    key: Key,
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
        Databases::lock().table.remove(&self.key);
    }

    /// Ends this use; the last one closes the database. What still needs SQLite for that is
    /// done first, by a connection of our own, so that the file is an ordinary database; not where
    /// no connection had opened it.
    ///
    /// # Errors
    /// As [`Database::close`].
    pub(crate) fn end(self) -> Result<(), Failure> {
        if !self.database.is_ours() {
            // Its threads are the parent's, and so is what it would write.
            std::mem::forget(self.database);
            return Ok(());
        }
        let mut unfinished = None;
        let mut is_looked_after = false;
        loop {
            let mut databases = Databases::lock();
            let table = &mut databases.table;
            let Some(slot) = table.slots.get_mut(&self.key) else {
                return Ok(());
            };
            if slot.users > 1 {
                slot.users -= 1;
                // Under the lock: the next user may be the last.
                drop(self);
                return Ok(());
            }
            let opened_by = slot.opened_by;
            if opened_by == OpenedBy::Connection && !is_looked_after {
                is_looked_after = true;
                drop(databases);
                // Other connections may open the database meanwhile: this use of it is not ended
                // yet.
                unfinished = finish::finish(&self.database);
                continue;
            }
            let path = self.database.path().to_owned();
            let closed = self.database.close(opened_by);
            let removed = table.remove(&self.key);
            // The next opener finds the file unlocked.
            drop((removed, self));
            drop(databases);
            return match unfinished {
                // It is as it was found, and its next opener learns why.
                None if opened_by == OpenedBy::Recovery => {
                    if let Err(error) = closed {
                        tracing::debug!(%error, "a database that was looked at stays in use");
                    }
                    Ok(())
                }
                Some(failure) if closed.is_ok() => Err(failure),
                _ => closed.map_err(|failure| failure.at_the_last_close(&path)),
            };
        }
    }
}

/// A use of a database that is left to SQLite's own VFS. Ends when it is dropped.
#[derive(Debug)]
pub(crate) struct BaseLease {
    key: Key,
    generation: Generation,
}

impl Drop for BaseLease {
    fn drop(&mut self) {
        if !self.generation.is_current() {
            return;
        }
        let table = &mut Databases::lock().table;
        if let Some(slot) = table.slots.get_mut(&self.key) {
            slot.users -= 1;
            if slot.users == 0 {
                table.remove(&self.key);
            }
        }
    }
}

/// The VFS that serves a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backend {
    /// The engine's.
    Engine,
    /// SQLite's own VFS's.
    Sqlite,
}

/// What a path of a database names in this process.
#[derive(Debug)]
pub(crate) enum Found {
    /// A database in the engine.
    Engine(Lease),
    /// One that is left to SQLite's own VFS.
    Sqlite,
    /// None that is open.
    Nothing,
}

/// The databases that are open, locked to open or close one.
pub(crate) struct Databases {
    table: parking_lot::MappedMutexGuard<'static, Table>,
}

impl Databases {
    /// No other thread opens or closes a database as long as this exists.
    pub(crate) fn lock() -> Self {
        fork::watch(&AT_FORK);
        let empty = || Table {
            slots: HashMap::new(),
            paths: HashMap::new(),
        };
        let table = MutexGuard::map(DATABASES.lock(), |table| table.get_or_insert_with(empty));
        Self { table }
    }

    /// Where the arena of some database of this process is. What a killed app had in several
    /// databases is looked for in the same place.
    pub(crate) fn arena_in_use(&self) -> Option<PathBuf> {
        let mut owners = self.table.slots.values().map(|slot| &slot.owner);
        owners.find_map(|owner| match owner {
            Owner::Engine(database) => Some(database.options().arena.clone()),
            Owner::Sqlite(_) => None,
        })
    }

    /// The VFS that serves a database; none if it is not open.
    pub(crate) fn backend_of(&self, path: &Path) -> Option<Backend> {
        let slot = self.table.slots.get(&self.table.key_of(path)?)?;
        match &slot.owner {
            _ if !slot.is_ours() => None,
            Owner::Sqlite(_) => Some(Backend::Sqlite),
            Owner::Engine(_) => Some(Backend::Engine),
        }
    }

    /// What a path names; one more use of it, if it is the engine's.
    pub(crate) fn find(&mut self, path: &Path) -> Found {
        let Some(key) = self.table.key_of(path) else {
            return Found::Nothing;
        };
        match self.table.slots.get_mut(&key) {
            Some(slot) if slot.is_ours() => match &slot.owner {
                Owner::Sqlite(_) => Found::Sqlite,
                Owner::Engine(database) => {
                    slot.users += 1;
                    let database = Arc::clone(database);
                    Found::Engine(Lease { database, key })
                }
            },
            _ => Found::Nothing,
        }
    }

    /// Uses a database through the engine: the one that is open, or a newly opened one. One
    /// that is left to SQLite is not asked for.
    ///
    /// # Errors
    /// As [`Database::open`]; [`Failure::OpenOtherwise`], [`Failure::Replaced`].
    pub(crate) fn open(&mut self, request: &OpenRequest<'_>) -> Result<Lease, Failure> {
        self.table.forget_parents();
        let path = request.path;
        if let Some(key) = self.table.key_of(path) {
            return self.join(key, request);
        }
        let database = Arc::new(Database::open(request)?);
        let key = database
            .identity()
            .map_or_else(|| Key::Simulated(path.to_owned()), Key::File);
        let owner = Owner::Engine(Arc::clone(&database));
        self.table.insert(key.clone(), owner, path, request.by);
        Ok(Lease { database, key })
    }

    fn join(&mut self, key: Key, request: &OpenRequest<'_>) -> Result<Lease, Failure> {
        let path = request.path;
        if let Key::File(identity) = &key
            && FileIdentity::of(path).ok().as_ref() != Some(identity)
        {
            return Err(Failure::Replaced(path.to_owned()));
        }
        let is_known = self.table.paths.contains_key(path);
        let slot = self.table.slots.get_mut(&key);
        let Some(Slot {
            owner: Owner::Engine(database),
            users,
            paths,
            opened_by,
        }) = slot
        else {
            return Err(Failure::Misuse("the database is left to SQLite's own VFS"));
        };
        // A connection that finishes a database has no options of its own.
        if !finish::is_finishing() {
            if let Some(name) = request.options.contradicts(database.options()) {
                let path = path.to_owned();
                return Err(Failure::OpenOtherwise { path, name });
            }
            database.change(&request.options)?;
        }
        *users += 1;
        if request.by == OpenedBy::Connection {
            *opened_by = OpenedBy::Connection;
        }
        let database = Arc::clone(database);
        if !is_known {
            paths.push(path.to_owned());
            self.table.paths.insert(path.to_owned(), key.clone());
        }
        Ok(Lease { database, key })
    }

    /// One more use of a database that is left to SQLite's own VFS; none if there is no such
    /// file.
    pub(crate) fn leave_to_sqlite(&mut self, path: &Path) -> Option<BaseLease> {
        self.table.forget_parents();
        let key = Key::File(FileIdentity::of(path).ok()?);
        let generation = Generation::current();
        match self.table.slots.get_mut(&key) {
            Some(slot) => slot.users += 1,
            None => self.table.insert(
                key.clone(),
                Owner::Sqlite(generation),
                path,
                OpenedBy::Connection,
            ),
        }
        Some(BaseLease { key, generation })
    }
}

/// Uses a database that the caller has made.
pub(crate) fn adopt(database: Database) -> Lease {
    let database = Arc::new(database);
    let path = database.path().to_owned();
    let key = Key::Simulated(path.clone());
    let owner = Owner::Engine(Arc::clone(&database));
    let by = OpenedBy::Connection;
    Databases::lock()
        .table
        .insert(key.clone(), owner, &path, by);
    Lease { database, key }
}
