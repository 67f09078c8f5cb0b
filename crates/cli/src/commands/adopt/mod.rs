//! `mobifs adopt` and `mobifs unadopt`: a directory in use, behind MobiFS with one command, and back.
//!
//! Nothing is copied: the directory becomes the store of a mount by getting another name beside its own,
//! and is mounted under its own name. [`note`] says which directories are adopted and where each of them
//! goes; [`place`] sees how far it has come; [`forward`] and [`back`] are the steps, each of which is done
//! only if it is not done yet, so whatever ends one of them (a kill, a power cut) is followed by the same
//! command, or the other one. [`other_paths`] knows an adopted directory by any path. [`examine`], [`standing`] and
//! [`users`] refuse what cannot be done, before anything is changed. [`mount_point`] is the empty directory to mount
//! on, [`starter`] mounts now and when the machine starts, by a [`unit`].

mod all_users;
mod back;
mod boot;
mod directory;
mod durable;
mod examine;
mod forward;
mod journald;
mod list;
mod mount_point;
mod note;
mod other_paths;
mod place;
mod standing;
mod starter;
mod unit;
mod users;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use mobifs_daemon::control::{ControlClient, ControlError};
use mobifs_daemon::{Code, ConfigText, Failure, describe, users_of_directory};
use mobifs_host::{DirectoryLock, printable_path, shell_path};
use mobifs_volume::{arm_fault_points, fault_point};
use serde_json::json;

use super::{json_text, print, tell};
use crate::adopt_arguments::{AdoptArguments, BootChoice, UnadoptArguments};
use crate::mount_options::Options;
use boot::Boot;
use note::{Direction, Note, Notes};
use place::Place;
pub(super) use place::STORE_SUFFIX;
use starter::Starter;

/// How a condition of a unit says that it is not to be started, and that it has failed.
const NOT_TO_BE_STARTED: u8 = 1;
const CONDITION_FAILED: u8 = 255;

pub(crate) fn adopt(arguments: &AdoptArguments) -> Result<ExitCode, Failure> {
    arm_fault_points();
    let notes = Notes::of_user(arguments.notes.as_deref())?;
    let Some(directory) = arguments.directory.as_deref().filter(|_| !arguments.list) else {
        let shown = if arguments.all_users {
            list::show_all_users(&notes, arguments.json)
        } else {
            list::show(&notes, arguments.json)
        };
        return shown.map(|()| ExitCode::SUCCESS);
    };
    if arguments.finish {
        return Ok(finish(directory, &notes));
    }
    let find = || other_paths::known(Place::find(directory)?, &notes);
    let (place, _alone) = alone(arguments.dry_run, find)?;
    standing::check(&place, notes.find(&place)?.as_ref())?;
    let found = found(&place, &notes, || new_note(&place, arguments))?;
    if arguments.dry_run {
        return match found {
            Some(note) => list::show_one(&place, &note, &notes, arguments.json),
            None => plan(&place, &notes, arguments),
        }
        .map(|()| ExitCode::SUCCESS);
    }
    if found.is_none() {
        // Before anything is made, the directory of notes included.
        let note = new_note(&place, arguments)?;
        examine::examine(&place, &notes, note.options())?;
    }
    let lock = notes.lock()?;
    let result = match notes.find(&place)?.or(found) {
        Some(note) => go_on(&place, note, &notes, lock, arguments),
        None => begin(&place, &notes, lock, arguments),
    };
    if result.is_err() && notes.find(&place)?.is_none() {
        // The lock has made a directory for a note that is not there.
        notes.remove_leavings(&place)?;
    }
    result.map(|()| ExitCode::SUCCESS)
}

