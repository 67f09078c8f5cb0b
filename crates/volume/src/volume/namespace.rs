//! Names, attributes and extended attributes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mobifs_base::{FileKind, FoundObject, Name, ObjectId, SpaceInfo};
use mobifs_engine::{
    AttributeChange, Caller, FsError, Node, NodeSpec, ReadDirEntry, RenameMode, Stop, XattrMode,
};

use super::Volume;
use super::errors::store_failed;
use super::locked_engine::Keeping;
use crate::arena;

/// `statfs` looks at the lower filesystem again after this time.
const SPACE_AGE_MAX_MS: u64 = 500;

impl Volume {
    /// Finds an entry; one reference is counted.
    ///
    /// # Errors
    /// As [`mobifs_engine::Engine::lookup`]; `Io` if the store failed (this holds for
    /// all operations).
    pub fn lookup(&self, parent: ObjectId, name: &[u8]) -> Result<Node, FsError> {
        self.shared.read_only_operation(|engine| {
            let node = engine.lookup(parent, name)?;
            arena::reference(node.id, 1);
            Ok(node)
        })
    }

    /// The parent of a directory; one reference is counted.
    ///
    /// # Errors
    /// As [`mobifs_engine::Engine::lookup_parent`].
    pub fn lookup_parent(&self, directory: ObjectId) -> Result<Node, FsError> {
        self.shared.read_only_operation(|engine| {
            let node = engine.lookup_parent(directory)?;
            arena::reference(node.id, 1);
            Ok(node)
        })
    }

    /// Gives `count` references back.
    pub fn forget(&self, id: ObjectId, count: u64) {
        let mut locked = self.shared.lock_engine_keeping(Keeping::Batched);
        locked.engine.forget(id, count);
        self.shared
            .forgotten_objects
            .fetch_add(1, Ordering::Relaxed);
        arena::reference(id, -i64::try_from(count).unwrap_or(i64::MAX));
        self.shared.after_release(&mut locked);
    }

    /// Attributes of an object in use.
    ///
    /// # Errors
    /// As [`mobifs_engine::Engine::attributes`].
    pub fn attributes(&self, id: ObjectId) -> Result<Node, FsError> {
        self.shared
            .read_only_operation(|engine| engine.attributes(id))
    }

    /// Changes attributes. Permissions are checked by the kernel (`default_permissions`); the
    /// caller decides what the change takes away. It is durable on return where
    /// [`Volume::unlink`] is.
    ///
    /// # Errors
    /// As [`mobifs_engine::Engine::set_attributes`], and [`Volume::fsync`]: then the attributes are
    /// changed, and not durably.
    pub fn set_attributes(
        &self,
        _caller: &Caller,
        id: ObjectId,
        change: &AttributeChange,
    ) -> Result<Node, FsError> {
        let moment = self.shared.moment();
        let journal = self.cuts_rollback_off(id, change.size);
        if let Some((ending, directory)) = journal {
            self.commit_inherited(Some(ending), directory)?;
        }
        let node = self
            .shared
            .change(|engine| engine.set_attributes(moment, id, change))?;
        if let Some((ending, directory)) = journal {
            self.ended_rollback(Some(ending), directory)?;
        }
        Ok(node)
    }

    /// Target of a symlink.
    ///
    /// # Errors
    /// As [`mobifs_engine::Engine::read_link`].
    pub fn read_link(&self, id: ObjectId) -> Result<Vec<u8>, FsError> {
        let keeps_access_time = !self.shared.options.no_access_time;
        let moment = keeps_access_time.then(|| self.shared.moment());
        let target = self.shared.read_only_operation(|engine| {
            let target = engine.read_link(id)?;
            if let Some(moment) = moment {
                engine.accessed(id, moment);
            }
            Ok(target)
        })?;
        Ok(target.to_vec())
    }

