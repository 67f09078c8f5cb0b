//! Finishing a database at its last close: recovering the journals and logs without which the file
//! is not the database.
//! SQLite brings its log into the database when the last connection closes, and connections that
//! close at the same time each assume that another one is the last. A rollback journal stays after
//! a kill, or when a rollback fails, and the journal of a transaction over several databases
//! whenever a kill comes between its creation and its first use. An ordinary SQLite finds all of
//! this beside the file and goes on from there; here it lies in the engine, so it has to be
//! finished before the file is given back.

use std::cell::Cell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use crate::database::Database;
use crate::database::companion_name::Companion;
use crate::database::sqlite::{Sqlite, Unrecovered};
use crate::failure::Failure;

/// A file that SQLite has not finished with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UnfinishedFile {
    /// A rollback journal that has not ended.
    Journal,
    /// A write-ahead log.
    Log,
    /// The journal of a transaction over several databases, by its name in the store.
    SuperJournal(Vec<u8>),
}

impl UnfinishedFile {
    /// What a companion with something in it is, by its name in the store.
    pub(crate) fn of(name: &[u8]) -> Self {
        if name.ends_with(b"-journal") {
            Self::Journal
        } else if name.ends_with(b"-wal") {
            Self::Log
        } else {
            Self::SuperJournal(name.to_owned())
        }
    }
}

thread_local! {
    static FINISHING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is finishing a database: connections that it opens and closes for that
/// finish nothing themselves.
pub(crate) fn is_finishing() -> bool {
    FINISHING.get()
}

/// Finishes a database whose last user does not use it any more. Returns why the
/// file will not be an ordinary database; none if it will, or if SQLite was asked to leave the
/// log where it is.
pub(crate) fn finish(database: &Database) -> Option<Failure> {
    if is_finishing() {
        return None;
    }
    let sqlite = database.sqlite()?;
    FINISHING.set(true);
    let finished = finish_with(database, sqlite);
    FINISHING.set(false);
    let failure = finished.err()?;
    let path = database.path().to_owned();
    let reason = failure.to_string();
    sqlite.warn(&format!("{}: {reason}", path.display()));
    Some(Failure::Unfinished { path, reason })
}

fn finish_with(database: &Database, sqlite: &'static dyn Sqlite) -> Result<(), Failure> {
    let unfinished_files = database.unfinished_files()?;
    let is_wanted = |file: &UnfinishedFile| *file == UnfinishedFile::Log && database.keeps_log();
    if unfinished_files.iter().all(is_wanted) {
        return Ok(());
    }
    let unfinished = |path: &Path| {
        let path = path.to_owned();
        move |error: Unrecovered| Failure::NotFinished {
            path,
            reason: error.to_string(),
        }
    };
    let path = database.path();
    if unfinished_files
        .iter()
        .any(|file| *file != UnfinishedFile::Log)
        || !database.keeps_log()
    {
        sqlite.finish(path).map_err(unfinished(path))?;
    }
    for file in database.unfinished_files()? {
        if let UnfinishedFile::SuperJournal(name) = file {
            finish_super_journal(database, sqlite, &name)?;
        }
    }
    if database.unfinished_files()?.iter().all(is_wanted) {
        Ok(())
    } else {
        Err(unfinished(path)(Unrecovered::Left))
    }
}

/// The journal of a transaction over several databases is of use as long as one of their
/// journals names it: those are rolled back, and without it they would be taken for committed.
fn finish_super_journal(
    database: &Database,
    sqlite: &'static dyn Sqlite,
    name: &[u8],
) -> Result<(), Failure> {
    let journals = database.content(name)?;
    for journal in journals.split(|&byte| byte == 0) {
        let journal = Path::new(OsStr::from_bytes(journal));
        let Some(member) = Companion::of(journal) else {
            continue;
        };
        let names_it = |journal: &Path| -> Result<bool, Failure> {
            let named = sqlite.super_journal_of(journal)?;
            let named = named.and_then(|named| Companion::of(Path::new(OsStr::from_bytes(&named))));
            Ok(named.is_some_and(|named| {
                database.is_at(&named.database) && database.name_of(&named) == name
            }))
        };
        if names_it(journal)? {
            let unfinished = |error: Unrecovered| Failure::NotFinished {
                path: member.database.clone(),
                reason: error.to_string(),
            };
            sqlite.finish(&member.database).map_err(unfinished)?;
            if names_it(journal)? {
                return Err(unfinished(Unrecovered::Busy));
            }
        }
    }
    database.delete(name)?;
    Ok(())
}

/// The journal of a transaction over several databases that the end of a rollback journal
/// names: its name, the name's length, a checksum, and what a journal begins with.
pub(crate) fn super_journal_in(end: &[u8]) -> Option<&[u8]> {
    const MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
    let rest = end.strip_suffix(&MAGIC)?;
    let (rest, checksum) = rest.split_last_chunk::<4>()?;
    let (rest, length) = rest.split_last_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let name = &rest[rest.len().checked_sub(length)?..];
    // SQLite adds the bytes as C's `char`, signed or not, as the platform has it.
    let signed = name.iter().fold(0_u32, |sum, &byte| {
        sum.wrapping_add_signed(i32::from(byte.cast_signed()))
    });
    let unsigned = name
        .iter()
        .fold(0_u32, |sum, &byte| sum.wrapping_add(u32::from(byte)));
    let expected = u32::from_be_bytes(*checksum);
    (!name.is_empty() && (expected == signed || expected == unsigned)).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_at_the_end_of_a_journal_is_read() {
        let name = b"/d/app.db-mj0A1B2C9FF";
        let sum: u32 = name.iter().map(|&byte| u32::from(byte)).sum();
        let length = name.len() as u32;
        let magic = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
        let end = |length: u32, sum: u32| {
            let numbers = [length.to_be_bytes(), sum.to_be_bytes()].concat();
            [&[7; 30][..], name, &numbers, &magic].concat()
        };
        assert_eq!(super_journal_in(&end(length, sum)), Some(&name[..]));
        assert_eq!(super_journal_in(&end(length, sum + 1)), None);
        assert_eq!(super_journal_in(&end(1000, sum)), None);
        assert_eq!(super_journal_in(&end(length, sum)[..60]), None);
        assert_eq!(super_journal_in(b""), None);
    }
}
