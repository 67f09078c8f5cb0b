//! One database, as all connections of the process share it.

pub(crate) mod arena_file;
pub(crate) mod companion_name;
mod companions;
pub(crate) mod database_file;
pub(crate) mod durability;
pub(crate) mod finish;
pub(crate) mod header;
pub(crate) mod locks;
pub(crate) mod lower_file;
mod open;
mod rollback_reserve;
pub(crate) mod shared_memory;
pub(crate) mod sqlite;
pub(crate) mod write_coalescing;

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use mobifs_base::ObjectId;
use mobifs_volume::{
    AttributeChange, Caller, Class, FsError, OpenedStore, PolicyChange, Status, Volume, WriteAt,
};
use parking_lot::{Mutex, RwLock};

use crate::database::arena_file::ArenaFile;
use crate::database::database_file::DatabaseFile;
use crate::database::durability::TransactionSyncs;
use crate::database::header::{Beginning, HEADER_BYTES, MARK_PLACE};
use crate::database::locks::{ConnectionId, Locks};
use crate::database::lower_file::{Candidate, FileIdentity};
use crate::database::open::Opener;
use crate::database::rollback_reserve::RollbackReserve;
use crate::database::shared_memory::SharedMemory;
use crate::database::sqlite::Sqlite;
use crate::database::write_coalescing::{
    CoalescedFile, CoalescedWrites, WriteClassifier, WriteRole,
};
use crate::failure::Failure;
use crate::fork::Generation;
use crate::options::Options;
use crate::{descriptors, limits};

/// Who opens a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenedBy {
    /// A connection to it. At its last close it is finished: see `finish.rs`.
    Connection,
    /// SQLite, which recovers a transaction that this database had a part in from another one, and
    /// looks at a file beside this one: whether it is there, what it names. It is closed as it was
    /// found. Were it finished then, its journal would be gone between the moment at which SQLite
    /// finds it and the one at which SQLite opens it; and to finish it the other database is needed,
    /// whose lock is held by the recovery that is under way.
    Recovery,
}

/// How a database is opened.
pub(crate) struct OpenRequest<'a> {
    /// Absolute, without symlinks.
    pub(crate) path: &'a Path,
    pub(crate) options: Options,
    pub(crate) may_create: bool,
    pub(crate) by: OpenedBy,
    /// The SQLite that uses it.
    pub(crate) sqlite: &'static dyn Sqlite,
}

/// One database with its journals and its log, in memory.
#[derive(Debug)]
pub(crate) struct Database {
    path: PathBuf,
    options: Options,
    generation: Generation,
    volume: Arc<Volume>,
    opened: Mutex<Option<OpenedStore>>,
    file: Box<dyn DatabaseFile>,
    arena: Option<ArenaFile>,
    main: ObjectId,
    /// Permission bits, which companions get too.
    mode: u16,
    /// None for a database that is no file.
    identity: Option<FileIdentity>,
    sqlite: Option<&'static dyn Sqlite>,
    /// The connection that used the log last was asked to keep it.
    keeps_log: AtomicBool,
    /// How often each companion is open.
    open_companions: Mutex<HashMap<ObjectId, usize>>,
    /// A transaction is durable when its `COMMIT` returns.
    is_durable: AtomicBool,
    /// The file says that the database is in use.
    is_marked: AtomicBool,
    /// Held while that is being written, and by readers of the header meanwhile: the mark changes
    /// the file without the engine.
    marking: RwLock<()>,
    /// The database is empty, and the file has a stand-in.
    is_stand_in: AtomicBool,
    /// The locks between connections.
    pub(crate) locks: Mutex<Locks>,
    pub(crate) shared_memory: Mutex<SharedMemory>,
    pub(crate) syncs: TransactionSyncs,
    rollback_reserve: RollbackReserve,
    coalesced: CoalescedWrites,
    /// Something was written that a kill may still undo.
    has_batch: AtomicBool,
    connections: AtomicU64,
}

