//! A store for tests, whose commits can be made to fail.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mobifs_base::{
    ByteRange, DirectoryEntry, ObjectId, ObjectInfo, Page, PageIndex, SpaceInfo, Xattr,
};
use mobifs_store::{
    Calibration, Capabilities, MemoryStore, PendingWork, Seek, Store, StoreError, Transaction,
};
use parking_lot::Mutex;

/// Size of the journal, where the store simulates one.
pub(super) const JOURNAL_BYTES: u64 = 100;

/// Gets the number of a commit.
pub(super) type DuringCommit = Arc<dyn Fn(u64) + Send + Sync>;

/// A store whose commits can be made to fail.
pub(super) struct Faulty {
    store: MemoryStore,
    pub(super) broken: AtomicBool,
    /// Another program has taken what room there was.
    pub(super) is_full: AtomicBool,
    /// Pages that a transaction may have.
    pub(super) pages_max: AtomicU64,
    /// Room that is reported at most.
    pub(super) available_bytes_max: AtomicU64,
    /// Commits that were attempted.
    pub(super) attempts: AtomicU64,
    /// How often it was applied.
    pub(super) applies: AtomicU64,
    /// What each commit takes of a journal of [`JOURNAL_BYTES`]; 0: there is none.
    pub(super) commit_bytes: AtomicU64,
    journal_used_bytes: AtomicU64,
    /// What else happens while the journal is applied.
    pub(super) during_apply: Mutex<Option<Box<dyn Fn() + Send>>>,
    /// What else happens while this commit, counted as in `attempts`, is under way.
    pub(super) during_commit: Mutex<Option<DuringCommit>>,
    /// The most that the journal ever held.
    pub(super) journal_used_bytes_max: AtomicU64,
}

impl Faulty {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            store: MemoryStore::new(),
            broken: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            pages_max: AtomicU64::new(u64::MAX),
            available_bytes_max: AtomicU64::new(u64::MAX),
            attempts: AtomicU64::new(0),
            applies: AtomicU64::new(0),
            commit_bytes: AtomicU64::new(0),
            journal_used_bytes: AtomicU64::new(0),
            during_apply: Mutex::new(None),
            during_commit: Mutex::new(None),
            journal_used_bytes_max: AtomicU64::new(0),
        })
    }
}

impl Store for Faulty {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }
    fn space(&self) -> Result<SpaceInfo, StoreError> {
        let mut space = self.store.space()?;
        if self.is_full.load(Ordering::SeqCst) {
            space.available_bytes = 0;
        }
        let max = self.available_bytes_max.load(Ordering::SeqCst);
        space.available_bytes = space.available_bytes.min(max);
        Ok(space)
    }
    fn object(&self, id: ObjectId) -> Result<ObjectInfo, StoreError> {
        self.store.object(id)
    }
    fn list_directory(&self, id: ObjectId) -> Result<Vec<DirectoryEntry>, StoreError> {
        self.store.list_directory(id)
    }
    fn xattrs(&self, id: ObjectId) -> Result<Vec<Xattr>, StoreError> {
        self.store.xattrs(id)
    }
    fn read_link(&self, id: ObjectId) -> Result<Vec<u8>, StoreError> {
        self.store.read_link(id)
    }
    fn read(&self, id: ObjectId, offset: u64, out: &mut [u8]) -> Result<(), StoreError> {
        self.store.read(id, offset, out)
    }
    fn seek(&self, id: ObjectId, offset: u64, what: Seek) -> Result<Option<u64>, StoreError> {
        self.store.seek(id, offset, what)
    }
    fn is_in_place(&self, id: ObjectId, range: ByteRange) -> Result<bool, StoreError> {
        self.store.is_in_place(id, range)
    }
    fn commit(&self, transaction: Transaction) -> Result<(), StoreError> {
        if self.broken.load(Ordering::SeqCst) {
            let error = std::io::Error::other("the medium is gone");
            return Err(StoreError::lower("writing the journal")(error));
        }
        let number = self.attempts.fetch_add(1, Ordering::SeqCst) + 1;
        let during_commit = self.during_commit.lock().clone();
        if let Some(during_commit) = during_commit {
            during_commit(number);
        }
        let pages: usize = transaction.pages.values().map(BTreeMap::len).sum();
        let is_too_much = pages as u64 > self.pages_max.load(Ordering::SeqCst);
        if is_too_much || self.is_full.load(Ordering::SeqCst) {
            let error = std::io::Error::from(rustix::io::Errno::NOSPC);
            return Err(StoreError::lower("writing the journal")(error));
        }
        let bytes = self.commit_bytes.load(Ordering::SeqCst);
        let used = self.journal_used_bytes.fetch_add(bytes, Ordering::SeqCst) + bytes;
        self.journal_used_bytes_max
            .fetch_max(used, Ordering::SeqCst);
        self.store.commit(transaction)
    }
    fn apply(&self) -> Result<(), StoreError> {
        self.applies.fetch_add(1, Ordering::SeqCst);
        if let Some(during_apply) = &*self.during_apply.lock() {
            during_apply();
        }
        self.journal_used_bytes.store(0, Ordering::SeqCst);
        self.store.apply()
    }
    fn calibration(&self) -> Option<Calibration> {
        self.store.calibration()
    }
    fn calibrate(&self) -> Result<Calibration, StoreError> {
        self.store.calibrate()
    }
    fn pending(&self) -> PendingWork {
        let mut pending = self.store.pending();
        if self.commit_bytes.load(Ordering::SeqCst) > 0 {
            pending.journal_used_bytes = self.journal_used_bytes.load(Ordering::SeqCst);
            pending.journal_total_bytes = JOURNAL_BYTES;
        }
        pending
    }
    fn first_new_object(&self) -> ObjectId {
        self.store.first_new_object()
    }
    fn pin(&self, id: ObjectId) {
        self.store.pin(id);
    }
    fn unpin(&self, id: ObjectId) {
        self.store.unpin(id);
    }
    fn spill(&self, id: ObjectId, pages: &[(PageIndex, Page)]) -> Result<(), StoreError> {
        self.store.spill(id, pages)
    }
    fn forget(&self, ids: &[ObjectId], in_use: &BTreeSet<ObjectId>) {
        self.store.forget(ids, in_use);
    }
    fn cut_power(&self) {
        self.store.cut_power();
    }
}
