//! What an adoption has become since: another user's, one without its store, one of which nothing is left. Each of
//! them is looked for before anything is unmounted, noted or changed.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use mobifs_daemon::{Code, Failure};
use mobifs_host::{MountEntry, shell_path};

use super::mount_point::{REMOVED, protect};
use super::note::{Direction, Note, Notes};
use super::place::{Place, refused};
use super::starter::Starter;

/// Fails where this user cannot go on with an adoption, nor begin one.
///
/// # Errors
/// Another user has adopted it, or its store is missing.
pub(super) fn check(place: &Place, note: Option<&Note>) -> Result<(), Failure> {
    not_of_another(place, note)?;
    match note {
        Some(note) if is_store_missing(place, note)? => Err(store_missing(place)),
        Some(note) => {
            not_covered(place)?;
            match wrong_store(place, note)? {
                Some(WrongStore::WithoutOwn) => Err(without_own(place)),
                Some(WrongStore::Other) => Err(other_store(place)),
                None => Ok(()),
            }
        }
        None => Ok(()),
    }
}

/// Fails where the files cannot go back: their store is not where it was left.
///
/// # Errors
/// Another directory has the store's name, or another mount is over the directory.
pub(super) fn can_go_back(place: &Place, note: &Note) -> Result<(), Failure> {
    not_covered(place)?;
    match wrong_store(place, note)? {
        Some(WrongStore::Other) => Err(other_store(place)),
        _ => Ok(()),
    }
}

/// What is at the place of a store and is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WrongStore {
    /// The directory with the files, from which `.mobifs` was removed.
    WithoutOwn,
    /// Another directory.
    Other,
}

/// What is at the place of the store of an adoption that is not mounted, if that is no store.
///
/// # Errors
/// The table of mounts cannot be read.
pub(super) fn wrong_store(place: &Place, note: &Note) -> Result<Option<WrongStore>, Failure> {
    if place.is_exchanged() || place.is_prepared() || place.mounted()?.is_some() {
        return Ok(None);
    }
    let number = |path: &Path| {
        let about = fs::symlink_metadata(path).ok()?;
        about.is_dir().then(|| about.ino())
    };
    let numbers = (number(place.directory()), number(place.store()));
    let (Some(files), (Some(here), Some(there))) = (note.files_inode(), numbers) else {
        return Ok(None);
    };
    Ok(match files {
        _ if files == here => None,
        _ if files == there => Some(WrongStore::WithoutOwn),
        _ => Some(WrongStore::Other),
    })
}

fn without_own(place: &Place) -> Failure {
    refused(&format!(
        "the store {} has lost its .mobifs, without which it cannot be mounted: mobifs unadopt {} gives its files back",
        place.store().display(),
        shell_path(place.directory())
    ))
}

fn other_store(place: &Place) -> Failure {
    refused(&format!(
        "{} is not the directory that has the files of {}: put that one there, or, if it is lost, move away what is \
         there and run mobifs unadopt {}",
        place.store().display(),
        place.directory().display(),
        shell_path(place.directory())
    ))
}

/// Fails if something else is mounted over an adopted directory: only what is below could be mounted or go back.
fn not_covered(place: &Place) -> Result<(), Failure> {
    match place.mounted()? {
        Some(mount) if !mount.has_subtype("mobifs") => Err(covered(place, &mount)),
        _ => Ok(()),
    }
}

/// That another mount is over the directory.
pub(super) fn covered(place: &Place, mount: &MountEntry) -> Failure {
    Failure::new(
        Code::InUse,
        format!(
            "{} has another mount ({}) over the directory: unmount that first",
            place.directory().display(),
            mount.kind
        ),
    )
}

/// Fails if another user has adopted it: what a user relies on in a store is the user's own.
///
/// # Errors
/// That it is so, with who can go on.
pub(super) fn not_of_another(place: &Place, note: Option<&Note>) -> Result<(), Failure> {
    let own = rustix::process::geteuid().as_raw();
    let Some(user) = adopter_other_than(own, place, note) else {
        return Ok(());
    };
    let (who, by) = if user == 0 {
        ("root".to_owned(), "sudo ".to_owned())
    } else {
        (
            format!("the user with id {user}"),
            format!("sudo -u '#{user}' "),
        )
    };
    Err(Failure::new(
        Code::Failed,
        format!(
            "{} is adopted by {who}, who alone can mount it or go back: {by}mobifs unadopt {}",
            place.directory().display(),
            shell_path(place.directory())
        ),
    ))
}

