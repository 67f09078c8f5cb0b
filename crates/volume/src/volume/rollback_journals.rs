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
//! for. A call is answered so only if all of this holds; otherwise it is an ordinary one.
//!
//! * The journal is a file of one name, `DATABASE-journal`, beside a database with a valid header
//!   of the same page size, or an empty one that had no page before; and both are in one durable app, like their directory.
//! * A thread begins with step 1: its `fsync` finds the header prepared and not valid. A journal
//!   in that state is no more to SQLite than a missing one; a copy of a valid one never is in it.
//! * Steps 2 and 3 are calls of the same thread, not later than [`PAUSE_MAX_MS`] after the one
//!   before, and the journal is valid now: whatever the database holds, it will be rolled back.
//! * The directory's call follows step 1, once, and nothing but journals has changed in it.
//! * The journal names no super-journal: a transaction over several databases is committed when
//!   that is removed, and these may be in several apps.
//!
//! Nothing of this outlives the daemon, and nothing has to: its successor makes every removal of a
//! journal durable.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use mobifs_base::{MonotonicNs, Name, ObjectId};
use mobifs_engine::FsError;

use super::Volume;
use super::sync::Mutex;

/// What SQLite adds to the name of a database.
const SUFFIX: &[u8] = b"-journal";
/// Begins each header that is valid, and ends the name of a super-journal.
const MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
/// Begins each database.
const DATABASE_MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// Of a journal's header, what is looked at.
const HEADER_BYTES: usize = 28;
/// Of a database's header, what is looked at.
const DATABASE_HEADER_BYTES: usize = 18;
/// Journals under way at a time: far more than a machine has databases being written.
const JOURNALS_MAX: usize = 1024;
/// A thread of this number may be another one after so long.
const PAUSE_MAX_MS: u64 = 10_000;

/// What a journal's header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Header {
    /// The transaction has begun, and is not rolled back for this journal.
    Prepared,
    /// It is rolled back for this journal.
    Valid,
    /// There is no transaction, or this is none of SQLite's journals.
    Other,
}

impl Header {
    /// What the header of a journal says that belongs to a database with this header, all zeros if
    /// it is empty.
    fn of(journal: &[u8; HEADER_BYTES], database: &[u8; DATABASE_HEADER_BYTES]) -> Self {
        let word = |at: usize| {
            let bytes = [
                journal[at],
                journal[at + 1],
                journal[at + 2],
                journal[at + 3],
            ];
            u32::from_be_bytes(bytes)
        };
        let (pages_before, sector_bytes, page_bytes) = (word(16), word(20), word(24));
        let of_database = match u16::from_be_bytes([database[16], database[17]]) {
            1 => 65_536,
            bytes => u32::from(bytes),
        };
        let is_new = pages_before == 0 && *database == [0; DATABASE_HEADER_BYTES];
        let is_alike = database.starts_with(DATABASE_MAGIC) && page_bytes == of_database;
        let is_sound = (is_new || is_alike)
            && (512..=65_536).contains(&page_bytes)
            && page_bytes.is_power_of_two()
            && (32..=65_536).contains(&sector_bytes)
            && sector_bytes.is_power_of_two();
        if !is_sound {
            Self::Other
        } else if journal.starts_with(&MAGIC) {
            Self::Valid
        } else if journal[..12] == [0; 12] {
            Self::Prepared
        } else {
            Self::Other
        }
    }
}

/// A journal whose thread has taken step 1.
#[derive(Clone, Debug)]
struct Rollback {
    thread: u32,
    directory: ObjectId,
    name: Name,
    database: ObjectId,
    /// The directory's call has not come yet.
    awaits_directory: bool,
    last_call: MonotonicNs,
}

impl Rollback {
    fn is_of(&self, thread: u32, now: MonotonicNs) -> bool {
        self.thread == thread && now.ms_since(self.last_call) <= PAUSE_MAX_MS
    }
}

/// The journals under way.
#[derive(Debug, Default)]
pub(super) struct RollbackJournals {
    under_way: Mutex<BTreeMap<ObjectId, Rollback>>,
    /// Calls that were answered without a commit.
    ordered: AtomicU64,
    /// There may be journals of which a predecessor knew.
    is_inherited: bool,
}

impl RollbackJournals {
    /// For a volume that goes on from the state of a killed process.
    pub(super) fn inherited(is_inherited: bool) -> Self {
        Self {
            is_inherited,
            ..Self::default()
        }
    }

    /// How many calls were answered without a commit.
    pub(super) fn ordered(&self) -> u64 {
        self.ordered.load(Ordering::Relaxed)
    }

    fn of_directory(&self, id: ObjectId, thread: u32, now: MonotonicNs) -> Option<ObjectId> {
        let under_way = self.under_way.lock();
        let mut of_thread = under_way.iter().filter(|(_, one)| one.is_of(thread, now));
        let found = of_thread.find(|(_, one)| one.directory == id && one.awaits_directory);
        found.map(|(&journal, _)| journal)
    }

