//! `mobifs restore`

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use mobifs_daemon::{Code, Failure, mount_of_store};
use mobifs_history::restore::{Report, RestoreError, checked_name, copy_to, in_place};
use mobifs_history::{Archive, At, Snapshot, WallTime};
use mobifs_host::printable_path;

use super::history::{Place, failed};
use super::{print, tell};
use crate::history_arguments::RestoreArguments;

pub(crate) fn run(arguments: &RestoreArguments) -> Result<(), Failure> {
    let now = WallTime::now();
    let usage = |error: &dyn std::fmt::Display| Failure::new(Code::Usage, error.to_string());
    let at = At::parse(&arguments.at, now).map_err(|error| usage(&error))?;
    let name = arguments.app.as_deref().map(checked_name);
    let name = name.transpose().map_err(|error| usage(&error))?;
    let place = Place::of(&arguments.mountpoint)?;
    let archive = place.archive()?;
    let snapshot = chosen(&archive, at, arguments)?;
    let source = archive.path_of(&snapshot);
    let target = arguments.to.clone();
    let target = target.or_else(|| Some(place.mountpoint.as_ref()?.join(name?)));
    if let Some(target) = &target {
        if is_within(target, archive.path()) {
            return Err(usage(
                &"the history itself is no place to restore to: name another directory",
            ));
        }
        refuse_served_store(target)?;
    }
    let (report, target, before) = match (&arguments.to, name) {
        (Some(target), name) => {
            let report = copy_to(&source, name, target, place.own_part()).map_err(refused)?;
            (report, target.clone(), None)
        }
        (None, Some(name)) => {
            let not_mounted = "a store is not restored in place: name its mount, and mount it first if it \
                               is not mounted";
            let mountpoint = place.mountpoint.ok_or_else(|| failed(not_mounted))?;
            let done = in_place(&source, name, &mountpoint, now).map_err(refused)?;
            (done.report, mountpoint.join(name), done.before)
        }
        (None, None) => {
            let missing = "name where to restore to (--to), or what to restore in place (--app NAME \
                           --in-place)";
            return Err(usage(&missing));
        }
    };
    say(&snapshot, &report, &target, before, name)
}

/// Fails for a place in the store of a mount, which must not be changed past it.
fn refuse_served_store(target: &Path) -> Result<(), Failure> {
    let places = around(target);
    let mut stores = places.iter().filter(|place| place.join(".mobifs").is_dir());
    match stores.find_map(|store| mount_of_store(store)) {
        None => Ok(()),
        Some(mount) => Err(Failure::new(
            Code::Usage,
            format!(
                "{} lies in the store of the mount at {}, which does not see what is changed there: name a \
                 directory in the mount, or elsewhere",
                target.display(),
                mount.mountpoint.display()
            ),
        )),
    }
}

/// Whether a path, of which the last part need not be there, leads into a directory or to it, by whatever names.
fn is_within(path: &Path, directory: &Path) -> bool {
    let number = |path: &Path| path.metadata().ok().map(|about| (about.dev(), about.ino()));
    let directory = number(directory);
    directory.is_some() && around(path).iter().any(|place| number(place) == directory)
}

/// A path, of which the last part need not be there, and the directories that it lies in.
fn around(path: &Path) -> Vec<PathBuf> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parent = parent.canonicalize().unwrap_or_default();
    let all = parent.ancestors().map(Path::to_owned);
    std::iter::once(path.to_owned()).chain(all).collect()
}

/// The last snapshot at or before the moment.
fn chosen(archive: &Archive, at: At, arguments: &RestoreArguments) -> Result<Snapshot, Failure> {
    let all = archive.list().map_err(failed)?;
    let is_meant = |snapshot: &&Snapshot| !arguments.exact || snapshot.is_exact;
    let mut meant = all.iter().filter(is_meant);
    let first = meant.clone().next();
    let found = meant.rfind(|snapshot| snapshot.time <= at.time());
    found.cloned().ok_or_else(|| {
        let kind = if arguments.exact {
            "exact snapshot"
        } else {
            "snapshot"
        };
        failed(match first {
            Some(first) => format!("the first {kind} is of {}, which is later", first.time),
            None => format!("there is no {kind} in {}", archive.path().display()),
        })
    })
}

fn refused(error: RestoreError) -> Failure {
    let code = match error {
        RestoreError::InUse { .. } | RestoreError::Busy { .. } | RestoreError::Running { .. } => {
            Code::InUse
        }
        RestoreError::Name { .. } => Code::Usage,
        _ => Code::Failed,
    };
    Failure::new(code, error.to_string())
}

fn say(
    snapshot: &Snapshot,
    report: &Report,
    target: &Path,
    before: Option<PathBuf>,
    name: Option<&Path>,
) -> Result<(), Failure> {
    let entries = match report.entries {
        1 => "entry",
        _ => "entries",
    };
    let mut text = format!(
        "{} is as it was at {}: {} {entries}, {} bytes shared with the snapshot, {} copied\n",
        printable_path(target),
        snapshot.time,
        report.entries,
        report.shared_bytes,
        report.copied_bytes
    );
    if let Some(before) = before {
        text += &format!("what was there before is {}\n", printable_path(before));
    }
    print(&text)?;
    if !snapshot.is_exact {
        tell(
            "this snapshot is not exact: a program wrote while it was taken, or MobiFS has not taken it, so its files \
             may be of different moments (--exact takes another one)",
        );
    }
    let own = [
        mobifs_native::history::DIRECTORY,
        mobifs_daemon::STORE_HISTORY,
    ];
    let is_own = |path: &PathBuf| own.iter().any(|own| path == Path::new(own));
    for path in report.nested.iter().filter(|path| !is_own(path)) {
        tell(&format!(
            "{} is a nested subvolume, which the snapshot does not have",
            name.unwrap_or(Path::new("")).join(path).display()
        ));
    }
    if report.refused_count > 0 {
        tell(&format!(
            "{} extended attributes and flags could not be kept, such as {}",
            report.refused_count,
            report.refused.join("; ")
        ));
    }
    Ok(())
}
