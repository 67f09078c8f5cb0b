//! Whether a directory can be a store, and whether it can be mounted where it is
//! wanted. Everything that could hang or lose data later is refused here, in one
//! sentence that says what to do.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use mobifs_host::{MountEntry, mounts, shell_path};

use crate::nested_stores::{
    NestedStores, served_around_or_inside, served_at_mountpoint, unrecovered_above,
};

/// Why store and mount point cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// The store does not exist.
    #[error(
        "the store {path} does not exist; create the directory first (mkdir {word})",
        path = .0.display(), word = shell_path(.0)
    )]
    StoreMissing(PathBuf),
    /// The store is no directory.
    #[error("the store {path} is not a directory; a store is a directory", path = .0.display())]
    StoreNotDirectory(PathBuf),
    /// The mount point does not exist.
    #[error(
        "the mount point {path} does not exist; create the directory first (mkdir {word})",
        path = .0.display(), word = shell_path(.0)
    )]
    MountpointMissing(PathBuf),
    /// The mount point is no directory.
    #[error("the mount point {path} is not a directory", path = .0.display())]
    MountpointNotDirectory(PathBuf),
    /// The mount point is a mount whose daemon is gone.
    #[error(
        "the mount point {path} holds a mount whose daemon is gone; take it away with \
         `mobifs umount {word}`",
        path = .0.display(), word = shell_path(.0)
    )]
    MountpointDead(PathBuf),
    /// A MobiFS mount is there already.
    #[error(
        "{path} is already a MobiFS mount; unmount it first (mobifs umount {word})",
        path = .0.display(), word = shell_path(.0)
    )]
    AlreadyMounted(PathBuf),
    /// The mount point has entries that the mount would hide.
    #[error(
        "the mount point {path} is not empty; use an empty directory, or `-o nonempty` to hide \
         what is in it",
        path = .0.display()
    )]
    MountpointNotEmpty(PathBuf),
    /// Store and mount point are the same.
    #[error(
        "{path} cannot be mounted over itself; mount the store somewhere else",
        path = .0.display()
    )]
    SamePlace(PathBuf),
    /// One lies within the other.
    #[error(
        "{inner} lies inside {outer}: a store and its own mount point cannot be nested; choose a \
         mount point outside the store and a store outside the mount point",
        inner = inner.display(), outer = outer.display()
    )]
    Nested {
        /// The one inside.
        inner: PathBuf,
        /// The one around it.
        outer: PathBuf,
    },
    /// The store lies in another MobiFS mount.
    #[error(
        "the store {path} lies in the MobiFS mount {mount}, which may answer an fsync before \
         anything is durable: choose a store outside (its mount point may lie in that mount)",
        path = path.display(), mount = mount.display()
    )]
    StoreInsideMount {
        /// The store.
        path: PathBuf,
        /// The mount.
        mount: PathBuf,
    },
    /// The store lies in another one that is served, or has one inside.
    #[error(
        "the store {inner} lies inside the store {outer}, and {by} serves one of them: two daemons \
         would change the same files; unmount that one first, or choose a store outside",
        inner = inner.display(), outer = outer.display(), by = served_by(*.pid)
    )]
    StoresNested {
        /// The one inside.
        inner: PathBuf,
        /// The one around it.
        outer: PathBuf,
        /// The process that serves the other one; 0: it cannot be seen.
        pid: u32,
    },
    /// The mount point lies in a store that is served.
    #[error(
        "the mount point {mountpoint} lies inside the store {store}, which {by} serves: programs use its files through \
         its own mount, where this one would not be seen; choose a mount point there, or outside",
        mountpoint = mountpoint.display(), store = store.display(), by = served_by(*.pid)
    )]
    MountpointInStore {
        /// The mount point.
        mountpoint: PathBuf,
        /// The store.
        store: PathBuf,
        /// The process that serves it; 0: it cannot be seen.
        pid: u32,
    },
    /// A store that is served is the mount point, or lies in it.
    #[error(
        "the mount point {mountpoint} would hide the store {store}, which {by} serves: choose another mount point, or \
         unmount that store first",
        mountpoint = mountpoint.display(), store = store.display(), by = served_by(*.pid)
    )]
    MountpointHidesStore {
        /// The mount point.
        mountpoint: PathBuf,
        /// The store.
        store: PathBuf,
        /// The process that serves it; 0: it cannot be seen.
        pid: u32,
    },
    /// The store lies in another one, whose journal is not applied.
    #[error(
        "the store {inner} lies inside the store {outer}, which was not properly closed: what is committed there of these \
         files would be missing here, and be brought over them later; recover that one first (mobifs recover {word})",
        inner = inner.display(), outer = outer.display(), word = shell_path(outer)
    )]
    InUnrecovered {
        /// The one inside.
        inner: PathBuf,
        /// The one around it.
        outer: PathBuf,
    },
    /// The store lies among device nodes.
    #[error(
        "the store {path} is on devtmpfs, where the kernel keeps device nodes and which a reboot \
         empties; choose a directory on ext4, f2fs, xfs, btrfs or the like",
        path = .0.display()
    )]
    StoreOnDevtmpfs(PathBuf),
    /// The lower filesystem is mounted read-only.
    #[error(
        "the store {path} is on a read-only filesystem: make that writable (or, where the \
         directory \
         is a MobiFS store already, mount it with `-o ro`)",
        path = .0.display()
    )]
    StoreReadOnly(PathBuf),
    /// The system refused.
    #[error("cannot use {path}: {source}", path = path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// What the user asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct PathOptions {
    /// Nothing will be written.
    pub read_only: bool,
    /// The mount point may have entries.
    pub nonempty: bool,
}

