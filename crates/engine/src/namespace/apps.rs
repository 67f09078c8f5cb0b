//! Which app an object belongs to.

use alloc::vec::Vec;

use mobifs_base::{AppId, Name, ObjectId};

use super::Namespace;
use crate::apps::{Apps, ROOT_APP};
use crate::error::Stop;

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

impl Namespace {
    /// A directory moved: objects inside may belong to another app now.
    pub(crate) const fn forget_apps(&mut self) {
        self.app_epoch += 1;
    }

    /// Grows whenever a directory moves.
    pub(crate) const fn app_epoch(&self) -> u64 {
        self.app_epoch
    }

    /// The app of an object, which it keeps as long as it has no name.
    pub(crate) fn current_app(&self, app: AppId) -> (AppId, u64) {
        (app, self.app_epoch)
    }

    /// The app that an object belongs to: that of the nearest directory above (or the
    /// object itself) which the rules call an app.
    pub(crate) fn app_of(&mut self, id: ObjectId, apps: &mut Apps) -> AppId {
        // The objects whose app is to be found, from this one upwards: there may be as many as
        // a path is deep.
        let mut unknown = Vec::new();
        let mut at = id;
        let mut app = loop {
            let Some(inode) = self.get(&at) else {
                break ROOT_APP;
            };
            if inode.app_epoch == self.app_epoch {
                break inode.app;
            }
            if inode.is_orphan() && (inode.app_epoch != 0 || !self.contains_key(&inode.home)) {
                // It has no name any more: it stays in its app.
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
            Some(_) => self.app_path_of(at, apps),
        };
        for &id in unknown.iter().rev() {
            if id != ObjectId::ROOT {
                path = path.and_then(|path| self.extended(path, id, apps));
                if let Some(path) = path
                    .as_ref()
                    .filter(|path| apps.rules().is_app(&path.bytes))
                {
                    app = apps.at(path.bytes.clone());
                }
            }
            let epoch = self.app_epoch;
            if let Some(inode) = self.get_mut(&id) {
                (inode.app, inode.app_epoch) = (app, epoch);
            }
        }
        app
    }

    /// The path of a directory, by one name longer; none if there can be no app.
    fn extended(&self, mut path: AppPath, id: ObjectId, apps: &Apps) -> Option<AppPath> {
        let inode = self.get(&id).filter(|inode| inode.is_directory())?;
        path.push(inode.name.as_ref()?.as_bytes());
        apps.is_app_depth(path.names).then_some(path)
    }

    /// Path of a directory relative to the mount, empty for the root; none for other kinds, for
    /// what is removed, and for what lies deeper than apps can.
    pub(crate) fn app_path_of(&self, id: ObjectId, apps: &Apps) -> Option<AppPath> {
        let mut names: Vec<&Name> = Vec::new();
        let mut at = id;
        while at != ObjectId::ROOT {
            let inode = self.get(&at)?;
            names.push(inode.name.as_ref().filter(|_| inode.is_directory())?);
            if !apps.is_app_depth(names.len()) {
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

    /// Path of `name` in `parent`; none if the parent has no path, or one where no app can be.
    pub(crate) fn path_in(&self, parent: ObjectId, name: &[u8], apps: &Apps) -> Option<Vec<u8>> {
        let mut path = self.app_path_of(parent, apps)?;
        path.push(name);
        Some(path.bytes)
    }

    /// Path of `name` in `parent`, if a directory there would be the root of an app.
    pub(crate) fn app_place(&self, parent: ObjectId, name: &[u8], apps: &Apps) -> Option<Vec<u8>> {
        let mut path = self.app_path_of(parent, apps)?;
        path.push(name);
        let is_app = apps.is_app_depth(path.names) && apps.rules().is_app(&path.bytes);
        is_app.then_some(path.bytes)
    }

    /// A file that is in memory was found through a link in `parent`: if that is another app's,
    /// changes of the file concern both.
    pub(crate) fn add_linked_app(
        &mut self,
        id: ObjectId,
        parent: ObjectId,
        apps: &mut Apps,
    ) -> Result<(), Stop> {
        let app = self.app_of(parent, apps);
        if app != self.app_of(id, apps) {
            let inode = self.inode_mut(id)?;
            if !inode.linked_apps.contains(&app) {
                inode.linked_apps.push(app);
            }
        }
        Ok(())
    }
}
