//! The lock that keeps a store from being mounted twice.
//!
//! It is an advisory lock of the kernel on `.mobifs/lock`. It ends with the process, so after a
//! crash of the daemon or of the machine there is no stale lock to be removed. What is written
//! inside ([`LockOwner`]) is for messages, and for a process that waits until an owner whose mount
//! has ended has freed the store.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use mobifs_store::{StoreError, StoreScope, check_owner};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

mod owner;

pub use owner::{LockOwner, OwnerState, ServedMount};

/// Name of the lock's file in a store's own directory.
pub const LOCK: &str = "lock";
/// A process that failed to make a store may remove the file while we lock it.
const ATTEMPTS: usize = 16;

/// A locked store. Dropping unlocks, unless another process holds the same lock.
#[derive(Debug)]
pub struct StoreLock {
    /// The store's root directory, until the store is open.
    root: Option<OwnedFd>,
    scope: StoreScope,
    /// None for a store opened for reading that has no lock file.
    file: Option<File>,
    /// `.mobifs` was made for this lock.
    made_directory: bool,
    /// The lock is shared with other readers. Nothing is written into it.
    is_shared: bool,
    /// A supervisor has the descriptor, to hold the lock when this process is killed.
    is_handed_over: AtomicBool,
    /// The process that locked. A child that was forked from it has a copy of all this, and must
    /// not unlock.
    process: u32,
}

