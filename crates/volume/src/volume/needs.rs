//! Fetching from the store what an engine operation needs.

use std::sync::atomic::Ordering;

use mobifs_base::{PAGE_BYTES, Page};
use mobifs_engine::{ClosedUntil, Engine, FsError, Need, Node, RemovalMemory, Stop};
use mobifs_store::StoreError;

use super::Shared;
use super::errors::store_failed;
use super::locked_engine::{Keeping, LockedEngine};
use super::locks::CommitLock;
use crate::arena;

/// An operation that still needs something after so many answers makes no progress.
const ATTEMPTS_MAX: usize = 100_000;

/// What a successor must know of an operation to answer its request.
pub(super) trait Outcome {
    fn outcome(&self) -> u64;
}

impl Outcome for () {
    fn outcome(&self) -> u64 {
        0
    }
}

/// Bytes.
impl Outcome for usize {
    fn outcome(&self) -> u64 {
        *self as u64
    }
}

/// The object.
impl Outcome for Node {
    fn outcome(&self) -> u64 {
        self.id.0
    }
}

/// How far an operation has come in its search for room in the lower filesystem.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SpaceSearch {
    NotBegun,
    /// What was closed at that point is being committed.
    Committing(ClosedUntil),
    /// All of that is committed and applied.
    Ended,
}

impl Shared {
    /// Runs an operation that only reads. A program waits for its result; changes may also come
    /// from the kernel by itself.
    pub(super) fn read_only_operation<T>(
        &self,
        mut operation: impl FnMut(&mut Engine) -> Result<T, Stop>,
    ) -> Result<T, FsError> {
        self.requested();
        self.run(
            Keeping::Batched,
            |engine, _| operation(engine),
            |_| {},
            Self::refuse_memory,
        )
    }

    /// Runs an operation that changes something.
    pub(super) fn change<T: Outcome>(
        &self,
        mut operation: impl FnMut(&mut Engine) -> Result<T, Stop>,
    ) -> Result<T, FsError> {
        let operation = |engine: &mut Engine, _| {
            let answer = operation(engine)?;
            arena::executed(answer.outcome());
            Ok(answer)
        };
        let after = |locked: &mut LockedEngine<'_>| self.after_change(locked);
        self.run(Keeping::Now, operation, after, Self::refuse_memory)
    }

    /// Runs a removal. It waits for memory as others do, and goes beyond the budget where none
    /// can be had, because it is removals that make room again.
    pub(super) fn remove(
        &self,
        mut operation: impl FnMut(&mut Engine, RemovalMemory) -> Result<(), Stop>,
    ) -> Result<(), FsError> {
        let operation = |engine: &mut Engine, memory| {
            operation(engine, memory)?;
            arena::executed(().outcome());
            Ok(())
        };
        let after = |locked: &mut LockedEngine<'_>| self.after_change(locked);
        self.run(Keeping::Now, operation, after, |_| {
            Ok(RemovalMemory::BeyondBudget)
        })
    }

    /// The result of an operation other than a removal where no memory can be freed.
    fn refuse_memory(error: FsError) -> Result<RemovalMemory, FsError> {
        tracing::error!(
            "memory is used up by changes that the store cannot commit; see `mobifs status`"
        );
        Err(error)
    }

