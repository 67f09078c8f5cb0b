//! The snapshots of a subvolume, and the way to take one that is one point in time.
//!
//! A snapshot is made while programs go on: the kernel writes what is in memory, one file after
//! another, and then takes the names as they are. So of two files the one that was written later may
//! be the older one in it. But when nothing changes from before it is begun until it is made, it has
//! what was there all the time. That is looked up afterwards: everything is committed first, and if
//! the snapshot has no inode that a later transaction has changed, nothing was changed meanwhile.
//! A change that came before the snapshot was begun is in a later transaction than the commit,
//! whichever process made it, because making a snapshot writes all content that is in memory.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, Mode, OFlags, RenameFlags, chmodat, fstat, fstatvfs, open, openat, renameat_with,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::btrfs::Subvolume;
use crate::records;
use crate::retention::Retention;
use crate::snapshot::Snapshot;
use crate::time::WallTime;

/// The name that a snapshot has until it is known what it is.
const NEW: &str = "new";

/// Why there is no history, or no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The place is no subvolume.
    #[error("{path} has no history: {source}", path = path.display())]
    Source {
        /// The directory whose history was meant.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The snapshots cannot be reached.
    #[error("cannot use the history in {path}: {source}", path = path.display())]
    Place {
        /// The directory of the snapshots.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Something else has the name.
    #[error(
        "{path} is not a history that this user has made and only this user can enter: move it away",
        path = path.display()
    )]
    Occupied {
        /// What is there.
        path: PathBuf,
    },
    /// Something else has the name that a snapshot has while it is taken.
    #[error(
        "{path} is not a snapshot of this history: no snapshot is taken until it is removed or has \
         another name",
        path = path.display()
    )]
    Foreign {
        /// What is there.
        path: PathBuf,
    },
    /// There are no snapshots.
    #[error("{path} has no history: no snapshot was taken", path = path.display())]
    Empty {
        /// The directory whose history was meant.
        path: PathBuf,
    },
    /// The snapshot could not be taken.
    #[error("cannot take a snapshot in {path}: {source}", path = path.display())]
    Take {
        /// The directory of the snapshots.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The snapshot could not be removed.
    #[error("cannot remove the snapshot {name} of {path}: {source}", path = path.display())]
    Remove {
        /// The directory of the snapshots.
        path: PathBuf,
        /// Its name.
        name: String,
        /// Why not.
        source: io::Error,
    },
}

impl ArchiveError {
    /// Whether there was no room on the disk.
    pub fn is_no_room(&self) -> bool {
        let Self::Take { source, .. } = self else {
            return false;
        };
        let full = [Errno::NOSPC, Errno::DQUOT].map(Errno::raw_os_error);
        source
            .raw_os_error()
            .is_some_and(|errno| full.contains(&errno))
    }
}

/// Keeps programs from writing while a snapshot is taken.
pub trait Standstill {
    /// Whether there are any that it could keep from it.
    fn has_any(&self) -> bool;

    /// Lets them stand still, as far as that is possible.
    fn begin(&self);

    /// Lets them go on.
    fn end(&self);
}

/// For sources that nothing writes to meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct NoStandstill;

impl Standstill for NoStandstill {
    fn has_any(&self) -> bool {
        false
    }

    fn begin(&self) {}

    fn end(&self) {}
}

/// A snapshot that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// What it is.
    pub snapshot: Snapshot,
    /// Commits that it took.
    pub commits: u64,
}

/// The snapshots of one subvolume.
#[derive(Debug)]
pub struct Archive {
    source: Subvolume,
    path: PathBuf,
    directory: OwnedFd,
}

impl Archive {
    /// The archive of the subvolume at `source`, whose snapshots lie in `name`, a path in it.
    ///
    /// # Errors
    /// [`ArchiveError`]; `Empty` if there is no history.
    pub fn open(source: &Path, name: &Path) -> Result<Self, ArchiveError> {
        let subvolume = source_of(source)?;
        let path = source.join(name);
        match open(&path, directory_flags(), Mode::empty()) {
            Ok(directory) => Self::of(subvolume, path, directory),
            Err(Errno::NOENT) => Err(ArchiveError::Empty {
                path: source.to_owned(),
            }),
            Err(errno) => Err(place_error(&path, errno)),
        }
    }

