//! Making files of a snapshot: a copy in a new place, or in place of what there is.

mod copy;
mod error;
mod metadata;
mod mounts;
mod removal;
mod user;
mod users;

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, RenameFlags, XattrFlags, fgetxattr, flock,
    fremovexattr, fsetxattr, fstat, open, openat, renameat_with, statat, syncfs,
};
use rustix::io::Errno;

pub use copy::Report;
use copy::copy_tree;
pub use error::RestoreError;
use removal::remove_tree;
pub use user::User;
use users::first_user;

use crate::btrfs::EMPTY_SUBVOLUME_INODE;
use crate::time::WallTime;

/// What was restored in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InPlace {
    /// The report of the copy.
    pub report: Report,
    /// Where what was there before is now; none: nothing was there.
    pub before: Option<PathBuf>,
}

/// A path relative to a mount that leads to nothing above it.
///
/// # Errors
/// [`RestoreError::Name`].
pub fn checked_name(name: &Path) -> Result<&Path, RestoreError> {
    let is_plain = |part| matches!(part, std::path::Component::Normal(_));
    if name.components().all(is_plain) && name.components().next().is_some() {
        Ok(name)
    } else {
        Err(RestoreError::Name {
            path: name.to_owned(),
        })
    }
}

/// Copies a directory of a snapshot, or all of it, to a place where nothing is, or an empty
/// directory; of all of it `without` an entry of this name. What is there is never incomplete: the copy
/// gets its name when it is whole.
///
/// # Errors
/// [`RestoreError`]; nothing is left of the copy.
pub fn copy_to(
    snapshot: &Path,
    name: Option<&Path>,
    target: &Path,
    without: Option<&OsStr>,
) -> Result<Report, RestoreError> {
    let source = open_source(snapshot, name)?;
    let place = Place::of(target)?;
    place.must_be_free()?;
    let part = place.name_with(".restoring");
    let without = without.filter(|_| name.is_none());
    let report = place.copy_beside(&source, &part, without)?;
    // An empty directory may be replaced, and nothing else: what another program has made there
    // since stays.
    let from = &place.parent;
    let renamed = match renameat_with(from, &part, from, &place.name, RenameFlags::NOREPLACE) {
        Err(Errno::EXIST) => rustix::fs::renameat(from, &part, from, &place.name),
        renamed => renamed,
    };
    if let Err(errno) = renamed {
        place.remove(&part);
        let path = target.to_owned();
        return Err(match errno {
            Errno::BUSY => RestoreError::Busy { path },
            Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR => RestoreError::Occupied { path },
            errno => RestoreError::of("rename the copy to", target, errno),
        });
    }
    place.make_durable(target)?;
    Ok(report)
}

/// Puts a directory of a snapshot in place of what is there now, which is kept beside it, under the
/// name `NAME.before-restore-TIME`. `mountpoint`: the filesystem that has the snapshot.
///
/// # Errors
/// [`RestoreError`]; then what was there is there.
pub fn in_place(
    snapshot: &Path,
    name: &Path,
    mountpoint: &Path,
    now: WallTime,
) -> Result<InPlace, RestoreError> {
    let source = open_source(snapshot, Some(name))?;
    let target = mountpoint.join(name);
    let place = Place::of(&target)?;
    let is_there = place.exists(&place.name);
    let must_be_unused = || match first_user(&place.parent, &place.name, &target) {
        Ok(None) => Ok(()),
        Ok(Some(user)) => Err(RestoreError::InUse {
            path: target.clone(),
            user,
        }),
        Err(errno) => Err(RestoreError::of("look who uses", &target, errno)),
    };
    if is_there {
        must_be_unused()?;
    }
    let part = place.name_with(".restoring");
    let report = place.copy_beside(&source, &part, None)?;
    if !is_there {
        let from = &place.parent;
        let renamed = renameat_with(from, &part, from, &place.name, RenameFlags::NOREPLACE);
        return match renamed {
            Ok(()) => place.make_durable(&target).map(|()| InPlace {
                report,
                before: None,
            }),
            Err(errno) => {
                place.remove(&part);
                Err(RestoreError::of("rename the copy to", &target, errno))
            }
        };
    }
    // The copy may have taken long.
    let exchanged = must_be_unused().and_then(|()| {
        let from = &place.parent;
        renameat_with(from, &part, from, &place.name, RenameFlags::EXCHANGE)
            .map_err(|errno| RestoreError::of("rename the copy to", &target, errno))
    });
    if let Err(error) = exchanged {
        place.remove(&part);
        return Err(error);
    }
    let kept = place.name_with(&format!(".before-restore-{now}"));
    let from = &place.parent;
    let before = match renameat_with(from, &part, from, &kept, RenameFlags::NOREPLACE) {
        Ok(()) => target.with_file_name(kept),
        // It is there all the same.
        Err(_) => target.with_file_name(part),
    };
    place.make_durable(&target)?;
    Ok(InPlace {
        report,
        before: Some(before),
    })
}