    /// Runs a write of so many bytes that belongs to a batch.
    pub(super) fn change_batched<T>(
        &self,
        bytes: usize,
        mut operation: impl FnMut(&mut Engine) -> Result<T, Stop>,
    ) -> Result<T, FsError> {
        let after = |locked: &mut LockedEngine<'_>| {
            locked.batched_bytes += bytes;
            self.after_change(locked);
        };
        let operation = |engine: &mut Engine, _| operation(engine);
        self.run(Keeping::Batched, operation, after, Self::refuse_memory)
    }

    fn run<T>(
        &self,
        keeping: Keeping,
        mut operation: impl FnMut(&mut Engine, RemovalMemory) -> Result<T, Stop>,
        after: impl Fn(&mut LockedEngine<'_>),
        without_memory: impl Fn(FsError) -> Result<RemovalMemory, FsError>,
    ) -> Result<T, FsError> {
        self.check_power()?;
        let mut memory = RemovalMemory::WithinBudget;
        let mut search = SpaceSearch::NotBegun;
        let mut unknown = None;
        for _ in 0..ATTEMPTS_MAX {
            let mut locked = self.lock_engine_keeping(keeping);
            let need = match operation(&mut locked.engine, memory) {
                Ok(answer) => {
                    after(&mut locked);
                    return Ok(answer);
                }
                Err(Stop::Fail(error)) => return Err(error),
                Err(Stop::Need(need)) => need,
            };
            // Read before other threads may commit: what they free is what the operation needs.
            let dirty_bytes = locked.engine.dirty_bytes();
            drop(locked);
            match need {
                Need::Space if search == SpaceSearch::Ended => return Err(FsError::NoSpace),
                Need::Space => self.make_space(&mut search)?,
                Need::Memory => {
                    if let Err(error) = self.make_memory(dirty_bytes) {
                        self.check_power()?;
                        memory = without_memory(error)?;
                    }
                }
                need => match self.fetch(need) {
                    Ok(()) => {}
                    // The store was asked to forget the object between our question and its answer:
                    // tried again, the operation starts further up. The same need twice means that
                    // the object is gone.
                    Err(StoreError::Unknown(_)) if unknown != Some(need) => unknown = Some(need),
                    Err(error) => return Err(store_failed(&error)),
                },
            }
            // After a drill no operation may wait.
            self.check_power()?;
        }
        tracing::error!("an operation made no progress after {ATTEMPTS_MAX} requests to the store");
        Err(FsError::Io)
    }

    /// Fetches from the store what the engine needs.
    fn fetch(&self, need: Need) -> Result<(), StoreError> {
        let store = &self.store;
        // What the store lists it also remembers, until it is asked to forget the
        // directory; that must not happen before the engine has the list.
        let _kept = self.listing.read();
        match need {
            Need::Object { id, epoch } => {
                let info = store.object(id)?;
                let mut locked = self.lock_engine();
                locked.engine.provide_object(id, epoch, info);
                self.after_crowding(&mut locked);
            }
            Need::Directory { id, epoch } => {
                let entries = store.list_directory(id)?;
                self.lock_engine()
                    .engine
                    .provide_directory(id, epoch, entries);
            }
            Need::Xattrs { id, epoch } => {
                let xattrs = store.xattrs(id)?;
                self.lock_engine().engine.provide_xattrs(id, epoch, xattrs);
            }
            Need::SymlinkTarget { id, epoch } => {
                let target = store.read_link(id)?;
                self.lock_engine()
                    .engine
                    .provide_symlink_target(id, epoch, target);
            }
            Need::Page {
                object,
                index,
                version,
            } => {
                let mut content = [0; PAGE_BYTES];
                store.read(object, index.offset(), &mut content)?;
                // Zeros at the end need no memory.
                let end = content
                    .iter()
                    .rposition(|&byte| byte != 0)
                    .map_or(0, |last| last + 1);
                let page = Page::new(&content[..end]);
                self.lock_engine()
                    .engine
                    .provide_page(object, index, version, page);
            }
            Need::Place {
                object,
                range,
                version,
            } => {
                let is_in_place = store.is_in_place(object, range)?;
                self.lock_engine()
                    .engine
                    .provide_place(object, range, version, is_in_place);
            }
            Need::Memory | Need::Space => {}
        }
        Ok(())
    }

    /// Makes room in the lower filesystem, one step at a time, until there is enough for the
    /// operation. What is committed takes what it really needs, and no journal; what is
    /// overwritten there or deleted frees room only when it is applied.
    fn make_space(&self, search: &mut SpaceSearch) -> Result<(), FsError> {
        if self.may_commit_for_room(&self.commit_lock.lock()) {
            let point = match *search {
                SpaceSearch::Committing(point) => point,
                _ => self.lock_engine().engine.close_all(),
            };
            *search = SpaceSearch::Committing(point);
            if !self.is_power_cut() && self.commit_until(point) {
                return Ok(());
            }
        }
        *search = SpaceSearch::Ended;
        self.unpin_unused();
        match self.apply() {
            Ok(()) => self.is_stuck.store(false, Ordering::Relaxed),
            Err(error) => {
                // Logged once, and not for each operation that finds no room.
                if !self.is_stuck.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, "the store could not apply the journal to make room");
                }
                self.check_power()?;
            }
        }
        Ok(())
    }

    /// Makes room in memory, when an operation found so much in use: commits in the
    /// caller's thread, which is what slows writers down to the speed of the device.
    fn make_memory(&self, before_bytes: u64) -> Result<(), FsError> {
        // The last part of the journal is for threads that wait for a commit. Filled by a fast
        // writer it would have to be applied in the middle of one, while all of them wait.
        self.apply_nearly_full();
        let commit_lock = self.commit_lock.lock();
        let may_commit = self.may_commit_for_room(&commit_lock);
        let (commit, is_room_made) = {
            let mut locked = self.lock_engine();
            // Another thread may have made room while we waited for the commit lock. If not, it
            // does not help that less than half is used: the operation needs more.
            let dirty_bytes = locked.engine.dirty_bytes();
            let is_less = dirty_bytes < before_bytes;
            if is_less && dirty_bytes <= self.memory_high_bytes() {
                return Ok(());
            }
            if !may_commit {
                return Err(FsError::NoSpace);
            }
            let commit = locked.engine.next_commit(None).or_else(|| {
                locked.engine.close_largest();
                locked.engine.next_commit(None)
            });
            // Freed by other threads, or because the closed transactions became empty.
            (commit, locked.engine.dirty_bytes() < before_bytes)
        };
        if let Some(commit) = commit {
            // A failure makes the app read-only; the operation gets the error when it is tried
            // again.
            let _failed = self.commit_one(&commit_lock, &commit);
            return Ok(());
        }
        if self.spill(&commit_lock)? || is_room_made {
            return Ok(());
        }
        Err(FsError::NoSpace)
    }

    /// Spills pages of a deleted file that is still in use outside memory; false if
    /// there is none.
    fn spill(&self, _commit_lock: &CommitLock<'_>) -> Result<bool, FsError> {
        let candidate = self.lock_engine().engine.spill_candidate();
        let Some((id, pages)) = candidate else {
            return Ok(false);
        };
        self.store
            .spill(id, &pages)
            .map_err(|error| store_failed(&error))?;
        self.lock_engine().engine.spilled(id, &pages);
        Ok(true)
    }
}