impl StoreLock {
    /// Locks the store in the directory `store`: exclusively, or, to look only, shared
    /// with other readers.
    ///
    /// # Errors
    /// [`StoreError::InUse`] with the holder's process id, [`StoreError::Unsuitable`]
    /// if `.mobifs` or its lock is not what it should be, [`StoreError::Lower`].
    pub fn acquire(store: &Path, scope: &StoreScope, read_only: bool) -> Result<Self, StoreError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(store, flags, Mode::empty())
            .map_err(|errno| StoreError::lower("opening the store")(errno.into()))?;
        if read_only {
            Self::share(root, scope)
        } else {
            Self::own(root, scope)
        }
    }

    fn over(root: OwnedFd, scope: &StoreScope, file: Option<File>) -> Self {
        Self {
            root: Some(root),
            scope: scope.clone(),
            file,
            made_directory: false,
            is_shared: false,
            is_handed_over: AtomicBool::new(false),
            process: std::process::id(),
        }
    }

    fn share(root: OwnedFd, scope: &StoreScope) -> Result<Self, StoreError> {
        let file = match open_directory(&root, scope)? {
            None => None,
            Some(directory) => open_lock(&directory, OFlags::RDONLY)?,
        };
        if let Some(file) = &file {
            lock(file, Access::Shared)?;
        }
        let mut lock = Self::over(root, scope, file);
        lock.is_shared = true;
        Ok(lock)
    }

    fn own(root: OwnedFd, scope: &StoreScope) -> Result<Self, StoreError> {
        let mut made_directory = false;
        for _ in 0..ATTEMPTS {
            let Some(directory) = open_directory(&root, scope)? else {
                match rustix::fs::mkdirat(&root, &*scope.own_directory(), Mode::RWXU) {
                    Ok(()) => made_directory = true,
                    Err(Errno::EXIST) => {}
                    Err(errno) => {
                        return Err(StoreError::lower("creating .mobifs in the store")(
                            errno.into(),
                        ));
                    }
                }
                continue;
            };
            check_directory(&directory, &root, scope)?;
            let Some(file) = open_lock(&directory, OFlags::RDWR | OFlags::CREATE)? else {
                continue;
            };
            lock(&file, Access::Exclusive)?;
            // Is the locked file still the one that other processes open?
            if !is_current(&file, &directory) {
                continue;
            }
            record_owner(&file, None).map_err(StoreError::lower("writing .mobifs/lock"))?;
            let mut lock = Self::over(root, scope, Some(file));
            lock.made_directory = made_directory;
            return Ok(lock);
        }
        Err(StoreError::Unsuitable(
            ".mobifs/lock is replaced again and again by another process".to_owned(),
        ))
    }

    /// Takes over the lock of a killed process, which its supervisor held.
    ///
    /// # Errors
    /// [`StoreError::Unsuitable`] if `file` is not this store's lock.
    pub fn take_over(
        store: &Path,
        scope: &StoreScope,
        file: OwnedFd,
        read_only: bool,
    ) -> Result<Self, StoreError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(store, flags, Mode::empty())
            .map_err(|errno| StoreError::lower("opening the store")(errno.into()))?;
        let file = File::from(file);
        let directory = open_directory(&root, scope)?;
        if !directory.is_some_and(|directory| is_current(&file, &directory)) {
            return Err(StoreError::Unsuitable(
                "the lock that was handed over is not this store's".to_owned(),
            ));
        }
        // This process holds it already, unless its holder released it.
        if read_only {
            lock(&file, Access::Shared)?;
        } else {
            lock(&file, Access::Exclusive)?;
            // This process goes on with what the killed process was doing.
            let state = LockOwner::read(&file).state;
            record_owner(&file, state).map_err(StoreError::lower("writing .mobifs/lock"))?;
        }
        let mut lock = Self::over(root, scope, Some(file));
        lock.is_shared = read_only;
        lock.is_handed_over.store(true, Ordering::Relaxed);
        Ok(lock)
    }

    /// The process that holds the lock of the store in the directory `store`, as the file names it.
    /// Meant for a store that is locked. Readers, which share the lock, write nothing: then, and of
    /// a store that is not locked, nothing else is known.
    ///
    /// # Errors
    /// [`StoreError`]: the lock cannot be read.
    pub fn owner(store: &Path, scope: &StoreScope) -> Result<LockOwner, StoreError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(store, flags, Mode::empty())
            .map_err(|errno| StoreError::lower("opening the store")(errno.into()))?;
        let Some(directory) = open_directory(&root, scope)? else {
            return Ok(LockOwner::default());
        };
        let Some(file) = open_lock(&directory, OFlags::RDONLY)? else {
            return Ok(LockOwner::default());
        };
        if is_shared_by_others(&file) {
            return Ok(LockOwner {
                is_reader: true,
                ..LockOwner::default()
            });
        }
        Ok(LockOwner::read(&file))
    }

    /// Says what this process, which holds the lock, is doing. Nothing is written into the lock of
    /// a store that is only read.
    pub fn set_owner_state(&self, state: OwnerState) {
        if let Some(file) = self.file.as_ref().filter(|_| !self.is_shared)
            && let Err(error) = owner::write_state(file, state)
        {
            // A process that waits for this one works without it: it is refused after a moment.
            tracing::debug!(%error, ?state, "cannot write the state of the owner to .mobifs/lock");
        }
    }

    /// For handing the lock over: the process that gets it holds it until [`StoreLock::release`].
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.is_handed_over.store(true, Ordering::Relaxed);
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Unlocks the store for all processes, also where the lock was handed over. What is written
    /// stays in the file: it holds until the store is unlocked, and the next process that locks it
    /// writes anew.
    pub fn release(self) {
        self.unlock();
    }

    fn unlock(&self) {
        if let Some(file) = &self.file
            && let Err(errno) = rustix::fs::flock(file, FlockOperation::Unlock)
        {
            tracing::warn!(%errno, "the store stays locked until the lock is closed everywhere");
        }
    }

    /// The store is open, so it is not [abandoned](StoreLock::abandon) any more.
    pub(crate) fn keep(&mut self) {
        self.root = None;
    }

    /// Gives up a store that could not be opened: unlocks it, and removes what was made only for
    /// that.
    pub fn abandon(self) {
        if !self.made_directory {
            return;
        }
        let Some(root) = &self.root else { return };
        if let Ok(Some(directory)) = open_directory(root, &self.scope) {
            // We made the directory, so all that has these names was made for this
            // attempt. Whatever else is in there keeps the directory.
            let made = [
                "journal",
                "journal.new",
                "id",
                "reserve",
                LOCK,
                mobifs_store::PREALLOCATED_FILE,
                mobifs_store::CALIBRATION_FILE,
            ];
            for name in made.into_iter().chain(mobifs_store::SPARE_FILES) {
                let _gone = rustix::fs::unlinkat(&directory, name, AtFlags::empty());
            }
            for name in ["stage", "limbo", "lost"] {
                let _gone = rustix::fs::unlinkat(&directory, name, AtFlags::REMOVEDIR);
            }
            let _gone =
                rustix::fs::unlinkat(root, &*self.scope.own_directory(), AtFlags::REMOVEDIR);
        }
    }

    /// Whether the lock is held by this process alone.
    pub const fn is_exclusive(&self) -> bool {
        self.file.is_some()
    }
}

