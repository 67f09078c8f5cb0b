//! A store opened and locked.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mobifs_base::{FileKind, ObjectInfo, SpaceInfo, TransactionId};
use mobifs_engine::{Engine, EngineConfig};
use mobifs_store::{
    Gate, JournalOptions, JournalStore, Measuring, PosixLower, RecoveryReport, RestartState, Store,
    StoreError, StoreScope,
};

use crate::arena::SavedMount;
use crate::config::JOURNAL_BYTES_MIN;
use crate::{Arena, ArenaError, Config, OwnerState, Rules, StoreLock};

/// Share of the memory budget that committed, unapplied changes may take: one part in.
const HELD_SHARE: u64 = 4;
/// Room that a store keeps, also on a full disk, for what is not content.
const RESERVE_BYTES: u64 = 1 << 20;

/// A journal store in a directory, locked by this process and brought to its last
/// committed state.
#[derive(Debug)]
pub struct OpenedStore {
    path: PathBuf,
    store: Arc<JournalStore<Gate<PosixLower>>>,
    report: RecoveryReport,
    lock: StoreLock,
    resumption: Option<Resumption>,
}

/// How a store is opened.
#[derive(Clone, Debug)]
pub struct OpenOptions<'a> {
    /// Sizes, and whether commits are direct writes.
    pub config: &'a Config,
    /// How much of the directory is the store.
    pub scope: StoreScope,
    /// Nothing may change.
    pub read_only: bool,
    /// Where the store's restart state is kept for a successor of this process.
    pub arena: Option<&'a Arena>,
    /// The file of a store of one file, where the caller has it open for reading and writing.
    pub file: Option<&'a Arc<File>>,
    /// When the device is measured, unless `config` has the size.
    pub measuring: Measuring,
}

/// The state at which a process was killed.
#[derive(Debug)]
pub struct Resumption {
    saved: SavedMount,
    /// Transactions that had reached the journal when the process was killed, whose commit may not
    /// have been reported to the engine yet.
    committed: Vec<TransactionId>,
}

impl Resumption {
    /// The state of a killed process in the arena.
    ///
    /// # Errors
    /// [`ArenaError::Empty`] if there is no mount in it, [`ArenaError::Damaged`].
    pub fn of(arena: &Arena) -> Result<Self, ArenaError> {
        Ok(Self {
            saved: arena.saved()?.ok_or(ArenaError::Empty)?,
            committed: Vec::new(),
        })
    }

    /// The store's restart state, for [`JournalStore::resume`].
    pub const fn store(&self) -> &RestartState {
        &self.saved.store
    }

    /// Epoch and sequence of the transaction that was written to the journal last, if the process had
    /// learned that it is committed: what is here has nothing of it any more. A store whose next
    /// transaction is this one, or comes before it, is an older copy.
    pub fn committed_last(&self) -> Option<(u64, u64)> {
        let intent = self.saved.store.intent.as_ref()?;
        let is_learned = intent.tags.iter().any(|&tag| !self.saved.has_closed(tag));
        is_learned.then_some((intent.epoch, intent.sequence))
    }

    /// The store found these transactions, by their tags, in the journal.
    pub fn set_committed(&mut self, tags: Vec<u64>) {
        self.committed = tags.into_iter().map(TransactionId).collect();
    }

    /// Keeps what was set with `mobifs set` in force.
    pub(crate) fn settings_into(&self, rules: &mut Rules) {
        for (path, change) in &self.saved.settings {
            rules.set_app(path, change.clone());
        }
    }

    /// The engine as it was, with every transaction closed, so that they are committed next; and
    /// gives the store what the killed process could no longer give it.
    pub(crate) fn engine(
        &self,
        arena: &Arena,
        config: EngineConfig,
        root: &ObjectInfo,
        store: &dyn Store,
    ) -> Result<Engine, ArenaError> {
        let mut engine = self.saved.restore(arena, config, root)?;
        for &transaction in &self.committed {
            engine.committed(transaction);
        }
        engine.close_all();
        let mut unlisted = Vec::new();
        for (id, known) in &self.saved.store.objects {
            if known.is_pinned && !engine.has_pinned(*id) {
                store.unpin(*id);
            }
            let location = known.location.as_ref();
            let is_directory = location.is_some_and(|l| l.kind == FileKind::Directory);
            if is_directory && !engine.has_listing(*id) {
                unlisted.push(*id);
            }
        }
        store.forget(&unlisted, engine.objects_with_several_names());
        Ok(engine)
    }
}