impl Database {
    /// Opens a database.
    ///
    /// # Errors
    /// [`Failure`]; the database is as it was.
    pub(crate) fn open(request: &OpenRequest<'_>) -> Result<Self, Failure> {
        let path = request.path;
        descriptors::require_descriptors()?;
        let file_bytes_max = limits::file_bytes_max();
        let config = request.options.config(
            // With a lower limit it is not opened.
            file_bytes_max.map(|bytes| bytes.max(limits::FILE_BYTES_MIN)),
        )?;
        let sqlite = request.sqlite;
        let warn = |message: &str| sqlite.warn(message);
        let opener = Opener::new(path, &config, &warn)?;
        opener.require_short_name()?;
        opener.require_own_file()?;
        let candidate = Candidate::open(path, request.may_create)?;
        opener.recover_with_base_vfs(candidate.beginning()?, sqlite)?;
        let lower = candidate.lock().map_err(|failure| opener.named(failure))?;
        let beginning = lower.beginning()?;
        if beginning == Beginning::Foreign {
            return Err(Failure::Foreign(path.to_owned()));
        }
        opener.require_owner(beginning)?;
        opener.check_companions(beginning)?;
        opener.require_own_store(beginning)?;
        let user = opener.arena_user(&lower)?;
        let mut arena = ArenaFile::new(&request.options.arena, user.clone());
        let mut salvaged = None;
        if beginning.is_in_use() && !opener.has_store_of_another_file() {
            for place in ArenaFile::places(&request.options.arena, &user) {
                salvaged = opener.salvage(&lower, &place)?;
                if salvaged.is_some() {
                    // The session goes on in it, wherever it is.
                    arena = Some(place);
                    break;
                }
            }
        } else {
            opener.set_aside_foreign_files()?;
        }
        if beginning == Beginning::Empty {
            lower.clear()?;
        }
        let start = || {
            opener.start(&lower, arena.as_ref()).inspect_err(|_| {
                if let Some(arena) = &arena {
                    arena.remove();
                }
            })
        };
        let (opened, volume) = salvaged.map_or_else(start, Ok)?;
        let identity = lower.identity();
        let mut database = Self::over(path, request.options.clone(), volume, Box::new(lower))?;
        database.identity = Some(identity);
        database.sqlite = Some(sqlite);
        database.opened = Mutex::new(Some(opened));
        database.arena = arena;
        Ok(database)
    }

    /// A database over a running volume.
    ///
    /// # Errors
    /// [`Failure`].
    pub(crate) fn over(
        path: &Path,
        options: Options,
        volume: Arc<Volume>,
        file: Box<dyn DatabaseFile>,
    ) -> Result<Self, Failure> {
        let name = path.file_name().ok_or(Failure::NO_NAME)?;
        let main = volume.lookup(ObjectId::ROOT, name.as_bytes())?;
        let database = Self {
            path: path.to_owned(),
            is_durable: AtomicBool::new(options.is_durable()),
            options,
            generation: Generation::current(),
            opened: Mutex::default(),
            file,
            arena: None,
            main: main.id,
            mode: main.attributes.mode & 0o666,
            identity: None,
            sqlite: None,
            keeps_log: AtomicBool::new(false),
            open_companions: Mutex::default(),
            is_marked: AtomicBool::new(false),
            marking: RwLock::default(),
            is_stand_in: AtomicBool::new(false),
            locks: Mutex::default(),
            shared_memory: Mutex::default(),
            syncs: TransactionSyncs::default(),
            rollback_reserve: RollbackReserve::default(),
            coalesced: CoalescedWrites::default(),
            has_batch: AtomicBool::new(false),
            connections: AtomicU64::new(0),
            volume,
        };
        database.read_beginning()?;
        Ok(database)
    }

    /// Reads the database's properties from its content. The file is older.
    fn read_beginning(&self) -> Result<(), Failure> {
        let mut bytes = [0; HEADER_BYTES + 1];
        let length = self.volume.read(self.main, 0, &mut bytes)?;
        let is_stand_in = Beginning::of(&bytes[..length]) == Beginning::StandIn;
        self.is_stand_in.store(is_stand_in, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) const fn options(&self) -> &Options {
        &self.options
    }

    /// Whether this process is the one that opened it.
    pub(crate) fn is_ours(&self) -> bool {
        self.generation.is_current()
    }

    /// Its file, unless it is none.
    pub(crate) const fn identity(&self) -> Option<FileIdentity> {
        self.identity
    }

    /// Whether a path names this database.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        path == self.path
            || (self.identity.is_some() && FileIdentity::of(path).ok() == self.identity)
    }

