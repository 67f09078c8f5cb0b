//! Changing the mount options for as long as a filesystem is steered.
//!
//! What was before is kept in a file of the runtime directory until it is restored: a daemon that
//! is killed leaves the options as they are, which keeps its promise, and the next daemon, or
//! `mobifs steer --stop`, has to know what to restore.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use mobifs_host::{MountEntry, mounts, shell_path};
use serde::{Deserialize, Serialize};

use crate::filesystem::{Committer, Filesystem, Settings};
use crate::mount_options::{self, ChangeError, MountOptions};
use crate::note::{self, NoteError, NoteFile};
use crate::order::ORDER_NOTE;
use crate::registered::is_steered;

/// Which note it is.
pub(crate) const NOTE: &str = "";

/// Why options were not changed or restored.
#[derive(Debug, thiserror::Error)]
pub enum TakeoverError {
    /// The kernel refuses.
    #[error("cannot change the options of {path}: {source}", path = path.display())]
    Change {
        /// The mount point.
        path: PathBuf,
        /// Why not.
        source: ChangeError,
    },
    /// The kernel refuses to have them as they were.
    #[error(
        "cannot restore the options of {path}: {source}; they stay as steering has set them: run `mobifs \
         steer --stop {word}` again when the filesystem is neither frozen nor busy",
        path = path.display(), word = shell_path(path)
    )]
    NotRestored {
        /// The mount point.
        path: PathBuf,
        /// Why not.
        source: ChangeError,
    },
    /// The kernel takes the options and does not put them in force.
    #[error(
        "the kernel has taken the mount options {wanted} for {path}, but {found} are in force",
        path = path.display()
    )]
    NotInForce {
        /// The mount point.
        path: PathBuf,
        /// What was asked for.
        wanted: String,
        /// What there is.
        found: String,
    },
    /// The kernel goes on writing zeros past the journal.
    #[error(
        "cannot set extent_max_zeroout_kb of {path} (/sys/fs/ext4) to {kib}: {source}; without that, recovery \
         may put older content into files whose room was allocated ahead",
        path = path.display()
    )]
    Zeroing {
        /// The mount point.
        path: PathBuf,
        /// What was to be set, in KiB.
        kib: u64,
        /// Why not.
        source: io::Error,
    },
    /// The options cannot be read.
    #[error("cannot read the mount options of {path}: {source}", path = path.display())]
    Read {
        /// The mount point.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What was not committed when the daemon ended may be lost.
    #[error(
        "{path} could not commit: {source}; what was written since its last commit may be lost: look for the \
         cause in the kernel's log (dmesg)",
        path = path.display()
    )]
    NotCommitted {
        /// The mount point.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Options are changed through the root of the mount, which another one hides.
    #[error(
        "another filesystem is mounted over {path}, so the mount options of the steered one cannot be changed or \
         restored: unmount that first",
        path = path.display()
    )]
    Covered {
        /// The mount point.
        path: PathBuf,
    },
    /// The mount has ended.
    #[error("{path} is not mounted any more", path = path.display())]
    NotMounted {
        /// The mount point.
        path: PathBuf,
    },
    /// What was before cannot be noted.
    #[error(transparent)]
    Note(#[from] NoteError),
    /// No daemon has left anything.
    #[error("{path} is not steered", path = path.display())]
    NotSteered {
        /// The mount point.
        path: PathBuf,
    },
}

/// Why the options in force do not keep the promise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Difference {
    /// Nothing can be committed.
    #[error(
        "the filesystem is read-only: another program has made it so, or it has met an error (the \
         kernel's log says which)"
    )]
    ReadOnly,
    /// Options that another program has set.
    #[error(
        "another program has set the mount options {0}; `mobifs reload` sets them again as they have to \
         be"
    )]
    Options(String),
    /// Zeros that are not journaled.
    #[error(
        "another program has set extent_max_zeroout_kb in /sys/fs/ext4 to {0}, with which a power cut may \
         put older content into files; `mobifs reload` sets it to 0 again"
    )]
    Zeroing(u64),
    /// An option that steering does not set, and with which no commit keeps the promise.
    #[error(
        "another program has set the mount option {0}, with which a power cut takes committed changes, \
         too; the promise holds again when the option is gone"
    )]
    Breaking(&'static str),
    /// The filesystem's commits are not one point in time.
    #[error("{ORDER_NOTE}")]
    Order,
    /// They cannot be read.
    #[error("{0}")]
    Unknown(String),
}

