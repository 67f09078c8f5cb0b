//! `mobifs adopt --list`

use mobifs_daemon::Failure;
use mobifs_host::{printable_path, shell_path};
use serde_json::json;
use unicode_width::UnicodeWidthStr as _;

use super::all_users;
use super::boot::Boot;
use super::note::{Direction, Note, Notes};
use super::place::Place;
use super::standing::{self, adopter_other_than};
use super::starter::Starter;
use crate::commands::figures::padded;
use crate::commands::{json_text, print};

/// How far an adoption has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Programs use the mount.
    Mounted,
    /// Programs find an empty directory.
    NotMounted,
    /// Programs find their files, in an ordinary directory.
    Ahead,
    /// The directory goes back.
    Returning,
    /// Another user has adopted it.
    OfAnother,
    /// The files are in the store, and there is no directory.
    NoDirectory,
    /// There is a directory to mount on, and no store.
    NoStore,
    /// What is at the store's place is none.
    WrongStore,
    /// Something else is mounted over the directory.
    Covered,
    /// There is neither.
    Gone,
    /// What is known of it cannot be understood.
    NoteDamaged,
}

impl State {
    /// For the user who has the note.
    fn of(place: &Place, note: &Note, user: u32) -> Result<Self, Failure> {
        let is_missing = standing::is_missing(place.directory());
        Ok(match note.direction() {
            _ if adopter_other_than(user, place, Some(note)).is_some() => Self::OfAnother,
            _ if standing::is_gone(place) => Self::Gone,
            _ if standing::is_store_missing(place, note)? => Self::NoStore,
            _ if is_missing && place.is_exchanged() => Self::NoDirectory,
            _ if standing::wrong_store(place, note)?.is_some() => Self::WrongStore,
            _ if place.mounted()?.is_some() && !place.is_served()? => Self::Covered,
            Direction::Unadopt => Self::Returning,
            Direction::Adopt if place.is_served()? => Self::Mounted,
            Direction::Adopt if place.is_exchanged() => Self::NotMounted,
            Direction::Adopt => Self::Ahead,
        })
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Mounted => "mounted",
            Self::NotMounted => "not-mounted",
            Self::Ahead => "at-next-start",
            Self::Returning => "returning",
            Self::OfAnother => "of-another-user",
            Self::NoDirectory => "directory-missing",
            Self::NoStore => "store-missing",
            Self::WrongStore => "store-wrong",
            Self::Covered => "covered",
            Self::Gone => "gone",
            Self::NoteDamaged => "note-damaged",
        }
    }

    /// For people, with what to do.
    fn described(self, note: &Note) -> String {
        let directory = shell_path(note.directory());
        match self {
            Self::Mounted => "mounted".to_owned(),
            Self::NotMounted => format!("NOT MOUNTED: mobifs adopt {directory}"),
            Self::Ahead if note.boot().is_unit() => {
                format!("at the next start, or now: mobifs adopt {directory}")
            }
            Self::Ahead => {
                format!("cut short: mobifs adopt {directory}, or mobifs unadopt {directory}")
            }
            Self::Returning => format!("on the way back: mobifs unadopt {directory}"),
            Self::OfAnother => "adopted by another user, who alone can go back".to_owned(),
            Self::NoDirectory => {
                format!("DIRECTORY MISSING: its files come back by mobifs unadopt {directory}")
            }
            Self::NoStore => {
                format!("STORE MISSING: put it back, or forget it: mobifs unadopt {directory}")
            }
            Self::WrongStore => format!("STORE WRONG: see what mobifs unadopt {directory} says"),
            Self::Covered => {
                format!("ANOTHER MOUNT OVER IT: unmount that first (umount {directory})")
            }
            Self::Gone => format!("GONE: forget it: mobifs unadopt {directory}"),
            Self::NoteDamaged => {
                format!("NOTE DAMAGED: move the note away, then mobifs unadopt {directory}")
            }
        }
    }
}

/// One line of the list.
struct Entry {
    place: Place,
    note: Note,
    state: State,
    user: u32,
}

