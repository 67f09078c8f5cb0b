//! Whether the process that holds a store's lock is about to free it.
//!
//! An owner that is killed cannot change its state in the lock file ([`mobifs_volume::LockOwner`])
//! any more. So the state "serving" counts only as long as the mount that it names is in the tree.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use mobifs_host::{MountEntry, mounts, mounts_of};
use mobifs_store::StoreScope;
use mobifs_volume::{LOCK, LockOwner, OwnerState, ServedMount};

use crate::control::maker_of_socket;
use crate::lock_table::holders_of;
use crate::mount_users::{MountUser, users_of_device};

/// The state of a process that serves this mount.
pub(crate) fn serving(mount: &MountEntry) -> OwnerState {
    OwnerState::Serving(ServedMount {
        device_major: mount.device_major,
        device_minor: mount.device_minor,
        pid_namespace: own_pid_namespace(),
        source_hash: Some(source_hash(mount)),
    })
}

/// Whether the owner of the store at `store` frees it by itself: its mount has ended. Of
/// readers, whether no mount of the store is in the tree: then they are about to end, or to
/// begin, or they are no mount but a check.
pub(crate) fn is_finishing(owner: &LockOwner, store: &Path) -> bool {
    match &owner.state {
        None => owner.is_reader && !has_mount(store),
        Some(OwnerState::Finishing) => true,
        Some(OwnerState::Serving(mount)) => !is_in_tree(mount, owner.pid),
    }
}

/// The users of the owner's mount although it is out of the tree, as far as this process may see
/// them: the owner serves the mount until they have ended.
pub(crate) fn mount_users(owner: &LockOwner) -> Vec<MountUser> {
    match &owner.state {
        Some(OwnerState::Serving(mount)) => users_of_device(mount.device_major, mount.device_minor),
        _ => Vec::new(),
    }
}

fn is_entry_of(mount: &ServedMount, entry: &MountEntry) -> bool {
    (entry.device_major, entry.device_minor) == (mount.device_major, mount.device_minor)
        && mount
            .source_hash
            .is_none_or(|hash| hash == source_hash(entry))
}

/// Whether the process `pid`, or its successor, has the mount in its tree. Where that cannot be
/// found out, it has.
fn is_in_tree(mount: &ServedMount, pid: u32) -> bool {
    if mount.pid_namespace != own_pid_namespace() {
        return true;
    }
    // A process that was killed has no table, and one that is ending an invalid one; a
    // successor has ours.
    let table = mounts_of(pid).or_else(|error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::InvalidInput => mounts(),
        _ => Err(error),
    });
    table.map_or(true, |table| {
        table.iter().any(|entry| is_entry_of(mount, entry))
    })
}

