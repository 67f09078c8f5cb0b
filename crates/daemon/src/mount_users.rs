//! The users of a mount, found in `/proc` without touching the mount.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use mobifs_host::{MountEntry, mount_around, mounts, read_mount_table};
use rustix::fs::{AtFlags, CWD, StatxFlags};

use crate::kernel_users::{BoundSocket, loop_devices_in, sockets_in, swap_files_in};
use crate::linked_files::{linked_files, named_below};
use crate::overlay_users::{OverlayUser, lies_in, overlays};
use crate::process_views::{ProcessViews, is_own_proc};

/// The kernel's flag, which rustix does not name on Android.
const AT_STATX_DONT_SYNC: u32 = 0x4000;
/// What a process has without opening it.
const LINKS: [(&str, &str); 3] = [
    ("cwd", "its working directory"),
    ("root", "its root directory"),
    ("exe", "its program"),
];

/// At most so many users are named.
const NAMED_MAX: usize = 5;

/// What keeps a mount from being unmounted, or alive although it is out of the tree.
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
    /// Another filesystem is mounted in it, or the same one elsewhere.
    Mount(PathBuf),
    /// An overlay filesystem has a layer there.
    Overlay {
        /// Where it is mounted.
        mountpoint: PathBuf,
        /// The layer.
        layer: PathBuf,
    },
    /// A loop device has its file there.
    LoopDevice {
        /// Name of the device.
        device: String,
        /// The file.
        file: PathBuf,
    },
    /// The kernel swaps to this file.
    SwapFile(PathBuf),
    /// A Unix socket is bound to this name, by a process that cannot be seen.
    Socket(PathBuf),
}

impl fmt::Display for MountUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { pid, name, what } => write!(f, "process {pid} ({name}: {what})"),
            Self::Mount(path) => write!(f, "the mount at {}", path.display()),
            Self::Overlay { mountpoint, layer } => {
                let (mountpoint, layer) = (mountpoint.display(), layer.display());
                write!(f, "the overlay at {mountpoint} (its layer {layer})")
            }
            Self::LoopDevice { device, file } => {
                write!(f, "the loop device {device} ({})", file.display())
            }
            Self::SwapFile(path) => write!(f, "the swap file {}", path.display()),
            Self::Socket(path) => write!(f, "a server at the socket {}", path.display()),
        }
    }
}

/// The users of the mount, as far as this process may see them: for an ordinary user, that is only
/// the user's own processes.
pub fn users_of(mount: &MountEntry) -> Vec<MountUser> {
    let mut users = mounts_in(mount);
    users.extend(used_by_kernel(&mount.mountpoint));
    let mut sockets = Sockets::new(sockets_in(&mount.mountpoint));
    users.extend(processes(|process| {
        let bound = sockets.use_by(process);
        use_by(process, mount).or(bound)
    }));
    users.extend(sockets.of_unseen());
    users
}

/// The users of what is on a device, as far as this process may see them, also where no mount of it
/// is in the tree any more: mounts of it, processes, and copies of the mount in other mount
/// namespaces.
pub fn users_of_device(major: u32, minor: u32) -> Vec<MountUser> {
    let device = rustix::fs::makedev(major, minor);
    let table = mounts().unwrap_or_default().into_iter();
    let here = table.filter(|mount| (mount.device_major, mount.device_minor) == (major, minor));
    let mut users: Vec<MountUser> = here
        .map(|mount| MountUser::Mount(mount.mountpoint))
        .collect();
    let own_namespace = fs::read_link("/proc/self/ns/mnt");
    let mut namespaces: BTreeSet<_> = own_namespace.into_iter().collect();
    users.extend(processes(|process| {
        use_of_device(process, device).or_else(|| {
            in_namespace(process, &mut namespaces, |_, table| {
                let copy = table
                    .iter()
                    .find(|mount| (mount.device_major, mount.device_minor) == (major, minor))?;
                let place = copy.mountpoint.display();
                Some(format!(
                    "a copy of the mount at {place} in its mount namespace"
                ))
            })
        })
    }));
    users
}

