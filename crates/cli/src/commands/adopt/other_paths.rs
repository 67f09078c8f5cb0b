//! An adopted directory by another path: through a bind mount, or another mount of its filesystem. Each place is known
//! by its filesystem and where it lies there, as the table of mounts has it, so that no mount is touched.

use std::path::{Path, PathBuf};

use mobifs_daemon::Failure;
use mobifs_host::{MountEntry, mount_around, mounts, printable_path};

use super::super::tell;
use super::durable::cannot;
use super::note::Notes;
use super::place::Place;

/// Where a directory lies: the device number of its filesystem, and the path from the filesystem's root.
#[derive(PartialEq, Eq)]
struct Position(u32, u32, PathBuf);

/// The place as the note, or the mount, of an adoption has it; the same one where there is none.
///
/// # Errors
/// The table of mounts or a note cannot be read.
pub(super) fn known(place: Place, notes: &Notes) -> Result<Place, Failure> {
    if notes.find(&place)?.is_some() {
        return Ok(place);
    }
    let table = mounts().map_err(cannot("look for mounts of", place.directory()))?;
    for other in adopted(notes, &table)? {
        if other != place && is_same(&place, &other, &table) {
            tell(&format!(
                "{} is {} by another path",
                printable_path(place.directory()),
                printable_path(other.directory())
            ));
            return Ok(other);
        }
    }
    Ok(place)
}

/// What is adopted by a note, and what is mounted in the manner of an adoption.
fn adopted(notes: &Notes, table: &[MountEntry]) -> Result<Vec<Place>, Failure> {
    let mut places = Vec::new();
    for note in notes.all()? {
        places.push(Place::of(note.directory().to_owned())?);
    }
    for mount in table.iter().filter(|mount| mount.has_subtype("mobifs")) {
        let place = Place::of(mount.mountpoint.clone()).ok();
        places.extend(place.filter(|place| place.store() == mount.source));
    }
    Ok(places)
}

fn is_same(place: &Place, other: &Place, table: &[MountEntry]) -> bool {
    let at = |place: &Place| {
        let mut entries = table.iter();
        entries.rfind(|mount| mount.mountpoint == place.directory())
    };
    match (at(place), at(other)) {
        // The mount itself is bound.
        (Some(here), Some(there)) if here.has_subtype("mobifs") => here.has_device_of(there),
        (Some(_), _) => false,
        (None, _) => {
            let positions = (
                position(place, place.directory_name().as_ref(), table),
                position(other, other.directory_name().as_ref(), table),
            );
            positions.0.is_some() && positions.0 == positions.1
        }
    }
}

/// Whether one of them lies in the other, by whatever path.
///
/// # Errors
/// The table of mounts cannot be read.
pub(super) fn overlap(place: &Place, other: &Place) -> Result<bool, Failure> {
    let table = mounts().map_err(cannot("look for mounts of", place.directory()))?;
    let name = place.directory_name().as_ref();
    let Some(own) = position(place, name, &table) else {
        return Ok(false);
    };
    let names = [other.directory_name(), other.store_name()];
    Ok(names.into_iter().any(|name| {
        let theirs = position(other, name.as_ref(), &table);
        theirs.is_some_and(|theirs| {
            (own.0, own.1) == (theirs.0, theirs.1)
                && (own.2.starts_with(&theirs.2) || theirs.2.starts_with(&own.2))
        })
    }))
}

/// The position of a name in the directory that has both directories of a place. What is mounted at the name does not
/// count.
fn position(place: &Place, name: &Path, table: &[MountEntry]) -> Option<Position> {
    let mount = mount_around(place.parent(), table)?;
    let below = place.parent().strip_prefix(&mount.mountpoint).ok()?;
    let path = mount.root.join(below).join(name);
    Some(Position(mount.device_major, mount.device_minor, path))
}
