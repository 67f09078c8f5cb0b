//! `mobifs recover --salvage`

use std::fmt::Write as _;
use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::path::Path;

use mobifs_base::Timestamp;
use mobifs_daemon::{Code, Failure, predecessor};
use mobifs_history::WallTime;
use mobifs_host::{printable, printable_path};
use mobifs_store::salvage::{LostChange, Promise, Salvaged, Survey};
use mobifs_store::{StoreError, StoreScope};
use mobifs_volume::{Config, OpenOptions, StoreLock, salvage, survey};
use serde_json::{Value, json};

use super::figures::size;
use super::progress::Progress;
use super::{check, json_text, print, recover};
use crate::arguments::RecoverArguments;

/// Most files that are listed for people; a tool gets all of them.
const LISTED_MAX: usize = 40;

pub(crate) fn run(arguments: &RecoverArguments) -> Result<(), Failure> {
    let path = check::existing(&arguments.store, arguments.dry_run)?;
    let because = match examine(&path, arguments)? {
        State::Intact if arguments.json => {
            print(&json_text(
                &document(&path, &Survey::default(), None),
                false,
            )?)?;
            if arguments.dry_run {
                return Ok(());
            }
            return recover::open_and_close(&path, arguments.wait.limit()).map(drop);
        }
        State::Intact => return recover::normally(&path, arguments),
        State::Damaged(because) => because,
    };
    let progress = Progress::of_reading("looking", check::journal_of(&path));
    let wait = arguments.wait.limit();
    let lock = predecessor::for_command(&path, wait, || {
        StoreLock::acquire(&path, &StoreScope::Tree, arguments.dry_run)
    })?;
    let failed = |error| Failure::of_store(&path, &error);
    let survey = survey(&path, because.as_ref()).map_err(failed)?;
    drop(progress);
    if !arguments.json {
        print(&text(&path, &survey))?;
    }
    if arguments.dry_run {
        return if arguments.json {
            print(&json_text(&document(&path, &survey, None), false)?)
        } else {
            print("nothing was changed\n")
        };
    }
    if !arguments.yes {
        confirm(&path)?;
    }
    let config = Config::defaults()?;
    let options = OpenOptions::new(&config).journal(&path).map_err(failed)?;
    let salvaged = salvage(&path, &options, because.as_ref()).map_err(failed)?;
    lock.release();
    if arguments.json {
        print(&json_text(
            &document(&path, &survey, Some(&salvaged)),
            false,
        )?)?;
    } else {
        print(&done(&path, &salvaged))?;
    }
    // What is certain is brought to its place, as after any crash.
    recover::open_and_close(&path, wait).map(drop)
}

enum State {
    /// The store needs no salvage.
    Intact,
    /// The store cannot be mounted, for this reason if an examination does not show it.
    Damaged(Option<StoreError>),
}

/// Whether an ordinary recovery is all that the store needs. What only a recovery finds out is tried:
/// a recovery that is refused changes nothing.
fn examine(path: &Path, arguments: &RecoverArguments) -> Result<State, Failure> {
    let failed = |error| Failure::of_store(path, &error);
    let lock = predecessor::for_command(path, arguments.wait.limit(), || {
        StoreLock::acquire(path, &StoreScope::Tree, true)
    })?;
    let survey = survey(path, None).map_err(failed)?;
    lock.release();
    if !survey.damage.is_empty() {
        return Ok(State::Damaged(None));
    }
    if arguments.dry_run {
        return Ok(State::Intact);
    }
    match recover::try_open(path, arguments.wait.limit())? {
        Ok(()) => Ok(State::Intact),
        Err(error @ StoreError::Corrupt { .. }) => Ok(State::Damaged(Some(error))),
        Err(other) => Err(failed(other)),
    }
}

/// Asks on the terminal.
fn confirm(path: &Path) -> Result<(), Failure> {
    let path = printable_path(path);
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        return Err(Failure::new(
            Code::Usage,
            format!(
                "nothing was changed: a salvage gives up what is lost, and there is no terminal to ask \
                 on; say --yes if you want it, or --dry-run to see what it would do with {path}"
            ),
        ));
    }
    let asked = write!(
        io::stderr().lock(),
        "Bring {path} to this state? A copy of the store is a good idea before. [y/N] "
    );
    let mut answer = String::new();
    let read = asked.and_then(|()| io::stdin().lock().read_line(&mut answer));
    if read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(Failure::new(Code::Failed, "nothing was changed"))
}

fn time(at: Timestamp) -> String {
    let time = WallTime::at(at.seconds, at.nanoseconds);
    time.map_or_else(|| "an impossible time".to_owned(), |time| time.to_string())
}

/// What is certain, what is lost, and what can be promised.
fn text(path: &Path, survey: &Survey) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _written = write_text(&mut out, path, survey);
    out
}

