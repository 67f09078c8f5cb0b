//! Steering some directories of an ext4 with `data=ordered`: files there have the flag `chattr +j`
//! (`FS_JOURNAL_DATA_FL`), with which ext4 journals their content, too, and others stay as they are.
//!
//! New files inherit the flag from their directory. Programs skip calls for durability on files that
//! have it and on no others, so that durability calls on a file which comes in by a rename, or could
//! not be marked, block, as without MobiFS.

mod flag;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mobifs_host::{MountEntry, other_mounts_of, shell_path};
use rustix::thread::{CapabilitySet, capabilities};
use serde::{Deserialize, Serialize};

use crate::check::{how_to_mount_with, unmounted};
use crate::filesystem::{Ext4, Filesystem};
use crate::note::{NoteError, NoteFile};
use flag::{Marked, Tree};

/// Why some directories of a filesystem cannot be steered, in one sentence each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OnlyObstacle {
    /// Another type, or an ext4 that journals all content.
    #[error(
        "--only is for an ext4 that is mounted with data=ordered, and {path} is {kind}: leave --only out",
        path = path.display()
    )]
    Kind {
        /// The mount point.
        path: PathBuf,
        /// What it is.
        kind: String,
    },
    /// With delayed allocation ext4 ignores the flag.
    #[error(
        "ext4 journals the content of single files only if it allocates without delay, which no remount \
         can change: {}",
        how_to_mount_with(path, "nodelalloc")
    )]
    DelayedAllocation {
        /// The mount point.
        path: PathBuf,
    },
    /// An `fsync` commits one file ahead of all others.
    #[error(
        "the ext4 at {path} has the feature fast_commit, by which an fsync commits one file ahead of all \
         others: {unmounted}, `tune2fs -O ^fast_commit {device}`",
        path = path.display(), unmounted = unmounted(path)
    )]
    FastCommit {
        /// The mount point.
        path: PathBuf,
        /// Its device.
        device: String,
    },
    /// Not permitted.
    #[error(
        "only a process with CAP_SYS_RESOURCE can have the content of files journalled (`chattr +j`), and \
         this one does not have it: run it as root outside of a container, or give it the capability"
    )]
    NotPermitted,
    /// The directory is not one that can be steered.
    #[error("{path} cannot be steered by itself: {reason}", path = path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
}

/// Which note it is.
pub(crate) const NOTE: &str = "-only";

/// Why flags were not set or taken away.
#[derive(Debug, thiserror::Error)]
pub enum OnlyError {
    /// A directory.
    #[error("cannot have the content of the files below {path} journalled: {source}", path = path.display())]
    Mark {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Flags stay.
    #[error(
        "files below {path} keep the flag to journal their content, as it cannot be taken away: {source} \
         (`chattr -R -j {word}` tries it again)",
        path = path.display(), word = shell_path(path)
    )]
    Unmark {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What is mounted of the filesystem does not show the directory.
    #[error(
        "files below {path} keep the flag to journal their content, as no mount of the filesystem shows \
         this directory any more: mount it, and run `mobifs steer --stop` there",
        path = path.display()
    )]
    OutOfSight {
        /// The directory, from the root of the filesystem.
        path: PathBuf,
    },
    /// What is to be undone cannot be noted.
    #[error(transparent)]
    Note(#[from] NoteError),
}

/// The directories that are steered, from when they are marked until that is undone.
#[derive(Debug)]
pub(crate) struct Only {
    directories: Vec<PathBuf>,
    note: NoteFile,
}

/// What is noted for the next daemon, or `mobifs steer --stop`, if this one is killed.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    /// Where they were when they were marked.
    directories: Vec<PathBuf>,
    /// The same from the root of the filesystem, where they are whatever is mounted of it.
    #[serde(default)]
    inside: Vec<PathBuf>,
}

impl Note {
    fn of(mount: &MountEntry, directories: &[PathBuf]) -> Self {
        let below = |path: &PathBuf| path.strip_prefix(&mount.mountpoint).ok().map(PathBuf::from);
        let inside = directories.iter().filter_map(below);
        Self {
            directories: directories.to_vec(),
            inside: inside.map(|path| mount.root.join(path)).collect(),
        }
    }