/// The users of a directory, and of everything below it, that is no mount of its own, as far as this process may
/// see them: processes other than this one, and mounts that show a part of it elsewhere, in any mount namespace.
/// `directory` is absolute and without symbolic links.
pub fn users_of_directory(directory: &Path) -> Vec<MountUser> {
    let table = mounts().unwrap_or_default();
    let around = mount_around(directory, &table);
    let part = around.and_then(|mount| {
        let inside = directory.strip_prefix(&mount.mountpoint).ok()?;
        Some((mount, mount.root.join(inside)))
    });
    let shows_it = |mount: &&MountEntry| {
        part.as_ref().is_some_and(|(around, root)| {
            mount.has_device_of(around) && mount.root.starts_with(root)
        })
    };
    let mut users: Vec<MountUser> = table
        .iter()
        .filter(shows_it)
        .map(|mount| MountUser::Mount(mount.mountpoint.clone()))
        .collect();
    let is_layer =
        |path: &Path, name: &Path| name.starts_with(directory) || lies_in(path, directory);
    users.extend(overlays_here(is_layer));
    users.extend(used_by_kernel(directory));
    let own = std::process::id().to_string();
    let mut sockets = sockets_in(directory);
    // No client can reach one that was bound to a name which is gone.
    sockets.retain(|socket| is_socket(&socket.path));
    let mut sockets = Sockets::new(sockets);
    users.extend(processes(|process| {
        let is_other = process
            .process()
            .file_name()
            .is_some_and(|pid| *pid != *own);
        let bound = sockets.use_by(process);
        is_other
            .then(|| use_below(process, directory).or(bound))
            .flatten()
    }));
    users.extend(sockets.of_unseen());
    users.extend(in_other_namespaces(|view, table| {
        if let Some(copy) = table.iter().find(shows_it) {
            let place = copy.mountpoint.display();
            return Some(format!(
                "a mount of a part of it at {place} in its mount namespace"
            ));
        }
        overlay_there(view, |path, _| lies_in(path, directory))
    }));
    users.extend(users_by_other_names(directory));
    users
}

/// The overlay filesystems of this process's mount namespace with a layer that fits.
fn overlays_here(is_layer: impl Fn(&Path, &Path) -> bool) -> Vec<MountUser> {
    let found = overlays(Path::new("/proc/self"), is_layer).into_iter();
    let user = |OverlayUser { mountpoint, layer }| MountUser::Overlay { mountpoint, layer };
    found.map(user).collect()
}

/// The same of another mount namespace, in words.
fn overlay_there(view: &Path, is_layer: impl Fn(&Path, &Path) -> bool) -> Option<String> {
    let found = overlays(view, is_layer).into_iter().next()?;
    let (place, layer) = (found.mountpoint.display(), found.layer.display());
    Some(format!(
        "an overlay at {place} in its mount namespace, with the layer {layer}"
    ))
}

/// The processes that write to files of a directory by hard links outside of it.
fn users_by_other_names(directory: &Path) -> Vec<MountUser> {
    let own = std::process::id().to_string();
    processes(|process| {
        let is_own = process
            .process()
            .file_name()
            .is_some_and(|pid| *pid == *own);
        let files = if is_own {
            Vec::new()
        } else {
            linked_files(process, directory)
        };
        let (file, inside) = named_below(&files, directory)?;
        Some(file.described(&inside))
    })
}

/// Where else the filesystem of a mount is mounted, in any mount namespace that this process may
/// see: bind mounts, such as those of containers, and layers of overlay filesystems, which keep it when the mount
/// itself goes. Not the copies of the mount in other namespaces, which go with it.
pub fn mounts_elsewhere(mount: &MountEntry) -> Vec<MountUser> {
    let is_elsewhere =
        |other: &&MountEntry| other.has_device_of(mount) && other.mountpoint != mount.mountpoint;
    let table = mounts().unwrap_or_default();
    let here = table.iter().filter(is_elsewhere);
    let mut users: Vec<MountUser> = here
        .map(|other| MountUser::Mount(other.mountpoint.clone()))
        .collect();
    let device = rustix::fs::makedev(mount.device_major, mount.device_minor);
    let is_layer = |path: &Path, _: &Path| device_of(path) == Some(device);
    users.extend(overlays_here(is_layer));
    users.extend(in_other_namespaces(|view, table| {
        let Some(other) = table.iter().find(is_elsewhere) else {
            return overlay_there(view, is_layer);
        };
        let place = other.mountpoint.display();
        Some(format!("a mount of it at {place} in its mount namespace"))
    }));
    users
}