/// A place, and for all of a command the lock of the directory that it lies in: between the steps of another command
/// what serves it may be on its way. The lock of the notes is free while a service is started.
fn alone(
    dry_run: bool,
    find: impl Fn() -> Result<Place, Failure>,
) -> Result<(Place, Option<DirectoryLock>), Failure> {
    loop {
        let place = find()?;
        let Some(parent) = place.directory().parent().filter(|_| !dry_run) else {
            return Ok((place, None));
        };
        let Some(lock) = lock_of(parent)? else {
            return Ok((place, None));
        };
        // The other command may have changed what the name leads to.
        let found = find()?;
        if found.directory() == place.directory() {
            return Ok((found, Some(lock)));
        }
    }
}

/// The lock of a directory; none if it is gone, and with it all that lay there.
fn lock_of(parent: &Path) -> Result<Option<DirectoryLock>, Failure> {
    let lock = match DirectoryLock::try_acquire(parent) {
        Ok(None) => {
            tell(&format!(
                "waiting for another mobifs adopt or unadopt in {}",
                parent.display()
            ));
            DirectoryLock::acquire(parent)
        }
        Ok(Some(lock)) => Ok(lock),
        Err(error) => Err(error),
    };
    match lock {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some).map_err(durable::cannot("lock", parent)),
    }
}

/// The note of a place; a new one where it has been lost, as on a root that forgets, and the directories show
/// that it is adopted.
fn found(
    place: &Place,
    notes: &Notes,
    new: impl FnOnce() -> Result<Note, Failure>,
) -> Result<Option<Note>, Failure> {
    let note = notes.find(place)?;
    if note.is_none() && place.is_exchanged() && place.is_mount_point()? {
        return new().map(Some);
    }
    Ok(note)
}

pub(crate) fn unadopt(arguments: &UnadoptArguments) -> Result<(), Failure> {
    arm_fault_points();
    let notes = Notes::of_user(arguments.notes.as_deref())?;
    let find = || other_paths::known(place_of_note(&arguments.directory, &notes)?, &notes);
    let (place, _alone) = alone(arguments.dry_run, find)?;
    standing::not_of_another(&place, notes.find(&place)?.as_ref())?;
    // This process must not be what uses it.
    std::env::set_current_dir("/").map_err(durable::cannot("change to", Path::new("/")))?;
    let shown = printable_path(place.directory());
    let new = || Ok(Note::new(&place, Boot::Nothing, "rw"));
    let Some(note) = found(&place, &notes, new)? else {
        // A power cut may have left its directory alone.
        notes.remove_leavings(&place)?;
        return Err(not_adopted(&place));
    };
    standing::can_go_back(&place, &note)?;
    standing::has_store_of_mount(&place)?;
    if standing::is_gone(&place) || standing::is_store_missing(&place, &note)? {
        return forget(&place, &note, &notes, arguments.dry_run);
    }
    if arguments.dry_run {
        let users = users::keeping(&place)?;
        let mut text = format!(
            "{shown}: would be unmounted, with everything committed; its files get their name back from {}\n",
            printable_path(place.store())
        );
        if !users.is_empty() {
            text += &format!("  in use now, which must end first: {}\n", describe(&users));
        }
        return print(&text);
    }
    users::refuse_store(&place)?;
    undo_adoption(&place, note, &notes).map_err(|failure| again(&place, &notes, failure))?;
    print(&format!("{shown} is an ordinary directory again\n"))
}

/// The place that a user has named, also where it or what it lay in is gone by now and a note has it.
fn place_of_note(given: &Path, notes: &Notes) -> Result<Place, Failure> {
    Place::find_adopted(given).or_else(|failure| {
        let absolute = std::path::absolute(given).map_err(durable::cannot("examine", given))?;
        match Place::of(absolute) {
            Ok(place) if standing::is_gone(&place) && notes.find(&place)?.is_some() => Ok(place),
            _ => Err(failure),
        }
    })
}

