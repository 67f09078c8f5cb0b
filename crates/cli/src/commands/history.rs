//! `mobifs history`

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use mobifs_daemon::control::{Reply, Request};
use mobifs_daemon::{Code, Failure, STORE_HISTORY};
use mobifs_history::{Age, Archive, ArchiveError, Snapshot, WallTime};
use mobifs_host::{mount_around, mounts};
use mobifs_native::history::DIRECTORY;
use mobifs_volume::AppSelection;

use super::{AS_LONG_AS_IT_TAKES, ask, fetch, print, unexpected};
use crate::history_arguments::HistoryArguments;

pub(crate) fn run(arguments: &HistoryArguments) -> Result<(), Failure> {
    let place = Place::of(&arguments.directory)?;
    let archive = place.archive()?;
    let snapshots = archive.list().map_err(failed)?;
    if let Some(unwanted) = unwanted(arguments, &snapshots)? {
        return delete(&archive, &unwanted, arguments.json);
    }
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
        let mut one = named(archive, snapshot);
        one["commit"] = archive.transaction_of(snapshot).ok().into();
        one
    });
    serde_json::json!({ "schema": 1, "snapshots": all.collect::<Vec<_>>() })
}

fn named(archive: &Archive, snapshot: &Snapshot) -> serde_json::Value {
    serde_json::json!({
        "time": snapshot.time.to_string(),
        "exact": snapshot.is_exact,
        "path": archive.path_of(snapshot).to_string_lossy(),
    })
}

/// The snapshots that are to be deleted; none: they are to be listed.
fn unwanted(
    arguments: &HistoryArguments,
    snapshots: &[Snapshot],
) -> Result<Option<Vec<Snapshot>>, Failure> {
    let usage = |error: String| Failure::new(Code::Usage, error);
    if let Some(age) = &arguments.older_than {
        let age = Age::parse(age).map_err(|error| usage(error.to_string()))?;
        let before = age.before(WallTime::now());
        let older = snapshots.iter().filter(|snapshot| snapshot.time < before);
        return Ok(Some(older.cloned().collect()));
    }
    if arguments.delete.is_empty() {
        return Ok(None);
    }
    let mut unwanted = Vec::new();
    // All of them are looked for before the first one goes.
    for name in &arguments.delete {
        let found = snapshots.iter().find(|snapshot| snapshot.has_name(name));
        let shown = arguments.directory.display();
        let found = found.cloned().ok_or_else(|| {
            failed(format!(
                "no snapshot of {shown} has the name {name}, and nothing was deleted: `mobifs history \
                 {shown}` lists them"
            ))
        });
        unwanted.push(found?);
    }
    unwanted.sort();
    unwanted.dedup();
    Ok(Some(unwanted))
}

/// Deletes snapshots, the oldest first, and says which are gone, also where one cannot be deleted.
fn delete(archive: &Archive, unwanted: &[Snapshot], as_json: bool) -> Result<(), Failure> {
    let mut deleted = Vec::new();
    let mut result = Ok(());
    for snapshot in unwanted {
        let one = named(archive, snapshot);
        match archive.remove(snapshot) {
            // The daemon, or another command, was first.
            Ok(None) => {}
            Ok(Some(_)) => deleted.push((snapshot.name(), one)),
            Err(error) => {
                result = Err(failed(error));
                break;
            }
        }
    }
    if !deleted.is_empty() {
        archive.commit().map_err(failed)?;
        archive.free_removed();
    }
    let text = if as_json {
        let all: Vec<_> = deleted.into_iter().map(|(_, one)| one).collect();
        serde_json::to_string_pretty(&serde_json::json!({ "schema": 1, "deleted": all }))
            .map_err(failed)?
    } else {
        let lines = deleted.iter();
        let mut lines: Vec<_> = lines
            .map(|(name, _)| format!("deleted {}", name.to_string_lossy()))
            .collect();
        if lines.is_empty() && result.is_ok() {
            lines.push("no snapshot is that old: nothing was deleted".to_owned());
        }
        lines.join("\n")
    };
    if !text.is_empty() {
        print(&(text + "\n"))?;
    }
    result
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
            (ArchiveError::Empty { .. }, _) if self.keeps_one() => failed(format!(
                "no snapshot of {} is kept yet: the first is taken when something was changed and is committed \
                 (`mobifs sync` does that at once)",
                self.source.display()
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

impl Place {
    /// Whether a daemon is to keep snapshots there.
    fn keeps_one(&self) -> bool {
        let Some(mountpoint) = &self.mountpoint else {
            return false;
        };
        let status = fetch(mountpoint, AppSelection::default(), &AS_LONG_AS_IT_TAKES);
        let history = status.ok().and_then(|status| match status.native {
            Some(native) => native.history,
            None => status.store.history,
        });
        history.is_some_and(|history| !history.is_off)
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
