//! The daemon's side.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::PathBuf;

use rustix::time::{ClockId, clock_gettime};

use crate::directory::Directory;
use crate::ofd_lock;
use crate::record::{Record, Scope};
use crate::superblock::Device;

/// Why a filesystem could not be registered.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// Another daemon lives that has registered it.
    #[error("the filesystem {device} is already steered, by process {pid}")]
    AlreadySteered {
        /// The filesystem.
        device: Device,
        /// The other daemon.
        pid: u32,
    },
    /// Programs would not believe what is written there.
    #[error(
        "programs do not trust {}, where they look for steered filesystems: it has to be a directory that only its \
         owner, root, may write to; remove it, or `chown root` and `chmod 755` it",
        .path.display()
    )]
    Untrusted {
        /// The directory.
        path: PathBuf,
    },
    /// A file could not be written.
    #[error("cannot write to {}: {source}", .path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// What failed.
        source: io::Error,
    },
}

/// How long a promise holds that is not renewed, in seconds.
pub const VALID_S: u32 = 30;

/// A filesystem that this process steers: programs may skip calls for durability while a promise
/// holds.
#[derive(Debug)]
pub struct Registration {
    directory: Directory,
    device: Device,
    scope: Scope,
    path: PathBuf,
    /// Its lock tells that this process lives.
    file: File,
}

impl Registration {
    /// Keeps other daemons away from a filesystem; nothing is promised yet.
    ///
    /// # Errors
    /// Another daemon steers the filesystem, or a file cannot be written.
    pub fn claim(device: Device, scope: Scope) -> Result<Self, PublishError> {
        Self::claim_scope(&Directory::from_environment(), device, scope)
    }

    /// Claims the whole filesystem in a certain directory.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub fn claim_in(directory: &Directory, device: Device) -> Result<Self, PublishError> {
        Self::claim_scope(directory, device, Scope::Whole)
    }

    /// Claims a scope in a certain directory.
    ///
    /// # Errors
    /// As [`Self::claim`].
    pub fn claim_scope(
        directory: &Directory,
        device: Device,
        scope: Scope,
    ) -> Result<Self, PublishError> {
        let failed = |source| PublishError::Io {
            path: directory.path().to_owned(),
            source,
        };
        make(directory).map_err(failed)?;
        if !directory.is_trusted_itself() {
            return Err(PublishError::Untrusted {
                path: directory.path().to_owned(),
            });
        }
        // Only one daemon at a time looks and writes.
        let _locked = lock(directory).map_err(failed)?;
        if let Some(other) = directory.find(device) {
            let pid = other.record().pid();
            return Err(PublishError::AlreadySteered { device, pid });
        }
        Self::write(directory, device, scope).map_err(failed)
    }

    /// Withdraws the promise of a daemon that was killed, and removes its registration; a daemon that
    /// lives keeps its own, and that of another user is not this user's to remove. Whether one was
    /// removed.
    ///
    /// # Errors
    /// The file can be neither written nor removed.
    pub fn remove_left_over(directory: &Directory, device: Device) -> Result<bool, PublishError> {
        let failed = |source| PublishError::Io {
            path: directory.path().to_owned(),
            source,
        };
        let path = directory.path().join(device.to_string());
        if !path.exists() {
            return Ok(false);
        }
        // No daemon puts its own in the place of the one that was found to be left over.
        let _locked = match lock(directory) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(false),
            locked => locked.map_err(failed)?,
        };
        if directory.find(device).is_some() {
            return Ok(false);
        }
        // Programs that have it mapped would rely on it until it lapses.
        let withdrawn = OpenOptions::new().write(true).open(&path).and_then(|file| {
            let (at, state) = Record::withdrawal();
            file.write_all_at(&state, at)
        });
        let removed = std::fs::remove_file(&path);
        withdrawn.and(removed).map_err(failed)?;
        Ok(true)
    }

    /// Puts the registration back if another program has removed it; nothing is promised by it yet then.
    /// Whether that was so.
    ///
    /// # Errors
    /// Another daemon has registered the filesystem meanwhile, or the file cannot be written.
    pub fn put_back_if_removed(&mut self) -> Result<bool, PublishError> {
        if self.is_in_place() {
            return Ok(false);
        }
        // Programs that have the removed one mapped look for another when this one lapses, or never.
        let _withdrawn = self.withdraw();
        let next = Self::claim_scope(&self.directory, self.device, self.scope)?;
        *self = next;
        Ok(true)
    }

    fn is_in_place(&self) -> bool {
        let own = self.file.metadata();
        let found = self.path.symlink_metadata();
        own.is_ok_and(|own| {
            found.is_ok_and(|found| (found.dev(), found.ino()) == (own.dev(), own.ino()))
        })
    }

    fn write(directory: &Directory, device: Device, scope: Scope) -> io::Result<Self> {
        let path = directory.path().join(device.to_string());
        let new = directory.path().join(format!("{device}.new"));
        let file = create(&new, 0o644)?;
        ofd_lock::lock(&file)?;
        let now = clock_gettime(ClockId::Boottime);
        let generation = (now.tv_sec as u64)
            .wrapping_mul(1_000_000_000)
            .wrapping_add(now.tv_nsec as u64);
        let record = Record::bytes(std::process::id(), generation, scope);
        file.write_all_at(&record, 0)?;
        std::fs::rename(&new, &path)?;
        Ok(Self {
            directory: directory.clone(),
            device,
            scope,
            path,
            file,
        })
    }

    /// From now on programs may rely on the promise, for so many seconds or until it is withdrawn.
    ///
    /// # Errors
    /// The state could not be written.
    pub fn promise(&self, valid_s: u32) -> io::Result<()> {
        let words = Record::promise(valid_s);
        let mut words = words.iter();
        words.try_for_each(|(at, word)| self.file.write_all_at(word, *at))
    }

    /// Withdraws the promise: from now on programs wait for the filesystem again.
    ///
    /// # Errors
    /// The state could not be written.
    pub fn withdraw(&self) -> io::Result<()> {
        let (at, state) = Record::withdrawal();
        self.file.write_all_at(&state, at)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let _written = self.withdraw();
        // The lock is still held: no other daemon has put its own file there, but in place of one that
        // another program had removed.
        if self.is_in_place() {
            let _removed = std::fs::remove_file(&self.path);
        }
    }
}