    /// Creates a file, directory, symlink or node; one reference is counted.
    ///
    /// # Errors
    /// As [`mobifs_engine::Engine::create`].
    pub fn create(
        &self,
        caller: &Caller,
        parent: ObjectId,
        name: &[u8],
        spec: &NodeSpec<'_>,
    ) -> Result<Node, FsError> {
        let moment = self.shared.moment();
        self.shared
            .change(|engine| engine.create(caller, moment, parent, name, spec))
    }

    /// Creates a file without a name (`O_TMPFILE`), with one reference counted; without references
    /// it is gone.
    ///
    /// # Errors
    /// As [`mobifs_engine::Engine::create_unnamed`].
    pub fn create_unnamed(
        &self,
        caller: &Caller,
        parent: ObjectId,
        mode: u16,
    ) -> Result<Node, FsError> {
        let moment = self.shared.moment();
        self.shared
            .change(|engine| engine.create_unnamed(caller, moment, parent, mode))
    }

    /// Gives an object another name; one reference is counted.
    ///
    /// # Errors
    /// As [`mobifs_engine::Engine::link`].
    pub fn link(
        &self,
        id: ObjectId,
        new_parent: ObjectId,
        new_name: &[u8],
    ) -> Result<Node, FsError> {
        let moment = self.shared.moment();
        self.shared
            .change(|engine| engine.link(moment, id, new_parent, new_name))
    }

    /// Removes an entry that is not a directory. If that commits a transaction of SQLite
    /// (see [`Volume::fsync_by`]), it is durable on return.
    ///
    /// # Errors
    /// As [`mobifs_engine::Engine::unlink`], and [`Volume::fsync`]: then the entry is removed, and
    /// not durably.
    pub fn unlink(&self, parent: ObjectId, name: &[u8]) -> Result<(), FsError> {
        let moment = self.shared.moment();
        let ending = self.ends_rollback(parent, name);
        self.commit_inherited(ending, parent)?;
        self.shared
            .remove(|engine, memory| engine.unlink(moment, parent, name, memory))?;
        self.ended_rollback(ending, parent)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`mobifs_engine::Engine::remove_directory`].
    pub fn remove_directory(&self, parent: ObjectId, name: &[u8]) -> Result<(), FsError> {
        let moment = self.shared.moment();
        self.shared
            .remove(|engine, memory| engine.remove_directory(moment, parent, name, memory))
    }

