//! The journal store: a checkpointer over any POSIX filesystem.
//!
//! A transaction is one sequential write to the journal ([`log`](crate::log)); what it
//! says is merged into [`overlay`](crate::overlay), where reads find it, and is brought to the lower tree
//! later ([`apply`](crate::apply)), when many transactions have become one. After a crash the
//! journal is merged and applied the same way. `docs/DESIGN.md` argues why every
//! crash ends in a state that existed; `docs/FORMAT.md` has the bytes.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mobifs_base::{
    ByteRange, DirectoryEntry, ObjectId, ObjectInfo, Page, PageIndex, SpaceInfo, Xattr,
};
use parking_lot::{Mutex, RwLock};

use crate::apply::ahead::Content;
use crate::apply::reserve::Reserve;
use crate::apply::{Carried, Unnamed};
use crate::log::Log;
use crate::lower::Lower;
use crate::lower::gate::Gate;
use crate::overlay::state::Watched;
use crate::recovery::Moves;
use crate::{Capabilities, PendingWork, Seek, Store, StoreError, Ticket, Transaction};

/// Name of the store's own directory in its root.
pub(crate) const OWN_DIRECTORY: &[u8] = b".mobifs";

/// How to open a [`JournalStore`].
#[derive(Clone, Copy, Debug)]
pub struct JournalOptions {
    /// Size of the journal, if it has to be made.
    pub journal_bytes: u64,
    /// Largest transaction that is written with one durable write instead of write
    /// and flush; none: measured when the journal is made, and remembered.
    pub direct_bytes_max: Option<u64>,
    /// Identity of the store, if it has to be made.
    pub uuid_if_new: [u8; 16],
    /// Write nothing; what a journal holds is shown but not applied.
    pub read_only: bool,
    /// Memory that committed, unapplied pages may hold before a commit applies them.
    pub held_bytes_max: u64,
    /// Room that is kept below, also on a full disk, for directories and lists of extents that
    /// grow; 0: none.
    pub reserve_bytes: u64,
    /// [`Store::apply`] writes so many pages of existing files or more before it keeps commits
    /// waiting.
    pub ahead_pages_min: usize,
}

impl Default for JournalOptions {
    fn default() -> Self {
        Self {
            journal_bytes: 64 << 20,
            direct_bytes_max: None,
            uuid_if_new: [0; 16],
            read_only: false,
            held_bytes_max: 256 << 20,
            reserve_bytes: 0,
            ahead_pages_min: 256,
        }
    }
}

/// Facts about an open journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalInfo {
    /// Identity of the store.
    pub uuid: [u8; 16],
    /// Size of the journal file.
    pub journal_bytes: u64,
    /// The journal bypasses the page cache (`O_DIRECT`). Where the filesystem cannot,
    /// it is written through the cache and flushed: slower, not less safe.
    pub direct_io: bool,
    /// Largest transaction that is one durable write.
    pub direct_bytes_max: u64,
}

/// Handles on `.mobifs` and what lies in it.
#[derive(Debug)]
pub(crate) struct Directories<L: Lower> {
    pub(crate) mobifs: Arc<L::Handle>,
    pub(crate) stage: Arc<L::Handle>,
    pub(crate) limbo: Arc<L::Handle>,
    pub(crate) lost: Arc<L::Handle>,
}

/// What commits and applies change; whoever holds it is the only writer.
pub(crate) struct Writer<L: Lower> {
    pub(crate) log: Log<Gate<L>>,
    /// Objects whose place the journal's epoch records already.
    pub(crate) recorded: HashSet<ObjectId>,
    pub(crate) next_ticket: u64,
    /// Number of the next overflow file.
    pub(crate) next_overflow: u64,
    /// What the epoch's journal says of names that move.
    pub(crate) moves: Moves,
    /// Names have moved since the lower filesystem was last made durable as a whole.
    pub(crate) has_unsynced_moves: bool,
    /// What the epoch that comes begins with, while its superblock is not in force.
    pub(crate) carried: Option<Carried>,
    /// Memory of what the epoch has begun with: applying does not give it back.
    pub(crate) carried_bytes: u64,
    /// The witness was told of a transaction that is not known to be in the journal.
    pub(crate) has_open_intent: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) commits: AtomicU64,
    pub(crate) commit_written_bytes: AtomicU64,
    pub(crate) apply_written_bytes: AtomicU64,
    pub(crate) strays: AtomicU64,
}

/// A store over a POSIX filesystem. See the module's documentation.
///
/// Locks are taken in the order of the fields: `writer`, `content`, `tree`, `state`; then that of the
/// handles that `lower` keeps.
pub struct JournalStore<L: Lower> {
    pub(crate) lower: Gate<L>,
    pub(crate) own: Directories<Gate<L>>,
    pub(crate) device: u64,
    pub(crate) capabilities: Capabilities,
    pub(crate) read_only: bool,
    pub(crate) held_bytes_max: u64,
    pub(crate) ahead_pages_min: usize,
    pub(crate) writer: Mutex<Writer<L>>,
    /// Held by whoever changes content in place.
    pub(crate) content: Mutex<Content>,
    /// Write-held while names in the lower tree move.
    pub(crate) tree: RwLock<()>,
    pub(crate) state: Watched,
    pub(crate) counters: Counters,
    pub(crate) reserve: Reserve,
    /// Number of the overflow file that the epoch begins with; 0: none.
    pub(crate) carried_file: AtomicU64,
    /// What [`Store::first_new_object`] says.
    pub(crate) first_new: ObjectId,
    /// Copies of the log's figures, so that asking does not wait for a commit.
    pub(crate) journal_used_bytes: AtomicU64,
    pub(crate) journal_total_bytes: AtomicU64,
}

