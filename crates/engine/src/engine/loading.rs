//! Bringing objects into memory, and finding entries.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use mobifs_base::{
    AppId, ByteRange, DirectoryEntry, FileKind, Name, ObjectId, ObjectInfo, Page, PageIndex, Xattr,
};

use super::{Engine, ROOT_APP};
use crate::RESERVED_NAME;
use crate::app::{App, Class};
use crate::directory::{Directory, Listing, Slot};
use crate::error::{FsError, Need, Stop};
use crate::inode::{Body, Inode};

/// Answers that wait for the retried write; more than writers can wait at a time.
const ARRIVALS_MAX: usize = 64;

/// Objects of which it is known when they left memory; more than answers are under way.
const DEPARTURES_MAX: usize = 4096;

/// Which objects (or their listings) have left memory since answers about them were asked for.
/// While an object is not in memory, nothing that the store says of it can become wrong; but it
/// may come, change and leave while an answer is under way.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    /// Grows with every departure.
    epoch: u64,
    /// Answers asked for before are all stale.
    floor: u64,
    left_at: BTreeMap<ObjectId, u64>,
}

impl Departures {
    /// What questions are asked at now.
    pub(crate) const fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn left(&mut self, id: ObjectId) {
        self.epoch += 1;
        if self.left_at.len() >= DEPARTURES_MAX {
            self.all_left();
        }
        self.left_at.insert(id, self.epoch);
    }

    /// No answer that is under way holds any more.
    pub(crate) fn all_left(&mut self) {
        self.epoch += 1;
        self.floor = self.epoch;
        self.left_at.clear();
    }

    fn stayed_since(&self, id: ObjectId, epoch: u64) -> bool {
        epoch >= self.floor && self.left_at.get(&id).is_none_or(|&left| left <= epoch)
    }
}

/// Path of a directory that may be an app, relative to the mount.
#[derive(Default)]
pub(crate) struct AppPath {
    pub(crate) bytes: Vec<u8>,
    /// How many names it has.
    names: usize,
}

impl AppPath {
    pub(crate) fn push(&mut self, name: &[u8]) {
        if self.names > 0 {
            self.bytes.push(b'/');
        }
        self.bytes.extend_from_slice(name);
        self.names += 1;
    }
}

impl Engine {
    /// Answers [`Need::Object`].
    pub fn provide_object(&mut self, id: ObjectId, epoch: u64, info: ObjectInfo) {
        if self.accepts(id, epoch) && !self.inodes.contains_key(&id) {
            self.arrivals.insert(id, info);
        }
    }

    /// Answers [`Need::Directory`].
    pub fn provide_directory(
        &mut self,
        id: ObjectId,
        epoch: u64,
        mut entries: Vec<DirectoryEntry>,
    ) {
        if !self.accepts(id, epoch) {
            return;
        }
        let (hasher, is_tracked) = (self.hasher.clone(), self.inodes.is_tracked());
        let Some(inode) = self.inodes.get(&id) else {
            return;
        };
        if let Body::Directory(Listing::NotLoaded(displaced)) = &inode.body {
            if id == ObjectId::ROOT {
                entries.retain(|entry| entry.name.as_bytes() != RESERVED_NAME);
            }
            let mut directory = Directory::new(hasher, is_tracked);
            directory.load(entries, displaced);
            self.inodes.load_entries(id, directory);
            // Known again before the store forgot it.
            self.forgotten.remove(&id);
        }
    }

    /// Whether an answer that names objects and was asked for at `epoch` still holds.
    fn accepts(&self, id: ObjectId, epoch: u64) -> bool {
        self.departures.stayed_since(id, epoch) && !self.is_forgetting
    }

    /// Answers [`Need::Xattrs`].
    pub fn provide_xattrs(&mut self, id: ObjectId, epoch: u64, xattrs: Vec<Xattr>) {
        if !self.departures.stayed_since(id, epoch) {
            return;
        }
        if let Some(inode) = self.inodes.get_mut(&id)
            && inode.xattrs.is_none()
        {
            inode.xattrs = Some(xattrs.into_iter().collect::<BTreeMap<_, _>>());
        }
    }

    /// Answers [`Need::SymlinkTarget`].
    pub fn provide_symlink_target(&mut self, id: ObjectId, epoch: u64, target: Vec<u8>) {
        if !self.departures.stayed_since(id, epoch) {
            return;
        }
        if let Some(Inode {
            body: Body::Symlink(loaded @ None),
            ..
        }) = self.inodes.get_mut(&id)
        {
            *loaded = Some(Arc::from(target));
        }
    }

