//! The directories of one adoption, and what they show of how far it has come.
//!
//! The store is the adopted directory itself under another name beside it, and under the old name is an
//! empty directory to mount on. Which of the two has the files follows from where `.mobifs` is: it is made
//! before they exchange their names, and removed after they have them back.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use mobifs_daemon::{Code, Failure};
use mobifs_host::{MountEntry, mount_at, shell_path};

use super::directory::Directory;
use super::durable::cannot;

/// What the store is called: the directory's name with this after it.
pub(crate) const STORE_SUFFIX: &str = ".mobifs-store";
/// What MobiFS keeps in a store.
pub(super) const OWN_DIRECTORY: &str = ".mobifs";
const NAME_BYTES_MAX: usize = 255;

/// An adopted directory, or one to be adopted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    directory: PathBuf,
    store: PathBuf,
    parent: PathBuf,
}

impl Place {
    /// The place that a user has named.
    ///
    /// # Errors
    /// There is none, or its name cannot be one of an adopted directory.
    pub(super) fn find(given: &Path) -> Result<Self, Failure> {
        let place = Self::find_adopted(given)?;
        // A mount is not touched: its daemon may be gone.
        if place.mounted()?.is_none() {
            check_kind(place.directory())?;
        }
        Ok(place)
    }

    /// The place of a directory that may be missing, or may have become something else.
    ///
    /// # Errors
    /// There is no such place, or its name cannot be one of an adopted directory.
    pub(super) fn find_adopted(given: &Path) -> Result<Self, Failure> {
        let failed = |error: io::Error| cannot("examine", given)(error);
        let mut absolute = std::path::absolute(given).map_err(failed)?;
        if absolute.file_name().is_none() {
            absolute = absolute.canonicalize().map_err(failed)?;
        }
        let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
            return Err(refused(
                "/ cannot be adopted: everything lies in it, the program itself included. Name a directory",
            ));
        };
        Self::of(parent.canonicalize().map_err(failed)?.join(name))
    }

    /// The place of an absolute path without symbolic links.
    ///
    /// # Errors
    /// Its name cannot be one of an adopted directory.
    pub(super) fn of(directory: PathBuf) -> Result<Self, Failure> {
        let shown = directory.display();
        let (Some(parent), Some(name)) = (directory.parent(), directory.file_name()) else {
            return Err(refused(&format!("{shown} cannot be adopted")));
        };
        let is_plain = directory
            .to_str()
            .is_some_and(|text| !text.contains(char::is_control));
        if !is_plain {
            return Err(refused(&format!(
                "{shown} cannot be adopted: its path has control characters or is not UTF-8, which units and \
                 tables of mounts do not carry. Rename it, or mount a store of your own (mobifs mount)"
            )));
        }
        let mut store = name.to_owned();
        store.push(STORE_SUFFIX);
        if store.as_bytes().len() > NAME_BYTES_MAX {
            return Err(refused(&format!(
                "{shown} cannot be adopted: its name with {STORE_SUFFIX} after it is longer than \
                 {NAME_BYTES_MAX} bytes; rename it"
            )));
        }
        Ok(Self {
            store: parent.join(store),
            parent: parent.to_owned(),
            directory,
        })
    }

    /// The adopted directory, where it is mounted.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where its files are meanwhile.
    pub(super) fn store(&self) -> &Path {
        &self.store
    }

    /// The directory that has both.
    pub(super) fn parent(&self) -> &Path {
        &self.parent
    }

    /// The directory's name in it.
    pub(super) fn directory_name(&self) -> &OsStr {
        self.directory.file_name().unwrap_or_default()
    }

    /// The store's name in it.
    pub(super) fn store_name(&self) -> &OsStr {
        self.store.file_name().unwrap_or_default()
    }

    /// The directory that has both, opened.
    ///
    /// # Errors
    /// It cannot be opened, or a symbolic link is on the path by now.
    pub(super) fn opened_parent(&self) -> Result<Directory, Failure> {
        Directory::open(&self.parent).map_err(cannot("open", &self.parent))
    }

    /// Whether the files lie in the store.
    pub(super) fn is_exchanged(&self) -> bool {
        is_directory(&self.own_in_store())
    }

    /// Whether the files lie in the directory itself, and MobiFS's own beside them.
    pub(super) fn is_prepared(&self) -> bool {
        is_directory(&self.own_in_directory())
    }

    /// The user who has adopted it, or is about to, as the owner of `.mobifs` shows.
    pub(super) fn adopter(&self) -> Option<u32> {
        [self.own_in_store(), self.own_in_directory()]
            .into_iter()
            .find(|own| is_directory(own))
            .and_then(|own| own.symlink_metadata().ok())
            .map(|about| about.uid())
    }

    /// `.mobifs`, before the exchange.
    pub(super) fn own_in_directory(&self) -> PathBuf {
        self.directory.join(OWN_DIRECTORY)
    }

    /// `.mobifs`, after the exchange.
    pub(super) fn own_in_store(&self) -> PathBuf {
        self.store.join(OWN_DIRECTORY)
    }

    /// What is mounted at the directory.
    ///
    /// # Errors
    /// The table of mounts cannot be read.
    pub(super) fn mounted(&self) -> Result<Option<MountEntry>, Failure> {
        mount_at(&self.directory).map_err(cannot("look for a mount at", &self.directory))
    }

    /// Whether MobiFS is mounted at the directory.
    ///
    /// # Errors
    /// As [`Place::mounted`].
    pub(super) fn is_served(&self) -> Result<bool, Failure> {
        let mount = self.mounted()?;
        Ok(mount.is_some_and(|mount| mount.has_subtype("mobifs")))
    }

    /// Whether the directory can be, or is, the mount point of the store: it is empty, or the store is mounted there.
    ///
    /// # Errors
    /// As [`Place::mounted`].
    pub(super) fn is_mount_point(&self) -> Result<bool, Failure> {
        Ok(match self.mounted()? {
            Some(mount) => mount.has_subtype("mobifs") && mount.source == self.store,
            None => Directory::open(&self.directory)
                .and_then(|directory| directory.names())
                .is_ok_and(|names| names.is_empty()),
        })
    }

    /// Whether this path lies in one of the directories, or one of them in it.
    pub(super) fn overlaps(&self, other: &Path) -> bool {
        [&self.directory, &self.store]
            .into_iter()
            .any(|own| own.starts_with(other) || other.starts_with(own))
    }
}