/// What the process that restores the options has to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    before: Settings,
    taken: Settings,
}

/// What a daemon that was killed has left changed.
#[derive(Debug)]
pub(crate) struct Left(Note);

impl Left {
    /// None: nothing, or not for this process to see.
    pub(crate) fn of(mount: &MountEntry) -> Option<Self> {
        NoteFile::of(mount, NOTE).ok()?.read().map(Self)
    }

    /// The options as they were before, where these are in force.
    pub(crate) fn before_given(&self, now: &Settings) -> Settings {
        now.undone(&self.0.before, &self.0.taken)
    }
}

/// A mount whose options are changed.
#[derive(Debug)]
pub struct Takeover {
    mount: MountEntry,
    filesystem: Filesystem,
    file: NoteFile,
    note: Note,
    /// Through this the options are changed. None: they are restored, and the filesystem can be unmounted.
    root: Option<OwnedFd>,
}

impl Takeover {
    /// Changes the options, so that the kernel commits every change at this age, in seconds.
    ///
    /// # Errors
    /// [`TakeoverError`]; then the options are as before.
    pub fn begin(
        mount: &MountEntry,
        filesystem: &Filesystem,
        commit_interval_s: u64,
    ) -> Result<Self, TakeoverError> {
        let file = NoteFile::of(mount, NOTE)?;
        let root = root_of(mount)?;
        let now = settings(mount, filesystem)?;
        // A daemon that was killed has left the options as it had set them.
        let left: Option<Note> = file.read();
        let before = left.map(|left| now.undone(&left.before, &left.taken));
        let before = before.unwrap_or(now);
        let mut takeover = Self {
            mount: mount.clone(),
            filesystem: filesystem.clone(),
            file,
            note: Note {
                before,
                taken: filesystem.wanted(commit_interval_s),
            },
            root: Some(root),
        };
        takeover.file.write(&takeover.note)?;
        if let Err(error) = takeover.put_in_force() {
            let _restored = takeover.restore();
            return Err(error);
        }
        Ok(takeover)
    }

    /// Another age.
    ///
    /// # Errors
    /// [`TakeoverError`].
    pub fn set_commit_interval(&mut self, commit_interval_s: u64) -> Result<(), TakeoverError> {
        let taken = self.filesystem.wanted(commit_interval_s);
        let earlier = std::mem::replace(&mut self.note.taken, taken);
        let noted = self.file.write(&self.note).map_err(TakeoverError::from);
        let done = noted.and_then(|()| self.put_in_force());
        if done.is_err() {
            self.note.taken = earlier;
            self.file.write(&self.note)?;
        }
        done
    }

    /// Notes what is to be restored again if the note is gone.
    ///
    /// # Errors
    /// It cannot be noted.
    pub(crate) fn keep_note(&self) -> Result<(), NoteError> {
        self.file.keep(&self.note)
    }

    /// The mount.
    pub const fn mount(&self) -> &MountEntry {
        &self.mount
    }

    /// The options as they were.
    pub const fn before(&self) -> &Settings {
        &self.note.before
    }

    /// The options that keep the promise.
    pub const fn taken(&self) -> &Settings {
        &self.note.taken
    }

