//! One open file of SQLite's: what its methods do.

use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

use mobifs_types::ObjectId;

use crate::abi::{self, Code};
use crate::database::Database;
use crate::durability::{Duty, Synced};
use crate::failure::Failure;
use crate::locks::{ConnectionId, Level};
use crate::registry::Lease;
use crate::shared_memory::{Change, Mapping};

/// What a file is to its database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The database itself.
    Main,
    /// A rollback journal.
    Journal,
    /// The write-ahead log.
    Log,
    /// The journal of a transaction over several databases, by its path.
    SuperJournal(PathBuf),
}

/// One open file.
#[derive(Debug)]
pub(crate) struct OpenedFile {
    lease: Lease,
    object: ObjectId,
    role: Role,
    connection: ConnectionId,
    level: Level,
    mapping: Option<Mapping>,
    /// SQLite is to leave the log where it is when the last connection closes.
    pub(crate) keeps_log: bool,
}

impl OpenedFile {
    /// The database itself.
    pub(crate) fn main(lease: Lease) -> Result<Self, Failure> {
        let object = lease.database()?.main();
        Self::new(lease, object, Role::Main)
    }

    /// A companion that [`Database::open_companion`] has opened.
    pub(crate) fn companion(lease: Lease, object: ObjectId, role: Role) -> Result<Self, Failure> {
        Self::new(lease, object, role)
    }

    fn new(lease: Lease, object: ObjectId, role: Role) -> Result<Self, Failure> {
        let connection = lease.database()?.number_connection();
        Ok(Self {
            lease,
            object,
            role,
            connection,
            level: Level::None,
            mapping: None,
            keeps_log: false,
        })
    }

    pub(crate) fn database(&self) -> Result<&Arc<Database>, Failure> {
        self.lease.database()
    }

    pub(crate) fn is_main(&self) -> bool {
        self.role == Role::Main
    }

    pub(crate) const fn level(&self) -> Level {
        self.level
    }

    /// Fills `out` from `at` on; what is behind the end becomes zero. False if some is.
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) -> Result<bool, Failure> {
        let length = self.database()?.read(self.object, at, out)?;
        out[length..].fill(0);
        Ok(length == out.len())
    }

    pub(crate) fn write(&self, at: u64, data: &[u8]) -> Result<(), Failure> {
        let database = self.database()?;
        match self.role {
            Role::Journal => database.write_journal(self.object, at, data),
            _ => database.write(self.object, at, data),
        }
    }

    pub(crate) fn truncate(&self, bytes: u64) -> Result<(), Failure> {
        let database = self.database()?;
        database.truncate(self.object, bytes)?;
        if self.role == Role::Journal && bytes == 0 {
            database.journal_ended();
        }
        Ok(())
    }

    pub(crate) fn size(&self) -> Result<u64, Failure> {
        self.database()?.size(self.object)
    }

    /// SQLite syncs the file.
    pub(crate) fn sync(&self) -> Result<(), Failure> {
        let synced = match self.role {
            Role::Main if self.level >= Level::Reserved => Synced::DatabaseInTransaction,
            Role::Main => Synced::DatabaseInCheckpoint,
            Role::Journal => Synced::Journal,
            Role::Log => Synced::Log,
            Role::SuperJournal(_) => Synced::SuperJournal,
        };
        let database = self.database()?;
        let duty = database.promises.sync(synced, database.is_durable());
        carry_out(database, duty)
    }

    /// SQLite has committed a transaction.
    pub(crate) fn transaction_committed(&self) -> Result<(), Failure> {
        let database = self.database()?;
        carry_out(database, database.promises.committed())
    }

    /// Takes more of the database for this connection.
    pub(crate) fn lock(&mut self, wanted: Level) -> Result<Result<(), Code>, Failure> {
        let database = self.lease.database()?;
        let mut locks = database.locks.lock();
        Ok(locks.raise(self.connection, &mut self.level, wanted))
    }

    /// Gives some of it back.
    pub(crate) fn unlock(&mut self, wanted: Level) -> Result<(), Failure> {
        let database = self.lease.database()?;
        if self.level >= Level::Reserved {
            database.promises.ended();
        }
        let mut locks = database.locks.lock();
        locks.lower(self.connection, &mut self.level, wanted);
        Ok(())
    }

    pub(crate) fn has_writer(&self) -> Result<bool, Failure> {
        Ok(self.database()?.locks.lock().has_writer())
    }

    /// Where a region of the shared memory is; none if it is not there.
    pub(crate) fn map(
        &mut self,
        index: usize,
        bytes: usize,
        extend: bool,
    ) -> Result<Option<NonNull<u8>>, Failure> {
        let mut memory = self.lease.database()?.shared_memory.lock();
        self.mapping.get_or_insert_with(|| memory.join());
        Ok(memory.map(index, bytes, extend))
    }

    /// Changes locks in the shared memory.
    pub(crate) fn change_shared(
        &mut self,
        range: (usize, usize),
        change: Change,
    ) -> Result<Result<(), Code>, Failure> {
        let mut memory = self.lease.database()?.shared_memory.lock();
        let Some(mapping) = &mut self.mapping else {
            return Err(Failure::Misuse("locks in memory that is not mapped"));
        };
        Ok(memory.change(mapping, range, change))
    }

    /// Ends the use of the shared memory.
    pub(crate) fn unmap(&mut self) -> Result<(), Failure> {
        let mut memory = self.lease.database()?.shared_memory.lock();
        if let Some(mapping) = self.mapping.take() {
            memory.leave(mapping);
        }
        Ok(())
    }

    /// Closes the file.
    pub(crate) fn close(mut self) -> Result<(), Failure> {
        if self.lease.database().is_ok() {
            self.unmap()?;
            self.unlock(Level::None)?;
            if !self.is_main() {
                self.lease.database()?.close_companion(self.object);
            }
        }
        self.lease.end()
    }
}

fn carry_out(database: &Database, duty: Duty) -> Result<(), Failure> {
    match duty {
        Duty::Nothing => Ok(()),
        Duty::Commit => database.commit(),
    }
}

/// How every file of a database behaves when the power goes: nothing that was not written is
/// changed, what was written later is never there without what was written before, and no
/// name of an open file is taken.
pub(crate) const CHARACTERISTICS: i32 = abi::IOCAP_POWERSAFE_OVERWRITE
    | abi::IOCAP_SAFE_APPEND
    | abi::IOCAP_SEQUENTIAL
    | abi::IOCAP_UNDELETABLE_WHEN_OPEN;
