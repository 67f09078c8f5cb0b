//! `mobifs history`

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use mobifs_daemon::control::{Reply, Request};
use mobifs_daemon::{Code, Failure, STORE_HISTORY};
use mobifs_history::{Archive, ArchiveError, Snapshot};
use mobifs_host::{mount_around, mounts};
use mobifs_native::history::DIRECTORY;
use mobifs_volume::AppSelection;

use super::{ask, print, unexpected};
use crate::arguments::HistoryArguments;

pub(crate) fn run(arguments: &HistoryArguments) -> Result<(), Failure> {
    let place = Place::of(&arguments.directory)?;
    let archive = place.archive()?;
    let snapshots = archive.list().map_err(failed)?;
    let mut text = if arguments.json {
        serde_json::to_string_pretty(&json(&archive, &snapshots)).map_err(failed)?
    } else {
        table(&archive, &snapshots)
    };
    text.push('\n');
    print(&text)
}

fn table(archive: &Archive, snapshots: &[Snapshot]) -> String {
    let mut lines = vec![format!("{:<27}  {:>10}  EXACT", "TIME (UTC)", "COMMIT")];
    lines.extend(snapshots.iter().map(|snapshot| {
        let commit = archive.transaction_of(snapshot);
        let commit = commit.map_or_else(|_| "?".to_owned(), |commit| commit.to_string());
        let exact = if snapshot.is_exact { "yes" } else { "no" };
        format!("{:<27}  {commit:>10}  {exact}", snapshot.time.to_string())
    }));
    lines.join("\n")
}

fn json(archive: &Archive, snapshots: &[Snapshot]) -> serde_json::Value {
    let all = snapshots.iter().map(|snapshot| {
        serde_json::json!({
            "time": snapshot.time.to_string(),
            "commit": archive.transaction_of(snapshot).ok(),
            "exact": snapshot.is_exact,
            "path": archive.path_of(snapshot).to_string_lossy(),
        })
    });
    serde_json::json!({ "snapshots": all.collect::<Vec<_>>() })
}

pub(super) fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(Code::Failed, error.to_string())
}

/// What may have a history.
pub(super) struct Place {
    /// Where it is mounted; none: a store that was named itself.
    pub(super) mountpoint: Option<PathBuf>,
    /// The subvolume whose snapshots they are.
    source: PathBuf,
    /// Where they lie in it.
    directory: &'static str,
}

impl Place {
    /// The place of a directory.
    pub(super) fn of(directory: &Path) -> Result<Self, Failure> {
        let shown = directory.display();
        let unreadable = |error: io::Error| failed(format!("cannot examine {shown}: {error}"));
        let path = directory.canonicalize().map_err(unreadable)?;
        let table = mounts().map_err(unreadable)?;
        let mount = mount_around(&path, &table).cloned();
        let mount = mount.ok_or_else(|| failed(format!("no mount has {shown}")))?;
        if mount.has_subtype("mobifs") {
            return Ok(Self {
                source: store_of(&mount.mountpoint)?,
                mountpoint: Some(mount.mountpoint),
                directory: STORE_HISTORY,
            });
        }
        if path.join(STORE_HISTORY).is_dir() {
            return Ok(Self {
                mountpoint: None,
                source: path,
                directory: STORE_HISTORY,
            });
        }
        Ok(Self {
            source: mount.mountpoint.clone(),
            mountpoint: Some(mount.mountpoint),
            directory: DIRECTORY,
        })
    }

    /// What is no file of the user's in a snapshot.
    pub(super) fn own_part(&self) -> Option<&'static OsStr> {
        (self.directory == STORE_HISTORY).then_some(OsStr::new(".mobifs"))
    }

    pub(super) fn archive(&self) -> Result<Archive, Failure> {
        let opened = Archive::open(&self.source, Path::new(self.directory));
        opened.map_err(|error| match (error, kind_of(&self.source)) {
            (ArchiveError::Source { path, source } | ArchiveError::Place { path, source }, _)
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                failed(format!(
                    "only root can look into the history of {}, because snapshots have files as they were \
                     before they were removed or hidden: run this as root ({}: {source})",
                    self.source.display(),
                    path.display()
                ))
            }
            (ArchiveError::Source { path, .. }, Some(kind)) if kind != "btrfs" => failed(format!(
                "{} has no history: it is {kind}, and only btrfs has snapshots",
                path.display()
            )),
            (ArchiveError::Empty { path }, _) => failed(format!(
                "{} has no history: `[history]` in the configuration of `mobifs steer` or `mobifs \
                 mount` keeps one (keep_count)",
                path.display()
            )),
            (error, _) => failed(error),
        })
    }
}

/// The type of the filesystem that has this path, if the table of mounts has it.
fn kind_of(path: &Path) -> Option<String> {
    let table = mounts().ok()?;
    let mount = mount_around(&path.canonicalize().ok()?, &table)?;
    Some(mount.kind.clone())
}

/// The store of a mount.
fn store_of(mountpoint: &Path) -> Result<PathBuf, Failure> {
    let select = AppSelection::default();
    match ask(mountpoint, &Request::Status { select })?.1 {
        Reply::Status { status } => {
            let path = status.store.path.map(PathBuf::from);
            path.ok_or_else(|| failed(format!("{} has no store", mountpoint.display())))
        }
        other => Err(unexpected(&other)),
    }
}