/// Store and mount point, found fit: absolute paths without symlinks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPaths {
    /// The store's directory.
    pub store: PathBuf,
    /// Where to mount.
    pub mountpoint: PathBuf,
}

impl MountPaths {
    /// Looks at both.
    ///
    /// # Errors
    /// [`PathError`].
    pub fn check(store: &Path, mountpoint: &Path, options: PathOptions) -> Result<Self, PathError> {
        let store = check_store(store, options.read_only)?;
        let mountpoint = directory(
            mountpoint,
            PathError::MountpointMissing,
            PathError::MountpointNotDirectory,
        )?;
        let table = table(&mountpoint)?;
        if let Some(NestedStores { inner, outer, pid }) = served_around_or_inside(&store, &table) {
            return Err(PathError::StoresNested { inner, outer, pid });
        }
        if let Some(outer) = unrecovered_above(&store) {
            return Err(PathError::InUnrecovered {
                inner: store,
                outer,
            });
        }
        if let Some(mount) = table.iter().rfind(|mount| mount.mountpoint == mountpoint)
            && mount.has_subtype("mobifs")
        {
            return Err(PathError::AlreadyMounted(mountpoint));
        }
        if store == mountpoint {
            return Err(PathError::SamePlace(store));
        }
        for (inner, outer) in [(&store, &mountpoint), (&mountpoint, &store)] {
            if inner.starts_with(outer) {
                return Err(PathError::Nested {
                    inner: inner.clone(),
                    outer: outer.clone(),
                });
            }
        }
        if let Some(NestedStores { inner, outer, pid }) = served_at_mountpoint(&mountpoint, &table)
        {
            let hides = outer == mountpoint;
            return Err(if hides {
                PathError::MountpointHidesStore {
                    mountpoint: outer,
                    store: inner,
                    pid,
                }
            } else {
                PathError::MountpointInStore {
                    mountpoint: inner,
                    store: outer,
                    pid,
                }
            });
        }
        if !options.nonempty && !is_empty(&mountpoint)? {
            return Err(PathError::MountpointNotEmpty(mountpoint));
        }
        Ok(Self { store, mountpoint })
    }
}

/// Looks at a store without a mount point; returns its absolute path.
///
/// # Errors
/// [`PathError`].
pub fn check_store(store: &Path, read_only: bool) -> Result<PathBuf, PathError> {
    let store = directory(store, PathError::StoreMissing, PathError::StoreNotDirectory)?;
    outside_mounts(&store, &table(&store)?)?;
    if !read_only {
        let about = rustix::fs::statvfs(&store).map_err(|errno| PathError::Io {
            path: store.clone(),
            source: errno.into(),
        })?;
        if about.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
            return Err(PathError::StoreReadOnly(store));
        }
    }
    Ok(store)
}

fn served_by(pid: u32) -> String {
    match pid {
        0 => "a process that cannot be seen from here".to_owned(),
        pid => format!("process {pid}"),
    }
}

fn table(path: &Path) -> Result<Vec<MountEntry>, PathError> {
    mounts().map_err(|source| PathError::Io {
        path: path.to_owned(),
        source,
    })
}

/// The absolute path of an existing directory.
fn directory(
    path: &Path,
    missing: fn(PathBuf) -> PathError,
    not_directory: fn(PathBuf) -> PathError,
) -> Result<PathBuf, PathError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => missing(path.to_owned()),
        io::ErrorKind::NotADirectory => not_directory(path.to_owned()),
        io::ErrorKind::NotConnected => PathError::MountpointDead(path.to_owned()),
        _ => PathError::Io {
            path: path.to_owned(),
            source,
        },
    };
    let absolute = path.canonicalize().map_err(failed)?;
    if absolute.metadata().map_err(failed)?.is_dir() {
        Ok(absolute)
    } else {
        Err(not_directory(path.to_owned()))
    }
}

