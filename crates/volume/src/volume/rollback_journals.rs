//! A transaction of SQLite with a rollback journal is one commit.
//!
//! With `synchronous=FULL`, SQLite
//!
//! 1. writes the journal with a header that is not valid yet, and makes the journal durable; its
//!    directory too, the first time;
//! 2. makes the header valid, and the journal durable again;
//! 3. writes the database, and makes it durable;
//! 4. ends the journal: it removes the file, or truncates it or writes zeros over the header and
//!    makes that durable. Now the transaction is committed, and its caller learns that.
//!
//! Up to step 4 an `fsync` is there for the order of the writes alone: whenever the power fails,
//! the next program that opens the database rolls the transaction back. In MobiFS the files of an
//! app are at one point in time, so the order holds without any commit, and those calls return at
//! once. Step 4 makes everything durable: the `fsync` of an ended journal is as any other, and the
//! removal of a journal for which calls were answered so commits before it returns.
//!
//! # Whose calls
//!
//! Programs that only copy databases and journals, and rely on each `fsync`, must get what they ask
//! for, and their calls can come in the same order. A call is answered so only if all of this holds;
//! otherwise it is an ordinary one.
//!
//! * The journal is a file of one name, `DATABASE-journal`, beside a database with a valid header
//!   of the same page size, or an empty one that had no page before; and both are in one durable
//!   app, like their directory.
//! * The header is prepared as in step 1, or valid: whatever the database holds, it will be rolled
//!   back. For the database it has to be valid.
//! * The process that calls has the database locked as SQLite does in a transaction that writes
//!   ([`WRITER_LOCK_AT`]). No program that copies it, or a journal beside it, has.
//! * The directory's call follows the journal's first one in the same thread, once, not later than
//!   [`PAUSE_MAX_MS`]; nothing of it is uncommitted but names of journals.
//! * The journal names no super-journal: a transaction over several databases is committed when
//!   that is removed, and these may be in several apps.
//!
//! # Failures
//!
//! The end of a journal fails as an `fsync` does if it cannot be made durable: it is done, in memory, and
//! committed together with what comes later, or never. SQLite reports the transaction as failed, and the
//! next program finds it rolled back after a power cut, committed otherwise.
//!
//! # Successors
//!
//! Nothing of this outlives the daemon. Its successor makes every end of a journal durable (its removal, its
//! renaming or replacement, its truncation), because calls may have been answered that it does not know. These it
//! makes good while the journal is still there: if that fails, nothing is changed. If only the end cannot be made
//! durable, it is what it is in any filesystem, done and perhaps undone by a power cut, which rolls the
//! transaction back.

mod header;
mod under_way;

use std::sync::atomic::Ordering;

use mobifs_base::{FileKind, Name, ObjectId};
use mobifs_engine::FsError;

use super::Volume;
use header::{DATABASE_HEADER_BYTES, HEADER_BYTES, Header, MAGIC};
use under_way::Rollback;
pub(super) use under_way::RollbackJournals;

/// What SQLite adds to the name of a database.
const SUFFIX: &[u8] = b"-journal";
/// Journals under way at a time: far more than a machine has databases being written.
const JOURNALS_MAX: usize = 1024;
/// The byte of a database that SQLite locks for writing while a transaction changes it
/// (`RESERVED_BYTE` of its unix VFS).
pub const WRITER_LOCK_AT: u64 = 0x4000_0001;

/// A journal that is about to lose its name or its content.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    journal: ObjectId,
    /// Its transaction has begun here, so all calls that were answered for it are known.
    is_known: bool,
}

/// Whether a file of this name may be a rollback journal. What takes such a name away can fail after it is
/// done: it could not be made durable.
pub fn is_rollback_journal(name: &[u8]) -> bool {
    name.ends_with(SUFFIX)
}

/// Who calls for durability.
#[derive(Clone, Copy)]
pub struct SyncCaller<'c> {
    /// The number of the thread.
    pub thread: u32,
    /// Whether its process has a file locked for writing at [`WRITER_LOCK_AT`].
    pub is_writer: &'c dyn Fn(ObjectId) -> bool,
}