impl OpenedStore {
    /// Locks and opens the store at `path` (absolute), making it a store if it is none.
    ///
    /// # Errors
    /// [`StoreError`]; a directory that was no store before is as it was.
    pub fn open(path: &Path, options: &OpenOptions<'_>) -> Result<Self, StoreError> {
        // Before the lock is made there: the directory may be unsuitable.
        let lower = options.lower(path)?;
        let mut lock = StoreLock::acquire(path, &options.scope, options.read_only)?;
        let opened = options
            .journal(path)
            .and_then(|journal| match options.arena {
                Some(arena) => {
                    JournalStore::open_with_sink(lower, &journal, Arc::new(arena.clone()))
                }
                None => JournalStore::open(lower, &journal),
            });
        match opened {
            Ok((store, report)) => {
                lock.keep();
                Ok(Self {
                    path: path.to_owned(),
                    store: Arc::new(store),
                    report,
                    lock,
                    resumption: None,
                })
            }
            Err(error) => {
                lock.abandon();
                Err(explain(error, path))
            }
        }
    }

    /// Opens the store of a killed process, to go on from its state in `arena`. `lock` is the lock
    /// that it held; without it the store is locked anew.
    ///
    /// # Errors
    /// As [`OpenedStore::open`]; [`StoreError::Unsuitable`] if the arena holds no mount.
    pub fn resume(
        path: &Path,
        options: &OpenOptions<'_>,
        arena: &Arena,
        lock: Option<OwnedFd>,
    ) -> Result<Self, StoreError> {
        let (scope, read_only) = (&options.scope, options.read_only);
        let mut lock = match lock {
            Some(file) => StoreLock::take_over(path, scope, file, read_only)?,
            None => StoreLock::acquire(path, scope, read_only)?,
        };
        let unusable = |error: &dyn std::fmt::Display| {
            StoreError::Unsuitable(format!(
                "cannot go on where the killed process was: {error}"
            ))
        };
        let mut resumption = Resumption::of(arena).map_err(|error| unusable(&error))?;
        let journal = options.journal(path)?;
        let (store, resumed) = JournalStore::resume(
            options.lower(path)?,
            &journal,
            Arc::new(arena.clone()),
            resumption.store().clone(),
        )
        .map_err(|error| explain(error, path))?;
        resumption.set_committed(resumed.committed);
        lock.keep();
        Ok(Self {
            path: path.to_owned(),
            store: Arc::new(store),
            report: resumed.report,
            lock,
            resumption: Some(resumption),
        })
    }

    /// The killed process's state; none if the store was opened afresh.
    pub const fn resumption(&self) -> Option<&Resumption> {
        self.resumption.as_ref()
    }

    /// The lock, for handing it over to the process that holds it should this one be killed.
    pub fn lock_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.lock.descriptor()
    }

    /// Says in the store's lock what this process is doing, for others that want the store.
    pub fn set_owner_state(&self, state: OwnerState) {
        self.lock.set_owner_state(state);
    }

    /// The store, as a volume takes it.
    // Inlined in another crate, it has all of the store compiled there once more.
    #[inline(never)]
    pub fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store) as Arc<dyn Store>
    }

    /// What opening found and did.
    pub const fn report(&self) -> &RecoveryReport {
        &self.report
    }

    /// The store's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Applies everything, marks the store as properly closed and unlocks it.
    ///
    /// # Errors
    /// [`StoreError`]; what is committed is then still in the journal, and the next
    /// mount brings it to its place.
    pub fn close(self) -> Result<(), StoreError> {
        self.store.unpin_all();
        let closed = self.store.close();
        if matches!(closed, Ok(()) | Err(StoreError::Unapplied { .. })) {
            self.lock.release();
        }
        closed
    }

    /// Unlocks the store as it is: after a power cut nothing may be written.
    pub fn abandon(self) {
        drop(self.lock);
    }
}

