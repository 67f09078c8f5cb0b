//! `mobifs check`

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mobifs_daemon::{Code, Failure, PathError, check_store, predecessor, raise_limits};
use mobifs_host::{mounts, printable, printable_path, shell_path};
use mobifs_store::{Inspection, StoreError, StoreScope};
use mobifs_volume::{CalibrationReport, StoreLock, inspect};

use super::adopt;
use super::measured;
use super::progress::Progress;
use super::tell;
use crate::arguments::CheckArguments;

pub(crate) fn run(arguments: &CheckArguments) -> Result<(), Failure> {
    let path = existing(&arguments.store, true)?;
    let progress = Progress::of_reading("checking", journal_of(&path));
    let found = look(&path, arguments.wait.limit())?;
    drop(progress);
    print(&path, &found)?;
    if found.problems.is_empty() {
        return unwritable(&path, &found.immutable);
    }
    let word = shell_path(&path);
    let path = path.display();
    Err(Failure::new(
        Code::Damaged,
        format!(
            "the store {path} is damaged; it was not changed. Keep a copy before anything else; \
             `mobifs recover --salvage --dry-run {word}` shows what is certain and what is lost"
        ),
    ))
}

/// Refuses a store without damage that no mount can write to.
fn unwritable(path: &Path, immutable: &[&str]) -> Result<(), Failure> {
    if immutable.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        Code::Failed,
        format!(
            "the store {} is not damaged, but no mount can write to it, because parts of it are immutable or \
             append-only: `chattr -i -a {}`",
            path.display(),
            Failure::as_words(path, immutable)
        ),
    ))
}

/// The absolute path of a store that must be there: a mount makes one of an empty directory, but
/// there is nothing to check or to recover in one. Of a directory that is adopted and not mounted, it is that of its
/// store.
pub(super) fn existing(store: &Path, read_only: bool) -> Result<PathBuf, Failure> {
    let adopted = adopt::store_of_unmounted(store);
    if let Some(adopted) = &adopted {
        tell(&format!(
            "{} is adopted and not mounted: its store is {}",
            printable_path(store),
            printable_path(adopted)
        ));
    }
    check_store(adopted.as_deref().unwrap_or(store), read_only).map_err(|error| match error {
        PathError::StoreMissing(path) => {
            let message = format!("the store {} does not exist", path.display());
            Failure::new(Code::Failed, message)
        }
        PathError::StoreInsideMount { path, mount } if path == mount => mounted(&mount),
        error => error.into(),
    })
}

/// A mount was named instead of its store.
fn mounted(mount: &Path) -> Failure {
    let table = mounts().unwrap_or_default();
    let mut there = table.iter().rev();
    let source = there.find(|entry| entry.mountpoint == mount && entry.has_subtype("mobifs"));
    let store = source.filter(|entry| Path::new(&entry.source).is_absolute());
    let shown = mount.display();
    let message = match store {
        Some(entry) => format!(
            "{shown} is a MobiFS mount and not a store: name its store, {}, when it is unmounted",
            Path::new(&entry.source).display()
        ),
        None => format!(
            "{shown} is a MobiFS mount and not a store: `mobifs status {}` names its store",
            shell_path(mount)
        ),
    };
    Failure::new(Code::InUse, message)
}

/// The file that is read while a store is examined.
pub(super) fn journal_of(store: &Path) -> PathBuf {
    store.join(".mobifs/journal")
}

/// Examines a store, with its lock shared so that no process changes it meanwhile.
pub(super) fn look(path: &Path, wait: Duration) -> Result<Inspection, Failure> {
    // Each directory that the journal knows is open. Where a limit stays too low, what needs more says so.
    let _as_far_as_possible = raise_limits();
    let failed = |error| Failure::of_store(path, &error);
    let _lock = predecessor::for_command(path, wait, || {
        StoreLock::acquire(path, &StoreScope::Tree, true)
    })?;
    inspect(path, StoreScope::Tree).map_err(|error| match error {
        StoreError::Corrupt { .. } => damaged(path, &error),
        error => failed(error),
    })
}