/// Removes the note of an adoption whose store is nowhere: there is nothing else to be undone.
fn forget(place: &Place, note: &Note, notes: &Notes, dry_run: bool) -> Result<(), Failure> {
    let (shown, store) = (
        printable_path(place.directory()),
        printable_path(place.store()),
    );
    let will = if dry_run { "would be" } else { "is" };
    let text = if standing::is_gone(place) {
        format!(
            "{shown} and its store {store} are gone, so the adoption {will} forgotten\n  if they were moved \
             together: mobifs unadopt DIR with the new name\n"
        )
    } else {
        format!(
            "the store {store} is missing, so the adoption of {shown} {will} forgotten, and what lies in the \
             directory stays\n  if the store is found: put it back there, and mobifs unadopt {}\n",
            shell_path(place.directory())
        )
    };
    if !dry_run {
        let _lock = notes.lock()?;
        standing::forget(place, note, notes)?;
    }
    print(&text)
}

/// The failure, with what to do where it is on the way.
fn again(place: &Place, notes: &Notes, failure: Failure) -> Failure {
    let note = notes.find(place).ok().flatten();
    if note.is_none_or(|note| note.direction() == Direction::Adopt) {
        return failure;
    }
    let shown = shell_path(place.directory());
    let message = format!("{}; then run mobifs unadopt {shown} again", failure.message);
    Failure::new(failure.code, message)
}

fn not_adopted(place: &Place) -> Failure {
    Failure::new(
        Code::Failed,
        format!(
            "{} is not adopted; `mobifs adopt --list` shows what is",
            place.directory().display()
        ),
    )
}

/// What would be done.
fn plan(place: &Place, notes: &Notes, arguments: &AdoptArguments) -> Result<(), Failure> {
    let note = new_note(place, arguments)?;
    examine::examine(place, notes, note.options())?;
    let users = users_of_directory(place.directory());
    let warnings = examine::warnings();
    let journald_steps_aside = journald::lies_in(place.directory());
    if arguments.json {
        let users: Vec<_> = users.iter().map(ToString::to_string).collect();
        return print(&json_text(
            &json!({
                "schema": 1,
                "directory": place.directory().to_string_lossy(),
                "store": place.store().to_string_lossy(),
                "state": "not-adopted",
                "boot": note.boot(),
                "options": note.options(),
                "in_use_by": users,
                "journald_steps_aside": journald_steps_aside,
                "warnings": warnings,
            }),
            false,
        )?);
    }
    let directory = printable_path(place.directory());
    let mut text = format!(
        "{directory}: its files would be renamed, not copied, to {}, and MobiFS mounted in their place (-o {})\n",
        printable_path(place.store()),
        note.options()
    );
    text += &format!("  {}\n", Starter::new(place, &note, notes).described());
    if !users.is_empty() {
        text += &format!("  in use now, which must end first: {}\n", describe(&users));
    }
    if journald_steps_aside {
        text += "  journald would write to memory meanwhile\n";
    }
    for warning in warnings {
        text += &format!("  warning: {warning}\n");
    }
    print(&text)
}

/// The note of a new adoption.
fn new_note(place: &Place, arguments: &AdoptArguments) -> Result<Note, Failure> {
    let boot = Boot::choose(arguments.boot)?;
    if arguments.at_boot && !boot.is_unit() {
        return Err(Failure::new(
            Code::Usage,
            "--at-boot needs systemd, whose unit does it before programs begin; end what uses the directory, \
             and adopt it now",
        ));
    }
    let mut options = arguments.options.clone();
    if let Some(config) = &arguments.config {
        ConfigText::load(Some(config))?;
        options.push(config_option(config)?);
    }
    let options = options.join(",");
    let parsed = Options::parse(std::slice::from_ref(&options), false)?;
    if parsed.remount || parsed.nonempty || parsed.mount.read_only {
        return Err(Failure::new(
            Code::Usage,
            "the options ro, remount and nonempty are not for an adopted directory, which programs write to",
        ));
    }
    let options = if options.is_empty() { "rw" } else { &options };
    Ok(Note::new(place, boot, options))
}