/// A process of each other mount namespace for whose table of mounts `what` returns a description. It also gets the
/// directory of `/proc` that shows the namespace.
fn in_other_namespaces(what: impl Fn(&Path, &[MountEntry]) -> Option<String>) -> Vec<MountUser> {
    let own = fs::read_link("/proc/self/ns/mnt");
    let mut namespaces: BTreeSet<_> = own.into_iter().collect();
    processes(|process| in_namespace(process, &mut namespaces, &what))
}

/// The description of a mount namespace that a process, or a thread of it, has and that was not looked at.
fn in_namespace(
    process: &ProcessViews,
    namespaces: &mut BTreeSet<PathBuf>,
    what: impl Fn(&Path, &[MountEntry]) -> Option<String>,
) -> Option<String> {
    process.all().find_map(|view| {
        let namespace = fs::read_link(view.join("ns/mnt")).ok()?;
        // All that are in a namespace see the same.
        namespaces.insert(namespace).then_some(())?;
        what(view, &read_mount_table(view.join("mountinfo")).ok()?)
    })
}

/// What a process has without opening it, of what `is_there` says is there.
fn linked(process: &ProcessViews, is_there: impl Fn(&Path) -> bool) -> Option<String> {
    let mut links = process
        .all()
        .flat_map(|view| LINKS.map(|(link, what)| (view.join(link), what)));
    let (_, what) = links.find(|(link, _)| is_there(link))?;
    Some(what.to_owned())
}

/// What a process has in a directory, by the names that the kernel shows.
fn use_below(process: &ProcessViews, directory: &Path) -> Option<String> {
    let leads_there = |link: &Path| {
        let target = fs::read_link(link).ok()?;
        target.starts_with(directory).then_some(target)
    };
    if let Some(what) = linked(process, |link| leads_there(link).is_some()) {
        return Some(what);
    }
    let mut descriptors = process.descriptors();
    if let Some(file) = descriptors.find_map(|descriptor| leads_there(&descriptor)) {
        return Some(format!("{} is open", file.display()));
    }
    process.maps().lines().find_map(|line| {
        let path = line.splitn(6, ' ').nth(5)?.trim_start();
        Path::new(path)
            .starts_with(directory)
            .then(|| format!("{path} is mapped"))
    })
}

/// The processes for which `what` returns a description.
fn processes(mut what: impl FnMut(&ProcessViews) -> Option<String>) -> Vec<MountUser> {
    let is_own_proc = is_own_proc();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|process| {
            let pid = process.file_name().to_str()?.parse::<u32>().ok()?;
            let what = what(&ProcessViews::of(process.path(), is_own_proc))?;
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            let name = name.trim_end().to_owned();
            Some(MountUser::Process { pid, name, what })
        })
        .collect()
}

/// What a process has on a device, where paths are of no use: they do not lead there any more.
fn use_of_device(process: &ProcessViews, device: u64) -> Option<String> {
    let is_there = |link: &Path| device_of(link) == Some(device);
    if let Some(what) = linked(process, is_there) {
        return Some(what);
    }
    let open = process.descriptors().find(|path| is_there(path));
    match open {
        Some(path) => {
            let file = fs::read_link(path).unwrap_or_default();
            Some(format!("{} is open", file.display()))
        }
        None => mapped_file(
            process,
            rustix::fs::major(device),
            rustix::fs::minor(device),
        ),
    }
}

/// The device of what a link of `/proc` leads to, as the kernel knows it without asking a daemon.
fn device_of(link: &Path) -> Option<u64> {
    let flags = AtFlags::from_bits_retain(AT_STATX_DONT_SYNC) | AtFlags::NO_AUTOMOUNT;
    let about = rustix::fs::statx(CWD, link, flags, StatxFlags::empty()).ok()?;
    Some(rustix::fs::makedev(
        about.stx_dev_major,
        about.stx_dev_minor,
    ))
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

/// What the kernel itself uses in a directory.
fn used_by_kernel(directory: &Path) -> Vec<MountUser> {
    let devices = loop_devices_in(directory).into_iter();
    let mut users: Vec<MountUser> = devices
        .map(|(device, file)| MountUser::LoopDevice { device, file })
        .collect();
    users.extend(
        swap_files_in(directory)
            .into_iter()
            .map(MountUser::SwapFile),
    );
    users
}

fn is_socket(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|about| about.file_type().is_socket())
}

/// Bound sockets whose processes are looked for.
struct Sockets {
    all: Vec<BoundSocket>,
    seen: BTreeSet<u64>,
}

