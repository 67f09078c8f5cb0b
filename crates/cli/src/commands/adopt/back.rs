//! Back to an ordinary directory: the steps of [`super::forward`] in the reverse order, each of which
//! looks for what it is to undo.

use std::fs;

use mobifs_daemon::{Failure, predecessor, raise_limits};
use mobifs_host::shell_path;
use mobifs_store::salvage::DAMAGED_PREFIX;
use mobifs_volume::{Config, OpenOptions, OpenedStore, fault_point};

use super::durable::cannot;
use super::journald;
use super::mount_point::{bring_meanwhile, exchange, keep, protect, remove};
use super::note::{Note, Notes};
use super::place::{Place, refused};
use super::standing::{WrongStore, covered, wrong_store};
use super::users;
use crate::arguments::UmountArguments;
use crate::commands::{tell, umount};

/// What `.mobifs/lost` has: directories that were deleted while another program put something into them, and what
/// salvages have kept.
const LOST: &str = "mobifs-lost";

/// Unmounts it, with everything committed and at its place.
///
/// # Errors
/// It is in use, and stays mounted.
pub(super) fn unmount(place: &Place) -> Result<(), Failure> {
    if !place.is_served()? {
        return Ok(());
    }
    users::refuse_mounts_elsewhere(place)?;
    journald::step_aside(place.directory());
    let arguments = UmountArguments {
        lazy: false,
        mountpoint: place.directory().to_owned(),
    };
    umount::run(&arguments).map_err(|failure| {
        journald::come_back(place.directory());
        users::still_there(place, failure)
    })?;
    fault_point("unadopt-unmounted");
    match place.mounted()? {
        None => Ok(()),
        Some(mount) => Err(covered(place, &mount)),
    }
}

/// Brings the files back under their name, and removes what is MobiFS's own.
pub(super) fn move_files(place: &Place, note: Note, notes: &Notes) -> Result<Note, Failure> {
    let is_store = place.is_exchanged();
    if is_store {
        close_store(place)?;
        fault_point("unadopt-closed");
        keep_lost(place)?;
    }
    if is_store || wrong_store(place, &note)? == Some(WrongStore::WithoutOwn) {
        if place.directory().symlink_metadata().is_err() {
            fs::create_dir(place.directory()).map_err(cannot("make", place.directory()))?;
        }
        bring_meanwhile(place)?;
        users::refuse(place, place.store(), false)?;
        protect(place.directory(), false)?;
        exchange(place)?;
        fault_point("unadopt-exchange");
    }
    let note = note.with_times(place);
    notes.save(&note)?;
    remove(place, note.times())?;
    fault_point("unadopt-removed");
    Ok(note)
}

/// Has everything at its place that was committed.
fn close_store(place: &Place) -> Result<(), Failure> {
    let store = place.store();
    let history = place.own_in_store().join("history");
    if fs::read_dir(&history).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(refused(&format!(
            "{} has snapshots in {}: delete them first (`mobifs history --older-than 0s {}`)",
            place.directory().display(),
            history.display(),
            shell_path(store)
        )));
    }
    raise_limits()?;
    let config = Config::defaults()?;
    let options = OpenOptions::new(&config);
    let opened = predecessor::for_command(store, predecessor::WAIT_DEFAULT, || {
        OpenedStore::open(store, &options)
    })?;
    opened
        .close()
        .map_err(|error| Failure::of_store(store, &error))
}

/// What was found in deleted directories is the user's, and so is what salvages have kept: the journals that were
/// damaged go with it.
fn keep_lost(place: &Place) -> Result<(), Failure> {
    let own = place.own_in_store();
    let lost = own.join("lost");
    for entry in fs::read_dir(&own).map_err(cannot("list", &own))? {
        let entry = entry.map_err(cannot("list", &own))?;
        let name = entry.file_name();
        if name
            .as_encoded_bytes()
            .starts_with(DAMAGED_PREFIX.as_bytes())
        {
            fs::create_dir_all(&lost).map_err(cannot("make", &lost))?;
            let kept = lost.join(&name);
            fs::rename(entry.path(), &kept).map_err(cannot("rename", &kept))?;
        }
    }
    if !fs::read_dir(&lost).is_ok_and(|mut entries| entries.next().is_some()) {
        return Ok(());
    }
    let name = keep(place, "lost", LOST)?;
    tell(&format!(
        "{} has what a salvage has kept, or another program put into directories that were deleted meanwhile",
        place.directory().join(name).display()
    ));
    Ok(())
}