impl Drop for StoreLock {
    /// Closing the descriptor would not be enough: a child that another thread has just forked has
    /// it too, until it executes its program.
    fn drop(&mut self) {
        if !*self.is_handed_over.get_mut() && self.process == std::process::id() {
            self.unlock();
        }
    }
}

/// `.mobifs`, if there is one; never through a symlink.
fn open_directory(root: &OwnedFd, scope: &StoreScope) -> Result<Option<OwnedFd>, StoreError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(root, &*scope.own_directory(), flags, Mode::empty()) {
        Ok(directory) => Ok(Some(directory)),
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::NOTDIR | Errno::LOOP) => Err(StoreError::Unsuitable(format!(
            "{} in the store is not a directory; move it away",
            scope.own_directory().display()
        ))),
        Err(errno) => Err(StoreError::lower("opening .mobifs in the store")(
            errno.into(),
        )),
    }
}

/// Before anything is written to what lies in it: it may be another file's second name.
fn check_directory(
    directory: &OwnedFd,
    root: &OwnedFd,
    scope: &StoreScope,
) -> Result<(), StoreError> {
    let owner_of = |directory| {
        let stat = rustix::fs::fstat(directory);
        let stat = stat.map_err(|errno| StoreError::lower("looking at .mobifs")(errno.into()));
        stat.map(|stat| stat.st_uid)
    };
    let shown = scope.own_directory().display().to_string();
    check_owner(&shown, owner_of(directory)?, owner_of(root)?)
}

fn open_lock(directory: &OwnedFd, access: OFlags) -> Result<Option<File>, StoreError> {
    let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    match rustix::fs::openat(directory, LOCK, flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => {
            let file = File::from(file);
            let is_file = file
                .metadata()
                .map_err(StoreError::lower("reading .mobifs/lock"))?;
            if is_file.is_file() {
                Ok(Some(file))
            } else {
                Err(not_a_lock())
            }
        }
        Err(Errno::NOENT) => Ok(None),
        Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => Err(not_a_lock()),
        Err(errno) => Err(StoreError::lower("opening .mobifs/lock")(errno.into())),
    }
}

fn not_a_lock() -> StoreError {
    StoreError::Unsuitable(".mobifs/lock in the store is not a file; remove it".to_owned())
}

/// How a lock is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Shared,
    Exclusive,
}

fn lock(file: &File, access: Access) -> Result<(), StoreError> {
    let operation = match access {
        Access::Shared => FlockOperation::NonBlockingLockShared,
        Access::Exclusive => FlockOperation::NonBlockingLockExclusive,
    };
    match rustix::fs::flock(file, operation) {
        Ok(()) => Ok(()),
        // The content of the file is not about readers.
        Err(Errno::WOULDBLOCK) if access == Access::Exclusive && is_shared_by_others(file) => {
            Err(StoreError::InUse { pid: 0 })
        }
        Err(Errno::WOULDBLOCK) => Err(StoreError::InUse {
            pid: LockOwner::read(file).pid,
        }),
        Err(errno) => Err(StoreError::lower("locking .mobifs/lock")(errno.into())),
    }
}