    /// Answers [`Need::Page`].
    pub fn provide_page(&mut self, object: ObjectId, index: PageIndex, version: u64, page: Page) {
        if self.page_arrivals.len() >= ARRIVALS_MAX {
            self.page_arrivals.remove(0);
        }
        self.page_arrivals.push((object, index, version, page));
    }

    /// Answers [`Need::Place`].
    pub fn provide_place(
        &mut self,
        object: ObjectId,
        range: ByteRange,
        version: u64,
        is_in_place: bool,
    ) {
        if self.place_arrivals.len() >= ARRIVALS_MAX {
            self.place_arrivals.remove(0);
        }
        let answer = ((object, range, version), is_in_place);
        self.place_arrivals.push(answer);
    }

    /// The entries of a directory.
    pub(crate) fn entries(&self, id: ObjectId) -> Result<&Directory, Stop> {
        let inode = self.inode(id)?;
        if !inode.is_directory() {
            return Err(FsError::NotDirectory.into());
        }
        if inode.foreign {
            return Err(FsError::CrossDevice.into());
        }
        inode.directory().ok_or(Stop::Need(Need::Directory {
            id,
            epoch: self.departures.epoch(),
        }))
    }

    /// Adds an entry to a directory that was found loaded before, or lets an existing one name
    /// another object.
    pub(crate) fn set_entry(
        &mut self,
        parent: ObjectId,
        name: &Name,
        id: ObjectId,
        kind: FileKind,
    ) -> Result<(), Stop> {
        self.edit_entries(parent, |entries| entries.insert(name.clone(), id, kind))
    }

    /// Removes an entry from a directory that was found loaded before.
    pub(crate) fn remove_entry(&mut self, parent: ObjectId, name: &Name) -> Result<(), Stop> {
        self.edit_entries(parent, |entries| entries.remove(name.as_bytes()))
    }

    fn edit_entries(
        &mut self,
        id: ObjectId,
        edit: impl FnOnce(&mut Directory),
    ) -> Result<(), Stop> {
        let epoch = self.departures.epoch();
        let edited = self.inodes.edit_entries(id, edit);
        edited.ok_or(Stop::Need(Need::Directory { id, epoch }))
    }

    /// What `name` in `parent` names, if anything.
    pub(crate) fn entry(&self, parent: ObjectId, name: &[u8]) -> Result<Option<Slot>, Stop> {
        if name.len() > mobifs_base::NAME_BYTES_MAX {
            return Err(FsError::NameTooLong.into());
        }
        Ok(self.entries(parent)?.get(name))
    }

    /// Makes sure that the object which `parent`/`name` names is in memory.
    pub(crate) fn adopt(
        &mut self,
        parent: ObjectId,
        name: &[u8],
        slot: Slot,
    ) -> Result<ObjectId, Stop> {
        let id = slot.id;
        if self.inodes.contains_key(&id) {
            self.note_link(id, parent)?;
            return Ok(id);
        }
        let Some(info) = self.arrivals.remove(&id) else {
            return Err(Stop::Need(Need::Object {
                id,
                epoch: self.departures.epoch(),
            }));
        };
        let inode = Inode::from_store(&info, parent, Some(Name::new(name)?));
        self.insert_inode(id, inode)?;
        Ok(id)
    }

    /// Puts an inode into memory, keeping the count of its home.
    pub(crate) fn insert_inode(&mut self, id: ObjectId, inode: Inode) -> Result<(), Stop> {
        self.inode_mut(inode.home)?.residents += 1;
        if inode.had_several_names {
            self.several_names.insert(id);
        }
        self.inodes.insert(id, inode);
        Ok(())
    }

    /// Moves an inode's home, keeping the counts.
    pub(crate) fn set_home(&mut self, id: ObjectId, home: ObjectId) -> Result<(), Stop> {
        let before = core::mem::replace(&mut self.inode_mut(id)?.home, home);
        if before != home {
            self.inode_mut(home)?.residents += 1;
            if let Some(inode) = self.inodes.get_mut(&before) {
                inode.residents -= 1;
            }
        }
        Ok(())
    }

    /// A file that is already in memory was found through a link in `parent`: if that
    /// is another app's, changes of the file concern both.
    fn note_link(&mut self, id: ObjectId, parent: ObjectId) -> Result<(), Stop> {
        let inode = self.inode(id)?;
        if inode.is_directory() || inode.home == parent {
            return Ok(());
        }
        let app = self.app_of(parent);
        if app != self.app_of(id) {
            let inode = self.inode_mut(id)?;
            if !inode.linked_apps.contains(&app) {
                inode.linked_apps.push(app);
            }
        }
        Ok(())
    }