fn open_source(snapshot: &Path, name: Option<&Path>) -> Result<OwnedFd, RestoreError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let unreadable = |errno| RestoreError::of("open the snapshot", snapshot, errno);
    let mut directory = open(snapshot, flags, Mode::empty()).map_err(unreadable)?;
    let Some(name) = name else {
        return Ok(directory);
    };
    // No symbolic link on the way leads out of the snapshot.
    let mut parts = checked_name(name)?.iter();
    while let Some(part) = parts.next() {
        let is_last = parts.as_path().as_os_str().is_empty();
        directory =
            openat(&directory, part, flags, Mode::empty()).map_err(|errno| match errno {
                Errno::NOTDIR if is_last && is_file(&directory, part) => {
                    RestoreError::NotDirectory {
                        path: name.to_owned(),
                        copy: snapshot.join(name),
                    }
                }
                Errno::NOENT | Errno::NOTDIR | Errno::LOOP => RestoreError::Missing {
                    path: name.to_owned(),
                },
                errno => RestoreError::of("open in the snapshot", name, errno),
            })?;
        let about = fstat(&directory).map_err(unreadable)?;
        // An empty directory that stands for it.
        if about.st_ino == EMPTY_SUBVOLUME_INODE {
            return Err(RestoreError::Subvolume {
                path: name.to_owned(),
            });
        }
    }
    Ok(directory)
}

fn is_file(directory: &OwnedFd, name: &OsStr) -> bool {
    let about = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    about.is_ok_and(|about| FileType::from_raw_mode(about.st_mode) == FileType::RegularFile)
}

/// Where a copy is made.
struct Place {
    parent: OwnedFd,
    /// For messages.
    parent_path: PathBuf,
    name: OsString,
}

