//! Who uses a mount, found in `/proc` without touching the mount.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::mount_table::{MountEntry, mounts};

/// Something that keeps a mount from being ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountUser {
    /// A process.
    Process {
        /// Its id.
        pid: u32,
        /// Its name.
        name: String,
        /// What it has there.
        what: String,
    },
    /// Another filesystem is mounted in it.
    Mount(PathBuf),
    /// A loop device has its file there.
    LoopDevice {
        /// Name of the device.
        device: String,
        /// The file.
        file: PathBuf,
    },
}

impl fmt::Display for MountUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, name, what } => write!(f, "process {pid} ({name}: {what})"),
            Self::Mount(path) => write!(f, "the mount at {}", path.display()),
            Self::LoopDevice { device, file } => {
                write!(f, "the loop device {device} ({})", file.display())
            }
        }
    }
}

/// Who uses the mount, as far as this process may see it: for an ordinary user, that is only
/// the user's own processes.
pub fn users_of(mount: &MountEntry) -> Vec<MountUser> {
    let mut users = mounts_in(mount);
    users.extend(loop_devices_in(mount));
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes {
        let name = process.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if let Some(what) = use_by(&process.path(), mount) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            let name = name.trim_end().to_owned();
            users.push(MountUser::Process { pid, name, what });
        }
    }
    users
}

fn mounts_in(mount: &MountEntry) -> Vec<MountUser> {
    let table = mounts().unwrap_or_default();
    let children = table
        .into_iter()
        .filter(|other| other.parent_id == mount.id);
    children
        .map(|child| MountUser::Mount(child.mountpoint))
        .collect()
}

fn loop_devices_in(mount: &MountEntry) -> Vec<MountUser> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    devices
        .filter_map(|device| {
            let backing = fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
            let file = PathBuf::from(backing.trim_end());
            let device = device.file_name().to_string_lossy().into_owned();
            file.starts_with(&mount.mountpoint)
                .then_some(MountUser::LoopDevice { device, file })
        })
        .collect()
}

/// What a process has in the mount; none if nothing is seen.
fn use_by(process: &Path, mount: &MountEntry) -> Option<String> {
    for (link, what) in [
        ("cwd", "its working directory"),
        ("root", "its root directory"),
        ("exe", "its program"),
    ] {
        let target = fs::read_link(process.join(link));
        if target.is_ok_and(|target| target.starts_with(&mount.mountpoint)) {
            return Some(what.to_owned());
        }
    }
    open_file(process, mount).or_else(|| mapped_file(process, mount))
}

/// An open file by the number of its mount: names may be another namespace's.
fn open_file(process: &Path, mount: &MountEntry) -> Option<String> {
    let descriptors = fs::read_dir(process.join("fdinfo")).ok()?;
    for descriptor in descriptors.flatten() {
        let about = fs::read_to_string(descriptor.path()).unwrap_or_default();
        let number = about
            .lines()
            .find_map(|line| line.strip_prefix("mnt_id:"))
            .and_then(|number| number.trim().parse::<u64>().ok());
        if number == Some(mount.id) {
            let link = process.join("fd").join(descriptor.file_name());
            let file = fs::read_link(link).unwrap_or_default();
            return Some(format!("{} is open", file.display()));
        }
    }
    None
}

/// A mapped file, which need not be open any more.
fn mapped_file(process: &Path, mount: &MountEntry) -> Option<String> {
    let maps = fs::read_to_string(process.join("maps")).ok()?;
    let device = format!("{:02x}:{:02x}", mount.device_major, mount.device_minor);
    maps.lines().find_map(|line| {
        // addresses permissions offset device inode path
        let mut fields = line.splitn(6, ' ');
        let is_here = fields.nth(3) == Some(&device);
        let path = fields.nth(1).unwrap_or_default().trim();
        is_here.then(|| format!("{path} is mapped"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// The mount that a directory lies on.
    fn mount_of(path: &Path) -> MountEntry {
        let path = path.canonicalize().unwrap();
        let table = mounts().unwrap();
        let around = table
            .into_iter()
            .filter(|mount| path.starts_with(&mount.mountpoint));
        around
            .max_by_key(|mount| mount.mountpoint.components().count())
            .unwrap()
    }

    #[test]
    fn a_process_that_has_a_file_open_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let mount = mount_of(directory.path());
        let file = directory.path().join("held");
        let mut child = Command::new("sleep")
            .arg("1000")
            .stdin(Stdio::from(fs::File::create(&file).unwrap()))
            .current_dir("/proc")
            .spawn()
            .unwrap();
        let found = open_file(&PathBuf::from(format!("/proc/{}", child.id())), &mount);
        child.kill().unwrap();
        child.wait().unwrap();
        let found = found.unwrap();
        assert!(found.ends_with("held is open"), "{found}");
    }

    #[test]
    fn mapped_programs_are_found() {
        let own = std::env::current_exe().unwrap();
        let mut mount = mount_of(&own);
        let what = mapped_file(Path::new("/proc/self"), &mount);
        // Filesystems with subvolumes show another number in this list than in the table.
        let about = rustix::fs::stat(&own).unwrap();
        mount.device_major = rustix::fs::major(about.st_dev);
        mount.device_minor = rustix::fs::minor(about.st_dev);
        let what = what.or_else(|| mapped_file(Path::new("/proc/self"), &mount));
        assert!(what.unwrap().contains("is mapped"));
        mount.device_major = 4095;
        assert_eq!(mapped_file(Path::new("/proc/self"), &mount), None);
    }

    #[test]
    fn mounts_inside_are_users() {
        let root = mount_of(Path::new("/"));
        let proc = MountUser::Mount("/proc".into());
        assert!(mounts_in(&root).contains(&proc));
    }
}
