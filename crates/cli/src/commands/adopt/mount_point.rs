//! The empty directory under the adopted one's name, on which the mount is made, and which changes names
//! with it.
//!
//! Nothing should be written to it while nothing is mounted there. As root it is made immutable, so
//! that programs get an error rather than files that the mount hides. Elsewhere, and in the instant
//! before that, programs may write into it: what they have written is brought to the other files.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use mobifs_daemon::Failure;
use mobifs_volume::fault_point;
use rustix::fs::Timestamps;

use super::directory::Directory;
use super::durable::cannot;
use super::place::{OWN_DIRECTORY, Place, refused};
use crate::commands::tell;

/// What `.mobifs` is called when it is to be deleted.
pub(super) const REMOVED: &str = ".mobifs-removed";
/// Where files go whose names are taken.
const MEANWHILE: &str = "written-meanwhile";
/// Most directories of one name, with numbers after it.
const NUMBER_MAX: u32 = 10_000;
/// The longest tick of a kernel's clock for files, and more.
const TICK_NS_MAX: i128 = 50_000_000;

/// Makes it under the store's name, as accessible as the directory.
///
/// # Errors
/// It cannot be made, or something else is there.
pub(super) fn make(place: &Place) -> Result<(), Failure> {
    let path = place.store();
    let parent = place.opened_parent()?;
    match parent.make(place.store_name()) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other.map_err(cannot("make", path))?,
    }
    let made = opened(path)?;
    if !made.names().map_err(cannot("list", path))?.is_empty() {
        return Err(refused(&format!(
            "{} has files in it, and is to be empty: move them away",
            path.display()
        )));
    }
    made.copy_access(&opened(place.directory())?)
        .map_err(cannot("set the rights of", path))?;
    made.sync()
        .and_then(|()| parent.sync())
        .map_err(cannot("make", path))
}

/// The two change names: what was the one is the other, also after a crash.
pub(super) fn exchange(place: &Place) -> Result<(), Failure> {
    place
        .opened_parent()?
        .exchange(place.directory_name(), place.store_name())
        .map_err(cannot(
            "exchange the names of mount point and",
            place.directory(),
        ))
}

fn opened(path: &Path) -> Result<Directory, Failure> {
    Directory::open(path).map_err(cannot("open", path))
}

/// Sets whether programs may write into it, as far as this user and the filesystem can.
pub(super) fn protect(path: &Path, is_protected: bool) -> Result<(), Failure> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    match opened(path)?.set_immutable(is_protected) {
        Err(error) if !is_protected => Err(cannot("make it possible to change", path)(error)),
        // It is only a precaution.
        _ => Ok(()),
    }
}

/// A directory that the next mount will hide.
#[derive(Debug)]
pub(super) struct Held(Directory);

impl Held {
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        opened(path).map(Self)
    }

    /// Whether programs have written into it, also under a mount.
    pub(super) fn is_empty(&self) -> bool {
        self.0.names().is_ok_and(|names| names.is_empty())
    }
}

/// Brings to the files what programs wrote while nothing was mounted.
pub(super) fn bring_meanwhile(place: &Place) -> Result<(), Failure> {
    let directory = place.directory();
    if Held::open(directory)?.is_empty() {
        return Ok(());
    }
    protect(directory, false)?;
    let taken = bring(directory, place.store())?;
    protect(directory, true)?;
    let shown = directory.display();
    let others = "had files that were written while it was not mounted";
    tell(&match taken.as_deref().and_then(Path::file_name) {
        None => format!("{shown} {others}; they are with the others"),
        Some(name) => format!(
            "{shown} {others}; those whose names were taken are in {}",
            directory.join(name).display()
        ),
    });
    Ok(())
}

/// Moves all that is in `from` to the files in `to`; returns the directory for those whose names are taken
/// there, if one was needed.
///
/// # Errors
/// Something cannot be renamed; nothing is replaced.
fn bring(from: &Path, to: &Path) -> Result<Option<PathBuf>, Failure> {
    let (source, target) = (opened(from)?, opened(to)?);
    let mut taken: Option<(Directory, PathBuf)> = None;
    for name in source.names().map_err(cannot("list", from))? {
        let failed = cannot("move", &from.join(&name));
        match source.move_out(&name, &target, &name) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let (directory, path) = match taken {
                    Some(taken) => taken,
                    None => numbered(&target, to)?,
                };
                source.move_out(&name, &directory, &name).map_err(failed)?;
                taken = Some((directory, path));
            }
            other => other.map_err(failed)?,
        }
    }
    let written = taken.iter().map(|(directory, _)| directory.sync());
    for synced in written.chain([target.sync(), source.sync()]) {
        synced.map_err(cannot("write", to))?;
    }
    Ok(taken.map(|(_, path)| path))
}