impl<'a> OpenOptions<'a> {
    /// All of a directory, for writing; a kill loses what is not committed.
    pub fn new(config: &'a Config) -> Self {
        Self {
            config,
            scope: StoreScope::Tree,
            read_only: false,
            arena: None,
            file: None,
            measuring: Measuring::AtOpening,
        }
    }

    pub(crate) fn lower(&self, path: &Path) -> Result<Gate<PosixLower>, StoreError> {
        let lower = PosixLower::open_scoped(path, self.scope.clone())?;
        Ok(Gate::new(match self.file {
            Some(file) => lower.with_file(Arc::clone(file)),
            None => lower,
        }))
    }

    /// Whether the filesystem has room for the journal of a store that is yet to be made at `path`. Nothing is changed.
    ///
    /// # Errors
    /// [`StoreError::Unsuitable`]: it has not, [`StoreError::Lower`].
    pub fn check_room(&self, path: &Path) -> Result<(), StoreError> {
        let own_path = self.scope.own_path(path);
        if present_journal_bytes(&own_path).is_some() {
            return Ok(());
        }
        let shown = path.display();
        let about = rustix::fs::statvfs(path)
            .map_err(|errno| StoreError::lower(format!("looking at {shown}"))(errno.into()))?;
        // What ext4 keeps for root is not counted as available.
        let blocks = if rustix::process::geteuid().is_root() {
            about.f_bfree
        } else {
            about.f_bavail
        };
        let free = blocks.saturating_mul(about.f_frsize);
        let needed = self.journal_bytes(path);
        if free >= needed {
            return Ok(());
        }
        Err(StoreError::Unsuitable(format!(
            "the filesystem of {shown} has {free} bytes free, and the journal of a store there takes {needed}: make \
             room, or set a smaller journal_bytes in the configuration"
        )))
    }

    fn journal_bytes(&self, path: &Path) -> u64 {
        let present = || present_journal_bytes(&self.scope.own_path(path));
        let wanted = self.config.journal_bytes.or_else(present);
        wanted.unwrap_or_else(|| JournalOptions::default().journal_bytes)
    }

    /// How the journal of the store at `path` is opened, or made.
    ///
    /// # Errors
    /// [`StoreError::Lower`]: no identity can be made.
    pub fn journal(&self, path: &Path) -> Result<JournalOptions, StoreError> {
        let defaults = JournalOptions::default();
        let held_bytes_max = self.config.memory_budget_bytes / HELD_SHARE;
        Ok(JournalOptions {
            journal_bytes: self.journal_bytes(path),
            direct_bytes_max: self.config.direct_write_max_bytes,
            measuring: self.measuring,
            uuid_if_new: random_uuid()?,
            read_only: self.read_only,
            held_bytes_max: held_bytes_max.min(defaults.held_bytes_max),
            reserve_bytes: match self.scope {
                StoreScope::Tree => RESERVE_BYTES,
                // Nothing is renamed there, and it would be one for each database.
                StoreScope::File(_) => 0,
            },
            ahead_pages_min: defaults.ahead_pages_min,
            preallocation: self.config.preallocation,
        })
    }
}

/// Size of the journal that is there, so that it keeps its size unless another one is asked for.
/// The store refuses a size that no journal can have.
fn present_journal_bytes(own_directory: &Path) -> Option<u64> {
    let journal = own_directory.join("journal");
    let about = journal
        .symlink_metadata()
        .ok()
        .filter(std::fs::Metadata::is_file)?;
    Some(about.len()).filter(|&bytes| bytes >= JOURNAL_BYTES_MIN && bytes.is_multiple_of(4096))
}

/// A random (version 4) identity for a new store.
fn random_uuid() -> Result<[u8; 16], StoreError> {
    let mut uuid = [0; 16];
    let mut source =
        std::fs::File::open("/dev/urandom").map_err(StoreError::lower("opening /dev/urandom"))?;
    source
        .read_exact(&mut uuid)
        .map_err(StoreError::lower("reading /dev/urandom"))?;
    uuid[6] = (uuid[6] & 0x0f) | 0x40;
    uuid[8] = (uuid[8] & 0x3f) | 0x80;
    Ok(uuid)
}

