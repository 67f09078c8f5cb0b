//! The files beside a database: its journal, its log, the journal of a transaction over several.

use std::os::unix::ffi::OsStrExt as _;

use mobifs_base::{DeviceNumber, FileKind, ObjectId};
use mobifs_volume::{Caller, FsError, Node, NodeSpec};

use super::Database;
use crate::database::companion_name::{self, Companion};
use crate::database::finish::UnfinishedFile;
use crate::failure::Failure;

impl Database {
    /// Opens a companion by its name in the store, or makes it if there is none and
    /// `may_create` is set.
    pub(crate) fn open_companion(
        &self,
        name: &[u8],
        may_create: bool,
        must_be_new: bool,
    ) -> Result<ObjectId, Failure> {
        let node = self.find_or_create(name, may_create, must_be_new)?;
        if let Err(error) = self.volume.open(node.id) {
            self.volume.forget(node.id, 1);
            return Err(error.into());
        }
        *self.open_companions.lock().entry(node.id).or_default() += 1;
        Ok(node.id)
    }

    /// Connections look for a companion at the same time, and one of them makes it: the second one
    /// opens the existing file.
    fn find_or_create(
        &self,
        name: &[u8],
        may_create: bool,
        must_be_new: bool,
    ) -> Result<Node, Failure> {
        loop {
            let found = match self.volume.lookup(ObjectId::ROOT, name) {
                Ok(node) if must_be_new && may_create => {
                    self.volume.forget(node.id, 1);
                    Err(FsError::Exists)
                }
                Err(FsError::NotFound) if may_create => {
                    self.mark()?;
                    match self.create(name) {
                        Err(FsError::Exists) if !must_be_new => continue,
                        created => created,
                    }
                }
                found => found,
            };
            return Ok(found?);
        }
    }

    fn create(&self, name: &[u8]) -> Result<Node, FsError> {
        let caller = Caller {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            umask: 0,
        };
        let spec = NodeSpec {
            kind: FileKind::Regular,
            mode: self.mode,
            rdev: DeviceNumber::default(),
            symlink_target: None,
        };
        self.volume.create(&caller, ObjectId::ROOT, name, &spec)
    }

    /// Ends [`Database::open_companion`].
    pub(crate) fn close_companion(&self, file: ObjectId) {
        self.flush_if_possible();
        // Writes that cannot be written have no writer any more, and nothing relies on them.
        self.coalesced.discard(file);
        let mut open = self.open_companions.lock();
        if let Some(count) = open.get_mut(&file) {
            *count -= 1;
            if *count == 0 {
                open.remove(&file);
            }
        }
        drop(open);
        self.volume.release(file);
        self.volume.forget(file, 1);
    }