/// Whether the lock is free, or held only by processes that share it. `file` is not locked itself.
fn is_shared_by_others(file: &File) -> bool {
    let is_shared = rustix::fs::flock(file, FlockOperation::NonBlockingLockShared).is_ok();
    if is_shared && let Err(errno) = rustix::fs::flock(file, FlockOperation::Unlock) {
        tracing::debug!(%errno, "cannot unlock; the lock ends when its descriptor is closed");
    }
    is_shared
}

fn is_current(file: &File, directory: &OwnedFd) -> bool {
    let ours = rustix::fs::fstat(file);
    let found = rustix::fs::statat(directory, LOCK, AtFlags::SYMLINK_NOFOLLOW);
    matches!((ours, found), (Ok(ours), Ok(found))
        if (ours.st_dev, ours.st_ino) == (found.st_dev, found.st_ino))
}

/// Writes which process holds the lock, for messages only: a full disk must not keep a store from
/// being mounted. What is overwritten in place mostly needs no room.
fn record_owner(file: &File, state: Option<OwnerState>) -> io::Result<()> {
    match owner::write(file, std::process::id(), state) {
        Ok(()) => Ok(()),
        Err(error) if has_no_room(&error) => {
            tracing::info!(%error, "the disk is full: the lock does not say which process has it");
            // Better none than that of an earlier process.
            let _emptied = file.set_len(0);
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn has_no_room(error: &io::Error) -> bool {
    let full = [Errno::NOSPC, Errno::DQUOT].map(|errno| Some(errno.raw_os_error()));
    full.contains(&error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_second_mount_is_refused_with_the_holders_id() {
        let store = tempfile::tempdir().unwrap();
        let first = StoreLock::acquire(store.path(), &StoreScope::Tree, false).unwrap();
        for read_only in [false, true] {
            let error = StoreLock::acquire(store.path(), &StoreScope::Tree, read_only).unwrap_err();
            assert!(
                matches!(error, StoreError::InUse { pid } if pid == std::process::id()),
                "{error}"
            );
        }
        drop(first);
        StoreLock::acquire(store.path(), &StoreScope::Tree, false).unwrap();
    }

    #[test]
    fn a_lock_is_released_also_for_children_that_were_just_forked() {
        // A database was in use by this very process when it was opened again after an
        // attempt that had failed: another thread was about to start a program.
        let store = tempfile::tempdir().unwrap();
        let acquire = |looks| StoreLock::acquire(store.path(), &StoreScope::Tree, looks);
        for looks in [false, true] {
            drop(acquire(false).unwrap());
            let lock = acquire(looks).unwrap();
            let _childs = lock.file.as_ref().unwrap().try_clone().unwrap();
            drop(lock);
            let lock = acquire(false).unwrap();
            let _childs = lock.file.as_ref().unwrap().try_clone().unwrap();
            lock.abandon();
            drop(acquire(false).unwrap());
        }
        // What a forked child drops is its parent's.
        let mut lock = acquire(false).unwrap();
        let parents = lock.file.as_ref().unwrap().try_clone().unwrap();
        lock.process += 1;
        drop(lock);
        assert!(acquire(false).is_err());
        drop(parents);
        // What was handed over is held by the process that has it.
        let lock = acquire(false).unwrap();
        let held = lock.descriptor().unwrap().try_clone_to_owned().unwrap();
        drop(lock);
        assert!(acquire(false).is_err());
        let lock = StoreLock::take_over(store.path(), &StoreScope::Tree, held, false).unwrap();
        let _held = lock.descriptor().unwrap().try_clone_to_owned().unwrap();
        lock.release();
        acquire(false).unwrap();
    }

    /// Found by a test of mounts: the second process wrote its id after the first one's place,
    /// and a process that was refused read zeros.
    #[test]
    fn a_successor_records_itself_in_the_lock_and_keeps_its_notes() {
        let store = tempfile::tempdir().unwrap();
        let scope = StoreScope::Tree;
        let lock = StoreLock::acquire(store.path(), &scope, false).unwrap();
        lock.set_owner_state(OwnerState::Finishing);
        let held = lock.descriptor().unwrap().try_clone_to_owned().unwrap();
        drop(lock);
        let lock = StoreLock::take_over(store.path(), &scope, held, false).unwrap();
        let owner = StoreLock::owner(store.path(), &scope).unwrap();
        assert_eq!(owner.pid, std::process::id());
        assert_eq!(owner.state, Some(OwnerState::Finishing));
        // Found under load: a process that looked between the removal of the state and the end of
        // the lock was refused, because the holder's state seemed to be missing. The state stays
        // until the end of the lock.
        let read = |path: &Path| fs::read_to_string(path.join(".mobifs/lock")).unwrap();
        let noted = read(store.path());
        lock.release();
        assert_eq!(read(store.path()), noted);
        assert!(noted.ends_with("\nfinishing\n"), "{noted:?}");
        // The next one has not written its state yet.
        let _lock = StoreLock::acquire(store.path(), &scope, false).unwrap();
        let owner = StoreLock::owner(store.path(), &scope).unwrap();
        assert_eq!((owner.pid, owner.state), (std::process::id(), None));
    }

    #[test]
    fn a_file_left_by_a_crashed_machine_is_no_lock() {
        let store = tempfile::tempdir().unwrap();
        fs::create_dir(store.path().join(".mobifs")).unwrap();
        fs::write(store.path().join(".mobifs/lock"), "1\n").unwrap();
        StoreLock::acquire(store.path(), &StoreScope::Tree, false).unwrap();
    }

    #[test]
    fn readers_share_a_lock() {
        let store = tempfile::tempdir().unwrap();
        let nothing_there = StoreLock::acquire(store.path(), &StoreScope::Tree, true).unwrap();
        assert!(!nothing_there.is_exclusive());
        assert!(
            !store.path().join(".mobifs").exists(),
            "looking leaves nothing behind"
        );
        drop(StoreLock::acquire(store.path(), &StoreScope::Tree, false).unwrap());
        let one = StoreLock::acquire(store.path(), &StoreScope::Tree, true).unwrap();
        let other = StoreLock::acquire(store.path(), &StoreScope::Tree, true).unwrap();
        let error = StoreLock::acquire(store.path(), &StoreScope::Tree, false).unwrap_err();
        assert!(
            matches!(error, StoreError::InUse { pid: 0 }),
            "what the last holder wrote is not about readers: {error}"
        );
        let owner = StoreLock::owner(store.path(), &StoreScope::Tree).unwrap();
        assert_eq!((owner.pid, owner.is_reader), (0, true));
        assert!(StoreLock::acquire(store.path(), &StoreScope::Tree, true).is_ok());
        drop((one, other));
        StoreLock::acquire(store.path(), &StoreScope::Tree, false).unwrap();
    }

    #[test]
    fn an_abandoned_store_is_as_it_was() {
        let store = tempfile::tempdir().unwrap();
        StoreLock::acquire(store.path(), &StoreScope::Tree, false)
            .unwrap()
            .abandon();
        assert_eq!(fs::read_dir(store.path()).unwrap().count(), 0);
        // A store that was one before stays one.
        drop(StoreLock::acquire(store.path(), &StoreScope::Tree, false).unwrap());
        StoreLock::acquire(store.path(), &StoreScope::Tree, false)
            .unwrap()
            .abandon();
        assert!(store.path().join(".mobifs/lock").exists());
    }

    #[test]
    fn symlinks_and_other_things_in_the_way_are_not_followed() {
        let store = tempfile::tempdir().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), store.path().join(".mobifs")).unwrap();
        let error = StoreLock::acquire(store.path(), &StoreScope::Tree, false).unwrap_err();
        assert!(error.to_string().contains("not a directory"), "{error}");
        fs::remove_file(store.path().join(".mobifs")).unwrap();
        fs::create_dir(store.path().join(".mobifs")).unwrap();
        let target = elsewhere.path().join("precious");
        std::os::unix::fs::symlink(&target, store.path().join(".mobifs/lock")).unwrap();
        let error = StoreLock::acquire(store.path(), &StoreScope::Tree, false).unwrap_err();
        assert!(error.to_string().contains("not a file"), "{error}");
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }
}