impl Volume {
    /// As [`Volume::fsync`], if it is known who calls. A call that a transaction of SQLite makes for
    /// order alone returns at once.
    ///
    /// # Errors
    /// As [`Volume::fsync`].
    pub fn fsync_by(&self, id: ObjectId, caller: SyncCaller<'_>) -> Result<(), FsError> {
        self.shared.check_power()?;
        if self.has_durable_apps() && self.only_orders(id, caller) {
            let journals = &self.shared.rollback_journals;
            journals.ordered.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        self.fsync(id)
    }

    /// The journal that has this name, if its removal ends a transaction of SQLite, calls of which
    /// were answered without a commit: the removal has to commit.
    pub(super) fn ends_rollback(&self, directory: ObjectId, name: &[u8]) -> Option<Ending> {
        if !is_rollback_journal(name) {
            return None;
        }
        let journals = &self.shared.rollback_journals;
        let is_empty = journals.under_way.lock().is_empty();
        if is_empty && !journals.is_inherited {
            return None;
        }
        let journal = {
            let locked = self.shared.lock_engine();
            let known = locked.engine.known_entry(directory, name)?;
            let node = locked.engine.attributes(known).ok()?;
            (node.attributes.kind == FileKind::Regular).then_some(known)?
        };
        let is_known = journals.under_way.lock().contains_key(&journal);
        let ending = Ending { journal, is_known };
        (is_known || journals.is_inherited).then_some(ending)
    }

    /// Before a journal ends of which perhaps only a predecessor knew: what that one has answered is made
    /// durable while the journal is still there. Where there is no room, its end may free some.
    ///
    /// # Errors
    /// `ReadOnly` if that failed, as for each change of an app whose commit has failed.
    pub(super) fn commit_inherited(
        &self,
        ending: Option<Ending>,
        directory: ObjectId,
    ) -> Result<(), FsError> {
        if ending.is_none_or(|ending| ending.is_known) {
            return Ok(());
        }
        self.shared.check_power()?;
        match self.fsync(directory) {
            Ok(()) | Err(FsError::NoSpace) => Ok(()),
            Err(FsError::Io) => Err(FsError::ReadOnly),
            Err(error) => Err(error),
        }
    }

    /// The journal, and its directory, if cutting it off to this size ends a transaction of SQLite
    /// that may not call for durability any more (`synchronous=NORMAL` in mode TRUNCATE).
    pub(super) fn cuts_rollback_off(
        &self,
        id: ObjectId,
        size: Option<u64>,
    ) -> Option<(Ending, ObjectId)> {
        if size? >= HEADER_BYTES as u64 {
            return None;
        }
        let ending = |is_known| Ending {
            journal: id,
            is_known,
        };
        let journals = &self.shared.rollback_journals;
        let known = journals.under_way.lock().get(&id).map(|one| one.directory);
        match known {
            Some(directory) => Some((ending(true), directory)),
            None if journals.is_inherited => {
                let directory = self.directory_of_journal(id)?;
                Some((ending(false), directory))
            }
            None => None,
        }
    }

    /// The directory of a file with the name of a rollback journal, in a durable app.
    fn directory_of_journal(&self, id: ObjectId) -> Option<ObjectId> {
        let place = self.shared.lock_engine().engine.durable_place(id);
        let (directory, name) = place?;
        is_rollback_journal(name.as_bytes()).then_some(directory)
    }

    /// A journal has lost the name that it had in this directory, or its content.
    ///
    /// # Errors
    /// As [`Volume::fsync`].
    pub(super) fn ended_rollback(
        &self,
        ending: Option<Ending>,
        directory: ObjectId,
    ) -> Result<(), FsError> {
        let Some(Ending { journal, is_known }) = ending else {
            return Ok(());
        };
        self.shared
            .rollback_journals
            .under_way
            .lock()
            .remove(&journal);
        match self.fsync(directory) {
            Err(error) if !is_known => {
                tracing::error!(
                    ?error,
                    "the end of a rollback journal that a predecessor knew is not durable yet"
                );
                Ok(())
            }
            committed => committed,
        }
    }

    /// The rest of a request in which a predecessor has taken this name away: if it was a
    /// journal's, what was done before becomes durable.
    ///
    /// # Errors
    /// As [`Volume::fsync`].
    pub fn end_rollback_again(&self, directory: ObjectId, name: &[u8]) -> Result<(), FsError> {
        if is_rollback_journal(name) {
            self.fsync(directory)?;
        }
        Ok(())
    }

    /// The rest of a request in which a predecessor has cut this file off: if it was a journal's,
    /// what was done before becomes durable.
    ///
    /// # Errors
    /// As [`Volume::fsync`].
    pub fn end_truncated_rollback_again(&self, id: ObjectId, size: u64) -> Result<(), FsError> {
        if size < HEADER_BYTES as u64
            && let Some(directory) = self.directory_of_journal(id)
        {
            self.fsync(directory)?;
        }
        Ok(())
    }

    fn only_orders(&self, id: ObjectId, caller: SyncCaller<'_>) -> bool {
        let place = self.shared.lock_engine().engine.durable_place(id);
        match place {
            Some((directory, name)) if name.as_bytes().ends_with(SUFFIX) => {
                self.journal_only_orders(id, caller, directory, name)
            }
            Some(_) => {
                let journals = &self.shared.rollback_journals;
                journals.of_database(id).is_some_and(|(journal, rollback)| {
                    self.state_of(journal, &rollback) == Header::Valid && (caller.is_writer)(id)
                })
            }
            None => self.directory_only_orders(id, caller),
        }
    }

    fn directory_only_orders(&self, id: ObjectId, caller: SyncCaller<'_>) -> bool {
        let now = self.shared.moment().now;
        let journals = &self.shared.rollback_journals;
        let found = journals.of_directory(id, caller.thread, now);
        let Some((journal, database)) = found else {
            return false;
        };
        if let Some(one) = journals.under_way.lock().get_mut(&journal) {
            one.awaits_directory = false;
        }
        let changes_only_journals = {
            let locked = self.shared.lock_engine();
            let engine = &locked.engine;
            engine.changes_only_entries(id, |name| name.ends_with(SUFFIX))
        };
        changes_only_journals && (caller.is_writer)(database)
    }

    fn journal_only_orders(
        &self,
        journal: ObjectId,
        caller: SyncCaller<'_>,
        directory: ObjectId,
        name: Name,
    ) -> bool {
        let under_way = &self.shared.rollback_journals.under_way;
        let of_database = name.as_bytes().strip_suffix(SUFFIX).unwrap_or_default();
        let known = self
            .shared
            .lock_engine()
            .engine
            .known_entry(directory, of_database);
        let Some(database) = known else { return false };
        let mut candidate = Rollback {
            thread: caller.thread,
            directory,
            name,
            database,
            awaits_directory: false,
            called_at: self.shared.moment().now,
        };
        let state = self.state_of(journal, &candidate);
        if state == Header::Other {
            // What comes now commits.
            under_way.lock().remove(&journal);
            return false;
        }
        if !(caller.is_writer)(database) {
            return false;
        }
        let mut under_way = under_way.lock();
        let is_known = under_way.contains_key(&journal);
        candidate.awaits_directory = !is_known;
        let has_room = is_known || under_way.len() < JOURNALS_MAX;
        if has_room {
            under_way.insert(journal, candidate);
        }
        has_room
    }

    /// What a journal says as long as it lies beside its database, alone.
    fn state_of(&self, journal: ObjectId, of: &Rollback) -> Header {
        let database = {
            let mut locked = self.shared.lock_engine();
            let place = locked.engine.durable_place(journal);
            let is_there = place.is_some_and(|place| place == (of.directory, of.name.clone()));
            // In the same directory, so in the same app, if it has no other name.
            let place = locked.engine.durable_place(of.database);
            let is_beside = place.is_some_and(|(directory, _)| directory == of.directory);
            (is_there && is_beside).then_some(of.database)
        };
        let Some(database) = database else {
            return Header::Other;
        };
        let size = |id| self.attributes(id).map(|node| node.attributes.size);
        let (Ok(journal_size), Ok(database_size)) = (size(journal), size(database)) else {
            return Header::Other;
        };
        let mut header = [0; HEADER_BYTES];
        let mut of_database = [0; DATABASE_HEADER_BYTES];
        let mut end = [0; MAGIC.len()];
        let end_at = journal_size.saturating_sub(end.len() as u64);
        let is_read = self.reads(journal, 0, &mut header)
            && (database_size == 0 || self.reads(database, 0, &mut of_database))
            && self.reads(journal, end_at, &mut end);
        let names_super_journal = end_at >= HEADER_BYTES as u64 && end == MAGIC;
        if !is_read || names_super_journal {
            return Header::Other;
        }
        Header::of(&header, &of_database)
    }

    fn reads(&self, id: ObjectId, offset: u64, out: &mut [u8]) -> bool {
        self.read_unnoticed(id, offset, out)
            .is_ok_and(|bytes| bytes == out.len())
    }
}

#[cfg(all(test, not(feature = "interleavings")))]
mod tests;