/// The mount option that names a configuration.
fn config_option(config: &Path) -> Result<String, Failure> {
    let path = std::path::absolute(config).map_err(durable::cannot("examine", config))?;
    let path = path
        .to_string_lossy()
        .replace('\\', "\\\\")
        .replace(',', "\\,");
    Ok(format!("config={path}"))
}

/// Why a directory cannot be adopted by this user, if it cannot, with this configuration.
pub(super) fn obstacle(directory: &Path, config: Option<&Path>) -> Option<String> {
    let look = || {
        let options = config.map(config_option).transpose()?.unwrap_or_default();
        let notes = Notes::of_user(None)?;
        let place = Place::find(directory)?;
        standing::check(&place, notes.find(&place)?.as_ref())?;
        examine::examine(&place, &notes, &options)
    };
    look().err().map(|failure: Failure| failure.message)
}

/// The store of a directory that is adopted and not mounted.
pub(super) fn store_of_unmounted(directory: &Path) -> Option<PathBuf> {
    let place = Place::find_adopted(directory).ok()?;
    let is_unmounted = place.mounted().is_ok_and(|mount| mount.is_none());
    let is_known = || {
        let notes = Notes::of_user(None);
        notes.is_ok_and(|notes| notes.find(&place).is_ok_and(|note| note.is_some()))
    };
    let is_adopted = place.is_exchanged()
        && !place.is_prepared()
        && is_unmounted
        && (place.is_mount_point().is_ok_and(|is| is) || is_known());
    is_adopted.then(|| place.store().to_owned())
}

fn begin(
    place: &Place,
    notes: &Notes,
    lock: DirectoryLock,
    arguments: &AdoptArguments,
) -> Result<(), Failure> {
    let note = new_note(place, arguments)?;
    examine::examine(place, notes, note.options())?;
    for warning in examine::warnings() {
        tell(&format!("warning: {warning}"));
    }
    if arguments.at_boot {
        notes.save(&note)?;
        return at_boot(place, &note, notes);
    }
    journald::step_aside(place.directory());
    if let Err(failure) = users::refuse(place, place.directory(), note.boot().is_unit()) {
        journald::come_back(place.directory());
        return Err(failure);
    }
    notes.save(&note)?;
    fault_point("adopt-note");
    if let Err(failure) = carry_out(place, &note, notes, lock) {
        return Err(undone(place, note, notes, failure));
    }
    done(place, &note, notes)
}

/// An adoption that did not come to its end in this process, or that has.
fn go_on(
    place: &Place,
    note: Note,
    notes: &Notes,
    lock: DirectoryLock,
    arguments: &AdoptArguments,
) -> Result<(), Failure> {
    standing::check(place, Some(&note))?;
    let (shown, word) = (place.directory().display(), shell_path(place.directory()));
    let wished = new_note(place, arguments)?;
    let has_options = !arguments.options.is_empty() || arguments.config.is_some();
    let has_boot = arguments.boot != BootChoice::Auto;
    if has_options && wished.options() != note.options() || has_boot && wished.boot() != note.boot()
    {
        return Err(Failure::new(
            Code::Usage,
            format!(
                "{shown} is adopted already, otherwise, with -o {}: to change that, mobifs unadopt {word} first",
                note.options()
            ),
        ));
    }
    let note = note.towards(Direction::Adopt).with_times(place);
    if place.is_served()? && is_daemon_gone(place) {
        back::unmount(place)?;
    }
    if place.is_served()? {
        notes.save(&note)?;
        Starter::new(place, &note, notes).install()?;
        return print(&format!(
            "{} is adopted already\n",
            printable_path(place.directory())
        ));
    }
    notes.save(&note)?;
    if arguments.at_boot && note.boot().is_unit() {
        return at_boot(place, &note, notes);
    }
    journald::step_aside(place.directory());
    carry_out(place, &note, notes, lock).map_err(|failure| {
        let message = format!(
            "{}; run mobifs adopt {word} again, or mobifs unadopt {word}",
            failure.message
        );
        Failure::new(failure.code, message)
    })?;
    done(place, &note, notes)
}