/// What is wrong, as far as a check can determine it, and what can be done.
fn damaged(path: &Path, error: &StoreError) -> Failure {
    let word = shell_path(path);
    let path = path.display();
    let message = format!(
        "the store {path} is damaged: {error}; it was not changed. Keep a copy before anything \
         else; `mobifs recover --salvage --dry-run {word}` shows what is certain and what is lost"
    );
    Failure::new(Code::Damaged, message)
}

pub(super) fn print(path: &Path, found: &Inspection) -> Result<(), Failure> {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _written = write(&mut text, path, found);
    super::print(&text)
}

fn write(out: &mut String, path: &Path, found: &Inspection) -> std::fmt::Result {
    if !found.is_store {
        writeln!(
            out,
            "{}: an ordinary directory, not a store yet",
            printable_path(path)
        )?;
        return Ok(());
    }
    let report = &found.report;
    match &found.uuid {
        Some(bytes) => {
            writeln!(out, "{}: store {}", printable_path(path), uuid(bytes))?;
            writeln!(out, "  journal: {} bytes for transactions", found.log_bytes)?;
            write_durable(out, found)?;
        }
        None => writeln!(
            out,
            "{}: a store without a journal and an identity, which the next mount makes",
            printable_path(path)
        )?,
    }
    if found.uuid.is_none() {
        // Whether it was properly closed is in the journal.
    } else if report.clean {
        writeln!(out, "  properly closed, nothing to recover")?;
    } else {
        writeln!(
            out,
            "  not properly closed: {} committed transactions ({} bytes) to be applied",
            report.transactions, report.bytes
        )?;
        writeln!(
            out,
            "  they create {} objects, change {}, set {} directory entries and {} pages",
            found.created, found.changed, found.entries, found.pages
        )?;
    }
    if report.copied {
        writeln!(
            out,
            "  the store was copied since; what they change will be found by its names"
        )?;
    }
    if found.direct_bytes > 0 {
        writeln!(
            out,
            "  new data written in place: {} bytes",
            found.direct_bytes
        )?;
    }
    if report.discarded_tail_bytes > 0 {
        writeln!(
            out,
            "  an incomplete transaction at the end ({} bytes) will be discarded",
            report.discarded_tail_bytes
        )?;
    }
    if found.leftovers > 0 {
        writeln!(
            out,
            "  {} files of an interrupted apply in .mobifs, which the next mount uses or removes",
            found.leftovers
        )?;
    }
    write_kept(out, found)?;
    write_problems(out, found)
}

fn write_problems(out: &mut String, found: &Inspection) -> std::fmt::Result {
    for name in &found.immutable {
        writeln!(
            out,
            "  PROBLEM: {name} may not be changed (chattr +i or +a)"
        )?;
    }
    if found.problems.is_empty() {
        return writeln!(out, "  no damage found");
    }
    let mut problems = found.problems.iter();
    problems.try_for_each(|problem| writeln!(out, "  PROBLEM: {}", printable(problem)))
}

/// Up to which size commits are one durable write, and what was measured.
fn write_durable(out: &mut String, found: &Inspection) -> std::fmt::Result {
    let measured = found.calibration.as_ref().map(CalibrationReport::from);
    let in_force = measured::in_force(found.direct_bytes_max, measured.as_ref());
    writeln!(out, "  {in_force}")?;
    if let Some(measured) = measured {
        writeln!(out, "  measured on {}:", measured::device(&measured))?;
        write!(out, "{}", measured::table(&measured, "  "))?;
    }
    Ok(())
}

/// What MobiFS keeps in the store and does not delete.
fn write_kept(out: &mut String, found: &Inspection) -> std::fmt::Result {
    for name in &found.report.lost {
        writeln!(out, "  found and kept: .mobifs/lost/{}", printable(name))?;
    }
    for name in &found.damaged_journals {
        writeln!(
            out,
            "  kept by a salvage: .mobifs/{name}, the damaged journal; delete it when you do not need it"
        )?;
    }
    Ok(())
}

fn uuid(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    ]
    .join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_written_as_usual() {
        let bytes: [u8; 16] = std::array::from_fn(|n| n as u8);
        assert_eq!(uuid(&bytes), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