impl<L: Lower> std::fmt::Debug for JournalStore<L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JournalStore")
            .field("read_only", &self.read_only)
            .finish_non_exhaustive()
    }
}

impl<L: Lower> JournalStore<L> {
    /// Applies everything and marks the journal clean.
    ///
    /// # Errors
    /// As [`Store::apply`]. [`StoreError::Unapplied`]: all else is in its place, and the next mount
    /// goes on with it.
    pub fn close(&self) -> Result<(), StoreError> {
        if self.read_only {
            return Ok(());
        }
        let mut writer = self.writer.lock();
        let applied = self.apply_all(&mut writer);
        match &applied {
            Err(StoreError::Unapplied { .. }) => {}
            Err(_) => return applied,
            Ok(()) => {
                self.take_back(&mut writer)?;
                writer.log.reset(&self.lower, true)?;
                self.publish_log(&writer.log);
            }
        }
        // Nobody will find the names of an object any more that are not known yet.
        self.empty_limbo(Unnamed::Pinned);
        self.sweep_stage();
        applied
    }

    /// Before [`JournalStore::close`] where the mount has ended: nothing is in use any more,
    /// also what nobody has given back.
    pub fn unpin_all(&self) {
        self.state.write().unpin_all();
    }

    /// Facts about the journal.
    pub fn journal_info(&self) -> JournalInfo {
        let writer = self.writer.lock();
        JournalInfo {
            uuid: writer.log.uuid(),
            journal_bytes: writer.log.total_bytes(),
            direct_io: writer.log.direct_io(),
            direct_bytes_max: writer.log.direct_bytes_max(),
        }
    }

    pub(crate) fn publish_log(&self, log: &Log<Gate<L>>) {
        self.journal_used_bytes
            .store(log.used_bytes(), Ordering::Relaxed);
        self.journal_total_bytes
            .store(log.total_bytes(), Ordering::Relaxed);
    }
}

impl<L: Lower> Store for JournalStore<L> {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn space(&self) -> Result<SpaceInfo, StoreError> {
        let space = self.lower.space();
        space
            .map(|space| self.without_reserve(space))
            .map_err(StoreError::lower("asking for free space"))
    }

    fn object(&self, id: ObjectId) -> Result<ObjectInfo, StoreError> {
        self.read_object(id)
    }

    fn list_directory(&self, id: ObjectId) -> Result<Vec<DirectoryEntry>, StoreError> {
        self.state.write().note_listed(id);
        self.read_entries(id)
    }

    fn xattrs(&self, id: ObjectId) -> Result<Vec<Xattr>, StoreError> {
        self.read_xattrs(id)
    }

    fn read_link(&self, id: ObjectId) -> Result<Vec<u8>, StoreError> {
        self.read_target(id)
    }

    fn read(&self, id: ObjectId, offset: u64, out: &mut [u8]) -> Result<(), StoreError> {
        self.read_content(id, offset, out)
    }

    fn seek(&self, id: ObjectId, offset: u64, what: Seek) -> Result<Option<u64>, StoreError> {
        self.seek_content(id, offset, what)
    }

    fn is_in_place(&self, id: ObjectId, range: ByteRange) -> Result<bool, StoreError> {
        self.has_place(id, range)
    }

    fn end_transaction(&self, transaction: Transaction) -> Result<Ticket, StoreError> {
        self.commit(transaction)
    }

    fn wait_sync(&self, _ticket: Ticket) -> Result<(), StoreError> {
        // A transaction is durable when `end_transaction` returns.
        Ok(())
    }

    fn apply(&self) -> Result<(), StoreError> {
        if self.read_only {
            return Ok(());
        }
        self.write_ahead();
        let mut writer = self.writer.lock();
        self.apply_all(&mut writer)
    }

    fn pending(&self) -> PendingWork {
        let state = self.state.read();
        PendingWork {
            journal_used_bytes: self.journal_used_bytes.load(Ordering::Relaxed),
            journal_total_bytes: self.journal_total_bytes.load(Ordering::Relaxed),
            held_bytes: state.pending.held_bytes(),
            reserved_bytes: state.pending.reserved_bytes,
            reserved_inodes: state.pending.created,
            commit_written_bytes: self.counters.commit_written_bytes.load(Ordering::Relaxed),
            apply_written_bytes: self.counters.apply_written_bytes.load(Ordering::Relaxed),
            strays: self.counters.strays.load(Ordering::Relaxed),
            commits: self.counters.commits.load(Ordering::Relaxed),
            overwritten_bytes_max: self.journal_total_bytes.load(Ordering::Relaxed) / 2,
            entries_bytes_max: self.reserve.promised_bytes(),
        }
    }

    fn first_new_object(&self) -> ObjectId {
        self.first_new
    }

    fn pin(&self, id: ObjectId) {
        self.state.write().pin(id);
    }

    fn unpin(&self, id: ObjectId) {
        self.release_orphan(id);
    }

    fn spill(&self, id: ObjectId, pages: &[(PageIndex, Page)]) -> Result<(), StoreError> {
        self.spill_pages(id, pages)
    }

    fn forget(&self, ids: &[ObjectId], in_use: &BTreeSet<ObjectId>) {
        self.forget_objects(ids, in_use);
    }

    fn cut_power(&self) {
        self.lower.cut_power();
    }
}