    /// The archive of that subvolume; a history that is not there yet is made.
    ///
    /// # Errors
    /// [`ArchiveError`].
    pub fn make(source: &Path, name: &Path) -> Result<Self, ArchiveError> {
        let subvolume = source_of(source)?;
        let path = source.join(name);
        let directory = match open(&path, directory_flags(), Mode::empty()) {
            Err(Errno::NOENT) => make_directory(&path)?,
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(ArchiveError::Occupied { path }),
            opened => opened.map_err(|errno| place_error(&path, errno))?,
        };
        let archive = Self::of(subvolume, path, directory)?;
        archive.begin_records()?;
        Ok(archive)
    }

    /// The directory is a subvolume of its own, so snapshots do not have it, and a snapshot does not
    /// change what it is of.
    fn of(source: Subvolume, path: PathBuf, directory: OwnedFd) -> Result<Self, ArchiveError> {
        let is_subvolume = Subvolume::open_at(&directory, OsStr::new(".")).is_ok();
        let about = fstat(&directory).map_err(|errno| place_error(&path, errno))?;
        let is_private = about.st_uid == geteuid().as_raw() && about.st_mode & 0o077 == 0;
        if !is_subvolume || !is_private {
            return Err(ArchiveError::Occupied { path });
        }
        Ok(Self {
            source,
            path,
            directory,
        })
    }

    /// Where the snapshots lie.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where this one lies.
    pub fn path_of(&self, snapshot: &Snapshot) -> PathBuf {
        self.path.join(snapshot.name())
    }