    /// Deletes a companion; false if there is none. One that a connection has open is emptied,
    /// and keeps its name, as `IOCAP_UNDELETABLE_WHEN_OPEN` says: connections in other journal
    /// modes keep the journal open, and would go on in a file that is no journal any more. SQLite
    /// takes an empty one for none.
    pub(crate) fn delete(&self, name: &[u8]) -> Result<bool, Failure> {
        self.flush_if_possible();
        match self.volume.lookup(ObjectId::ROOT, name) {
            Ok(node) => self.volume.forget(node.id, 1),
            // Nothing changes, so the file need not say that it is in use.
            Err(FsError::NotFound) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
        if let Some(file) = self.open_companion_of(name)? {
            self.truncate(file, 0)?;
            return Ok(true);
        }
        self.mark()?;
        match self.volume.unlink(ObjectId::ROOT, name) {
            Ok(()) => Ok(true),
            Err(FsError::NotFound) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The companion of this name, if a connection has it open.
    fn open_companion_of(&self, name: &[u8]) -> Result<Option<ObjectId>, Failure> {
        match self.volume.lookup(ObjectId::ROOT, name) {
            Ok(node) => {
                self.volume.forget(node.id, 1);
                let is_open = self.open_companions.lock().contains_key(&node.id);
                Ok(is_open.then_some(node.id))
            }
            Err(FsError::NotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether there is a companion with something in it.
    pub(crate) fn exists(&self, name: &[u8]) -> Result<bool, Failure> {
        Ok(self.companion_bytes(name)? > 0)
    }

    /// What a companion of this database is called in the store, by its name elsewhere: the
    /// database may have been opened by another of its names.
    pub(crate) fn name_of(&self, companion: &Companion) -> Vec<u8> {
        let own = self.path.file_name().unwrap_or_default().as_bytes();
        [own, companion_name::INFIX, &companion.ending].concat()
    }

    /// Removes journals that have ended. False if there is a companion without which the database
    /// would be incomplete: SQLite was asked not to bring its log into the database, for one. Then
    /// the database stays in use.
    pub(super) fn remove_companions(&self) -> Result<bool, Failure> {
        let mut is_whole = true;
        for name in self.companions()? {
            if self.is_needed(&name)? {
                is_whole = false;
            } else {
                self.delete(&name)?;
            }
        }
        Ok(is_whole)
    }

    /// Whether there is a companion, ended or not.
    pub(super) fn has_companions(&self) -> Result<bool, Failure> {
        Ok(!self.companions()?.is_empty())
    }

    /// Names of the companions in the store.
    fn companions(&self) -> Result<Vec<Vec<u8>>, Failure> {
        let entries = self.volume.read_directory(ObjectId::ROOT, 0, usize::MAX)?;
        let main = self.path.file_name().map(|name| name.as_bytes());
        let names = entries.iter().map(|entry| entry.name.as_bytes());
        let others = names.filter(|name| Some(*name) != main);
        Ok(others.map(<[u8]>::to_vec).collect())
    }

    /// What lies beside the database and has not ended.
    pub(crate) fn unfinished_files(&self) -> Result<Vec<UnfinishedFile>, Failure> {
        self.flush_if_possible();
        let mut unfinished = Vec::new();
        for name in self.companions()? {
            if self.is_needed(&name)? {
                unfinished.push(UnfinishedFile::of(&name));
            }
        }
        Ok(unfinished)
    }

    fn is_needed(&self, name: &[u8]) -> Result<bool, Failure> {
        let mut first = [0];
        let length = self.read_companion(name, |_| 0, &mut first)?;
        // An ended journal is empty, or begins with a zero.
        Ok(length > 0 && first != [0])
    }

    /// All that is in a companion; nothing if there is none.
    pub(crate) fn content(&self, name: &[u8]) -> Result<Vec<u8>, Failure> {
        let size = self.companion_bytes(name)?;
        let mut content = vec![0; usize::try_from(size).unwrap_or(usize::MAX)];
        let length = self.read_companion(name, |_| 0, &mut content)?;
        content.truncate(length);
        Ok(content)
    }

    /// The last bytes of a companion, so many or fewer; nothing if there is none.
    pub(crate) fn end_of(&self, name: &[u8], bytes_max: u64) -> Result<Vec<u8>, Failure> {
        let bytes = self.companion_bytes(name)?.min(bytes_max);
        let mut content = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
        let from = |size: u64| size.saturating_sub(bytes);
        let length = self.read_companion(name, from, &mut content)?;
        content.truncate(length);
        Ok(content)
    }

    fn companion_bytes(&self, name: &[u8]) -> Result<u64, Failure> {
        self.flush_if_possible();
        match self.volume.lookup(ObjectId::ROOT, name) {
            Ok(node) => {
                self.volume.forget(node.id, 1);
                Ok(node.attributes.size)
            }
            Err(FsError::NotFound) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads a companion from where `from` says for its size; 0 bytes if there is none.
    fn read_companion(
        &self,
        name: &[u8],
        from: impl Fn(u64) -> u64,
        out: &mut [u8],
    ) -> Result<usize, Failure> {
        let node = match self.volume.lookup(ObjectId::ROOT, name) {
            Ok(node) => node,
            Err(FsError::NotFound) => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        let length = self.volume.read(node.id, from(node.attributes.size), out);
        self.volume.forget(node.id, 1);
        Ok(length?)
    }
}
