//! Names: each step is one call that changes a directory, which ext4 does in one transaction.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::found::{Found, names_in};
use super::with_room;
use crate::history::returned;

/// Steps that one directory takes part in, and then some that remove an older one.
const STEPS_OF_A_CYCLE: u64 = 10;
/// How many cycles later a directory is removed.
const CYCLES_KEPT: u64 = 3;

/// What a step does.
#[derive(Debug, PartialEq, Eq)]
enum Call {
    MakeDirectory(String),
    Create(String),
    Link(String, String),
    Rename(String, String),
    Symlink(String),
    Unlink(String),
    RemoveDirectory(String),
}

fn call(step: u64) -> Call {
    let (cycle, number) = ((step - 1) / STEPS_OF_A_CYCLE, (step - 1) % STEPS_OF_A_CYCLE);
    let new = |name: &str| format!("new-{cycle}{name}");
    match (number, cycle.checked_sub(CYCLES_KEPT)) {
        (0, _) => Call::MakeDirectory(new("")),
        (1, _) => Call::Create(new("/a")),
        (2, _) => Call::Link(new("/a"), new("/b")),
        (3, _) => Call::Rename(new("/b"), new("/c")),
        (4, _) => Call::Symlink(new("/l")),
        (5, _) => Call::Unlink(new("/a")),
        (6, _) => Call::Rename(new(""), format!("old-{cycle}")),
        // There is none to remove yet.
        (_, None) => Call::Create(format!("first-{step}")),
        (7, Some(old)) => Call::Unlink(format!("old-{old}/l")),
        (8, Some(old)) => Call::Unlink(format!("old-{old}/c")),
        (_, Some(old)) => Call::RemoveDirectory(format!("old-{old}")),
    }
}

fn carry_out(app: &Path, call: &Call) -> io::Result<()> {
    match call {
        Call::MakeDirectory(name) => fs::create_dir(app.join(name)),
        Call::Create(name) => File::create(app.join(name)).map(drop),
        Call::Link(old, new) => fs::hard_link(app.join(old), app.join(new)),
        Call::Rename(old, new) => fs::rename(app.join(old), app.join(new)),
        Call::Symlink(name) => symlink("target", app.join(name)),
        Call::Unlink(name) => fs::remove_file(app.join(name)),
        Call::RemoveDirectory(name) => fs::remove_dir(app.join(name)),
    }
}

pub(super) fn work(app: &Path) -> Result<Infallible, String> {
    let mut step = 0;
    loop {
        step += 1;
        let call = call(step);
        with_room(|| carry_out(app, &call)).map_err(|error| format!("{call:?}: {error}"))?;
        returned(step)?;
    }
}

/// All names after a step.
fn state(last: u64) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    // What older steps made is gone, but for the names that the first ones made instead.
    let older = (CYCLES_KEPT + 2) * STEPS_OF_A_CYCLE;
    let first_needed = last.saturating_sub(older) / STEPS_OF_A_CYCLE * STEPS_OF_A_CYCLE + 1;
    let is_first = |call: &Call| matches!(call, Call::Create(name) if name.starts_with("first"));
    let early = (1..first_needed.min(CYCLES_KEPT * STEPS_OF_A_CYCLE + 1)).map(call);
    let calls = early
        .filter(is_first)
        .chain((first_needed..=last).map(call));
    for call in calls {
        match call {
            Call::MakeDirectory(name) | Call::Create(name) | Call::Link(_, name) => {
                names.insert(name);
            }
            Call::Symlink(name) => {
                names.insert(name);
            }
            Call::Unlink(name) | Call::RemoveDirectory(name) => {
                names.remove(&name);
            }
            Call::Rename(old, new) => {
                let inside = format!("{old}/");
                let is_moved = |name: &String| *name == old || name.starts_with(&inside);
                let (moved, rest): (BTreeSet<_>, _) = names.into_iter().partition(is_moved);
                let moved = moved.iter().map(|name| new.clone() + &name[old.len()..]);
                names = moved.chain(rest).collect();
            }
        }
    }
    names
}

pub(super) fn check(app: &Path) -> Result<Found, String> {
    let mut names = BTreeSet::new();
    for name in names_in(app)? {
        if !name.starts_with("first") {
            let inside = names_in(&app.join(&name))?;
            names.extend(inside.iter().map(|inner| format!("{name}/{inner}")));
        }
        names.insert(name);
    }
    let cycle_of = |name: &String| name.split(['-', '/']).nth(1)?.parse::<u64>().ok();
    let directories = names.iter().filter(|name| !name.starts_with("first"));
    let newest = directories.filter_map(cycle_of).max();
    let Some(newest) = newest.filter(|_| !names.is_empty()) else {
        return Ok(Found::after(0));
    };
    let first = newest * STEPS_OF_A_CYCLE + 1;
    let mut steps = first..first + STEPS_OF_A_CYCLE;
    let found = steps.find(|&step| state(step) == names);
    found.map(Found::after).ok_or_else(|| {
        format!(
            "these names were never there together: {names:?}; after step {first} they were {:?}",
            state(first)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_recognised_and_a_mixture_is_not() {
        let app = tempfile::tempdir().unwrap();
        assert_eq!(check(app.path()), Ok(Found::after(0)));
        for step in 1..=75 {
            carry_out(app.path(), &call(step)).unwrap();
            assert_eq!(check(app.path()), Ok(Found::after(step)));
        }
        // The first name of a later cycle without the end of this one.
        carry_out(app.path(), &call(81)).unwrap();
        assert!(check(app.path()).is_err());
    }
}