/// Who has adopted it, if not this user. Without a note and an exchange, a directory with `.mobifs` is any store.
pub(super) fn adopter_other_than(user: u32, place: &Place, note: Option<&Note>) -> Option<u32> {
    let is_adopted = note.is_some() || place.is_exchanged();
    place
        .adopter()
        .filter(|&adopter| is_adopted && adopter != user)
}

/// Whether the directory is only the empty one to mount on, and the one with the files is nowhere.
///
/// # Errors
/// The table of mounts cannot be read.
pub(super) fn is_store_missing(place: &Place, note: &Note) -> Result<bool, Failure> {
    if !is_missing(place.store()) || place.is_prepared() || place.mounted()?.is_some() {
        return Ok(false);
    }
    let about = fs::symlink_metadata(place.directory());
    Ok(about.is_ok_and(|about| {
        about.is_dir() && note.files_inode().is_some_and(|files| files != about.ino())
    }))
}

/// Fails if the mount's store has another name by now: nothing of it would come back.
///
/// # Errors
/// What is missing, and where it has to be.
pub(super) fn has_store_of_mount(place: &Place) -> Result<(), Failure> {
    let mount = place.mounted()?;
    let is_served =
        mount.is_some_and(|mount| mount.has_subtype("mobifs") && mount.source == place.store());
    if !is_served || !is_missing(place.store()) {
        return Ok(());
    }
    let (shown, word) = (place.directory().display(), shell_path(place.directory()));
    Err(refused(&format!(
        "the store {} of the mount at {shown} is missing: put it back, and run mobifs unadopt {word} again; if it is \
         gone for good, mobifs umount {word} first",
        place.store().display()
    )))
}

fn store_missing(place: &Place) -> Failure {
    refused(&format!(
        "the store {} of the adopted directory {} is missing: put it back, or have the adoption forgotten \
         (mobifs unadopt {})",
        place.store().display(),
        place.directory().display(),
        shell_path(place.directory())
    ))
}

/// Whether neither the directory nor its store exists.
pub(super) fn is_gone(place: &Place) -> bool {
    is_missing(place.directory()) && is_missing(place.store())
}

/// Whether nothing has this name; what cannot be examined may have it.
pub(super) fn is_missing(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| {
        matches!(
            error.kind(),
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
        )
    })
}

/// Whether the directory is an ordinary one, so that nothing is to be undone and no unit waits to adopt it.
///
/// # Errors
/// The table of mounts cannot be read.
pub(super) fn is_over(place: &Place, note: &Note) -> Result<bool, Failure> {
    let waits = note.direction() == Direction::Adopt && note.boot().is_unit();
    Ok(!waits
        && is_missing(place.store())
        && is_missing(&place.own_in_directory())
        && is_missing(&place.directory().join(REMOVED))
        && place.mounted()?.is_none()
        && place.directory().is_dir()
        && !is_store_missing(place, note)?)
}

/// Drops the note of an adoption that is over, unless another command is at it.
///
/// # Errors
/// Something cannot be read.
pub(super) fn drop_if_over(place: &Place, note: &Note, notes: &Notes) -> Result<bool, Failure> {
    if !is_over(place, note)? {
        return Ok(false);
    }
    let Some(_lock) = notes.try_lock() else {
        return Ok(false);
    };
    match notes.find(place)? {
        Some(note) if is_over(place, &note)? => Ok(forget(place, &note, notes).is_ok()),
        Some(_) => Ok(false),
        None => Ok(true),
    }
}

/// Removes what mounts it at the next start, and the note; the directory can be changed again.
///
/// # Errors
/// Something cannot be removed.
pub(super) fn forget(place: &Place, note: &Note, notes: &Notes) -> Result<(), Failure> {
    if is_store_missing(place, note)? {
        protect(place.directory(), false)?;
    }
    Starter::new(place, note, notes).remove()?;
    notes.remove(place)
}