/// Whether the mount has no daemon any more, so that a new mount is needed.
fn is_daemon_gone(place: &Place) -> bool {
    let connected = ControlClient::connect(place.directory());
    matches!(connected, Err(ControlError::DaemonGone { .. }))
}

fn at_boot(place: &Place, note: &Note, notes: &Notes) -> Result<(), Failure> {
    let starter = Starter::new(place, note, notes);
    starter.install()?;
    print(&format!(
        "{} will be adopted at the next start, by {}\n  not to be: mobifs unadopt {}\n",
        printable_path(place.directory()),
        starter.unit_name(),
        shell_path(place.directory())
    ))
}

/// Moves the files and mounts. The lock is free while a service is started, which takes it itself.
fn carry_out(
    place: &Place,
    note: &Note,
    notes: &Notes,
    lock: DirectoryLock,
) -> Result<(), Failure> {
    let starter = Starter::new(place, note, notes);
    forward::move_files(place, note, Some(&starter))?;
    drop(lock);
    forward::mount(place, &starter, || back::unmount(place))?;
    journald::come_back(place.directory());
    Ok(())
}

/// Makes everything as it was after an adoption has failed; the failure says so.
fn undone(place: &Place, note: Note, notes: &Notes, failure: Failure) -> Failure {
    let shown = place.directory().display();
    match undo_adoption(place, note, notes) {
        Ok(()) => Failure::new(
            failure.code,
            format!("{}; {shown} is as it was", failure.message),
        ),
        Err(second) => Failure::new(
            failure.code,
            format!(
                "{}; and {shown} is not as it was: {}; run mobifs unadopt {}",
                failure.message,
                second.message,
                shell_path(place.directory())
            ),
        ),
    }
}

fn done(place: &Place, note: &Note, notes: &Notes) -> Result<(), Failure> {
    let directory = printable_path(place.directory());
    let word = shell_path(place.directory());
    print(&format!(
        "{directory} is adopted: its files are in {}, and MobiFS serves them\n  {}\n  look: mobifs status {word}\n  \
         back: mobifs unadopt {word}\n",
        printable_path(place.store()),
        Starter::new(place, note, notes).described()
    ))
}

fn undo_adoption(place: &Place, note: Note, notes: &Notes) -> Result<(), Failure> {
    back::unmount(place)?;
    let _lock = notes.lock()?;
    let note = note.towards(Direction::Unadopt);
    let note = if place.is_exchanged() {
        note.without_times()
    } else {
        note
    };
    notes.save(&note)?;
    fault_point("unadopt-note");
    let note = back::move_files(place, note, notes)?;
    Starter::new(place, &note, notes).remove()?;
    fault_point("unadopt-boot");
    notes.remove(place)?;
    journald::come_back(place.directory());
    Ok(())
}

/// For the condition of a unit: brings the files to where the direction says, and says whether they are to
/// be mounted.
fn finish(directory: &Path, notes: &Notes) -> ExitCode {
    match finished(directory, notes) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(NOT_TO_BE_STARTED),
        Err(failure) => {
            tell(&failure.message);
            ExitCode::from(CONDITION_FAILED)
        }
    }
}

fn finished(directory: &Path, notes: &Notes) -> Result<bool, Failure> {
    let place = Place::find_adopted(directory)?;
    // A daemon that takes over: nothing of the mount may be touched, and its predecessor may have the lock.
    if place.mounted()?.is_some() {
        return Ok(true);
    }
    let _lock = notes.lock()?;
    let note = notes.find(&place)?.ok_or_else(|| not_adopted(&place))?;
    standing::check(&place, Some(&note))?;
    match note.direction() {
        Direction::Adopt => {
            forward::move_files(&place, &note, None)?;
            mount_point::bring_meanwhile(&place)?;
            Ok(true)
        }
        Direction::Unadopt => {
            back::move_files(&place, note, notes)?;
            Ok(false)
        }
    }
}