/// A new directory for files whose names are taken.
fn numbered(target: &Directory, to: &Path) -> Result<(Directory, PathBuf), Failure> {
    for number in 1..NUMBER_MAX {
        let name = format!("{MEANWHILE}-{number}");
        let path = to.join(&name);
        match target.make(OsStr::new(&name)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => {
                other.map_err(cannot("make", &path))?;
                let made = target
                    .inner(OsStr::new(&name))
                    .map_err(cannot("open", &path))?;
                return Ok((made, path));
            }
        }
    }
    Err(refused(&format!("{} has no name left", to.display())))
}

/// Gives what is called `name` in the store's own directory to the user, as `new` with a number after it,
/// among the files; returns its name there.
pub(super) fn keep(place: &Place, name: &str, new: &str) -> Result<String, Failure> {
    let (own, files) = (opened(&place.own_in_store())?, opened(place.store())?);
    let failed = |error: io::Error| cannot("move", &place.own_in_store().join(name))(error);
    for number in 1..NUMBER_MAX {
        let new = format!("{new}-{number}");
        match own.move_out(OsStr::new(name), &files, OsStr::new(&new)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            other => {
                other
                    .and_then(|()| files.sync())
                    .and_then(|()| own.sync())
                    .map_err(failed)?;
                return Ok(new);
            }
        }
    }
    Err(refused(&format!(
        "{} has no name left",
        place.store().display()
    )))
}

/// Deletes `.mobifs` in the directory of the files, and the mount point, which has the store's name by then. `times`:
/// those of the directory before a command that was cut short has changed it.
///
/// # Errors
/// Something cannot be removed.
pub(super) fn remove(place: &Place, times: Option<Timestamps>) -> Result<(), Failure> {
    let (directory, path) = (place.directory(), place.store());
    let (own, removed) = (OsStr::new(OWN_DIRECTORY), OsStr::new(REMOVED));
    keeping_times(directory, times, || {
        let files = opened(directory)?;
        remove_leavings(directory)?;
        if place.is_prepared() {
            // In one step it is none any more: what is deleted in part is no store.
            files
                .move_out(own, &files, removed)
                .and_then(|()| files.sync())
                .map_err(cannot("remove", &place.own_in_directory()))?;
            fault_point("unadopt-renamed");
            remove_leavings(directory)?;
        }
        Ok(())
    })?;
    if path.symlink_metadata().is_err() {
        return Ok(());
    }
    bring(path, directory)?;
    place
        .opened_parent()?
        .remove_empty(place.store_name())
        .map_err(cannot("remove", path))
}

/// Deletes what was `.mobifs` once, as far as it is there.
pub(super) fn remove_leavings(directory: &Path) -> Result<(), Failure> {
    let files = opened(directory)?;
    if files.has_directory(REMOVED) {
        files
            .remove_tree(REMOVED)
            .and_then(|()| files.sync())
            .map_err(cannot("remove", &directory.join(REMOVED)))?;
    }
    Ok(())
}

/// Does something to the names in a directory without changing its times, also if it fails. Where a command that was
/// cut short has changed them, they are `noted` from then on.
pub(super) fn keeping_times<T>(
    path: &Path,
    noted: Option<Timestamps>,
    work: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let directory = opened(path)?;
    let found = directory.times().map_err(cannot("examine", path))?;
    let times = noted
        .filter(|_| is_own_change(&directory, &found))
        .unwrap_or(found);
    let done = work();
    let kept = directory
        .set_times(&times)
        .map_err(cannot("set the times of", path));
    done.and_then(|done| kept.map(|()| done))
}