impl Place {
    fn of(target: &Path) -> Result<Self, RestoreError> {
        let failed = |errno| RestoreError::of("restore to", target, errno);
        let name = target.file_name().ok_or_else(|| failed(Errno::INVAL))?;
        let parent = match target.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            parent: open(parent, flags, Mode::empty()).map_err(failed)?,
            parent_path: parent.to_owned(),
            name: name.to_owned(),
        })
    }

    fn name_with(&self, end: &str) -> OsString {
        let mut name = self.name.clone();
        name.push(end);
        name
    }

    fn exists(&self, name: &OsStr) -> bool {
        statat(&self.parent, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    fn must_be_free(&self) -> Result<(), RestoreError> {
        let path = self.parent_path.join(&self.name);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let directory = match openat(&self.parent, &self.name, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(RestoreError::Occupied { path }),
            opened => opened.map_err(|errno| RestoreError::of("open", &path, errno))?,
        };
        let entries = rustix::fs::Dir::read_from(&directory)
            .map_err(|errno| RestoreError::of("read", &path, errno))?;
        let is_real =
            |entry: rustix::fs::DirEntry| !matches!(entry.file_name().to_bytes(), b"." | b"..");
        if entries.flatten().any(is_real) {
            return Err(RestoreError::Occupied { path });
        }
        Ok(())
    }

    /// A whole copy under this name, or none.
    fn copy_beside(
        &self,
        source: &OwnedFd,
        part: &OsStr,
        without: Option<&OsStr>,
    ) -> Result<Report, RestoreError> {
        let path = self.parent_path.join(part);
        self.remove_leftover(part, &path)?;
        rustix::fs::mkdirat(&self.parent, part, Mode::RWXU).map_err(|errno| match errno {
            Errno::EXIST => RestoreError::Leftover { path: path.clone() },
            errno => RestoreError::of("make", &path, errno),
        })?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let target = openat(&self.parent, part, flags, Mode::empty())
            .map_err(|errno| RestoreError::of("open", &path, errno))?;
        let mark = Mark::set(&target, &path)?;
        let copied = copy_tree(source, &target, without)
            .and_then(|report| mark.remove(&path).map(|()| report));
        if copied.is_err() {
            self.remove(part);
        }
        copied
    }

    /// Removes what a restore that was killed has left of its copy, and nothing else.
    fn remove_leftover(&self, part: &OsStr, path: &Path) -> Result<(), RestoreError> {
        let leftover = || RestoreError::Leftover {
            path: path.to_owned(),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let directory = match openat(&self.parent, part, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(leftover()),
            opened => opened.map_err(|errno| RestoreError::of("open", path, errno))?,
        };
        if Mark::is_on(&directory, path)? {
            tracing::info!(?path, "removing the copy of an interrupted restore");
            let what = "remove the copy of an interrupted restore";
            return remove_tree(&self.parent, part)
                .map_err(|errno| RestoreError::of(what, path, errno));
        }
        // Another program's, or of a restore that was killed before it could set the mark.
        Err(leftover())
    }

    /// Removes a copy that this process has made.
    fn remove(&self, part: &OsStr) {
        if let Err(error) = remove_tree(&self.parent, part) {
            let path = self.parent_path.join(part);
            tracing::warn!(?path, %error, "an incomplete copy cannot be removed");
        }
    }

    fn make_durable(&self, target: &Path) -> Result<(), RestoreError> {
        syncfs(&self.parent).map_err(|errno| RestoreError::of("make durable", target, errno))
    }
}

/// Says of a directory that it is a copy that is not whole, as long as it is there; the process that
/// makes the copy has the directory locked. What was there before has no mark, whatever its name.
struct Mark<'a> {
    directory: &'a OwnedFd,
    /// Not every filesystem has such attributes, and only root may set them.
    is_set: bool,
}

impl<'a> Mark<'a> {
    const NAME: &'static str = "trusted.mobifs.restoring";

    fn set(directory: &'a OwnedFd, path: &Path) -> Result<Self, RestoreError> {
        let is_set = Self::lock(directory, path)?
            && fsetxattr(directory, Self::NAME, b"", XattrFlags::empty()).is_ok();
        Ok(Self { directory, is_set })
    }

    /// The copy is whole.
    fn remove(self, path: &Path) -> Result<(), RestoreError> {
        match fremovexattr(self.directory, Self::NAME) {
            Err(errno) if self.is_set => Err(RestoreError::of("complete", path, errno)),
            _ => Ok(()),
        }
    }

    /// Whether the directory has one, and is being made no more.
    fn is_on(directory: &OwnedFd, path: &Path) -> Result<bool, RestoreError> {
        let is_locked = Self::lock(directory, path)?;
        let mut value = [0_u8; 1];
        Ok(is_locked && fgetxattr(directory, Self::NAME, &mut value[..]).is_ok())
    }

    /// Whether the filesystem has locks. The directory is locked until it is closed.
    fn lock(directory: &OwnedFd, path: &Path) -> Result<bool, RestoreError> {
        match flock(directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Err(RestoreError::Running {
                path: path.to_owned(),
            }),
            locked => Ok(locked.is_ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_name_stays_within_the_mount() {
        for name in ["a", "a/b", "a/b c"] {
            assert!(checked_name(Path::new(name)).is_ok(), "{name}");
        }
        for name in ["", ".", "/a", "../a", "a/../b"] {
            assert!(checked_name(Path::new(name)).is_err(), "{name}");
        }
    }

    #[test]
    fn a_symbolic_link_does_not_lead_out_of_the_snapshot() {
        let base = tempfile::tempdir().unwrap();
        let snapshot = base.path().join("snapshot");
        fs::create_dir(&snapshot).unwrap();
        fs::create_dir_all(base.path().join("other/inner")).unwrap();
        std::os::unix::fs::symlink("../other", snapshot.join("link")).unwrap();
        for name in ["link", "link/inner", "none"] {
            let copied = copy_to(
                &snapshot,
                Some(Path::new(name)),
                &base.path().join("to"),
                None,
            );
            assert!(
                matches!(copied, Err(RestoreError::Missing { .. })),
                "{name}"
            );
        }
        assert!(!base.path().join("to").exists());
    }

    /// "The snapshot has no directory" was said of a file that it has.
    #[test]
    fn a_file_is_said_to_be_one() {
        let base = tempfile::tempdir().unwrap();
        let snapshot = base.path().join("snapshot");
        fs::create_dir_all(snapshot.join("a")).unwrap();
        fs::write(snapshot.join("a/file"), "content").unwrap();
        let restored = |name: &str| {
            let to = base.path().join("to");
            copy_to(&snapshot, Some(Path::new(name)), &to, None).unwrap_err()
        };
        let error = restored("a/file");
        let copy = snapshot.join("a/file").display().to_string();
        assert!(
            matches!(error, RestoreError::NotDirectory { .. }),
            "{error}"
        );
        assert!(error.to_string().contains(&copy), "{error}");
        assert!(matches!(
            restored("a/file/inner"),
            RestoreError::Missing { .. }
        ));
    }

    #[test]
    fn nothing_is_overwritten() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        fs::create_dir(at("snapshot")).unwrap();
        fs::write(at("snapshot/file"), "of the snapshot").unwrap();
        fs::create_dir(at("full")).unwrap();
        fs::write(at("full/file"), "mine").unwrap();
        fs::write(at("plain"), "mine").unwrap();
        std::os::unix::fs::symlink("empty", at("link")).unwrap();
        fs::create_dir(at("empty")).unwrap();
        for name in ["full", "plain", "link"] {
            let copied = copy_to(&at("snapshot"), None, &at(name), None);
            assert!(
                matches!(copied, Err(RestoreError::Occupied { .. })),
                "{name}"
            );
        }
        assert_eq!(fs::read(at("full/file")).unwrap(), b"mine");
        assert_eq!(fs::read(at("plain")).unwrap(), b"mine");
        for name in ["empty", "new"] {
            copy_to(&at("snapshot"), None, &at(name), None).unwrap();
            assert_eq!(fs::read(at(name).join("file")).unwrap(), b"of the snapshot");
        }
        // A name that a restore would use, of another program.
        fs::create_dir(at("other.restoring")).unwrap();
        let copied = copy_to(&at("snapshot"), None, &at("other"), None);
        assert!(matches!(copied, Err(RestoreError::Leftover { .. })));
        fs::remove_dir(at("other.restoring")).unwrap();
        let names = fs::read_dir(base.path()).unwrap().flatten();
        let left = names.filter(|entry| entry.file_name().to_string_lossy().contains("restoring"));
        assert_eq!(left.count(), 0);
    }
}