fn make(directory: &Directory) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(directory.path()) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        Err(_) => Ok(()),
        // Whatever the mask of modes is.
        Ok(()) => set_mode(directory.path(), 0o755),
    }
}

fn lock(directory: &Directory) -> io::Result<File> {
    // Only its owner can open it, and so wait here.
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        // Opening a pipe would wait for its other end.
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
        .open(directory.path().join(".lock"))?;
    ofd_lock::lock(&file)?;
    Ok(file)
}

/// A new file in place of one that may be left over.
pub(crate) fn create(path: &std::path::Path, mode: u32) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)?;
    set_mode(path, mode)?;
    Ok(file)
}

fn set_mode(path: &std::path::Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Device = Device {
        major: 7,
        minor: 4242,
    };

    fn directory() -> (tempfile::TempDir, Directory) {
        let base = tempfile::tempdir().unwrap();
        let directory = Directory::at(&base.path().join("steered")).unwrap();
        (base, directory)
    }

    fn promised(directory: &Directory) -> Registration {
        let registration = Registration::claim_in(directory, DEVICE).unwrap();
        registration.promise(VALID_S).unwrap();
        registration
    }

    /// A daemon said that the promise was in force, and no program believed it.
    #[test]
    fn nothing_is_claimed_where_programs_would_not_believe_it() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let (base, directory) = directory();
        std::fs::create_dir(directory.path()).unwrap();
        let all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(directory.path(), all).unwrap();
        let refused = || Registration::claim_in(&directory, DEVICE).unwrap_err();
        assert!(matches!(refused(), PublishError::Untrusted { .. }));
        std::fs::remove_dir(directory.path()).unwrap();
        let elsewhere = base.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, directory.path()).unwrap();
        assert!(matches!(refused(), PublishError::Untrusted { .. }));
        assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
        std::fs::remove_file(directory.path()).unwrap();
        drop(promised(&directory));
    }

    #[test]
    fn a_promise_is_seen_until_it_is_withdrawn() {
        let (_base, directory) = directory();
        assert!(directory.find(DEVICE).is_none());
        let registration = Registration::claim_in(&directory, DEVICE).unwrap();
        let steered = directory.find(DEVICE).unwrap();
        assert!(!steered.is_in_force(), "nothing is promised yet");
        registration.promise(VALID_S).unwrap();
        assert!(steered.is_in_force());
        assert_eq!(steered.record().pid(), std::process::id());
        assert_eq!(directory.list().unwrap().len(), 1);
        registration.withdraw().unwrap();
        assert!(!steered.is_in_force());
        registration.promise(VALID_S).unwrap();
        assert!(steered.is_in_force());
        drop(registration);
        assert!(directory.find(DEVICE).is_none());
        assert!(!steered.is_in_force());
        let again = promised(&directory);
        let found = directory.find(DEVICE).unwrap();
        assert_ne!(found.record().generation(), steered.record().generation());
        drop(again);
    }

    /// A program that had found the registration went on after its daemon was killed, for ever.
    #[test]
    fn a_promise_that_is_not_renewed_lapses() {
        let (_base, directory) = directory();
        let registration = promised(&directory);
        let steered = directory.find(DEVICE).unwrap();
        registration.promise(0).unwrap();
        assert!(!steered.is_in_force());
        registration.promise(1).unwrap();
        // What a killed daemon does.
        std::mem::forget(registration);
        while steered.is_in_force() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// Programs that looked for it waited for their calls, and the daemon's status said that they need not.
    #[test]
    fn a_registration_that_is_removed_is_put_back() {
        let (_base, directory) = directory();
        let mut registration = promised(&directory);
        assert!(!registration.put_back_if_removed().unwrap());
        std::fs::remove_dir_all(directory.path()).unwrap();
        assert!(directory.find(DEVICE).is_none());
        assert!(registration.put_back_if_removed().unwrap());
        let found = directory.find(DEVICE).unwrap();
        assert!(!found.is_in_force());
        registration.promise(VALID_S).unwrap();
        assert!(found.is_in_force());
        // Another daemon was faster.
        std::fs::remove_file(directory.path().join(DEVICE.to_string())).unwrap();
        let other = promised(&directory);
        assert!(registration.put_back_if_removed().is_err());
        drop(registration);
        assert!(directory.find(DEVICE).is_some());
        drop(other);
        assert!(directory.find(DEVICE).is_none());
    }

    #[test]
    fn a_filesystem_has_one_daemon() {
        let (_base, directory) = directory();
        let _first = promised(&directory);
        let second = Registration::claim_in(&directory, DEVICE);
        assert!(
            matches!(second, Err(PublishError::AlreadySteered { pid, .. }) if pid == std::process::id())
        );
    }

    /// What a daemon leaves behind that was killed: another filesystem may have the device now.
    #[test]
    fn a_registration_of_a_dead_daemon_is_none() {
        let (_base, directory) = directory();
        let alive = promised(&directory);
        let path = directory.path().join(DEVICE.to_string());
        let left = std::fs::read(&path).unwrap();
        drop(alive);
        std::fs::write(&path, left).unwrap();
        assert!(directory.find(DEVICE).is_none());
        // Another process cannot make it look alive by reading it.
        let read = File::open(&path).unwrap();
        rustix::fs::flock(&read, rustix::fs::FlockOperation::LockExclusive).unwrap();
        assert!(directory.find(DEVICE).is_none());
        let _next = promised(&directory);
        assert!(directory.find(DEVICE).is_some());
    }

    #[test]
    fn what_others_can_write_is_not_trusted() {
        let (_base, directory) = directory();
        let _alive = promised(&directory);
        let path = directory.path().join(DEVICE.to_string());
        set_mode(&path, 0o666).unwrap();
        assert!(directory.find(DEVICE).is_none());
        set_mode(&path, 0o644).unwrap();
        assert!(directory.find(DEVICE).is_some());
        set_mode(directory.path(), 0o777).unwrap();
        assert!(directory.find(DEVICE).is_none());
        assert!(directory.list().unwrap().is_empty());
    }
}
