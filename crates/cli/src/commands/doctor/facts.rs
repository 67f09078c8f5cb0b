//! What is known of a directory and its filesystem. Nothing is changed.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use mobifs_daemon::control::ControlError;
use mobifs_daemon::{Code, Failure, check_store};
use mobifs_host::{MountEntry, absolute_without_touching, mount_around, mounts, shell_path};
use mobifs_native::{AppPolicy, Examination, examine};
use mobifs_store::PosixLower;
use mobifs_volume::{Config, OpenOptions};
use rustix::fs::{Access, IFlags, access, ioctl_getflags};
use rustix::io::Errno;

use super::super::adopt;
use super::survey::Survey;

/// What decides.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) path: PathBuf,
    pub(super) mountpoint: PathBuf,
    /// The filesystem's type.
    pub(super) kind: String,
    /// The kind as people are shown it.
    pub(super) shown_kind: String,
    pub(super) is_in_memory: bool,
    /// The kernel shows itself there, as in /proc, and keeps no files.
    pub(super) is_of_the_kernel: bool,
    /// The directory lies in a MobiFS mount.
    pub(super) is_in_mount: bool,
    /// The directory has been the store of a mount.
    pub(super) is_store: bool,
    /// Where it is mounted, as the store of a mount.
    pub(super) served_at: Option<PathBuf>,
    pub(super) steering: Steering,
    /// Why it cannot be the store of a mount, if it cannot.
    pub(super) store_obstacle: Option<String>,
    /// Why it cannot be adopted, if it cannot, where it could be the store of a mount.
    pub(super) adopt_obstacle: Option<String>,
    /// Why this user cannot make mounts.
    pub(super) fuse_obstacle: Option<String>,
    pub(super) survey: Survey,
}

/// Whether the filesystem can be steered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Steering {
    /// A daemon does, and calls for durability return at once, or not at present, or never: then only
    /// its commits are steered.
    Steered {
        is_in_force: bool,
        commits_only: bool,
    },
    /// A daemon has, which was killed.
    Left,
    /// It can be.
    Possible,
    /// It can be when the user has done this.
    Needs(String),
    /// Only when it commits can be, with nothing promised, and the history of its snapshots; if
    /// something is given, when the user has done this.
    CommitsOnly { needs: Option<String> },
    /// Not a filesystem of this type.
    Impossible(String),
}

impl Facts {
    /// # Errors
    /// There is no such directory.
    pub(super) fn of(
        directory: &Path,
        config: &Config,
        config_file: Option<&Path>,
    ) -> Result<Self, Failure> {
        let failed = |error: &dyn std::fmt::Display| {
            let path = directory.display();
            Failure::new(Code::Failed, format!("cannot examine {path}: {error}"))
        };
        let unreachable = |error: io::Error| match Errno::from_io_error(&error) {
            Some(Errno::NOTCONN) => daemon_gone(directory).unwrap_or_else(|| failed(&error)),
            _ => failed(&error),
        };
        let path = directory.canonicalize().map_err(unreachable)?;
        if !path.metadata().map_err(unreachable)?.is_dir() {
            return Err(failed(&"it is not a directory"));
        }
        let table = mounts().map_err(|error| failed(&error))?;
        let mount = mount_around(&path, &table);
        let mount = mount.ok_or_else(|| failed(&"no mount of this process has it"))?;
        let is_in_mount = mount.has_subtype("mobifs");
        let is_store = path.join(".mobifs").is_dir();
        let is_in_memory = mobifs_store::is_in_memory(&path);
        let fuse_obstacle = mobifs_fuse::check_permitted().err();
        let store_obstacle = store_obstacle(&path, &table, config);
        let can_be_adopted = store_obstacle.is_none()
            && fuse_obstacle.is_none()
            && !(is_store || is_in_memory || is_in_mount);
        let adopt_obstacle = can_be_adopted
            .then(|| adopt::obstacle(&path, config_file))
            .flatten();
        Ok(Self {
            mountpoint: mount.mountpoint.clone(),
            kind: mount.kind.clone(),
            shown_kind: super::device::kind_of(mount),
            is_in_memory,
            is_of_the_kernel: mobifs_store::is_of_the_kernel(&path) || mount.kind == "devtmpfs",
            is_in_mount,
            is_store,
            served_at: stores_of(&table)
                .find(|mount| Path::new(&mount.source) == path)
                .map(|mount| mount.mountpoint.clone()),
            steering: steering(&path, &config.rules.policy_of_all(), mount),
            store_obstacle,
            adopt_obstacle,
            fuse_obstacle: fuse_obstacle.map(|error| error.to_string()),
            survey: Survey::of(&path),
            path,
        })
    }
}

