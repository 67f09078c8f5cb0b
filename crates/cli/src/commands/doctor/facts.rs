//! What is known of a directory and its filesystem. Nothing is changed.

use std::io;
use std::path::{Path, PathBuf};

use mobifs_daemon::control::ControlError;
use mobifs_daemon::{Code, Failure, check_store};
use mobifs_host::{MountEntry, absolute_without_touching, mount_around, mounts};
use mobifs_native::{AppPolicy, Examination, examine};
use mobifs_store::PosixLower;
use rustix::fs::{Access, access};
use rustix::io::Errno;

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
    pub(super) fn of(directory: &Path, policy: &AppPolicy) -> Result<Self, Failure> {
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
        Ok(Self {
            mountpoint: mount.mountpoint.clone(),
            kind: mount.kind.clone(),
            shown_kind: super::device::kind_of(mount),
            is_in_memory: mobifs_store::is_in_memory(&path),
            is_of_the_kernel: mobifs_store::is_of_the_kernel(&path) || mount.kind == "devtmpfs",
            is_in_mount,
            is_store: path.join(".mobifs").is_dir(),
            served_at: stores_of(&table)
                .find(|mount| Path::new(&mount.source) == path)
                .map(|mount| mount.mountpoint.clone()),
            steering: steering(&path, policy, mount),
            store_obstacle: store_obstacle(&path, &table),
            fuse_obstacle: mobifs_fuse::check_permitted()
                .err()
                .map(|error| error.to_string()),
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

fn store_obstacle(path: &Path, table: &[MountEntry]) -> Option<String> {
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
    if let Err(errno) = access(path, Access::WRITE_OK | Access::EXEC_OK) {
        return Some(format!("this user may not write there ({errno})"));
    }
    let opened = PosixLower::open(path);
    opened.err().map(|error| error.to_string())
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
