//! Committing the uncommitted changes of a mount that no daemon can go on with.
//!
//! A successor sets up everything that a mount needs, and what crashes it may crash each one that
//! follows. So the last process of a mount does as little as possible: it answers no requests,
//! makes no engine, and applies nothing that the journal has room for. It reads one transaction
//! after the other from the arena ([`mobifs_engine::persist::uncommitted`]) and hands it to the
//! store. It reports and skips what it cannot read. It records its progress in the arena, so that
//! another one can go on there, and skip a transaction that crashes processes.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use mobifs_base::{Entry, ObjectId, Transaction, TransactionId};
use mobifs_engine::persist::{self, Key, Uncommitted};
use mobifs_store::{Gate, JournalStore, PosixLower, RestartState, Store as _, StoreError};

use crate::arena::{OrphanedArena, ProgressLog};
use crate::{ArenaError, OpenOptions, StoreLock};

/// Processes that may crash over a transaction before it is skipped.
const ATTEMPTS_MAX: u32 = 2;

/// Why the uncommitted changes in an arena cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LastCommitError {
    /// The arena.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The uncommitted changes of a mount, on their way to the store.
#[derive(Debug)]
pub struct LastCommit {
    arena: OrphanedArena,
    progress_log: ProgressLog,
    store: JournalStore<Gate<PosixLower>>,
    lock: StoreLock,
    /// Transactions that are not committed yet, in order.
    waiting: Vec<Key>,
    /// What was reported already.
    reported: BTreeSet<String>,
}

/// What one pass over the transactions did.
#[derive(Debug, Default)]
pub struct CommitPass {
    /// Transactions that are in the store now.
    pub committed: u64,
    /// Why those that wait still could not be committed.
    pub failure: Option<StoreError>,
    /// What was skipped, in words.
    pub passed_over: Vec<String>,
}

impl LastCommit {
    /// Opens the store at `path` as the daemon left it. `lock` is the lock that it held.
    ///
    /// # Errors
    /// [`LastCommitError`]; another attempt may succeed where the store is the reason.
    pub fn open(
        path: &Path,
        options: &OpenOptions<'_>,
        arena: OwnedFd,
        lock: Option<OwnedFd>,
    ) -> Result<Self, LastCommitError> {
        let lock = match lock {
            Some(file) => StoreLock::take_over(path, &options.scope, file, options.read_only)?,
            None => StoreLock::acquire(path, &options.scope, options.read_only)?,
        };
        let mut arena = OrphanedArena::read(arena)?;
        let progress_log = arena.progress_log();
        let progress = progress_log.read();
        let mut known: RestartState = arena.store();
        progress.update(&mut known);
        let (store, resumed) = JournalStore::resume(
            options.lower(path)?,
            &options.journal(path)?,
            Arc::new(progress_log.clone()),
            known,
        )?;
        for &tag in &resumed.committed {
            progress_log.done(TransactionId(tag));
        }
        let mut waiting = persist::uncommitted(&arena);
        waiting.retain(|key| {
            let transaction = TransactionId(key.first);
            !progress.is_done(transaction) && !resumed.committed.contains(&transaction.0)
        });
        Ok(Self {
            arena,
            progress_log,
            store,
            lock,
            waiting,
            reported: BTreeSet::new(),
        })
    }