    /// How the options in force differ from those that keep the promise, if they do.
    ///
    /// # Errors
    /// [`TakeoverError::NotMounted`], [`TakeoverError::Read`].
    pub fn difference(&self) -> Result<Option<Difference>, TakeoverError> {
        let options = MountOptions::of(self.mount.id).map_err(|source| TakeoverError::Read {
            path: self.mount.mountpoint.clone(),
            source,
        })?;
        let Some(options) = options else {
            return Err(TakeoverError::NotMounted {
                path: self.mount.mountpoint.clone(),
            });
        };
        if options.is_filesystem_read_only() {
            return Ok(Some(Difference::ReadOnly));
        }
        let breaking = self.filesystem.breaking_option(&options);
        let breaking = breaking.map_err(|source| TakeoverError::Read {
            path: self.mount.mountpoint.clone(),
            source,
        })?;
        if let Some(option) = breaking {
            return Ok(Some(Difference::Breaking(option)));
        }
        let now = settings(&self.mount, &self.filesystem)?;
        let changes = now.changes(&self.note.taken);
        if changes.is_empty() {
            if let Some(kib) = now.zeroing_kib.filter(|_| now != self.note.taken) {
                return Ok(Some(Difference::Zeroing(kib)));
            }
            return Ok((!self.filesystem.keeps_order()).then_some(Difference::Order));
        }
        let shown: Vec<_> = changes.iter().map(ToString::to_string).collect();
        Ok(Some(Difference::Options(shown.join(","))))
    }

    /// Restores what was before, but for what another program has changed since. Nothing is changed through
    /// this any more.
    ///
    /// # Errors
    /// [`TakeoverError`].
    pub fn restore(&mut self) -> Result<(), TakeoverError> {
        let root = self.root.take();
        let undone = match root.as_ref().map(|root| self.undo(&self.mount, root)) {
            None | Some(Err(TakeoverError::NotMounted { .. })) => {
                self.undo_elsewhere(root.as_ref())
            }
            Some(done) => done,
        };
        undone?;
        self.file.remove();
        Ok(())
    }

    /// Undoes the change of options through a mount of the filesystem, whose root this is.
    fn undo(&self, mount: &MountEntry, root: impl AsFd) -> Result<(), TakeoverError> {
        let now = settings(mount, &self.filesystem)?;
        let target = now.undone(&self.note.before, &self.note.taken);
        change(mount, &self.filesystem, root, &now, &target).map_err(not_restored)
    }

    /// The mount has ended. With the last one its options have gone; another one has the same ones, here or
    /// where this process does not see it.
    fn undo_elsewhere(&self, root: Option<&OwnedFd>) -> Result<(), TakeoverError> {
        let others = mobifs_host::other_mounts_of(&self.mount).unwrap_or_default();
        for other in &others {
            if let Ok(root) = root_of(other) {
                return self.undo(other, root);
            }
        }
        let Some(root) = root else { return Ok(()) };
        // btrfs shows its options in the table of mounts only.
        let now = self.filesystem.settings_unmounted();
        let now = now.as_ref().unwrap_or(&self.note.taken);
        let target = now.undone(&self.note.before, &self.note.taken);
        request(&self.mount, &self.filesystem, root, now, &target).map_err(not_restored)
    }

    fn put_in_force(&self) -> Result<(), TakeoverError> {
        let Some(root) = &self.root else {
            return Err(TakeoverError::NotMounted {
                path: self.mount.mountpoint.clone(),
            });
        };
        let now = settings(&self.mount, &self.filesystem)?;
        change(&self.mount, &self.filesystem, root, &now, &self.note.taken)
    }
}

fn not_restored(error: TakeoverError) -> TakeoverError {
    match error {
        TakeoverError::Change { path, source } => TakeoverError::NotRestored { path, source },
        other => other,
    }
}

fn root_of(mount: &MountEntry) -> Result<OwnedFd, TakeoverError> {
    let path = || mount.mountpoint.clone();
    mount_options::root_of(mount).map_err(|source| match source.kind() {
        io::ErrorKind::ResourceBusy => TakeoverError::Covered { path: path() },
        _ => TakeoverError::Read {
            path: path(),
            source,
        },
    })
}