/// Explains in the user's terms what a full disk means here.
fn explain(error: StoreError, path: &Path) -> StoreError {
    use rustix::io::Errno;
    match &error {
        StoreError::Lower { action, source }
            if [Errno::NOSPC.raw_os_error(), Errno::DQUOT.raw_os_error()]
                .contains(&source.raw_os_error().unwrap_or(0)) =>
        {
            let shown = path.display();
            StoreError::Unsuitable(match lacks_inodes(path) {
                true => format!(
                    "the filesystem of {shown} has no inodes left for more files ({action} failed: \
                     {source}); delete files there"
                ),
                false => format!(
                    "there is not enough free space in {shown} ({action} failed: {source}); make \
                     room, or set a smaller journal_bytes in the configuration"
                ),
            })
        }
        _ => error,
    }
}

/// Whether it is inodes that the filesystem lacks; false where that cannot be found out.
fn lacks_inodes(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|found| {
        let space = SpaceInfo {
            available_bytes: found.f_bavail.saturating_mul(found.f_frsize),
            total_inodes: found.f_files,
            free_inodes: found.f_favail,
            ..SpaceInfo::default()
        };
        space.lacks_inodes()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_becomes_a_store_and_is_locked_while_it_is_open() {
        let directory = tempfile::tempdir().unwrap();
        let text = "journal_bytes = \"1MiB\"";
        let config = Config::parse(text, Path::new("test")).unwrap();
        let opened = OpenedStore::open(directory.path(), &OpenOptions::new(&config)).unwrap();
        let refused = OpenedStore::open(directory.path(), &OpenOptions::new(&config)).unwrap_err();
        assert!(matches!(refused, StoreError::InUse { .. }), "{refused}");
        opened.close().unwrap();
        let again = OpenedStore::open(directory.path(), &OpenOptions::new(&config)).unwrap();
        assert!(again.report().clean, "{:?}", again.report());
        again.abandon();
    }

    #[test]
    fn a_journal_keeps_its_size_unless_another_is_asked_for() {
        // Regression: `mobifs recover` gave every journal the default size.
        let directory = tempfile::tempdir().unwrap();
        let length = || {
            directory
                .path()
                .join(".mobifs/journal")
                .metadata()
                .unwrap()
                .len()
        };
        let small = Config::parse("journal_bytes = \"1MiB\"", Path::new("test")).unwrap();
        let unsaid = Config::defaults().unwrap();
        let large = Config::parse("journal_bytes = \"2MiB\"", Path::new("test")).unwrap();
        for (config, expected) in [(&small, 1 << 20), (&unsaid, 1 << 20), (&large, 2 << 20)] {
            let opened = OpenedStore::open(directory.path(), &OpenOptions::new(config)).unwrap();
            opened.close().unwrap();
            assert_eq!(length(), expected);
        }
    }

    #[test]
    fn a_file_can_be_a_store_by_itself() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        std::fs::write(path.join("a.db"), "content").unwrap();
        std::fs::write(path.join("b.db"), "another's").unwrap();
        let config = Config::parse("journal_bytes = \"1MiB\"", Path::new("test")).unwrap();
        let options = |name: &str| OpenOptions {
            scope: StoreScope::File(name.into()),
            ..OpenOptions::new(&config)
        };
        let one = OpenedStore::open(path, &options("a.db")).unwrap();
        let other = OpenedStore::open(path, &options("b.db")).unwrap();
        let names = |opened: &OpenedStore| -> Vec<Vec<u8>> {
            let entries = opened.store().list_directory(mobifs_base::ObjectId::ROOT);
            let names = entries.unwrap().into_iter();
            names.map(|entry| entry.name.as_bytes().to_vec()).collect()
        };
        assert_eq!(names(&one), [b"a.db"]);
        assert_eq!(names(&other), [b"b.db"]);
        let refused = OpenedStore::open(path, &options("a.db")).unwrap_err();
        assert!(matches!(refused, StoreError::InUse { .. }), "{refused}");
        assert!(path.join("a.db-mobifs/journal").exists());
        one.close().unwrap();
        other.close().unwrap();
    }

    #[test]
    fn identities_are_random() {
        assert_ne!(random_uuid().unwrap(), random_uuid().unwrap());
    }
}