impl Sockets {
    const fn new(all: Vec<BoundSocket>) -> Self {
        let seen = BTreeSet::new();
        Self { all, seen }
    }

    /// Which of them a process has, in words.
    fn use_by(&mut self, process: &ProcessViews) -> Option<String> {
        if self.all.is_empty() {
            return None;
        }
        let targets: Vec<PathBuf> = process
            .descriptors()
            .filter_map(|descriptor| fs::read_link(descriptor).ok())
            .collect();
        let is_held = |socket: &&BoundSocket| targets.iter().any(|target| socket.is_target(target));
        let held: Vec<&BoundSocket> = self.all.iter().filter(is_held).collect();
        self.seen.extend(held.iter().map(|socket| socket.number));
        let first = held.first()?;
        Some(format!("the socket {} is bound", first.path.display()))
    }

    /// Those that no process was seen to have.
    fn of_unseen(mut self) -> impl Iterator<Item = MountUser> {
        self.all
            .retain(|socket| !self.seen.contains(&socket.number));
        let sockets = self.all.into_iter();
        sockets.map(|socket| MountUser::Socket(socket.path))
    }
}

/// What a process has in the mount; none if nothing is seen.
fn use_by(process: &ProcessViews, mount: &MountEntry) -> Option<String> {
    let is_there =
        |link: &Path| fs::read_link(link).is_ok_and(|target| target.starts_with(&mount.mountpoint));
    if let Some(what) = linked(process, is_there) {
        return Some(what);
    }
    let (major, minor) = (mount.device_major, mount.device_minor);
    let mut views = process.all();
    views
        .find_map(|view| open_file(view, mount))
        .or_else(|| mapped_file(process, major, minor))
}

/// An open file by the number of its mount: names may be another namespace's.
fn open_file(view: &Path, mount: &MountEntry) -> Option<String> {
    let descriptors = fs::read_dir(view.join("fdinfo")).ok()?;
    for descriptor in descriptors.flatten() {
        let about = fs::read_to_string(descriptor.path()).unwrap_or_default();
        let number = about
            .lines()
            .find_map(|line| line.strip_prefix("mnt_id:"))
            .and_then(|number| number.trim().parse::<u64>().ok());
        if number == Some(mount.id) {
            let link = view.join("fd").join(descriptor.file_name());
            let file = fs::read_link(link).unwrap_or_default();
            return Some(format!("{} is open", file.display()));
        }
    }
    None
}

/// A mapped file, which need not be open any more.
fn mapped_file(process: &ProcessViews, major: u32, minor: u32) -> Option<String> {
    let device = format!("{major:02x}:{minor:02x}");
    process.maps().lines().find_map(|line| {
        // addresses permissions offset device inode path
        let mut fields = line.splitn(6, ' ');
        let is_here = fields.nth(3) == Some(&device);
        let path = fields.nth(1).unwrap_or_default().trim();
        is_here.then(|| format!("{path} is mapped"))
    })
}

