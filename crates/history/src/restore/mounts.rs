//! Mounts that would keep what is replaced, or be hidden with it: those in a tree, and bind mounts of what lies in
//! it, in every mount namespace that a process is in.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use mobifs_host::{MountEntry, mount_around, mounts, mounts_of};

use super::user::User;

/// The first mount that uses what lies at this path.
pub(super) fn mount_using(path: &Path) -> Option<User> {
    let path = path.canonicalize().ok()?;
    let own = mounts().ok()?;
    let place = Place::of(&path, mount_around(&path, &own)?)?;
    if let Some(mount) = place.used_by(&own) {
        return Some(User::Mount(mount.mountpoint.clone()));
    }
    let mut seen = HashSet::from([namespace("self")]);
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    for pid in pids {
        let namespace = namespace(&pid.to_string());
        if namespace.is_none() || !seen.insert(namespace) {
            continue;
        }
        // One that ends meanwhile has none.
        let table = mounts_of(pid).unwrap_or_default();
        if let Some(mount) = place.used_by(&table) {
            return Some(User::MountElsewhere {
                path: mount.mountpoint.clone(),
                pid,
            });
        }
    }
    None
}

fn namespace(process: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{process}/ns/mnt")).ok()
}

/// A directory as the filesystem has it, wherever that is mounted.
struct Place<'a> {
    mount: &'a MountEntry,
    inside: PathBuf,
}

impl<'a> Place<'a> {
    fn of(path: &Path, mount: &'a MountEntry) -> Option<Self> {
        let below = path.strip_prefix(&mount.mountpoint).ok()?;
        Some(Self {
            mount,
            inside: mount.root.join(below),
        })
    }

    fn used_by<'t>(&self, table: &'t [MountEntry]) -> Option<&'t MountEntry> {
        let same = || table.iter().filter(|mount| mount.has_device_of(self.mount));
        let bound = same().find(|mount| mount.root.starts_with(&self.inside));
        let in_it = || {
            same().find_map(|mount| {
                let below = self.inside.strip_prefix(&mount.root).ok()?;
                let shown = mount.mountpoint.join(below);
                let mut others = table.iter().filter(|other| other.id != mount.id);
                others.find(|other| other.mountpoint.starts_with(&shown))
            })
        };
        bound.or_else(in_it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(id: u64, root: &str, mountpoint: &str, device_minor: u32) -> MountEntry {
        MountEntry {
            id,
            parent_id: 0,
            root: root.into(),
            mountpoint: mountpoint.into(),
            kind: "btrfs".to_owned(),
            source: "/dev/sda".into(),
            device_major: 0,
            device_minor,
            user_id: None,
        }
    }

    #[test]
    fn mounts_in_a_directory_and_bind_mounts_of_it_use_it() {
        let data = mount(1, "/@data", "/data", 40);
        let place = Place::of(Path::new("/data/app"), &data).unwrap();
        let used = |table: &[MountEntry]| place.used_by(table).map(|mount| mount.id);
        assert_eq!(used(std::slice::from_ref(&data)), None);
        let beside = mount(2, "/@data/apple", "/apple", 40);
        assert_eq!(used(&[data.clone(), beside]), None);
        // A bind mount of it, or of what lies in it, wherever that is.
        for root in ["/@data/app", "/@data/app/photos"] {
            assert_eq!(
                used(&[data.clone(), mount(3, root, "/elsewhere", 40)]),
                Some(3)
            );
        }
        // Another filesystem in it, also where the filesystem itself is shown elsewhere.
        assert_eq!(
            used(&[data.clone(), mount(4, "/", "/data/app/in", 41)]),
            Some(4)
        );
        let other = mount(5, "/", "/other", 40);
        let inner = mount(6, "/", "/other/@data/app/in", 41);
        assert_eq!(used(&[other.clone(), inner]), Some(6));
        assert_eq!(used(&[other, mount(7, "/", "/data/app/in", 41)]), None);
    }
}