fn check_kind(directory: &Path) -> Result<(), Failure> {
    let shown = directory.display();
    let about = fs::symlink_metadata(directory).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => refused(&format!(
            "{shown} does not exist; create the directory first (mkdir {})",
            shell_path(directory)
        )),
        _ => cannot("examine", directory)(error),
    })?;
    if about.is_symlink() {
        let target = directory.canonicalize();
        let target = target.map_or_else(|_| "what it leads to".to_owned(), shell_path);
        return Err(refused(&format!(
            "{shown} is a symbolic link; adopt the directory itself (mobifs adopt {target})"
        )));
    }
    if !about.is_dir() {
        return Err(refused(&format!("{shown} is not a directory")));
    }
    Ok(())
}

fn is_directory(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|about| about.is_dir())
}

pub(super) fn refused(sentence: &str) -> Failure {
    Failure::new(Code::Failed, sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(path: &Path) -> String {
        Place::find(path).unwrap_err().message
    }

    #[test]
    fn what_cannot_be_adopted_is_said_with_what_to_do() {
        let base = tempfile::tempdir().unwrap();
        let path = |name: &str| base.path().join(name);
        fs::write(path("file"), "").unwrap();
        fs::create_dir(path("real")).unwrap();
        std::os::unix::fs::symlink("real", path("link")).unwrap();
        for name in ["a\nb", "\u{9b}31m"] {
            fs::create_dir(path(name)).unwrap();
            assert!(said(&path(name)).contains("control characters"));
        }
        fs::create_dir(path(&"n".repeat(250))).unwrap();
        assert!(said(&path(&"n".repeat(250))).contains("longer than 255"));
        assert!(said(Path::new("/")).contains("everything lies in it"));
        assert!(said(Path::new("/..")).contains("everything lies in it"));
        assert!(said(&path("file")).contains("is not a directory"));
        assert!(said(&path("none")).contains("mkdir"));
        assert!(said(&path("none/deep")).contains("cannot examine"));
        assert!(said(&path("link")).contains(&format!(
            "mobifs adopt {}",
            path("real").canonicalize().unwrap().display()
        )));
    }

    #[test]
    fn the_store_lies_beside_the_directory_however_it_is_named() {
        let base = tempfile::tempdir().unwrap();
        let root = base.path().canonicalize().unwrap();
        fs::create_dir_all(root.join("a b/inner")).unwrap();
        for given in ["a b", "a b/", "a b/.", "a b/inner/.."] {
            let place = Place::find(&root.join(given)).unwrap();
            assert_eq!(place.directory(), root.join("a b"), "{given}");
            assert_eq!(place.store(), root.join("a b.mobifs-store"));
            assert!(!place.is_exchanged() && !place.is_prepared());
        }
    }

    #[test]
    fn places_that_overlap_are_noticed() {
        let place = Place::of("/a/b".into()).unwrap();
        for path in ["/a", "/a/b", "/a/b/c", "/a/b.mobifs-store/c"] {
            assert!(place.overlaps(Path::new(path)), "{path}");
        }
        for path in ["/a/bc", "/b"] {
            assert!(!place.overlaps(Path::new(path)), "{path}");
        }
    }
}