    /// Whether everything that can be read is committed.
    pub const fn is_done(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Commits what waits, as far as the store accepts it: what the store refuses waits for the
    /// next call, and so does what depends on it.
    pub fn commit(&mut self) -> CommitPass {
        let mut pass = CommitPass::default();
        let progress = self.progress_log.read();
        for unreadable in self.arena.take_unreadable() {
            self.pass_over(unreadable, &mut pass);
        }
        let mut refused: Vec<Uncommitted> = Vec::new();
        for key in std::mem::take(&mut self.waiting) {
            let transaction = TransactionId(key.first);
            let attempts = progress.attempts(transaction);
            if attempts >= ATTEMPTS_MAX {
                let what = format!(
                    "transaction {}, which ended {attempts} processes",
                    transaction.0
                );
                self.pass_over(what, &mut pass);
                self.progress_log.done(transaction);
                continue;
            }
            self.progress_log.begin(transaction);
            let mut uncommitted = persist::read(&self.arena, key);
            self.pass_over_unreadable(&mut uncommitted, &mut pass);
            let waits = refused
                .iter()
                .any(|earlier| uncommitted.depends_on(earlier));
            let outcome = (!waits).then(|| self.hand_over(&uncommitted));
            if let Some(Ok(())) = outcome {
                self.progress_log.done(transaction);
                pass.committed += 1;
                continue;
            }
            self.progress_log.refused(transaction);
            if let Some(Err(error)) = outcome {
                pass.failure = Some(error);
            }
            uncommitted.entries.clear();
            refused.push(uncommitted);
            self.waiting.push(key);
        }
        pass
    }

    /// Unlocks the store, also if another process holds the lock too.
    pub fn close(self) {
        drop(self.store);
        self.lock.release();
    }

    fn hand_over(&self, uncommitted: &Uncommitted) -> Result<(), StoreError> {
        if uncommitted.entries.is_empty() {
            return Ok(());
        }
        let entries = uncommitted.entries.iter().cloned();
        let transaction = Transaction::tagged(uncommitted.transaction.0, entries);
        self.store.commit(transaction)
    }

    fn pass_over(&mut self, what: String, pass: &mut CommitPass) {
        if self.reported.insert(what.clone()) {
            pass.passed_over.push(what);
        }
    }

    /// Names what could not be read of a transaction, and removes what depends on that.
    fn pass_over_unreadable(&mut self, uncommitted: &mut Uncommitted, pass: &mut CommitPass) {
        for unreadable in std::mem::take(&mut uncommitted.unreadable) {
            let object = unreadable.object;
            let object = object.map_or_else(|| "an entry".to_owned(), |id| self.path_of(id));
            self.pass_over(format!("{object}: {}", unreadable.why), pass);
        }
        // Also where everything could be read: a missing record is not noticed otherwise.
        let placed = Placed::of(uncommitted, |id| self.store.object(id).is_ok());
        let mut lost = BTreeSet::new();
        uncommitted.entries.retain(|entry| {
            let unplaced = placed.lacks(entry);
            lost.extend(unplaced);
            unplaced.is_none()
        });
        for id in lost {
            let what = format!("{}: what it belongs to is missing", self.path_of(id));
            self.pass_over(what, pass);
        }
    }

    fn path_of(&self, id: ObjectId) -> String {
        match persist::last_known_path(&self.arena, id) {
            Some(path) => format!("\"{}\"", path.escape_ascii()),
            None => id.to_string(),
        }
    }
}

/// The objects of a transaction that have a place in the tree, or that the store knows. A new
/// object without one must not get entries, and no change may refer to an object that the store
/// never got: no apply could carry that out.
struct Placed {
    objects: BTreeSet<ObjectId>,
}

impl Placed {
    fn of(uncommitted: &Uncommitted, is_known: impl Fn(ObjectId) -> bool) -> Self {
        let mut created = BTreeSet::new();
        let mut mentioned = BTreeSet::new();
        let mut children: BTreeMap<ObjectId, Vec<ObjectId>> = BTreeMap::new();
        for entry in &uncommitted.entries {
            match entry {
                Entry::Object(state) if state.created => {
                    created.insert(state.id);
                }
                Entry::Object(state) => {
                    mentioned.insert(state.id);
                }
                Entry::Dentry { parent, child, .. } => {
                    mentioned.insert(*parent);
                    if let Some(child) = child {
                        mentioned.insert(*child);
                        children.entry(*parent).or_default().push(*child);
                    }
                }
                Entry::Page { object, .. } => {
                    mentioned.insert(*object);
                }
            }
        }
        let known = mentioned.difference(&created).copied();
        let mut objects: BTreeSet<ObjectId> = known.filter(|id| is_known(*id)).collect();
        let mut reached: Vec<ObjectId> = objects.iter().copied().collect();
        while let Some(parent) = reached.pop() {
            for child in children.remove(&parent).unwrap_or_default() {
                if created.contains(&child) && objects.insert(child) {
                    reached.push(child);
                }
            }
        }
        Self { objects }
    }

    /// The object without a place that an entry needs, if there is one.
    fn lacks(&self, entry: &Entry) -> Option<ObjectId> {
        let needed = match entry {
            Entry::Object(state) => [Some(state.id), None],
            Entry::Dentry { parent, child, .. } => [Some(*parent), *child],
            Entry::Page { object, .. } => [Some(*object), None],
        };
        let mut needed = needed.into_iter().flatten();
        needed.find(|id| !self.objects.contains(id))
    }
}

#[cfg(test)]
mod tests;