    /// All of them, the oldest first. What only has such a name is none of them.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn list(&self) -> Result<Vec<Snapshot>, ArchiveError> {
        let failed = |errno| place_error(&self.path, errno);
        let mut snapshots = Vec::new();
        for entry in Dir::read_from(&self.directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_str().ok();
            let Some(mut snapshot) = name.and_then(Snapshot::parse) else {
                continue;
            };
            if self.is_own(&snapshot.name())? == Some(true) {
                if snapshot.is_exact && !self.is_recorded(&snapshot) {
                    snapshot.doubt();
                }
                snapshots.push(snapshot);
            }
        }
        snapshots.sort();
        Ok(snapshots)
    }

    /// Whether what has this name is a read-only snapshot of the source; none: nothing has it.
    fn is_own(&self, name: &OsStr) -> Result<Option<bool>, ArchiveError> {
        let failed = |source| ArchiveError::Place {
            path: self.path.join(name),
            source,
        };
        let flags = OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match openat(&self.directory, name, flags, Mode::empty()) {
            Ok(_) => {}
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed(errno.into())),
        }
        let none = [Errno::NOTDIR, Errno::LOOP].map(|errno| Some(errno.raw_os_error()));
        let about = match Subvolume::open_at(&self.directory, name) {
            Ok(subvolume) => subvolume.about().map_err(failed)?,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Ok(Some(false)),
            Err(error) if none.contains(&error.raw_os_error()) => return Ok(Some(false)),
            Err(error) => return Err(failed(error)),
        };
        let source = self.source.about().map_err(failed)?;
        Ok(Some(about.is_read_only && about.snapshot_of == source.uuid))
    }

    /// Records those that are there in a history that has no records yet: of an earlier version.
    fn begin_records(&self) -> Result<(), ArchiveError> {
        if records::are_kept(&self.directory) {
            return Ok(());
        }
        let mut exact = self.list()?.into_iter().filter(|one| one.is_exact);
        let recorded = exact
            .try_for_each(|one| self.record(&one.name()))
            .and_then(|()| Ok(records::begin(&self.directory)?));
        recorded.map_err(|source| ArchiveError::Place {
            path: self.path.clone(),
            source,
        })
    }

    /// Records that what has no name of its own yet is exact.
    fn record_new(&self) -> io::Result<()> {
        self.record(OsStr::new(NEW))
    }

    fn record(&self, name: &OsStr) -> io::Result<()> {
        let about = Subvolume::open_at(&self.directory, name)?.about()?;
        Ok(records::add(&self.directory, about.uuid)?)
    }

    /// Whether it was taken here and found to be exact.
    fn is_recorded(&self, snapshot: &Snapshot) -> bool {
        let found = Subvolume::open_at(&self.directory, &snapshot.name());
        let about = found.and_then(|subvolume| subvolume.about());
        about.is_ok_and(|about| records::has(&self.directory, about.uuid))
    }

    /// Removes what a process that was killed has left of a snapshot.
    fn remove_unfinished(&self) -> Result<(), ArchiveError> {
        let name = OsStr::new(NEW);
        match self.is_own(name)? {
            None => Ok(()),
            Some(true) => self.destroy(name),
            Some(false) => Err(ArchiveError::Foreign {
                path: self.path.join(name),
            }),
        }
    }

    /// The transaction of the filesystem in which a snapshot was made.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn transaction_of(&self, snapshot: &Snapshot) -> Result<u64, ArchiveError> {
        let about = Subvolume::open_at(&self.directory, &snapshot.name())
            .and_then(|subvolume| subvolume.about());
        let about = about.map_err(|source| ArchiveError::Place {
            path: self.path_of(snapshot),
            source,
        })?;
        Ok(about.made_in)
    }

    /// Whether all that is committed is in the snapshot that was made in this transaction, so that
    /// another one would have the same.
    pub fn is_unchanged_since(&self, transaction: u64) -> bool {
        let last = self.source.about().ok().map(|about| about.generation);
        last == Some(transaction)
    }

    /// Takes a snapshot: first while programs go on, and if one has written meanwhile, once more
    /// while those stand still that can be kept from it.
    ///
    /// # Errors
    /// [`ArchiveError::Take`]. Nothing is left of it.
    pub fn take(&self, standstill: &dyn Standstill) -> Result<Taken, ArchiveError> {
        let failed = |source| ArchiveError::Take {
            path: self.path.clone(),
            source,
        };
        self.remove_unfinished()?;
        let mut attempt = self.attempt().map_err(failed)?;
        let mut commits = attempt.commits;
        if !attempt.is_exact && standstill.has_any() {
            self.destroy(OsStr::new(NEW))?;
            // What is in memory now need not be written while they stand still.
            self.source.commit().map_err(failed)?;
            standstill.begin();
            let again = self.attempt();
            standstill.end();
            attempt = again.map_err(failed)?;
            commits += attempt.commits + 1;
        }
        let snapshot = self.adopt(&attempt).map_err(failed)?;
        Ok(Taken { snapshot, commits })
    }

    /// Leaves a snapshot that has no name of its own yet, or nothing.
    fn attempt(&self) -> io::Result<Attempt> {
        let committed = self.source.commit()?;
        let time = WallTime::now();
        self.source.snapshot(&self.directory, OsStr::new(NEW))?;
        let looked = Subvolume::open_at(&self.directory, OsStr::new(NEW))
            .and_then(|new| new.has_changed_since(committed));
        match looked {
            Ok(has_changed) => Ok(Attempt {
                time,
                is_exact: !has_changed,
                commits: 2,
            }),
            Err(error) => {
                let _removed = Subvolume::destroy(&self.directory, OsStr::new(NEW));
                Err(error)
            }
        }
    }

    fn adopt(&self, attempt: &Attempt) -> io::Result<Snapshot> {
        // One that cannot be recorded would be doubted later.
        let is_exact = attempt.is_exact && self.record_new().is_ok();
        let mut snapshot = Snapshot::new(attempt.time, is_exact);
        loop {
            let (from, to) = (&self.directory, snapshot.name());
            match renameat_with(from, NEW, from, &to, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(snapshot),
                // The clock was set back.
                Err(Errno::EXIST) => snapshot.time = snapshot.time.next(),
                Err(errno) => {
                    let _removed = Subvolume::destroy(&self.directory, OsStr::new(NEW));
                    return Err(errno.into());
                }
            }
        }
    }

    /// Removes a snapshot; none: another process has done that already. The kernel frees what only it
    /// had later; its number is for [`Self::is_freed`]. After a power cut before the next commit it is
    /// there again, whole.
    ///
    /// # Errors
    /// [`ArchiveError::Remove`].
    pub fn remove(&self, snapshot: &Snapshot) -> Result<Option<u64>, ArchiveError> {
        let name = snapshot.name();
        let about =
            Subvolume::open_at(&self.directory, &name).and_then(|subvolume| subvolume.about());
        let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        let about = match about {
            Ok(about) => about,
            Err(error) if gone(&error) => return Ok(None),
            Err(error) => return Err(self.removal_error(&name, error)),
        };
        let id = about.id;
        match Subvolume::destroy(&self.directory, &name) {
            Ok(()) => {
                records::forget(&self.directory, about.uuid);
                Ok(Some(id))
            }
            Err(error) if gone(&error) => Ok(None),
            Err(error) => Err(self.removal_error(&name, error)),
        }
    }

    /// Has everything on the disk that was done, the removal of snapshots with it.
    ///
    /// # Errors
    /// [`ArchiveError::Place`].
    pub fn commit(&self) -> Result<(), ArchiveError> {
        let committed = self.source.commit();
        committed.map(drop).map_err(|source| ArchiveError::Place {
            path: self.path.clone(),
            source,
        })
    }

    /// Whether a removed snapshot is gone with all that only it had.
    pub fn is_freed(&self, id: u64) -> bool {
        self.source.is_freed(id).unwrap_or(true)
    }

    /// Has the kernel begin to free what removed snapshots had.
    pub fn free_removed(&self) {
        if let Err(error) = self.source.free_removed() {
            tracing::warn!(%error, "the kernel frees removed snapshots only later");
        }
    }

    /// Removes what is not kept any more if so many are about to come, and returns the rest.
    ///
    /// # Errors
    /// [`ArchiveError`].
    pub fn prune(&self, retention: &Retention, coming: u64) -> Result<Vec<Snapshot>, ArchiveError> {
        let mut kept = self.list()?;
        for snapshot in retention.surplus(&kept, coming, WallTime::now()) {
            self.remove(&snapshot)?;
            kept.retain(|other| *other != snapshot);
        }
        Ok(kept)
    }

    /// Bytes of the filesystem that are free, in percent.
    ///
    /// # Errors
    /// The filesystem does not tell.
    pub fn free_percent(&self) -> io::Result<u8> {
        let filesystem = statvfs_of(&self.source)?;
        let free = filesystem.0.saturating_mul(100) / filesystem.1.max(1);
        Ok(u8::try_from(free).unwrap_or(100).min(100))
    }

    fn destroy(&self, name: &OsStr) -> Result<(), ArchiveError> {
        Subvolume::destroy(&self.directory, name).map_err(|source| self.removal_error(name, source))
    }

    fn removal_error(&self, name: &OsStr, source: io::Error) -> ArchiveError {
        ArchiveError::Remove {
            path: self.path.clone(),
            name: name.to_string_lossy().into_owned(),
            source,
        }
    }
}

