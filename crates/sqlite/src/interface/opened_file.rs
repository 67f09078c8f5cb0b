//! One open file of SQLite's: what its methods do.

use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

use mobifs_base::ObjectId;

use crate::database::Database;
use crate::database::durability::{self, SyncAction, Synced};
use crate::database::locks::{ConnectionId, Level};
use crate::database::shared_memory::{Change, Mapping};
use crate::database::write_coalescing::WriteClassifier;
use crate::failure::Failure;
use crate::interface::abi::{self, Code};
use crate::registry::Lease;

/// The role of a file in its database.
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
    /// The file was not opened to be read only.
    may_write: bool,
    connection: ConnectionId,
    level: Level,
    mapping: Option<Mapping>,
    pieces: WriteClassifier,
    /// The connection has requested the exclusive lock since it last had no lock: as before a log is brought
    /// into the database and deleted.
    wanted_all: bool,
    /// SQLite is to leave the log where it is when the last connection closes.
    pub(crate) keeps_log: bool,
}

impl OpenedFile {
    /// The database itself.
    pub(crate) fn main(lease: Lease, may_write: bool) -> Result<Self, Failure> {
        let object = lease.database()?.main();
        let opened = Self::new(lease, object, Role::Main)?;
        Ok(Self {
            may_write,
            ..opened
        })
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
            may_write: true,
            connection,
            level: Level::None,
            mapping: None,
            pieces: WriteClassifier::default(),
            wanted_all: false,
            keeps_log: false,
        })
    }

    pub(crate) fn database(&self) -> Result<&Arc<Database>, Failure> {
        self.lease.database()
    }

    /// The database, for a connection that changes it: what was written to its log and journal
    /// before is there.
    fn flushed_for_change(&self) -> Result<&Arc<Database>, Failure> {
        let database = self.database()?;
        database.flush()?;
        Ok(database)
    }

    /// SQLite orders what it has written before others see it.
    pub(crate) fn barrier(&self) -> Result<(), Failure> {
        flushed(&self.lease)?.end_batch();
        Ok(())
    }

    pub(crate) fn is_main(&self) -> bool {
        self.role == Role::Main
    }

    pub(crate) const fn level(&self) -> Level {
        self.level
    }

    /// Fills `out` from `at` on; what is past the end becomes zero. False if some is.
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) -> Result<bool, Failure> {
        let database = self.database()?;
        if self.role == Role::Journal {
            database.syncs.journal_read();
        }
        let length = database.read(self.object, at, out)?;
        out[length..].fill(0);
        Ok(length == out.len())
    }

    pub(crate) fn write(&mut self, at: u64, data: &[u8]) -> Result<(), Failure> {
        let (pieces, object) = (&mut self.pieces, self.object);
        match self.role {
            Role::Log => self.lease.database()?.write_log(pieces, object, at, data),
            Role::Journal => {
                let database = self.lease.database()?;
                database.syncs.journal_written();
                database.write_journal(pieces, object, at, data)
            }
            _ => self.flushed_for_change()?.write(object, at, data),
        }
    }

    pub(crate) fn truncate(&self, bytes: u64) -> Result<(), Failure> {
        let database = match self.role {
            // Its held-back writes do not matter any more.
            Role::Journal if bytes == 0 => self.database()?,
            _ => self.flushed_for_change()?,
        };
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
            // With `nolock=1` there is no lock, and no log.
            Role::Main if self.level == Level::None || self.level >= Level::Reserved => {
                Synced::DatabaseInTransaction
            }
            Role::Main => Synced::DatabaseInCheckpoint,
            Role::Journal => Synced::Journal,
            Role::Log => Synced::Log,
            Role::SuperJournal(_) => Synced::SuperJournal,
        };
        let database = self.flushed_for_change()?;
        let (is_durable, is_joint) = (database.is_durable(), durability::is_joint());
        if database.syncs.may_still_fail(synced, is_durable, is_joint) {
            database.require_promised_room()?;
        }
        let action = database.syncs.sync(synced, is_durable, is_joint);
        carry_out(database, action)
    }

    /// SQLite has committed a transaction.
    pub(crate) fn transaction_committed(&self) -> Result<(), Failure> {
        let database = self.flushed_for_change()?;
        database.end_batch();
        carry_out(database, database.syncs.committed())
    }

    /// Raises the lock of this connection.
    pub(crate) fn lock(&mut self, wanted: Level) -> Result<Result<(), Code>, Failure> {
        let database = flushed(&self.lease)?;
        self.wanted_all |= wanted == Level::Exclusive;
        let mut locks = database.locks.lock();
        let had = self.level;
        let raised = locks.raise(self.connection, &mut self.level, wanted);
        if raised.is_ok() && wanted > Level::Shared && !self.may_write {
            // As fcntl(2) has it for a descriptor that only reads. SQLite leaves it at that;
            // in exclusive locking mode it would keep all others out from now on.
            locks.lower(self.connection, &mut self.level, had);
            return Err(Failure::OpenedToRead(database.path().to_owned()));
        }
        Ok(raised)
    }

    /// Lowers the lock.
    pub(crate) fn unlock(&mut self, wanted: Level) -> Result<(), Failure> {
        let database = flushed(&self.lease)?;
        if self.level >= Level::Reserved {
            database.end_batch();
            database.syncs.ended();
        }
        self.wanted_all &= wanted != Level::None;
        let mut locks = database.locks.lock();
        locks.lower(self.connection, &mut self.level, wanted);
        Ok(())
    }

    pub(crate) fn has_writer(&self) -> Result<bool, Failure> {
        Ok(flushed(&self.lease)?.locks.lock().has_writer())
    }

    /// Where a region of the shared memory is; none if it is not there.
    pub(crate) fn map(
        &mut self,
        index: usize,
        bytes: usize,
        extend: bool,
    ) -> Result<Option<NonNull<u8>>, Failure> {
        let mut memory = flushed(&self.lease)?.shared_memory.lock();
        self.mapping.get_or_insert_with(|| memory.join());
        Ok(memory.map(index, bytes, extend))
    }

    /// Changes locks in the shared memory.
    pub(crate) fn change_shared(
        &mut self,
        range: (usize, usize),
        change: Change,
    ) -> Result<Result<(), Code>, Failure> {
        let database = flushed(&self.lease)?;
        if change == Change::Release {
            database.end_batch();
        }
        let mut memory = database.shared_memory.lock();
        let Some(mapping) = &mut self.mapping else {
            return Err(Failure::Misuse("locks in memory that is not mapped"));
        };
        Ok(memory.change(mapping, range, change))
    }

    /// Ends the use of the shared memory.
    pub(crate) fn unmap(&mut self) -> Result<(), Failure> {
        let database = flushed(&self.lease)?;
        if let Some(mapping) = self.mapping.take() {
            database.shared_memory.lock().leave(mapping);
            // Else SQLite had tried to delete the log, which it takes the whole database for.
            database.set_keeps_log(!self.wanted_all);
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

/// The database, for any other operation: what its writer could not write stays coalesced.
fn flushed(lease: &Lease) -> Result<&Arc<Database>, Failure> {
    let database = lease.database()?;
    database.flush_if_possible();
    Ok(database)
}

fn carry_out(database: &Database, action: SyncAction) -> Result<(), Failure> {
    match action {
        SyncAction::Nothing => Ok(()),
        SyncAction::Commit => database.commit(),
    }
}

/// How every file of a database behaves when the power goes: nothing that was not written is
/// changed, what was written later is never there without what was written before, and no
/// name of an open file is taken ([`Database::delete`]): SQLite keeps the journal open between
/// transactions then, in the modes that do not delete it, and finds it again when the disk fails.
pub(crate) const CHARACTERISTICS: i32 = abi::IOCAP_POWERSAFE_OVERWRITE
    | abi::IOCAP_SAFE_APPEND
    | abi::IOCAP_SEQUENTIAL
    | abi::IOCAP_UNDELETABLE_WHEN_OPEN;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::database::sqlite::{Sqlite, Unrecovered};
    use crate::database::{OpenRequest, OpenedBy};
    use crate::options::Options;
    use crate::registry::Databases;

    /// There is nothing to recover.
    #[derive(Debug)]
    struct NoSqlite;

    impl Sqlite for NoSqlite {
        fn recover(&self, _path: &Path) -> Result<(), Unrecovered> {
            Ok(())
        }

        fn finish(&self, _path: &Path) -> Result<(), Unrecovered> {
            Ok(())
        }

        fn super_journal_of(&'static self, _journal: &Path) -> Result<Option<Vec<u8>>, Failure> {
            Ok(None)
        }

        fn warn(&self, _message: &str) {}
    }

    const PAGE: [u8; 512] = [3; 512];

    type Operation = fn(&mut Bed);

    /// A database with a log, open twice, in which the header of a frame waits. The frame before
    /// it commits a transaction.
    struct Bed {
        main: OpenedFile,
        log: OpenedFile,
        other_log: OpenedFile,
        _directory: tempfile::TempDir,
    }

    fn lease(path: &Path) -> Lease {
        let request = OpenRequest {
            path,
            options: Options::read(&|_| None).unwrap(),
            may_create: true,
            by: OpenedBy::Connection,
            sqlite: &NoSqlite,
        };
        Databases::lock().open(&request).unwrap()
    }

    impl Bed {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("app.db");
            let log = || {
                let lease = lease(&path);
                let database = lease.database().unwrap();
                let object = database.open_companion(b"app.db-mobifs-wal", true, false);
                OpenedFile::companion(lease, object.unwrap(), Role::Log).unwrap()
            };
            let mut bed = Self {
                main: OpenedFile::main(lease(&path), true).unwrap(),
                log: log(),
                other_log: log(),
                _directory: directory,
            };
            bed.log.write(0, &[1; 32]).unwrap();
            bed.log.write(32, &[2; 24]).unwrap();
            bed.main.map(0, 32 << 10, true).unwrap();
            bed.log.write(56, &PAGE).unwrap();
            assert_eq!(bed.in_log(32), [vec![2; 24], PAGE.to_vec()].concat());
            bed.log.write(568, &[2; 24]).unwrap();
            assert_eq!(bed.in_log(568), [0; 0], "it waits for its page");
            bed
        }

        /// What is in the log, without a side effect.
        fn in_log(&self, at: u64) -> Vec<u8> {
            let mut found = vec![0; 2048];
            let database = self.main.database().unwrap();
            let length = database.read_written(self.log.object, at, &mut found);
            found.truncate(length);
            found
        }

        fn close(self) {
            for file in [self.log, self.other_log, self.main] {
                file.close().unwrap();
            }
        }
    }

    #[test]
    fn every_operation_but_a_read_first_writes_the_coalesced_data() {
        let operations: [(&str, Operation); 16] = [
            ("truncating it", |bed| bed.log.truncate(600).unwrap()),
            ("syncing it", |bed| bed.log.sync().unwrap()),
            ("writing elsewhere", |bed| {
                bed.log.write(1024, &[4]).unwrap()
            }),
            ("another writer", |bed| {
                bed.other_log.write(1024, &[4]).unwrap();
            }),
            ("writing the database", |bed| {
                bed.main.write(4096, &PAGE).unwrap();
            }),
            ("truncating the database", |bed| {
                bed.main.truncate(0).unwrap()
            }),
            ("syncing the database", |bed| bed.main.sync().unwrap()),
            ("the end of a transaction", |bed| {
                bed.main.transaction_committed().unwrap();
            }),
            ("a lock", |bed| {
                bed.main.lock(Level::Shared).unwrap().unwrap();
            }),
            ("a lock given back", |bed| {
                bed.main.unlock(Level::None).unwrap()
            }),
            ("asking for locks", |bed| {
                bed.main.has_writer().unwrap();
            }),
            ("a lock in shared memory", |bed| {
                let change = bed.main.change_shared((0, 1), Change::Share);
                change.unwrap().unwrap();
            }),
            ("more shared memory", |bed| {
                bed.main.map(1, 32 << 10, true).unwrap();
            }),
            ("less of it", |bed| bed.main.unmap().unwrap()),
            ("a barrier", |bed| bed.main.barrier().unwrap()),
            ("a checkpoint", |bed| {
                bed.main.database().unwrap().commit().unwrap();
            }),
        ];
        for (name, operation) in operations {
            let mut bed = Bed::new();
            operation(&mut bed);
            assert_eq!(bed.in_log(568)[..24], [2; 24], "{name}");
            bed.close();
        }
    }

    #[test]
    fn a_journal_is_written_before_the_database() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("app.db");
        let mut main = OpenedFile::main(lease(&path), true).unwrap();
        let journal_lease = lease(&path);
        let database = Arc::clone(journal_lease.database().unwrap());
        let object = database.open_companion(b"app.db-mobifs-journal", true, true);
        let object = object.unwrap();
        let mut journal = OpenedFile::companion(journal_lease, object, Role::Journal).unwrap();
        for level in [Level::Shared, Level::Reserved, Level::Exclusive] {
            main.lock(level).unwrap().unwrap();
        }
        let in_journal = |bytes: usize| {
            assert_eq!(database.read_written(object, 0, &mut [0; 2048]), bytes);
        };
        journal.write(0, &[0xd9; 512]).unwrap();
        journal.write(512, &[0; 4]).unwrap();
        journal.write(516, &PAGE).unwrap();
        in_journal(0);
        main.write(4096, &PAGE).unwrap();
        in_journal(1028);
        journal.write(1028, &[0; 4]).unwrap();
        in_journal(1028);
        journal.write(0, &[0; 28]).unwrap();
        in_journal(1028);
        journal.write(0, &[0xd9; 512]).unwrap();
        journal.truncate(0).unwrap();
        journal.sync().unwrap();
        in_journal(0);
        journal.close().unwrap();
        main.close().unwrap();
    }

    #[test]
    fn reads_find_coalesced_data() {
        let bed = Bed::new();
        for log in [&bed.log, &bed.other_log] {
            let mut header = [0; 24];
            assert!(log.read(568, &mut header).unwrap());
            assert_eq!(header, [2; 24]);
            assert_eq!(log.size().unwrap(), 592);
        }
        assert_eq!(bed.in_log(568), [0; 0], "and it waits on");
        bed.close();
    }

    #[test]
    fn a_log_that_begins_anew_is_empty_after_its_header() {
        let mut bed = Bed::new();
        bed.log.write(592, &PAGE).unwrap();
        bed.log.write(0, &[5; 32]).unwrap();
        assert_eq!(bed.in_log(0), [5; 32]);
        bed.log.write(32, &[6; 24]).unwrap();
        bed.log.write(56, &PAGE).unwrap();
        assert_eq!(bed.in_log(32), [vec![6; 24], PAGE.to_vec()].concat());
        bed.close();
    }

    #[test]
    fn a_header_whose_writer_is_gone_is_written() {
        let bed = Bed::new();
        let Bed {
            main,
            log,
            other_log,
            _directory,
        } = bed;
        log.close().unwrap();
        assert_eq!(other_log.size().unwrap(), 592);
        other_log.close().unwrap();
        main.close().unwrap();
    }
}