    /// The app that an object belongs to: that of the nearest directory above (or the
    /// object itself) which the rules call an app.
    pub(crate) fn app_of(&mut self, id: ObjectId) -> AppId {
        // The objects whose app is to be found, from this one upwards: there may be as many as
        // a path is deep.
        let mut unknown = Vec::new();
        let mut at = id;
        let mut app = loop {
            let Some(inode) = self.inodes.get(&at) else {
                break ROOT_APP;
            };
            if inode.app_epoch == self.app_epoch {
                break inode.app;
            }
            if inode.is_orphan() && (inode.app_epoch != 0 || !self.inodes.contains_key(&inode.home))
            {
                // It has no place any more: it stays where it was.
                break inode.app;
            }
            unknown.push(at);
            if at == ObjectId::ROOT {
                break ROOT_APP;
            }
            at = inode.home;
        };
        let mut path = match unknown.last() {
            None | Some(&ObjectId::ROOT) => Some(AppPath::default()),
            Some(_) => self.app_path_of(at),
        };
        for &id in unknown.iter().rev() {
            if id != ObjectId::ROOT {
                path = path.and_then(|path| self.extended(path, id));
                if let Some(path) = path.as_ref().filter(|path| self.rules.is_app(&path.bytes)) {
                    app = self.app_at(path.bytes.clone());
                }
            }
            if let Some(inode) = self.inodes.get_mut(&id) {
                (inode.app, inode.app_epoch) = (app, self.app_epoch);
            }
        }
        app
    }

    /// The path of a directory, by one name longer; none if there can be no app.
    fn extended(&self, mut path: AppPath, id: ObjectId) -> Option<AppPath> {
        let inode = self.inodes.get(&id).filter(|inode| inode.is_directory())?;
        path.push(inode.name.as_ref()?.as_bytes());
        self.is_app_depth(path.names).then_some(path)
    }

    /// Whether a path of so many names can be an app's.
    fn is_app_depth(&self, names: usize) -> bool {
        self.rules.depth_max().is_none_or(|max| names <= max)
    }

    /// The app with this path, made if it is new.
    pub(crate) fn app_at(&mut self, path: Vec<u8>) -> AppId {
        if let Some(&app) = self.app_ids.get(&path) {
            return app;
        }
        let app = AppId(u32::try_from(self.apps.len()).unwrap_or(u32::MAX));
        let policy = self.rules.policy(&path);
        self.has_durable_apps |= policy.class == Class::Durable;
        self.apps.push(App::new(path.clone(), policy));
        self.unsaved_apps.mark(app);
        self.app_ids.insert(path, app);
        app
    }

    /// Path of a directory relative to the mount, empty for the root; none for other kinds, for
    /// what is removed, and for what lies deeper than apps can.
    pub(crate) fn app_path_of(&self, id: ObjectId) -> Option<AppPath> {
        let mut names: Vec<&Name> = Vec::new();
        let mut at = id;
        while at != ObjectId::ROOT {
            let inode = self.inodes.get(&at)?;
            names.push(inode.name.as_ref().filter(|_| inode.is_directory())?);
            if !self.is_app_depth(names.len()) {
                return None;
            }
            at = inode.home;
        }
        let mut path = AppPath::default();
        for name in names.into_iter().rev() {
            path.push(name.as_bytes());
        }
        Some(path)
    }

    /// Path of `name` in `parent`, if a directory there would be the root of an app.
    pub(crate) fn app_place(&self, parent: ObjectId, name: &[u8]) -> Option<Vec<u8>> {
        let mut path = self.app_path_of(parent)?;
        path.push(name);
        let is_app = self.is_app_depth(path.names) && self.rules.is_app(&path.bytes);
        is_app.then_some(path.bytes)
    }

    /// Fails unless the object is a directory that still exists and may be changed.
    pub(crate) fn check_directory(&self, id: ObjectId) -> Result<(), Stop> {
        let inode = self.inode(id)?;
        if !inode.is_directory() {
            return Err(FsError::NotDirectory.into());
        }
        if inode.foreign {
            return Err(FsError::CrossDevice.into());
        }
        if inode.is_orphan() {
            return Err(FsError::NotFound.into());
        }
        self.check_changeable(id)
    }

    /// Fails for what is immutable in the lower filesystem.
    pub(crate) fn check_changeable(&self, id: ObjectId) -> Result<(), Stop> {
        if self.inode(id)?.immutable {
            return Err(FsError::NotPermitted.into());
        }
        Ok(())
    }

    /// Fails unless the object is a regular file that may be used.
    pub(crate) fn check_file(&self, id: ObjectId) -> Result<(), Stop> {
        let inode = self.inode(id)?;
        match inode.attributes.kind {
            _ if inode.foreign => Err(FsError::CrossDevice.into()),
            FileKind::Regular => Ok(()),
            FileKind::Directory => Err(FsError::IsDirectory.into()),
            _ => Err(FsError::InvalidArgument.into()),
        }
    }
}