/// A hash (FNV-1a) of the source as the table of mounts shows it.
fn source_hash(mount: &MountEntry) -> u64 {
    let bytes = mount.source.as_os_str().as_bytes().iter();
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Whether a mount of the store is in the tree.
fn has_mount(store: &Path) -> bool {
    mount_of(store).is_some()
}

/// The mount of the store in the tree.
#[must_use]
pub fn mount_of(store: &Path) -> Option<MountEntry> {
    let about = store.metadata().ok()?;
    let is_named_after_it = |mount: &MountEntry| {
        let is_path = mount.source.is_absolute();
        let source = is_path.then(|| mount.source.metadata().ok()).flatten();
        source.is_some_and(|source| (source.dev(), source.ino()) == (about.dev(), about.ino()))
    };
    let table = mounts().unwrap_or_default();
    let mut others = Vec::new();
    for mount in table.iter().filter(|mount| mount.is_fuse()) {
        if is_named_after_it(mount) {
            return Some(mount.clone());
        }
        others.push(mount);
    }
    // With `fsname=` a mount has any name. The process that made its control socket has locked its
    // store.
    let holders = lock_holders(store);
    let is_holder =
        |mount: &&MountEntry| maker_of_socket(mount).is_some_and(|maker| holders.contains(&maker));
    let mut others = others.into_iter().filter(|_| !holders.is_empty());
    others.find(is_holder).cloned()
}

/// The processes that hold the lock of the store at `store`, as far as the kernel shows them.
fn lock_holders(store: &Path) -> Vec<u32> {
    let lock = store.join(&*StoreScope::Tree.own_directory()).join(LOCK);
    let holders = lock.metadata().and_then(|about| holders_of(about.ino()));
    holders.unwrap_or_default()
}

/// Distinguishes processes that may have the same id; 0 where the kernel does not say.
pub(crate) fn own_pid_namespace() -> u64 {
    rustix::fs::stat("/proc/self/ns/pid").map_or(0, |about| about.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(state: Option<OwnerState>) -> LockOwner {
        LockOwner {
            pid: std::process::id(),
            state,
            is_reader: false,
        }
    }

    /// The state of this process, as this version notes it, with the given source.
    fn of_device(device_major: u32, device_minor: u32, source: &str) -> OwnerState {
        let root = mounts().unwrap().remove(0);
        serving(&MountEntry {
            root: "/".into(),
            source: source.into(),
            device_major,
            device_minor,
            ..root
        })
    }

    fn nowhere() -> &'static Path {
        Path::new("/a store that is not there")
    }

    #[test]
    fn an_owner_is_finishing_when_its_mount_has_left_the_tree() {
        let finishes = |state| is_finishing(&own(state), nowhere());
        assert!(finishes(Some(OwnerState::Finishing)));
        assert!(!finishes(None), "it is just starting");
        let root = mounts().unwrap().remove(0);
        assert!(!finishes(Some(serving(&root))));
        // No mount has this number.
        assert!(finishes(Some(of_device(4095, 77, "/a"))));
        // Of a process that was killed, whose successor goes on with the mount.
        for (mount, expected) in [(serving(&root), false), (of_device(4095, 77, "/a"), true)] {
            let killed = LockOwner {
                pid: u32::MAX,
                state: Some(mount),
                is_reader: false,
            };
            assert_eq!(is_finishing(&killed, nowhere()), expected);
        }
    }

    /// The kernel gave the number of a mount that had ended to the next mount of the machine, and
    /// a daemon that was finishing looked as if it served.
    #[test]
    fn a_mount_is_not_taken_for_a_later_one_with_its_number() {
        let root = mounts().unwrap().remove(0);
        let (major, minor) = (root.device_major, root.device_minor);
        let noted_as = |source| own(Some(of_device(major, minor, source)));
        assert!(is_finishing(&noted_as("/another store"), nowhere()));
        assert!(!is_finishing(
            &noted_as(root.source.to_str().unwrap()),
            nowhere()
        ));
        // What an older version noted has the number alone.
        let Some(OwnerState::Serving(mut mount)) = noted_as("/another store").state else {
            panic!("it was noted");
        };
        mount.source_hash = None;
        assert!(!is_finishing(
            &own(Some(OwnerState::Serving(mount))),
            nowhere()
        ));
    }

    #[test]
    fn readers_of_a_store_without_a_mount_are_finishing() {
        let reader = LockOwner {
            is_reader: true,
            ..LockOwner::default()
        };
        assert!(is_finishing(&reader, nowhere()));
        assert!(!is_finishing(&LockOwner::default(), nowhere()));
    }

    #[test]
    fn an_owner_in_another_container_is_not_known_to_be_finishing() {
        let OwnerState::Serving(mut mount) = of_device(4095, 77, "/a") else {
            panic!("it serves");
        };
        mount.pid_namespace += 1;
        assert!(!is_finishing(
            &own(Some(OwnerState::Serving(mount))),
            nowhere()
        ));
    }

    /// Found while its exit was under way: the table of a process that has no namespaces any more
    /// cannot be read, and it was taken for one that serves.
    #[test]
    fn an_owner_that_is_being_reaped_does_not_serve() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let path = format!("/proc/{}/stat", child.id());
        while !std::fs::read_to_string(&path).unwrap().contains(") Z ") {
            std::thread::yield_now();
        }
        let zombie = LockOwner {
            pid: child.id(),
            state: Some(of_device(4095, 77, "/a")),
            is_reader: false,
        };
        assert!(is_finishing(&zombie, nowhere()));
        child.wait().unwrap();
    }
}