/// A snapshot without a name of its own.
#[derive(Debug)]
struct Attempt {
    time: WallTime,
    is_exact: bool,
    commits: u64,
}

fn statvfs_of(subvolume: &Subvolume) -> io::Result<(u64, u64)> {
    let filesystem = fstatvfs(subvolume.as_fd())?;
    Ok((filesystem.f_bavail, filesystem.f_blocks))
}

fn directory_flags() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW
}

fn source_of(path: &Path) -> Result<Subvolume, ArchiveError> {
    Subvolume::open(path).map_err(|source| ArchiveError::Source {
        path: path.to_owned(),
        source,
    })
}

fn place_error(path: &Path, errno: Errno) -> ArchiveError {
    ArchiveError::Place {
        path: path.to_owned(),
        source: errno.into(),
    }
}

/// Only root can enter it: the snapshots have files as they were before they were hidden or removed.
fn make_directory(path: &Path) -> Result<OwnedFd, ArchiveError> {
    let failed = |source: io::Error| ArchiveError::Place {
        path: path.to_owned(),
        source,
    };
    let parent = path.parent().unwrap_or(Path::new("/"));
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = open(parent, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
    let name: OsString = path.file_name().unwrap_or_default().to_owned();
    Subvolume::create(&parent, &name).map_err(failed)?;
    let made = chmodat(&parent, &name, Mode::RWXU, AtFlags::empty())
        .and_then(|()| openat(&parent, &name, directory_flags(), Mode::empty()));
    made.map_err(|errno| failed(errno.into()))
}