    /// Where they are now, in this mount or in another one of the filesystem.
    fn places(&self, mount: &MountEntry) -> Result<Vec<PathBuf>, OnlyError> {
        let mut mounts = vec![mount.clone()];
        mounts.extend(other_mounts_of(mount).unwrap_or_default());
        let place = |path: &PathBuf| {
            let place = mounts.iter().find_map(|mount| place_in(mount, path));
            place.ok_or_else(|| OnlyError::OutOfSight { path: path.clone() })
        };
        self.inside.iter().map(place).collect()
    }
}

/// Where a mount shows what lies there in its filesystem, if it does.
fn place_in(mount: &MountEntry, inside: &Path) -> Option<PathBuf> {
    let below = inside.strip_prefix(&mount.root).ok()?;
    Some(mount.mountpoint.join(below))
}

/// Why these directories of a filesystem cannot be steered as they are; the directories, from the root,
/// without links.
pub(crate) fn examine(
    mount: &MountEntry,
    filesystem: &Filesystem,
    directories: &[PathBuf],
) -> io::Result<(Vec<OnlyObstacle>, Vec<PathBuf>)> {
    let path = || mount.mountpoint.clone();
    let Filesystem::Ext4(ext4) = filesystem else {
        let kind = mount.kind.clone();
        let obstacle = OnlyObstacle::Kind { path: path(), kind };
        return Ok((vec![obstacle], Vec::new()));
    };
    let mut obstacles = Vec::new();
    let options = ext4.options()?;
    if options.value("data") == Some("journal") {
        obstacles.push(OnlyObstacle::Kind {
            path: path(),
            kind: "mounted with data=journal, by which all content is journalled".to_owned(),
        });
    } else if allocates_late(ext4)? {
        obstacles.push(OnlyObstacle::DelayedAllocation { path: path() });
    }
    if options.has("fast_commit") {
        obstacles.push(OnlyObstacle::FastCommit {
            path: path(),
            device: format!("/dev/{}", ext4.name()),
        });
    }
    if !capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_RESOURCE)) {
        obstacles.push(OnlyObstacle::NotPermitted);
    }
    let mut found = Vec::new();
    for directory in directories {
        match place_of(mount, directory) {
            Ok(place) => found.push(place),
            Err(reason) => obstacles.push(OnlyObstacle::Directory {
                path: directory.clone(),
                reason,
            }),
        }
    }
    found.sort();
    found.dedup();
    Ok((obstacles, found))
}

fn allocates_late(ext4: &Ext4) -> io::Result<bool> {
    Ok(!ext4.options()?.has("nodelalloc"))
}

/// A directory in the filesystem of a mount; a relative one is in its root.
fn place_of(mount: &MountEntry, directory: &Path) -> Result<PathBuf, String> {
    let place = mount.mountpoint.join(directory);
    let place = place.canonicalize().map_err(|error| error.to_string())?;
    Tree::open(&place).map_err(|error| error.to_string())?;
    let on = mobifs_steered::Device::of(fs::File::open(&place).map_err(|error| error.to_string())?);
    let is_there = on.is_ok_and(|device| {
        (device.major, device.minor) == (mount.device_major, mount.device_minor)
    });
    if !is_there || !place.starts_with(&mount.mountpoint) {
        return Err(format!(
            "it is not in the filesystem that is mounted at {}",
            mount.mountpoint.display()
        ));
    }
    if place == mount.mountpoint {
        return Err("it is all of the filesystem, for which data=journal is made".to_owned());
    }
    Ok(place)
}

impl Only {
    /// Marks the directories and all that is below them.
    ///
    /// # Errors
    /// [`OnlyError`]; then nothing is marked that was not.
    pub(crate) fn begin(mount: &MountEntry, directories: &[PathBuf]) -> Result<Self, OnlyError> {
        let only = Self {
            directories: directories.to_vec(),
            note: NoteFile::of(mount, NOTE)?,
        };
        // One that a killed daemon has left, and that is not steered any more.
        if let Some(left) = only.note.read::<Note>() {
            let mut left = left.places(mount)?;
            left.retain(|directory| !only.directories.contains(directory));
            undo(&left)?;
        }
        only.note.write(&Note::of(mount, directories))?;
        let marked = only.mark();
        if marked.is_err() {
            let _undone = only.restore();
        }
        marked.map(|()| only)
    }

