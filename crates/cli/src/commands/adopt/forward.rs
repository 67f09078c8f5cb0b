//! Towards the mount: each step looks for what it is to bring about, so that the next call goes on wherever
//! one was ended.
//!
//! | step | after it |
//! | --- | --- |
//! | the note is written | `unadopt` knows of it |
//! | the directory becomes a store | it has `.mobifs`, with an empty journal |
//! | the mount point is made | an empty directory under the store's name |
//! | the unit is written | the next start of the machine goes on from here |
//! | the two exchange their names | programs find the empty directory |
//! | it is mounted | they find their files |

use mobifs_daemon::{ConfigText, Failure, predecessor, raise_limits};
use mobifs_volume::{OpenOptions, OpenedStore, fault_point};

use super::examine;
use super::mount_point::{
    Held, bring_meanwhile, exchange, keeping_times, make, protect, remove_leavings,
};
use super::note::Note;
use super::place::{Place, refused};
use super::starter::Starter;
use super::users;
use crate::mount_options::Options;

/// So often is the mount made again because programs wrote under it.
const MOUNTS_MAX: u32 = 5;

/// Where the files are to be, before the mount.
pub(super) fn move_files(
    place: &Place,
    note: &Note,
    starter: Option<&Starter<'_>>,
) -> Result<(), Failure> {
    if place.is_exchanged() {
        protect(place.directory(), true)?;
        return starter.map_or(Ok(()), Starter::install);
    }
    // One that is done at the next start may have become another since.
    examine::without_mounts(place)?;
    examine::without_subvolumes(place)?;
    users::refuse(place, place.directory(), true)?;
    make_store(place, note)?;
    fault_point("adopt-store");
    make(place)?;
    fault_point("adopt-mount-point");
    if let Some(starter) = starter {
        starter.install()?;
    }
    fault_point("adopt-boot");
    exchange(place)?;
    fault_point("adopt-exchange");
    protect(place.directory(), true)?;
    // Those that came between the first look and the exchange.
    users::refuse(place, place.store(), true).or_else(|failure| {
        protect(place.directory(), false)?;
        exchange(place)?;
        Err(failure)
    })
}

/// Makes the directory a store, whose journal is empty; it has what it had.
fn make_store(place: &Place, note: &Note) -> Result<(), Failure> {
    let directory = place.directory();
    raise_limits()?;
    let options = Options::parse(&[note.options().to_owned()], false)?;
    let config = ConfigText::load(options.config.as_deref())?;
    let open = OpenOptions::new(&config.config);
    keeping_times(directory, note.times(), || {
        remove_leavings(directory)?;
        let opened = predecessor::for_command(directory, predecessor::WAIT_DEFAULT, || {
            OpenedStore::open(directory, &open)
        })?;
        fault_point("adopt-store-opened");
        opened
            .close()
            .map_err(|error| Failure::of_store(directory, &error))
    })
}

/// Mounts it, and looks for what was written under the mount while it was made.
pub(super) fn mount(
    place: &Place,
    starter: &Starter<'_>,
    unmount: impl Fn() -> Result<(), Failure>,
) -> Result<(), Failure> {
    for _ in 0..MOUNTS_MAX {
        bring_meanwhile(place)?;
        let below = Held::open(place.directory())?;
        match starter.mount() {
            // Programs have made something there since: a directory in which something lies is not mounted on.
            Err(_) if !below.is_empty() => continue,
            other => other?,
        }
        fault_point("adopt-mount");
        if below.is_empty() {
            return Ok(());
        }
        drop(below);
        unmount()?;
    }
    Err(refused(&format!(
        "programs write to {} all the time, also while nothing is mounted there: end them",
        place.directory().display()
    )))
}