/// What this user has adopted; notes of adoptions that are over are dropped.
pub(super) fn show(notes: &Notes, as_json: bool) -> Result<(), Failure> {
    notes.tidy();
    let user = rustix::process::geteuid().as_raw();
    let mut all = Vec::new();
    for note in notes.all()? {
        let place = Place::of(note.directory().to_owned())?;
        if standing::drop_if_over(&place, &note, notes)? {
            continue;
        }
        let state = State::of(&place, &note, user)?;
        all.push(Entry {
            place,
            note,
            state,
            user,
        });
    }
    let unknown = add_damaged(&mut all, notes, user)?;
    if as_json {
        print_documents(all.iter().map(document).collect())?;
    } else if all.is_empty() {
        print("no directory of this user is adopted\n")?;
    } else {
        print(&table(&all, false))?;
    }
    unknown.map_or(Ok(()), Err)
}

/// Adds the directories of this user's damaged notes; returns what is wrong with one whose directory is not known.
fn add_damaged(all: &mut Vec<Entry>, notes: &Notes, user: u32) -> Result<Option<Failure>, Failure> {
    let mut unknown = None;
    for damaged in notes.damaged()? {
        let place = damaged
            .directory
            .and_then(|directory| Place::of(directory).ok());
        let Some(place) = place else {
            unknown = Some(damaged.failure);
            continue;
        };
        all.push(Entry {
            note: Note::new(&place, Boot::Nothing, ""),
            place,
            state: State::NoteDamaged,
            user,
        });
    }
    Ok(unknown)
}

/// What all users have adopted. Notes of other users stay as they are; those of adoptions that are over, or
/// another user's, are left out.
pub(super) fn show_all_users(notes: &Notes, as_json: bool) -> Result<(), Failure> {
    notes.tidy();
    let mut all = Vec::new();
    for (note, user) in all_users::notes(notes)? {
        let place = Place::of(note.directory().to_owned())?;
        let is_own = user == rustix::process::geteuid().as_raw();
        let is_over = if is_own {
            standing::drop_if_over(&place, &note, notes)?
        } else {
            standing::is_over(&place, &note)?
        };
        let state = State::of(&place, &note, user)?;
        if is_over || state == State::OfAnother {
            continue;
        }
        all.push(Entry {
            place,
            note,
            state,
            user,
        });
    }
    let unknown = add_damaged(&mut all, notes, rustix::process::geteuid().as_raw())?;
    if as_json {
        let with_user = |entry: &Entry| {
            let mut one = document(entry);
            one["user"] = entry.user.into();
            one
        };
        print_documents(all.iter().map(with_user).collect())?;
    } else if all.is_empty() {
        print("no directory is adopted\n")?;
    } else {
        print(&table(&all, true))?;
    }
    unknown.map_or(Ok(()), Err)
}

fn print_documents(adopted: Vec<serde_json::Value>) -> Result<(), Failure> {
    print(&json_text(
        &json!({ "schema": 1, "adopted": adopted }),
        false,
    )?)
}

fn table(all: &[Entry], with_users: bool) -> String {
    let title = ["USER", "DIRECTORY", "STORE", "STATE"].map(str::to_owned);
    let rows = all.iter().map(|entry| {
        [
            entry.user.to_string(),
            printable_path(entry.place.directory()),
            printable_path(entry.place.store()),
            entry.state.described(&entry.note),
        ]
    });
    let rows: Vec<[String; 4]> = std::iter::once(title).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].width()).max();
    let widths = [0, 1, 2].map(|column| width(column).unwrap_or(0));
    let first = usize::from(!with_users);
    let mut text = String::new();
    for row in &rows {
        for column in first..3 {
            text += &padded(&row[column], widths[column]);
            text += "  ";
        }
        text += &row[3];
        text.push('\n');
    }
    text
}

/// An adoption, for programs.
fn document(entry: &Entry) -> serde_json::Value {
    json!({
        "directory": entry.place.directory().to_string_lossy(),
        "store": entry.place.store().to_string_lossy(),
        "state": entry.state.name(),
        "boot": entry.note.boot(),
        "options": entry.note.options(),
    })
}

/// What there is to be done of an adoption that has begun.
pub(super) fn show_one(
    place: &Place,
    note: &Note,
    notes: &Notes,
    as_json: bool,
) -> Result<(), Failure> {
    let user = rustix::process::geteuid().as_raw();
    let state = State::of(place, note, user)?;
    if as_json {
        let mut one = document(&Entry {
            place: place.clone(),
            note: note.clone(),
            state,
            user,
        });
        one["schema"] = 1.into();
        return print(&json_text(&one, false)?);
    }
    print(&format!(
        "{} is adopted: {}\n  {}\n",
        printable_path(place.directory()),
        state.described(note),
        Starter::new(place, note, notes).described()
    ))
}