    fn of_database(
        &self,
        id: ObjectId,
        thread: u32,
        now: MonotonicNs,
    ) -> Option<(ObjectId, Rollback)> {
        let under_way = self.under_way.lock();
        let mut of_thread = under_way.iter().filter(|(_, one)| one.is_of(thread, now));
        let found = of_thread.find(|(_, one)| one.database == id);
        found.map(|(&journal, one)| (journal, one.clone()))
    }
}

impl Volume {
    /// As [`Volume::fsync`], for a thread with this number, 0 if that is not known. A call that a
    /// transaction of SQLite makes for order alone returns at once.
    ///
    /// # Errors
    /// As [`Volume::fsync`].
    pub fn fsync_by(&self, id: ObjectId, thread: u32) -> Result<(), FsError> {
        self.shared.check_power()?;
        if thread != 0 && self.has_durable_apps() && self.only_orders(id, thread) {
            let journals = &self.shared.rollback_journals;
            journals.ordered.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        self.fsync(id)
    }

    /// The journal that has this name, if its removal ends a transaction of SQLite, calls of which
    /// were answered without a commit: the removal has to commit.
    pub(super) fn ends_rollback(&self, directory: ObjectId, name: &[u8]) -> Option<ObjectId> {
        if !name.ends_with(SUFFIX) {
            return None;
        }
        let journals = &self.shared.rollback_journals;
        let is_empty = journals.under_way.lock().is_empty();
        if is_empty && !journals.is_inherited {
            return None;
        }
        let known = self
            .shared
            .lock_engine()
            .engine
            .known_entry(directory, name);
        known.filter(|id| journals.is_inherited || journals.under_way.lock().contains_key(id))
    }

    /// A journal has lost the name that it had in this directory.
    ///
    /// # Errors
    /// As [`Volume::fsync`].
    pub(super) fn ended_rollback(
        &self,
        journal: Option<ObjectId>,
        directory: ObjectId,
    ) -> Result<(), FsError> {
        let Some(journal) = journal else {
            return Ok(());
        };
        self.shared
            .rollback_journals
            .under_way
            .lock()
            .remove(&journal);
        self.fsync(directory)
    }

    /// The rest of a request in which a predecessor has taken this name away: if it was a
    /// journal's, what was done before becomes durable.
    ///
    /// # Errors
    /// As [`Volume::fsync`].
    pub fn end_rollback_again(&self, directory: ObjectId, name: &[u8]) -> Result<(), FsError> {
        if name.ends_with(SUFFIX) {
            self.fsync(directory)?;
        }
        Ok(())
    }

    fn only_orders(&self, id: ObjectId, thread: u32) -> bool {
        let now = self.shared.moment().now;
        let journals = &self.shared.rollback_journals;
        let place = self.shared.lock_engine().engine.durable_place(id);
        match place {
            Some((directory, name)) if name.as_bytes().ends_with(SUFFIX) => {
                self.journal_only_orders(id, thread, directory, name)
            }
            Some(_) => {
                let Some((journal, rollback)) = journals.of_database(id, thread, now) else {
                    return false;
                };
                let is_valid = self.state_of(journal, &rollback) == Header::Valid;
                if is_valid && let Some(one) = journals.under_way.lock().get_mut(&journal) {
                    one.last_call = now;
                }
                is_valid
            }
            None => {
                let Some(journal) = journals.of_directory(id, thread, now) else {
                    return false;
                };
                if let Some(one) = journals.under_way.lock().get_mut(&journal) {
                    one.awaits_directory = false;
                }
                let locked = self.shared.lock_engine();
                locked
                    .engine
                    .changes_only_entries(id, |name| name.ends_with(SUFFIX))
            }
        }
    }

    fn journal_only_orders(
        &self,
        journal: ObjectId,
        thread: u32,
        directory: ObjectId,
        name: Name,
    ) -> bool {
        let now = self.shared.moment().now;
        let under_way = &self.shared.rollback_journals.under_way;
        let of_database = name.as_bytes().strip_suffix(SUFFIX).unwrap_or_default();
        let known = self
            .shared
            .lock_engine()
            .engine
            .known_entry(directory, of_database);
        let Some(database) = known else { return false };
        let candidate = Rollback {
            thread,
            directory,
            name,
            database,
            awaits_directory: true,
            last_call: now,
        };
        let state = self.state_of(journal, &candidate);
        let mut under_way = under_way.lock();
        let is_known = under_way.get(&journal).is_some_and(|one| {
            one.is_of(thread, now) && one.database == database && one.directory == directory
        });
        match state {
            Header::Prepared if is_known || under_way.len() < JOURNALS_MAX => {
                under_way.insert(journal, candidate);
                true
            }
            Header::Valid if is_known => {
                if let Some(one) = under_way.get_mut(&journal) {
                    one.last_call = now;
                }
                true
            }
            // What comes now commits.
            Header::Prepared | Header::Other => {
                under_way.remove(&journal);
                false
            }
            Header::Valid => false,
        }
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