/// Fails if the store at `path` lies among device nodes, or in a MobiFS mount. What is written to it there is as
/// volatile as that mount's memory: a journal in a relaxed app would be durable only in the
/// daemon's belief. And a daemon that frees memory by committing must not need another one
/// for that, which waits for memory itself. A mount point may lie there: it is looked up when
/// the mount is made and when it ends, and no request depends on what is around it.
fn outside_mounts(path: &Path, table: &[MountEntry]) -> Result<(), PathError> {
    let failed = |source| PathError::Io {
        path: path.to_owned(),
        source,
    };
    let device = path.metadata().map_err(failed)?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let mut around = table
        .iter()
        .filter(|mount| (mount.device_major, mount.device_minor) == (major, minor));
    // For statfs(2) it is a tmpfs like any other.
    if around.clone().any(|mount| mount.kind == "devtmpfs") {
        return Err(PathError::StoreOnDevtmpfs(path.to_owned()));
    }
    match around.find(|mount| mount.has_subtype("mobifs")) {
        None => Ok(()),
        Some(mount) => Err(PathError::StoreInsideMount {
            path: path.to_owned(),
            mount: mount.mountpoint.clone(),
        }),
    }
}

fn is_empty(directory: &Path) -> Result<bool, PathError> {
    let failed = |source| PathError::Io {
        path: directory.to_owned(),
        source,
    };
    Ok(directory.read_dir().map_err(failed)?.next().is_none())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    struct Fixture {
        _base: tempfile::TempDir,
        store: PathBuf,
        mountpoint: PathBuf,
    }

    fn fixture() -> Fixture {
        let base = tempfile::tempdir().unwrap();
        let root = base.path().canonicalize().unwrap();
        let (store, mountpoint) = (root.join("store"), root.join("mount"));
        fs::create_dir(&store).unwrap();
        fs::create_dir(&mountpoint).unwrap();
        Fixture {
            _base: base,
            store,
            mountpoint,
        }
    }

    fn message(store: &Path, mountpoint: &Path) -> String {
        MountPaths::check(store, mountpoint, PathOptions::default())
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn two_directories_side_by_side_are_fine() {
        let paths = fixture();
        let found =
            MountPaths::check(&paths.store, &paths.mountpoint, PathOptions::default()).unwrap();
        assert_eq!(
            (found.store, found.mountpoint),
            (paths.store, paths.mountpoint)
        );
    }

    #[test]
    fn what_is_missing_or_no_directory_is_named() {
        let Fixture {
            _base,
            store,
            mountpoint,
        } = fixture();
        let absent = store.join("absent");
        assert!(message(&absent, &mountpoint).contains("store"));
        assert!(message(&absent, &mountpoint).contains("does not exist"));
        assert!(message(&store, &absent).contains("mount point"));
        let file = store.join("file");
        fs::write(&file, "").unwrap();
        assert!(message(&file, &mountpoint).contains("is not a directory"));
        assert!(message(&store, &file).contains("is not a directory"));
        assert!(message(&file.join("x"), &mountpoint).contains("is not a directory"));
    }

    #[test]
    fn nesting_is_refused_even_through_symlinks() {
        let Fixture {
            _base,
            store,
            mountpoint,
        } = fixture();
        let inside_store = store.join("inside");
        fs::create_dir(&inside_store).unwrap();
        assert!(message(&store, &inside_store).contains("nested"));
        let inside_mountpoint = mountpoint.join("inside");
        fs::create_dir(&inside_mountpoint).unwrap();
        assert!(message(&inside_mountpoint, &mountpoint).contains("nested"));
        assert!(message(&store, &store).contains("over itself"));
        let link = mountpoint.join("link");
        std::os::unix::fs::symlink(&store, &link).unwrap();
        assert!(message(&store, &link).contains("over itself"));
        assert!(message(&store, &link.join("inside")).contains("nested"));
    }

    /// Found by a user who tried it: `mobifs mount /dev MOUNTPOINT` made `/dev/.mobifs`.
    #[test]
    fn device_nodes_are_no_store() {
        let paths = fixture();
        let around = paths.store.metadata().unwrap().dev();
        let mut entry = mounts().unwrap().remove(0);
        entry.kind = "devtmpfs".to_owned();
        entry.device_major = rustix::fs::major(around);
        entry.device_minor = rustix::fs::minor(around);
        let refused = outside_mounts(&paths.store, &[entry.clone()]).unwrap_err();
        assert!(refused.to_string().contains("device nodes"), "{refused}");
        entry.kind = "tmpfs".to_owned();
        outside_mounts(&paths.store, &[entry]).unwrap();
    }

    #[test]
    fn hiding_files_needs_an_option() {
        let Fixture {
            _base,
            store,
            mountpoint,
        } = fixture();
        fs::write(mountpoint.join("file"), "").unwrap();
        assert!(message(&store, &mountpoint).contains("nonempty"));
        let nonempty = PathOptions {
            nonempty: true,
            ..PathOptions::default()
        };
        MountPaths::check(&store, &mountpoint, nonempty).unwrap();
    }
}
