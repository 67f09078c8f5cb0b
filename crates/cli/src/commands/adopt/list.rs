//! `mobifs adopt --list`

use mobifs_daemon::Failure;
use mobifs_host::{printable_path, shell_path};
use serde_json::json;
use unicode_width::UnicodeWidthStr as _;

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
    /// There is neither.
    Gone,
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
            Self::Gone => "gone",
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
            Self::Gone => format!("GONE: forget it: mobifs unadopt {directory}"),
        }
    }
}

pub(super) fn show(notes: &Notes, as_json: bool) -> Result<(), Failure> {
    let user = rustix::process::geteuid().as_raw();
    let mut all = Vec::new();
    for note in notes.all()? {
        let place = Place::of(note.directory().to_owned())?;
        if standing::drop_if_over(&place, &note, notes)? {
            continue;
        }
        let state = State::of(&place, &note, user)?;
        all.push((place, note, state));
    }
    if as_json {
        let adopted = all
            .iter()
            .map(|(place, note, state)| document(place, note, *state));
        let adopted: Vec<_> = adopted.collect();
        return print(&json_text(
            &json!({ "schema": 1, "adopted": adopted }),
            false,
        )?);
    }
    if all.is_empty() {
        return print("no directory of this user is adopted\n");
    }
    let shown: Vec<_> = all
        .iter()
        .map(|(place, note, state)| {
            (
                printable_path(place.directory()),
                printable_path(place.store()),
                state.described(note),
            )
        })
        .collect();
    let width = |title: &str, of: fn(&(String, String, String)) -> &str| {
        shown
            .iter()
            .map(|line| of(line).width())
            .max()
            .unwrap_or(0)
            .max(title.len())
    };
    let (first, second) = (
        width("DIRECTORY", |line| &line.0),
        width("STORE", |line| &line.1),
    );
    let mut text = format!("{:first$}  {:second$}  STATE\n", "DIRECTORY", "STORE");
    for (directory, store, state) in &shown {
        text += &format!(
            "{}  {}  {state}\n",
            padded(directory, first),
            padded(store, second)
        );
    }
    print(&text)
}

/// An adoption, for programs.
fn document(place: &Place, note: &Note, state: State) -> serde_json::Value {
    json!({
        "directory": place.directory().to_string_lossy(),
        "store": place.store().to_string_lossy(),
        "state": state.name(),
        "boot": note.boot(),
        "options": note.options(),
    })
}

/// What there is to be done of an adoption that has begun.
pub(super) fn show_one(
    place: &Place,
    note: &Note,
    notes: &Notes,
    as_json: bool,
) -> Result<(), Failure> {
    let state = State::of(place, note, rustix::process::geteuid().as_raw())?;
    if as_json {
        let mut one = document(place, note, state);
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