/// What the kernel's answer `ENOTCONN` means for a directory, if it is in a mount of MobiFS.
fn daemon_gone(directory: &Path) -> Option<Failure> {
    let path = absolute_without_touching(directory).ok()?;
    let mount = mount_around(&path, &mounts().ok()?).cloned()?;
    let path = mount.mountpoint.clone();
    let gone = || ControlError::DaemonGone { path }.into();
    mount.has_subtype("mobifs").then(gone)
}

/// The mounts of MobiFS, whose sources are their stores.
fn stores_of(table: &[MountEntry]) -> impl Iterator<Item = &MountEntry> {
    table.iter().filter(|mount| mount.has_subtype("mobifs"))
}

fn store_obstacle(path: &Path, table: &[MountEntry], config: &Config) -> Option<String> {
    if path == Path::new("/") {
        return Some("every mount point would lie inside it; name a directory".to_owned());
    }
    let inner = stores_of(table).map(|mount| Path::new(&mount.source));
    let mut inner = inner.filter(|source| *source != path && source.starts_with(path));
    if let Some(inner) = inner.next() {
        let inner = inner.display();
        return Some(format!("{inner} in it is the store of a mount already"));
    }
    if let Err(error) = check_store(path, false) {
        return Some(error.to_string());
    }
    let word = shell_path(path);
    if let Some(store) = adopt::store_of_unmounted(path) {
        return Some(format!(
            "it is adopted and not mounted, and its files are in {}: `mobifs adopt {word}` mounts it",
            store.display()
        ));
    }
    if is_fixed(path) {
        return Some(format!(
            "it is immutable or append-only: chattr -i -a {word}"
        ));
    }
    if let Err(errno) = access(path, Access::WRITE_OK | Access::EXEC_OK) {
        return Some(format!("this user may not write there ({errno})"));
    }
    let opened = PosixLower::open(path);
    let room = || OpenOptions::new(config).check_room(path);
    opened
        .and_then(|_| room())
        .err()
        .map(|error| error.to_string())
}

/// Whether names in a directory cannot be changed; false where the filesystem has no such flags.
fn is_fixed(path: &Path) -> bool {
    let flags = File::open(path).and_then(|opened| Ok(ioctl_getflags(opened)?));
    flags.is_ok_and(|flags| flags.intersects(IFlags::IMMUTABLE | IFlags::APPEND))
}

fn steering(path: &Path, policy: &AppPolicy, mount: &MountEntry) -> Steering {
    if let Some(is_in_force) = mobifs_native::is_steered(mount) {
        return Steering::Steered {
            is_in_force,
            commits_only: mount.kind == "btrfs",
        };
    }
    if mobifs_native::is_left_steered(mount) {
        return Steering::Left;
    }
    match examine(path, policy, false) {
        Err(obstacle) => Steering::Impossible(obstacle.to_string()),
        Ok(Examination {
            filesystem,
            obstacles,
            ..
        }) => {
            let sentences: Vec<_> = obstacles.iter().map(ToString::to_string).collect();
            let sentences = sentences.join("; ");
            match filesystem {
                None => Steering::Impossible(sentences),
                Some(filesystem) if !filesystem.keeps_order() => Steering::CommitsOnly {
                    needs: (!obstacles.is_empty()).then_some(sentences),
                },
                Some(_) if obstacles.is_empty() => Steering::Possible,
                Some(_) => Steering::Needs(sentences),
            }
        }
    }
}