    fn mark(&self) -> Result<(), OnlyError> {
        for path in &self.directories {
            let failed = |source| OnlyError::Mark {
                path: path.clone(),
                source,
            };
            let tree = Tree::open(path).map_err(failed)?;
            let Marked { done, left, first } = tree.mark().map_err(failed)?;
            tracing::info!(directory = ?path, files = done, "content is journalled");
            if let Some((file, error)) = first {
                tracing::warn!(
                    directory = ?path, files = left, ?file, %error,
                    "files could not be marked: durability calls on them block, as without MobiFS"
                );
            }
        }
        Ok(())
    }

    /// Takes the flags away that were set, as far as that is possible.
    ///
    /// # Errors
    /// [`OnlyError`]: some stay.
    pub(crate) fn restore(&self) -> Result<(), OnlyError> {
        undo(&self.directories)?;
        self.note.remove();
        Ok(())
    }

    /// Notes what is to be undone again if the note is gone.
    ///
    /// # Errors
    /// It cannot be noted.
    pub(crate) fn keep_note(&self, mount: &MountEntry) -> Result<(), NoteError> {
        self.note.keep(&Note::of(mount, &self.directories))
    }

    /// The directories.
    pub(crate) fn shown(&self) -> Vec<String> {
        let directories = self.directories.iter();
        directories.map(|path| path.display().to_string()).collect()
    }

    /// Why the promise does not hold any more, if so.
    pub(crate) fn difference(filesystem: &Filesystem) -> Option<String> {
        let Filesystem::Ext4(ext4) = filesystem else {
            return None;
        };
        match allocates_late(ext4) {
            Ok(false) => None,
            Ok(true) => Some(
                "another program has set the mount option delalloc, with which ext4 journals the content \
                 of single files no longer: unmount the filesystem and mount it with nodelalloc"
                    .to_owned(),
            ),
            Err(error) => Some(error.to_string()),
        }
    }
}

/// Takes away the flags that a daemon has left that was killed.
///
/// # Errors
/// [`OnlyError`]: some stay.
pub fn unmark_after_daemon(mount: &MountEntry) -> Result<(), OnlyError> {
    let file = NoteFile::of(mount, NOTE)?;
    if let Some(note) = file.read::<Note>() {
        undo(&note.places(mount)?)?;
        file.remove();
    }
    Ok(())
}

/// The directories in what was noted.
pub(crate) fn noted_directories(content: serde_json::Value) -> Vec<PathBuf> {
    serde_json::from_value::<Note>(content).map_or_else(|_| Vec::new(), |note| note.directories)
}

fn undo(directories: &[PathBuf]) -> Result<(), OnlyError> {
    let mut failed = None;
    for path in directories {
        let undone = Tree::open(path).and_then(|tree| tree.unmark());
        match undone {
            // Nothing is there any more.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => {
                let path = path.clone();
                failed = Some(OnlyError::Unmark { path, source });
            }
            Ok(()) => {}
        }
    }
    failed.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(root: &str, mountpoint: &str) -> MountEntry {
        MountEntry {
            id: 7,
            parent_id: 1,
            root: root.into(),
            mountpoint: mountpoint.into(),
            kind: "ext4".to_owned(),
            source: "/dev/x".into(),
            // A number that no mount of the machine has.
            device_major: 4095,
            device_minor: 1_048_575,
            user_id: None,
        }
    }

    /// They were looked for where they had been, found nowhere, and kept their flags.
    #[test]
    fn directories_are_found_through_another_mount_of_the_filesystem() {
        let note = Note::of(
            &mount("/", "/data"),
            &["/data/app".into(), "/data/more/b".into()],
        );
        let found = |mount: MountEntry| note.places(&mount).ok();
        let paths = |paths: [&str; 2]| Some(paths.map(PathBuf::from).to_vec());
        assert_eq!(
            found(mount("/", "/data")),
            paths(["/data/app", "/data/more/b"])
        );
        assert_eq!(
            found(mount("/", "/bound")),
            paths(["/bound/app", "/bound/more/b"])
        );
        let error = note.places(&mount("/more", "/part")).unwrap_err();
        assert!(
            error.to_string().contains("below /app keep the flag"),
            "{error}"
        );
        let part = Note::of(&mount("/more", "/part"), &["/part/b".into()]);
        let found = part.places(&mount("/", "/data")).unwrap();
        assert_eq!(found, [Path::new("/data/more/b")]);
    }
}