/// Restores the options that a daemon has left that was killed.
///
/// # Errors
/// [`TakeoverError`].
pub fn restore_after_daemon(mount: &MountEntry) -> Result<(), TakeoverError> {
    let not_steered = || TakeoverError::NotSteered {
        path: mount.mountpoint.clone(),
    };
    let file = NoteFile::of(mount, NOTE)?;
    let note = file.read().ok_or_else(not_steered)?;
    // One that has begun meanwhile has claimed the filesystem before it noted anything.
    if is_steered(mount).is_some() {
        return Err(not_steered());
    }
    let filesystem = Filesystem::of(mount).map_err(|source| TakeoverError::Read {
        path: mount.mountpoint.clone(),
        source,
    })?;
    let mut takeover = Takeover {
        mount: mount.clone(),
        filesystem: filesystem.ok_or_else(not_steered)?,
        file,
        note,
        root: Some(root_of(mount)?),
    };
    takeover.restore()
}

/// Commits a filesystem whose daemon was killed, as that would have when it ends.
///
/// # Errors
/// [`TakeoverError::NotCommitted`]; [`TakeoverError::Read`].
pub fn commit_after_daemon(mount: &MountEntry) -> Result<(), TakeoverError> {
    let path = || mount.mountpoint.clone();
    let filesystem = Filesystem::of(mount).map_err(|source| TakeoverError::Read {
        path: path(),
        source,
    })?;
    let Some(filesystem) = filesystem else {
        return Ok(());
    };
    let committed = Committer::open(&filesystem, &mount.mountpoint).and_then(|committer| {
        if !mount.is_asked_to_be_read_only() {
            committer.require_writable()?;
        }
        committer.commit()
    });
    committed.map_err(|errno| TakeoverError::NotCommitted {
        path: path(),
        source: errno.into(),
    })
}

/// A mount of a filesystem that was steered at `mountpoint` by a daemon which was killed, and is mounted
/// elsewhere still with what that has left.
///
/// # Errors
/// The table of mounts, or the runtime directory, cannot be read.
pub fn left_elsewhere(mountpoint: &Path) -> Result<Option<MountEntry>, TakeoverError> {
    let table = mounts().map_err(|source| TakeoverError::Read {
        path: mountpoint.to_owned(),
        source,
    })?;
    let found = note::noted_elsewhere(mountpoint, NOTE, &table)?;
    Ok(found.filter(|mount| is_steered(mount).is_none()))
}

fn settings(mount: &MountEntry, filesystem: &Filesystem) -> Result<Settings, TakeoverError> {
    let path = || mount.mountpoint.clone();
    let read = filesystem.settings(mount.id);
    let settings = read.map_err(|source| TakeoverError::Read {
        path: path(),
        source,
    })?;
    settings.ok_or_else(|| TakeoverError::NotMounted { path: path() })
}

/// Changes settings, and looks whether they are in force.
fn change(
    mount: &MountEntry,
    filesystem: &Filesystem,
    root: impl AsFd,
    from: &Settings,
    to: &Settings,
) -> Result<(), TakeoverError> {
    if from == to {
        return Ok(());
    }
    request(mount, filesystem, root, from, to)?;
    let found = settings(mount, filesystem)?;
    if found == *to {
        return Ok(());
    }
    Err(TakeoverError::NotInForce {
        path: mount.mountpoint.clone(),
        wanted: to.shown().join(","),
        found: found.shown().join(","),
    })
}

/// Asks the kernel for other settings.
fn request(
    mount: &MountEntry,
    filesystem: &Filesystem,
    root: impl AsFd,
    from: &Settings,
    to: &Settings,
) -> Result<(), TakeoverError> {
    let path = || mount.mountpoint.clone();
    let changes = to.changes(from);
    if !changes.is_empty() {
        let changed = mount_options::change(root, &changes);
        changed.map_err(|source| TakeoverError::Change {
            path: path(),
            source,
        })?;
    }
    if let Some(kib) = to
        .zeroing_kib
        .filter(|_| from.zeroing_kib != to.zeroing_kib)
    {
        let set = filesystem.set_zeroing_kib(kib);
        set.map_err(|source| TakeoverError::Zeroing {
            path: path(),
            kib,
            source,
        })?;
    }
    Ok(())
}