    /// Renames an entry. It is durable on return where [`Volume::unlink`] is.
    ///
    /// # Errors
    /// As [`mobifs_engine::Engine::rename`], and [`Volume::fsync`]: then the entry is renamed, and
    /// not durably.
    pub fn rename(
        &self,
        parent: ObjectId,
        name: &[u8],
        new_parent: ObjectId,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<(), FsError> {
        let moment = self.shared.moment();
        let moved = self.ends_rollback(parent, name);
        let replaced = self.ends_rollback(new_parent, new_name);
        self.commit_inherited(moved, parent)?;
        self.commit_inherited(replaced, new_parent)?;
        self.shared
            .change(|engine| engine.rename(moment, (parent, name), (new_parent, new_name), mode))?;
        self.ended_rollback(moved, parent)?;
        self.ended_rollback(replaced, new_parent)
    }

    /// An object is opened: it stays also without links.
    ///
    /// # Errors
    /// As [`mobifs_engine::Engine::open`].
    pub fn open(&self, id: ObjectId) -> Result<(), FsError> {
        self.shared.read_only_operation(|engine| engine.open(id))
    }

    /// Ends [`Volume::open`].
    pub fn release(&self, id: ObjectId) {
        let mut locked = self.shared.lock_engine_keeping(Keeping::Batched);
        locked.engine.release(id);
        arena::executed(0);
        self.shared.after_release(&mut locked);
    }

    /// Up to `entries_max` entries after `after_cookie` (0: from the start), without
    /// `.` and `..`.
    ///
    /// # Errors
    /// As [`mobifs_engine::Engine::read_directory`].
    pub fn read_directory(
        &self,
        id: ObjectId,
        after_cookie: u64,
        entries_max: usize,
    ) -> Result<Vec<ReadDirEntry>, FsError> {
        self.shared
            .read_only_operation(|engine| engine.read_directory(id, after_cookie, entries_max))
    }

    /// A directory is being listed: its access time moves on.
    pub fn listed(&self, id: ObjectId) {
        let options = &self.shared.options;
        if !options.no_access_time && !options.no_directory_access_time {
            let moment = self.shared.moment();
            // No result is needed, so nothing can fail.
            let _accessed = self.shared.read_only_operation(|engine| {
                engine.accessed(id, moment);
                Ok(())
            });
        }
    }

    /// Passes on the names of all objects in memory: directory, name, object. For a caller that has
    /// not observed the lookups. Directories that cannot be listed are skipped, and so are names of
    /// multiply linked files in other directories.
    pub fn names_in_memory(&self, mut visit: impl FnMut(ObjectId, &Name, FoundObject)) {
        const BATCH_ENTRIES: usize = 256;
        let mut wanted: BTreeMap<ObjectId, BTreeSet<ObjectId>> = BTreeMap::new();
        for (id, directory) in self.shared.lock_engine().engine.placed_objects() {
            wanted.entry(directory).or_default().insert(id);
        }
        for (directory, ids) in wanted {
            let mut cookie = 0;
            while let Ok(entries) = self.read_directory(directory, cookie, BATCH_ENTRIES) {
                for entry in entries.iter().filter(|entry| ids.contains(&entry.id)) {
                    let is_directory = entry.kind == FileKind::Directory;
                    let id = entry.id;
                    visit(directory, &entry.name, FoundObject { id, is_directory });
                }
                match entries.last() {
                    Some(last) if entries.len() == BATCH_ENTRIES => cookie = last.cookie,
                    _ => break,
                }
            }
        }
    }

    /// Value of one extended attribute.
    ///
    /// # Errors
    /// As [`mobifs_engine::Engine::get_xattr`].
    pub fn get_xattr(&self, id: ObjectId, name: &[u8]) -> Result<Arc<[u8]>, FsError> {
        self.shared
            .read_only_operation(|engine| engine.get_xattr(id, name))
    }

    /// Names of all extended attributes.
    ///
    /// # Errors
    /// As [`mobifs_engine::Engine::list_xattrs`].
    pub fn list_xattrs(&self, id: ObjectId) -> Result<Vec<Arc<[u8]>>, FsError> {
        self.shared
            .read_only_operation(|engine| engine.list_xattrs(id))
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As [`mobifs_engine::Engine::set_xattr`].
    pub fn set_xattr(
        &self,
        id: ObjectId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        kill_sgid: bool,
    ) -> Result<(), FsError> {
        let moment = self.shared.moment();
        self.shared
            .change(|engine| engine.set_xattr(moment, id, name, value, mode, kill_sgid))
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// As [`mobifs_engine::Engine::remove_xattr`].
    pub fn remove_xattr(&self, id: ObjectId, name: &[u8]) -> Result<(), FsError> {
        let moment = self.shared.moment();
        self.shared
            .change(|engine| engine.remove_xattr(moment, id, name))
    }

    /// The longest name that something new can have.
    pub fn name_bytes_max(&self) -> usize {
        self.shared.store.capabilities().name_bytes_max
    }

    /// Room that remains after everything acknowledged.
    ///
    /// # Errors
    /// `Io` if the lower filesystem does not answer.
    pub fn statfs(&self) -> Result<SpaceInfo, FsError> {
        let shared = &self.shared;
        shared.check_power()?;
        let space_at = shared.lock_engine_keeping(Keeping::Batched).space_at;
        if shared.moment().now.ms_since(space_at) >= SPACE_AGE_MAX_MS
            // While another thread commits, the last answer is good enough: the commit renews it.
            && let Some(commit_lock) = shared.commit_lock.try_lock()
        {
            shared
                .refresh_space(&commit_lock)
                .map_err(|error| store_failed(&error))?;
        }
        shared.read_only_operation(|engine| Ok::<_, Stop>(engine.space()))
    }
}