    /// The SQLite that uses it; none if it is no file.
    pub(crate) const fn sqlite(&self) -> Option<&'static dyn Sqlite> {
        self.sqlite
    }

    /// Whether the log is to stay when the last connection closes.
    pub(crate) fn keeps_log(&self) -> bool {
        self.keeps_log.load(Ordering::Relaxed)
    }

    /// A connection ends its use of the log, and was asked to keep it, or not.
    pub(crate) fn set_keeps_log(&self, is_wanted: bool) {
        self.keeps_log.store(is_wanted, Ordering::Relaxed);
    }

    /// A number for a new connection.
    pub(crate) fn number_connection(&self) -> ConnectionId {
        ConnectionId(self.connections.fetch_add(1, Ordering::Relaxed))
    }

    /// The database's own file.
    pub(crate) const fn main(&self) -> ObjectId {
        self.main
    }

    /// Whether the file at the database's path is another one by now, or gone.
    pub(crate) fn has_moved(&self) -> bool {
        self.file.has_moved()
    }

    /// Before anything changes the file has to say that it is older than the database. A file that
    /// says so already may not say so durably, so that is made sure of in each session.
    fn mark(&self) -> Result<(), Failure> {
        if self.is_marked.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut marking = self.marking.upgradable_read();
        if !self.is_marked.load(Ordering::Acquire) {
            // Readers do not wait for the device.
            marking.with_upgraded(|()| self.file.mark())?;
            self.file.make_mark_durable()?;
            if self.size(self.main)? == 0 {
                self.write_stand_in()?;
            }
            self.is_marked.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Writes the stand-in of an empty database into the engine, too: all later commits of it are
    /// marked as in use.
    fn write_stand_in(&self) -> Result<(), Failure> {
        // First, so that no reader takes the text for content.
        self.is_stand_in.store(true, Ordering::Relaxed);
        self.write_all(self.main, 0, &header::stand_in())
    }

    fn is_empty(&self) -> bool {
        self.is_stand_in.load(Ordering::Relaxed)
    }

    /// Reads of any of the database's files; fewer bytes than asked for only at its end.
    pub(crate) fn read(&self, file: ObjectId, at: u64, out: &mut [u8]) -> Result<usize, Failure> {
        if file == self.main {
            return self.read_main(at, out);
        }
        let length = self.volume.read(file, at, out)?;
        Ok(self.coalesced.overlay(file, at, out, length))
    }

    fn read_main(&self, at: u64, out: &mut [u8]) -> Result<usize, Failure> {
        if at >= HEADER_BYTES as u64 {
            return Ok(self.volume.read(self.main, at, out)?);
        }
        let is_marked = self.is_marked.load(Ordering::Acquire);
        let _unchanged = (!is_marked).then(|| self.marking.read());
        if !header::begins_within_mark(at) {
            return self.read_header(at, out);
        }
        let missing = (at - MARK_PLACE.start as u64) as usize;
        let mut whole = vec![0; missing + out.len()];
        let length = self.read_header(MARK_PLACE.start as u64, &mut whole)?;
        let length = length.saturating_sub(missing);
        out[..length].copy_from_slice(&whole[missing..missing + length]);
        Ok(length)
    }

    /// Reads from the header on, without the mark, if it begins before it or after it.
    fn read_header(&self, at: u64, out: &mut [u8]) -> Result<usize, Failure> {
        let length = self.volume.read(self.main, at, out)?;
        if self.is_empty() {
            if self.size(self.main)? == 0 {
                return Ok(0);
            }
            let standing_in = (HEADER_BYTES - at as usize).min(length);
            out[..standing_in].fill(0);
        }
        header::unmark(&mut out[..length], at);
        Ok(length)
    }

    /// As [`Database::read`], without what waits.
    #[cfg(test)]
    pub(crate) fn read_written(&self, file: ObjectId, at: u64, out: &mut [u8]) -> usize {
        self.volume.read(file, at, out).unwrap()
    }

    /// Writes all of `data`.
    pub(crate) fn write(&self, file: ObjectId, at: u64, data: &[u8]) -> Result<(), Failure> {
        self.mark()?;
        if file == self.main {
            if at < HEADER_BYTES as u64 {
                return self.write_header(at, data);
            }
            if at >= self.size(file)? {
                self.require_room(data.len() as u64)?;
            }
        }
        self.write_all(file, at, data)
    }

    fn write_all(&self, file: ObjectId, at: u64, data: &[u8]) -> Result<(), Failure> {
        let mut done = 0;
        while done < data.len() {
            let to = WriteAt::Offset(at + done as u64);
            done += self.volume.write_batched(file, to, &data[done..])?;
        }
        // While several databases commit together, none may be ahead of another.
        if durability::is_joint() {
            self.volume.end_batch();
        } else {
            self.has_batch.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Writes to the write-ahead log.
    pub(crate) fn write_log(
        &self,
        writer: &mut WriteClassifier,
        file: ObjectId,
        at: u64,
        data: &[u8],
    ) -> Result<(), Failure> {
        // Once this frame is written, the transaction cannot be undone any more.
        if self.is_durable() && write_coalescing::begins_commit(data) {
            self.require_promised_room()?;
        }
        self.write_classified(CoalescedFile::Log, writer, (file, at), data)
    }

    fn write_classified(
        &self,
        kind: CoalescedFile,
        writer: &mut WriteClassifier,
        (file, at): (ObjectId, u64),
        data: &[u8],
    ) -> Result<(), Failure> {
        let done = match writer.classify(kind, at, data) {
            WriteRole::Continues => self.coalesce((file, at), data, false),
            WriteRole::Completes => self.coalesce((file, at), data, true),
            WriteRole::Standalone => self.flush().and_then(|()| self.write(file, at, data)),
            WriteRole::RestartsLog => self.flush().and_then(|()| self.restart_log(file, data)),
            WriteRole::EndsJournal => {
                self.coalesced.discard(file);
                self.write(file, at, data)
            }
        };
        if done.is_err()
            && let Some(at) = writer.failed(kind)
        {
            self.coalesced.truncate(file, at);
        }
        done
    }

    fn coalesce(&self, to: (ObjectId, u64), data: &[u8], is_last: bool) -> Result<(), Failure> {
        self.mark()?;
        let write = |file, at, run: &[u8]| self.write_all(file, at, run);
        let has_room = self.coalesced.add(to, data, write)?;
        if is_last || !has_room {
            self.flush()?;
        }
        Ok(())
    }

    fn restart_log(&self, file: ObjectId, header: &[u8]) -> Result<(), Failure> {
        if self.size(file)? > header.len() as u64 {
            self.truncate(file, 0)?;
        }
        self.write(file, 0, header)
    }

    /// Writes the coalesced writes, before another operation can notice that they are missing.
    pub(crate) fn flush(&self) -> Result<(), Failure> {
        self.coalesced
            .flush(|file, at, run| self.write_all(file, at, run))
    }

    /// Writes coalesced writes before an operation that does not depend on them. If they cannot be written they
    /// stay coalesced, and their writer gets the error at its next call: other connections are not
    /// affected.
    pub(crate) fn flush_if_possible(&self) {
        if let Err(error) = self.flush() {
            tracing::debug!(%error, "writes of a log or journal wait on");
        }
    }

    /// A kill undoes nothing of what was written so far.
    pub(crate) fn end_batch(&self) {
        if self.has_batch.swap(false, Ordering::AcqRel) {
            self.volume.end_batch();
        }
    }

    /// Writes to the rollback journal.
    pub(crate) fn write_journal(
        &self,
        writer: &mut WriteClassifier,
        file: ObjectId,
        at: u64,
        data: &[u8],
    ) -> Result<(), Failure> {
        let length = data.len() as u64;
        let is_end = write_coalescing::ends_journal(at, data);
        if !is_end {
            // The room for the journal, and for rolling it back.
            self.require_room(2 * length)?;
        }
        self.rollback_reserve.journal_written(at, at + length);
        self.write_classified(CoalescedFile::Journal, writer, (file, at), data)?;
        self.volume.set_may_roll_back(!is_end);
        Ok(())
    }

    /// The rollback journal ends.
    pub(crate) fn journal_ended(&self) {
        self.rollback_reserve.journal_ended();
        self.volume.set_may_roll_back(false);
    }

    /// Fails if a transaction that is so much larger could not be rolled back.
    fn require_room(&self, added_bytes: u64) -> Result<(), Failure> {
        let needed_bytes = self.rollback_reserve.needed_bytes(added_bytes);
        let is_enough = || -> Result<bool, Failure> {
            Ok(self.volume.statfs()?.available_bytes >= needed_bytes)
        };
        if is_enough()? {
            return Ok(());
        }
        // After a failed commit the transaction could not be rolled back.
        self.require_promised_room()?;
        // What is overwritten or deleted frees room when it is applied.
        self.volume.sync_app(None, true)?;
        if is_enough()? {
            return Ok(());
        }
        Err(FsError::NoSpace.into())
    }

    /// Fails if a commit of what was written so far might find no room, because another program has
    /// taken some. It is checked as long as SQLite can still roll back: a failed commit is retried,
    /// which would write its changes to the device.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], among others.
    pub(crate) fn require_promised_room(&self) -> Result<(), Failure> {
        if self.volume.has_promised_room()? {
            Ok(())
        } else {
            Err(FsError::NoSpace.into())
        }
    }

    fn write_header(&self, at: u64, data: &[u8]) -> Result<(), Failure> {
        let is_header = at == 0 && data.len() >= HEADER_BYTES;
        if is_header && Beginning::of(data) == Beginning::Foreign {
            return Err(Failure::Foreign(self.path.clone()));
        }
        let mut marked = data.to_vec();
        header::mark(&mut marked, at);
        self.write_all(self.main, at, &marked)?;
        if is_header {
            self.is_stand_in.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Changes the size of one of the database's files.
    pub(crate) fn truncate(&self, file: ObjectId, bytes: u64) -> Result<(), Failure> {
        if bytes == 0 {
            self.coalesced.discard(file);
        }
        self.mark()?;
        let mut bytes = bytes;
        if file == self.main && bytes < HEADER_BYTES as u64 {
            // Before it is cut off, so that whatever is committed in between is in use as well.
            self.write_all(file, 0, &header::stand_in())?;
            self.is_stand_in.store(true, Ordering::Relaxed);
            bytes = HEADER_BYTES as u64;
        }
        let change = AttributeChange {
            size: Some(bytes),
            ..AttributeChange::default()
        };
        self.volume
            .set_attributes(&Caller::default(), file, &change)?;
        Ok(())
    }

    /// Size of one of the database's files, in bytes.
    pub(crate) fn size(&self, file: ObjectId) -> Result<u64, Failure> {
        let bytes = self.volume.attributes(file)?.attributes.size;
        if file == self.main && self.is_empty() && bytes <= HEADER_BYTES as u64 {
            return Ok(0);
        }
        Ok(self.coalesced.size(file, bytes))
    }

    /// Everything done so far is durable when it returns, except for coalesced writes that could
    /// not be written, perhaps because they need the room that this commit frees.
    pub(crate) fn commit(&self) -> Result<(), Failure> {
        self.flush_if_possible();
        Ok(self.volume.sync_app(None, false)?)
    }

    /// Changes what the database's URI says about it as an app.
    pub(crate) fn change(&self, options: &Options) -> Result<(), Failure> {
        let change = options.change()?;
        if change == PolicyChange::default() {
            return Ok(());
        }
        let class = change.class();
        self.volume.set_app(".", change)?;
        if let Some(class) = class {
            let is_durable = class == Class::Durable;
            self.is_durable.store(is_durable, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether a transaction is durable when its `COMMIT` returns.
    pub(crate) fn is_durable(&self) -> bool {
        self.is_durable.load(Ordering::Relaxed)
    }

    /// What is going on.
    pub(crate) fn status(&self) -> Status {
        self.volume.status()
    }

    /// Whether everything survives if the process is killed now.
    pub(crate) fn outlives_process(&self) -> bool {
        self.volume
            .arena()
            .is_some_and(mobifs_volume::Arena::is_complete)
    }

    /// Applies everything and makes the file an ordinary database. No connection uses
    /// it any more.
    ///
    /// # Errors
    /// [`Failure`]: the database stays in use as if the process had been killed, and the
    /// next one that opens it goes on from there.
    pub(crate) fn close(&self, opened_by: OpenedBy) -> Result<(), Failure> {
        let closed = self.apply_and_unmark(opened_by);
        if let Some(arena) = &self.arena
            && (closed.is_ok() || self.file.is_deleted())
        {
            // The arena is not needed, or its database cannot be opened any more.
            arena.remove();
        }
        closed
    }

    fn apply_and_unmark(&self, opened_by: OpenedBy) -> Result<(), Failure> {
        let is_whole = match opened_by {
            OpenedBy::Connection => self.remove_companions()?,
            // SQLite has found journals that have ended, too, and opens them next.
            OpenedBy::Recovery => !self.has_companions()?,
        };
        self.volume.forget(self.main, 1);
        self.volume.shutdown()?;
        if let Some(opened) = self.opened.lock().take() {
            opened.close()?;
        }
        if is_whole {
            self.file.unmark()?;
        }
        Ok(())
    }
}