fn write_text(out: &mut String, path: &Path, survey: &Survey) -> std::fmt::Result {
    writeln!(out, "{}:", printable_path(path))?;
    for damage in &survey.damage {
        writeln!(out, "  damaged: {}", printable(damage))?;
    }
    if survey.is_finishing {
        return writeln!(
            out,
            "  its new journal is whole, and only has to be put in its place"
        );
    }
    let point = &survey.recovery_point;
    match point.until {
        Some(until) => writeln!(
            out,
            "  certain: {} transactions ({}), the last change in them at {}",
            point.transactions,
            size(point.bytes),
            time(until)
        )?,
        None => writeln!(
            out,
            "  certain: the files as they lie in the store; the journal adds nothing to them"
        )?,
    }
    write_lost(out, survey)?;
    for file in &survey.missing {
        writeln!(
            out,
            "  missing: {} is nowhere in the store, or something else has its name; its changes are left out",
            printable(file)
        )?;
    }
    for file in &survey.made_again {
        writeln!(
            out,
            "  missing: the directory {} is nowhere in the store; it is made again for what the journal puts into it",
            printable(file)
        )?;
    }
    for file in &survey.without_content {
        writeln!(
            out,
            "  missing: the content of the new file {}",
            printable(file)
        )?;
    }
    writeln!(out, "  after a salvage: {}", promise(survey))?;
    if survey.rescued > 0 {
        writeln!(
            out,
            "  {} files that nothing certain names are kept in .mobifs/lost",
            survey.rescued
        )?;
    }
    Ok(())
}

fn write_lost(out: &mut String, survey: &Survey) -> std::fmt::Result {
    let lost = &survey.lost;
    if lost.transactions == 0 && lost.is_all_known {
        return writeln!(out, "  lost: nothing");
    }
    let until = lost.until.map_or(String::new(), |until| {
        format!(", the last change in them at {}", time(until))
    });
    if lost.transactions > 0 {
        writeln!(
            out,
            "  lost: {} transactions ({}){until}",
            lost.transactions,
            size(lost.bytes)
        )?;
    }
    for file in lost.files.iter().take(LISTED_MAX) {
        let change = match file.change {
            LostChange::Created => "would have been new",
            LostChange::Changed => "was changed",
            LostChange::Deleted => "would have been deleted",
        };
        let mixed = if file.may_be_mixed {
            "; some of it is in the file: it may hold a mix of two states"
        } else {
            ""
        };
        writeln!(
            out,
            "    {} {change} ({}){mixed}",
            printable(&file.path),
            size(file.bytes)
        )?;
    }
    if lost.files.len() > LISTED_MAX {
        let more = lost.files.len() - LISTED_MAX;
        writeln!(out, "    and {more} more (--json lists all)")?;
    }
    if !lost.is_all_known {
        writeln!(
            out,
            "    and what cannot be read any more, so files may be missing in this list"
        )?;
    }
    Ok(())
}

fn promise(survey: &Survey) -> String {
    let state = survey.recovery_point.until.map_or_else(
        || "as they lie in the store".to_owned(),
        |until| format!("in the state of {}", time(until)),
    );
    match survey.promise {
        Promise::PointInTime if !survey.missing.is_empty() || !survey.made_again.is_empty() => {
            format!("all files are {state}, but for what is missing in the store")
        }
        Promise::PointInTime => format!("all files are {state}"),
        Promise::NothingShows => format!(
            "all files are {state}, as far as can be seen: nothing of what is lost was found in \
             them, and not all of it can be read"
        ),
        Promise::Mixed => format!(
            "the files are {state}, but for those that may hold a mix of two states: check them, or \
             take them from a backup"
        ),
    }
}

fn done(path: &Path, salvaged: &Salvaged) -> String {
    let mut out = format!("{}: salvaged\n", printable_path(path));
    if let Some(kept) = &salvaged.kept {
        out += &format!(
            "  the damaged journal is kept as .mobifs/{kept}; delete it when you do not need it\n"
        );
    }
    out
}

fn document(path: &Path, survey: &Survey, done: Option<&Salvaged>) -> Value {
    let at = |time: Option<Timestamp>| time.map(self::time);
    let promise = match survey.promise {
        Promise::PointInTime => "point-in-time",
        Promise::NothingShows => "nothing-shows",
        Promise::Mixed => "mixed",
    };
    let files = survey.lost.files.iter().map(|file| {
        let change = match file.change {
            LostChange::Created => "created",
            LostChange::Changed => "changed",
            LostChange::Deleted => "deleted",
        };
        json!({
            "path": file.path,
            "change": change,
            "bytes": file.bytes,
            "may_be_mixed": file.may_be_mixed,
        })
    });
    json!({
        "schema": 1,
        "store": path.to_string_lossy(),
        "damage": survey.damage,
        "is_finishing": survey.is_finishing,
        "sound": {
            "transactions": survey.recovery_point.transactions,
            "bytes": survey.recovery_point.bytes,
            "until": at(survey.recovery_point.until),
        },
        "lost": {
            "transactions": survey.lost.transactions,
            "bytes": survey.lost.bytes,
            "until": at(survey.lost.until),
            "is_all_known": survey.lost.is_all_known,
            "files": files.collect::<Vec<_>>(),
        },
        "promise": promise,
        "missing": survey.missing,
        "made_again": survey.made_again,
        "without_content": survey.without_content,
        "rescued": survey.rescued,
        "is_salvaged": done.is_some(),
        "kept": done.and_then(|done| done.kept.clone()),
    })
}
