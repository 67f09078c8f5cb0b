//! A store must not lie inside another one that is served.
//!
//! Two daemons would change the same files, each in the belief that nothing else does. The
//! table of mounts, whose sources are stores, and the locks of the directories above show which
//! stores are served; no tree is searched. Paths are compared as places in their filesystem, so
//! that a bind mount hides nothing. A store does not show what lies on another filesystem or in
//! another subvolume, so that is no part of it.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use mobifs_host::{MountEntry, mount_around};
use mobifs_store::{StoreError, StoreScope, check_owner};
use mobifs_volume::{LOCK, StoreLock, inspect};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::lock_table::holders_of;

/// Two stores of which one lies in the other, which is served.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NestedStores {
    pub(crate) inner: PathBuf,
    pub(crate) outer: PathBuf,
    /// The process that serves the other one of them; 0 if it cannot be seen.
    pub(crate) pid: u32,
}

/// The store that lies around the one at `store`, or inside it, and is served; `store` has no
/// symlinks in it.
pub(crate) fn served_around_or_inside(store: &Path, table: &[MountEntry]) -> Option<NestedStores> {
    served_in_table(store, table).or_else(|| locked_above(store))
}

/// The served store that lies around a mount point, or in it, or is it.
pub(crate) fn served_at_mountpoint(
    mountpoint: &Path,
    table: &[MountEntry],
) -> Option<NestedStores> {
    if is_locked(mountpoint) {
        return Some(NestedStores {
            inner: mountpoint.to_owned(),
            outer: mountpoint.to_owned(),
            pid: holder_of(mountpoint),
        });
    }
    served_around_or_inside(mountpoint, table)
}

/// Where a path lies: device number, and path from the root of the filesystem.
type Place = ((u32, u32), PathBuf);

fn place_of(path: &Path, table: &[MountEntry]) -> Option<Place> {
    let mount = mount_around(path, table)?;
    let inside = path.strip_prefix(&mount.mountpoint).ok()?;
    let device = (mount.device_major, mount.device_minor);
    Some((device, mount.root.join(inside)))
}

fn served_in_table(store: &Path, table: &[MountEntry]) -> Option<NestedStores> {
    let (device, path) = place_of(store, table)?;
    let served = table.iter().filter(|mount| mount.has_subtype("mobifs"));
    served.map(|mount| &mount.source).find_map(|source| {
        let (of, other) = place_of(source, table).filter(|_| source.is_absolute())?;
        let is_nested =
            of == device && other != path && (other.starts_with(&path) || path.starts_with(&other));
        if !is_nested || !are_in_one_tree(store, source) || is_free(source) {
            return None;
        }
        let (inner, outer) = if other.starts_with(&path) {
            (source.clone(), store.to_owned())
        } else {
            (store.to_owned(), source.clone())
        };
        let pid = holder_of(source);
        Some(NestedStores { inner, outer, pid })
    })
}

/// Also of mounts that are in other namespaces, or name another source.
fn locked_above(store: &Path) -> Option<NestedStores> {
    let above = store.ancestors().skip(1);
    let outer = above
        .filter(|outer| are_in_one_tree(store, outer))
        .find(|outer| is_locked(outer))?;
    Some(NestedStores {
        inner: store.to_owned(),
        outer: outer.to_owned(),
        pid: holder_of(outer),
    })
}

/// The nearest store around the one at `store` whose journal has transactions that are not in its tree yet, or is
/// damaged: what it has committed of these files would be missing here, and brought over what is
/// written here. A journal that this user may not read, or may not trust, says nothing.
pub(crate) fn unrecovered_above(store: &Path) -> Option<PathBuf> {
    let above = store.ancestors().skip(1);
    let mut outer = above.filter(|outer| are_in_one_tree(store, outer));
    outer
        .find(|outer| is_trusted(outer) && is_unrecovered(outer))
        .map(Path::to_owned)
}

/// Whether the directory has the own directory of a store, which its owner or root has made.
fn is_trusted(store: &Path) -> bool {
    let own = store
        .join(StoreScope::Tree.own_directory())
        .symlink_metadata();
    let (Ok(own), Ok(around)) = (own, store.symlink_metadata()) else {
        return false;
    };
    own.is_dir() && check_owner("", own.uid(), around.uid()).is_ok()
}

fn is_unrecovered(store: &Path) -> bool {
    match inspect(store, StoreScope::Tree) {
        Ok(found) => found.report.transactions > 0,
        Err(error) => matches!(error, StoreError::Corrupt { .. }),
    }
}

fn are_in_one_tree(one: &Path, other: &Path) -> bool {
    let device = |path: &Path| path.metadata().map(|found| found.dev());
    matches!((device(one), device(other)), (Ok(one), Ok(other)) if one == other)
}

fn lock_of(store: &Path) -> PathBuf {
    store.join(StoreScope::Tree.own_directory()).join(LOCK)
}

/// Nothing holds the store: its mount is one whose daemon is gone.
fn is_free(store: &Path) -> bool {
    let lock = lock_of(store).symlink_metadata();
    let holders = lock.and_then(|lock| holders_of(lock.ino()));
    holders.is_ok_and(|holders| holders.is_empty())
}

/// Whether a process has the directory as its store. The lock is tried only where the table of
/// locks, which knows inode numbers without their filesystem, says that there may be one: a daemon
/// that mounts that store at this moment must not find it locked by this process.
fn is_locked(store: &Path) -> bool {
    let lock = lock_of(store);
    let is_there = lock.symlink_metadata().is_ok_and(|found| found.is_file());
    if !is_there || is_free(store) {
        return false;
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let Ok(file) = rustix::fs::open(&lock, flags, Mode::empty()) else {
        return false;
    };
    let tried = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared);
    tried == Err(Errno::WOULDBLOCK)
}

fn holder_of(store: &Path) -> u32 {
    StoreLock::owner(store, &StoreScope::Tree).map_or(0, |holder| holder.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_found_in_its_filesystem_through_bind_mounts() {
        let mount = |device_minor, root: &str, mountpoint: &str| MountEntry {
            id: 1,
            parent_id: 1,
            root: root.into(),
            mountpoint: mountpoint.into(),
            kind: "ext4".to_owned(),
            source: "/dev/sda".into(),
            device_major: 8,
            device_minor,
            user_id: None,
        };
        let table = [
            mount(1, "/", "/"),
            mount(2, "/", "/data"),
            mount(1, "/home/store", "/bind"),
        ];
        let at = |path: &str| place_of(Path::new(path), &table).unwrap();
        assert_eq!(at("/bind/app"), at("/home/store/app"));
        assert_eq!(at("/data/app"), ((8, 2), "/app".into()));
        assert_eq!(at("/database"), ((8, 1), "/database".into()));
    }
}