/// Whether the last change of names in a directory is that of MobiFS's own there.
fn is_own_change(directory: &Directory, times: &Timestamps) -> bool {
    let modified = &times.last_modification;
    let own = [OWN_DIRECTORY, REMOVED].into_iter();
    own.filter_map(|name| directory.changed(name))
        .any(|(seconds, nanoseconds)| {
            // The two changes of one call may be a tick of the clock apart.
            let after = i128::from(modified.tv_sec - seconds) * 1_000_000_000
                + i128::from(modified.tv_nsec)
                - i128::from(nanoseconds);
            after <= TICK_NS_MAX
        })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use super::*;

    fn place(base: &tempfile::TempDir) -> Place {
        let directory = base.path().join("files");
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o2751)).unwrap();
        Place::find(&directory).unwrap()
    }

    #[test]
    fn it_is_as_accessible_as_the_directory_and_nothing_is_in_it() {
        let base = tempfile::tempdir().unwrap();
        let place = place(&base);
        make(&place).unwrap();
        make(&place).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().mode();
        assert_eq!(mode(place.store()), mode(place.directory()));
        fs::write(place.store().join("x"), "").unwrap();
        assert!(make(&place).unwrap_err().message.contains("move them away"));
    }

    #[test]
    fn what_was_written_meanwhile_replaces_nothing() {
        let base = tempfile::tempdir().unwrap();
        let root = base.path().canonicalize().unwrap();
        let (from, to) = (root.join("from"), root.join("to"));
        for (directory, names) in [(&from, ["a", "b"]), (&to, ["b", "c"])] {
            fs::create_dir(directory).unwrap();
            for name in names {
                fs::write(directory.join(name), directory.to_str().unwrap()).unwrap();
            }
        }
        fs::create_dir(to.join("written-meanwhile-1")).unwrap();
        let taken = bring(&from, &to).unwrap().unwrap();
        assert_eq!(taken, to.join("written-meanwhile-2"));
        let from_first = from.to_str().unwrap();
        assert_eq!(fs::read_to_string(to.join("a")).unwrap(), from_first);
        assert_eq!(fs::read_to_string(taken.join("b")).unwrap(), from_first);
        assert_eq!(
            fs::read_to_string(to.join("b")).unwrap(),
            to.to_str().unwrap()
        );
        assert!(Held::open(&from).unwrap().is_empty());
    }

    #[test]
    fn only_what_is_ours_is_deleted_with_it() {
        let base = tempfile::tempdir().unwrap();
        let place = place(&base);
        make(&place).unwrap();
        let before = fs::metadata(place.directory()).unwrap();
        let own = place.own_in_directory();
        keeping_times(place.directory(), None, || {
            fs::create_dir(&own).map_err(cannot("make", &own))
        })
        .unwrap();
        fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(own.join("journal"), "").unwrap();
        fs::create_dir(place.store().join("theirs")).unwrap();
        remove(&place, None).unwrap();
        assert!(!own.exists() && !place.store().exists());
        assert!(
            place.directory().join("theirs").is_dir(),
            "kept with the files"
        );
        fs::remove_dir(place.directory().join("theirs")).unwrap();
        assert_eq!(
            before.mode(),
            fs::metadata(place.directory()).unwrap().mode()
        );
    }

    /// They were those of the moment at which something was refused.
    #[test]
    fn times_of_a_directory_stay() {
        let base = tempfile::tempdir().unwrap();
        let root = base.path().canonicalize().unwrap();
        let modified = || fs::metadata(&root).unwrap().modified().unwrap();
        let before = modified();
        let wait = || std::thread::sleep(std::time::Duration::from_millis(120));
        wait();
        let make = |name: &str| fs::create_dir(root.join(name)).map_err(cannot("make", &root));
        keeping_times(&root, None, || make("a")).unwrap();
        assert_eq!(modified(), before);
        let refused = keeping_times(&root, None, || {
            make("b")?;
            Err::<(), _>(refused("no room"))
        });
        assert_eq!(refused.unwrap_err().message, "no room");
        assert_eq!(modified(), before);
        // A command was cut short.
        let noted = opened(&root).unwrap().times().unwrap();
        make(OWN_DIRECTORY).unwrap();
        assert_ne!(modified(), before);
        wait();
        keeping_times(&root, Some(noted.clone()), || make("c")).unwrap();
        assert_eq!(modified(), before);
        // A program has made something since.
        make("d").unwrap();
        let since = modified();
        keeping_times(&root, Some(noted), || make("e")).unwrap();
        assert_eq!(modified(), since);
    }
}