/// The users in words.
pub fn describe(users: &[MountUser]) -> String {
    if users.is_empty() {
        return "something that cannot be seen from here (another user's process, another mount \
                namespace, the kernel)"
            .to_owned();
    }
    let named = users.iter().take(NAMED_MAX).map(ToString::to_string);
    let named: Vec<String> = named.collect();
    let more = users.len().saturating_sub(NAMED_MAX);
    let rest = if more > 0 {
        format!(", and {more} more")
    } else {
        String::new()
    };
    named.join(", ") + &rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::process::{Child, Command, Stdio};

    /// The mount that a directory lies on.
    fn mount_of(path: &Path) -> MountEntry {
        let path = path.canonicalize().unwrap();
        mount_around(&path, &mounts().unwrap()).unwrap().clone()
    }

    fn views_of(pid: u32) -> ProcessViews {
        ProcessViews::of(format!("/proc/{pid}").into(), is_own_proc())
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
    fn users_of_a_device_are_found_without_its_mount() {
        let directory = tempfile::tempdir().unwrap();
        let mut child = Command::new("sleep")
            .arg("1000")
            .current_dir(directory.path())
            .spawn()
            .unwrap();
        let device = rustix::fs::stat(directory.path()).unwrap().st_dev;
        let process = views_of(child.id());
        let found = use_of_device(&process, device);
        let not_found = use_of_device(&process, rustix::fs::makedev(4095, 77));
        let open = use_of_device(
            &views_of(std::process::id()),
            device_of(Path::new("/proc/self/fd")).unwrap(),
        );
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found.as_deref(), Some("its working directory"));
        assert_eq!(not_found, None);
        assert!(open.unwrap().ends_with("is open"));
        // Every mount namespace has the root's device.
        let root = mount_of(Path::new("/"));
        assert!(!users_of_device(root.device_major, root.device_minor).is_empty());
    }

    #[test]
    fn users_of_a_directory_are_found_and_those_beside_it_are_not() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        let (inside, beside) = (base.join("d/inner"), base.join("d-beside"));
        fs::create_dir_all(&inside).unwrap();
        fs::create_dir_all(&beside).unwrap();
        let sleep = |directory: &Path, input: Stdio| {
            let mut command = Command::new("sleep");
            let command = command.arg("1000").current_dir(directory).stdin(input);
            command.spawn().unwrap()
        };
        let open = Stdio::from(fs::File::create(inside.join("held")).unwrap());
        let mut children = [
            sleep(&beside, Stdio::null()),
            sleep(&inside, Stdio::null()),
            sleep(&beside, open),
        ];
        let _own = fs::File::open(inside.join("held")).unwrap();
        let found = users_of_directory(&base.join("d"));
        let pids: Vec<u32> = children.iter().map(Child::id).collect();
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let has = |pid: u32, wanted: &str| {
            found.iter().any(|user| match user {
                MountUser::Process {
                    pid: found, what, ..
                } => *found == pid && what.contains(wanted),
                _ => false,
            })
        };
        assert!(has(pids[1], "its working directory"), "{found:?}");
        assert!(has(pids[2], "held is open"), "{found:?}");
        assert!(
            !has(pids[0], "") && !has(std::process::id(), ""),
            "{found:?}"
        );
    }

    /// Its clients were refused after the directory had been adopted.
    #[test]
    fn a_server_at_a_socket_in_a_directory_is_found() {
        let base = tempfile::tempdir().unwrap();
        let base = base.path().canonicalize().unwrap();
        let path = base.join("a socket");
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(sockets_in(&base)[0].path, path);
        // Another process has it alone, and then none that this one sees.
        let mut child = Command::new("sleep")
            .arg("1000")
            .stdin(Stdio::from(std::os::fd::OwnedFd::from(listener)))
            .spawn()
            .unwrap();
        let found = users_of_directory(&base);
        let mut sockets = Sockets::new(sockets_in(&base));
        assert_eq!(sockets.use_by(&views_of(std::process::id())), None);
        assert_eq!(
            sockets.of_unseen().collect::<Vec<_>>(),
            [MountUser::Socket(path.clone())]
        );
        let beside = users_of_directory(&base.join("a"));
        fs::remove_file(&path).unwrap();
        let without_name = users_of_directory(&base);
        child.kill().unwrap();
        child.wait().unwrap();
        let [MountUser::Process { pid, what, .. }] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(*pid, child.id());
        assert!(what.ends_with("a socket is bound"), "{what}");
        assert_eq!(beside, []);
        assert_eq!(without_name, []);
    }

    #[test]
    fn mapped_programs_are_found() {
        let own = std::env::current_exe().unwrap();
        let mount = mount_of(&own);
        let mapped = |major, minor| mapped_file(&views_of(std::process::id()), major, minor);
        // Filesystems with subvolumes show another number in this list than in the table.
        let device = rustix::fs::stat(&own).unwrap().st_dev;
        let what = mapped(mount.device_major, mount.device_minor)
            .or_else(|| mapped(rustix::fs::major(device), rustix::fs::minor(device)));
        assert!(what.unwrap().contains("is mapped"));
        assert_eq!(mapped(4095, mount.device_minor), None);
    }

    #[test]
    fn mounts_inside_are_users() {
        let root = mount_of(Path::new("/"));
        let proc = MountUser::Mount("/proc".into());
        assert!(mounts_in(&root).contains(&proc));
    }

    #[test]
    fn users_are_named_and_many_are_counted() {
        let user = |pid| MountUser::Process {
            pid,
            name: "cat".to_owned(),
            what: "its working directory".to_owned(),
        };
        let one = describe(&[user(7)]);
        assert_eq!(one, "process 7 (cat: its working directory)");
        let many: Vec<MountUser> = (1..=8).map(user).collect();
        assert!(describe(&many).ends_with(", and 3 more"), "{many:?}");
        assert!(describe(&[]).contains("cannot be seen"));
    }
}
