//! Renaming: within a directory, across directories, across apps.

use alloc::vec::Vec;

use mobifs_base::{AppId, FileKind, Name, ObjectId, Room, TransactionId};

use super::Engine;
use crate::directory::Slot;
use crate::error::{FsError, Stop};
use crate::inode::Inode;
use crate::namespace::room_of;
use crate::request::{Moment, RenameMode};

/// One side of a rename, all checked and in memory.
pub(super) struct Side {
    pub(super) parent: ObjectId,
    pub(super) name: Name,
}

/// Renaming: two entries, their objects, and all apps that these belong to.
impl Engine {
    /// Renames an entry (`renameat2`).
    ///
    /// # Errors
    /// `NotFound`, `Exists` (with [`RenameMode::NoReplace`]), `IsDirectory`,
    /// `NotDirectory`, `NotEmpty`, `InvalidArgument` for a directory moved into
    /// itself, `Busy` for what lies on another filesystem, `NameTooLong`,
    /// `NotPermitted` (also for a whiteout where the lower filesystem gives us no
    /// devices), `ReadOnly`, or a [`crate::Need`].
    pub fn rename(
        &mut self,
        moment: Moment,
        from: (ObjectId, &[u8]),
        to: (ObjectId, &[u8]),
        mode: RenameMode,
    ) -> Result<(), Stop> {
        self.namespace.check_directory(from.0)?;
        self.namespace.check_directory(to.0)?;
        let source = self
            .namespace
            .entry(from.0, from.1)?
            .ok_or(FsError::NotFound)?;
        let from = Side {
            parent: from.0,
            name: self.limits.new_name(from.0, from.1)?,
        };
        let to = Side {
            parent: to.0,
            name: self.limits.new_name(to.0, to.1)?,
        };
        let target = self.namespace.entry(to.parent, to.name.as_bytes())?;
        let moved = self.adopt(from.parent, from.name.as_bytes(), source)?;
        let other = match target {
            Some(slot) => Some(self.adopt(to.parent, to.name.as_bytes(), slot)?),
            None => None,
        };
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(FsError::Exists.into()),
            (RenameMode::Exchange, None) => return Err(FsError::NotFound.into()),
            _ => {}
        }
        self.check_moved(moved, to.parent)?;
        if other == Some(moved) {
            // Two links of one file: POSIX demands that nothing happens.
            return Ok(());
        }
        if target.is_none() && from.parent != to.parent {
            self.require_entry(to.parent, &to.name)?;
        }
        let left = match mode {
            RenameMode::Whiteout(caller) => Some(self.whiteout(&caller, moment, &from)?),
            _ => None,
        };
        match &left {
            Some(left) => {
                let inherited = room_of(left.xattrs.iter().flatten().map(|(_, value)| value));
                self.require_entries(to.parent, 6, inherited.saturating_add(Room::INODE))?;
            }
            None => self.require_moves(to.parent, 6)?,
        }
        match (mode, other) {
            (RenameMode::Exchange, Some(other)) => {
                self.check_moved(other, from.parent)?;
                self.exchange(moment, &from, &to, (moved, source), (other, target))
            }
            _ => {
                if let Some(slot) = target {
                    self.check_replaced(source.kind, slot)?;
                }
                self.replace(moment, &from, &to, (moved, source.kind), other, left)
            }
        }
    }

    /// Fails for an object that cannot move, or cannot move there.
    fn check_moved(&self, id: ObjectId, to_parent: ObjectId) -> Result<(), Stop> {
        let inode = self.namespace.inode(id)?;
        if inode.foreign {
            return Err(FsError::Busy.into());
        }
        self.namespace.check_changeable(id)?;
        if inode.is_directory() {
            let mut at = to_parent;
            while at != ObjectId::ROOT {
                if at == id {
                    return Err(FsError::InvalidArgument.into());
                }
                at = self.namespace.inode(at)?.home;
            }
        }
        Ok(())
    }

    /// Fails if an entry of kind `source` cannot take the place of `target`.
    fn check_replaced(&self, source: FileKind, target: Slot) -> Result<(), Stop> {
        if self.namespace.inode(target.id)?.foreign {
            return Err(FsError::Busy.into());
        }
        self.namespace.check_changeable(target.id)?;
        match (
            source == FileKind::Directory,
            target.kind == FileKind::Directory,
        ) {
            (true, false) => Err(FsError::NotDirectory.into()),
            (false, true) => Err(FsError::IsDirectory.into()),
            (true, true) if !self.namespace.entries(target.id)?.is_empty() => {
                Err(FsError::NotEmpty.into())
            }
            _ => Ok(()),
        }
    }

    fn replace(
        &mut self,
        moment: Moment,
        from: &Side,
        to: &Side,
        (moved, kind): (ObjectId, FileKind),
        replaced: Option<ObjectId>,
        left: Option<Inode>,
    ) -> Result<(), Stop> {
        let is_directory = kind == FileKind::Directory;
        let mut objects = alloc::vec![moved, from.parent, to.parent];
        objects.extend(replaced);
        let mut transaction = self.begin_rename(moment, &objects, &[(moved, to)])?;
        let subdirectories = i32::from(is_directory);
        transaction = self.touch(transaction, moved)?;
        transaction = self.touch_entries(transaction, from.parent, moment, -subdirectories)?;
        let net = if replaced.is_some() {
            0
        } else {
            subdirectories
        };
        transaction = self.touch_entries(transaction, to.parent, moment, net)?;
        if let Some(replaced) = replaced {
            transaction = self.touch(transaction, replaced)?;
        }
        self.namespace.remove_entry(from.parent, &from.name)?;
        self.namespace.set_entry(to.parent, &to.name, moved, kind)?;
        let left = match left {
            Some(inode) => {
                let (kind, id) = (inode.attributes.kind, self.namespace.new_object_id());
                self.namespace.insert_inode(id, inode)?;
                transaction = self.touch_new(transaction, id)?;
                self.namespace
                    .set_entry(from.parent, &from.name, id, kind)?;
                Some(id)
            }
            None => None,
        };
        transaction = self.record_dentry(transaction, (from.parent, &from.name), Some(moved), left);
        transaction = self.record_dentry(transaction, (to.parent, &to.name), replaced, Some(moved));
        self.tie_parted_files(moved, to);
        self.place(moved, to, moment)?;
        if let Some(replaced) = replaced {
            self.drop_link(transaction, replaced, moment)?;
        }
        self.after_rename(is_directory);
        self.finish(transaction, moment.now);
        Ok(())
    }

    fn exchange(
        &mut self,
        moment: Moment,
        from: &Side,
        to: &Side,
        (moved, source): (ObjectId, Slot),
        (other, target): (ObjectId, Option<Slot>),
    ) -> Result<(), Stop> {
        let other_kind = target.map_or(FileKind::Regular, |slot| slot.kind);
        let objects = [moved, other, from.parent, to.parent];
        let mut transaction = self.begin_rename(moment, &objects, &[(moved, to), (other, from)])?;
        let came = i32::from(source.kind == FileKind::Directory);
        let went = i32::from(other_kind == FileKind::Directory);
        transaction = self.touch(transaction, moved)?;
        transaction = self.touch(transaction, other)?;
        transaction = self.touch_entries(transaction, from.parent, moment, went - came)?;
        transaction = self.touch_entries(transaction, to.parent, moment, came - went)?;
        self.namespace
            .set_entry(from.parent, &from.name, other, other_kind)?;
        self.namespace
            .set_entry(to.parent, &to.name, moved, source.kind)?;
        transaction = self.record_dentry(
            transaction,
            (from.parent, &from.name),
            Some(moved),
            Some(other),
        );
        transaction =
            self.record_dentry(transaction, (to.parent, &to.name), Some(other), Some(moved));
        self.tie_parted_files(moved, to);
        self.tie_parted_files(other, from);
        self.place(moved, to, moment)?;
        self.place(other, from, moment)?;
        self.after_rename(came + went > 0);
        self.finish(transaction, moment.now);
        Ok(())
    }

    /// Gives an object its new name.
    fn place(&mut self, id: ObjectId, side: &Side, moment: Moment) -> Result<(), Stop> {
        let is_directory = self.namespace.inode(id)?.is_directory();
        let before = self.namespace.app_of(id, &mut self.apps);
        self.namespace.set_home(id, side.parent)?;
        let after = self.namespace.app_of(side.parent, &mut self.apps);
        let inode = self.namespace.inode_mut(id)?;
        inode.attributes.ctime = moment.wall;
        inode.name = Some(side.name.clone());
        inode.app_epoch = 0;
        if !is_directory && after != before {
            if inode.attributes.nlink > 1 && !inode.linked_apps.contains(&before) {
                inode.linked_apps.push(before);
            }
            inode.linked_apps.retain(|&app| app != after);
        }
        Ok(())
    }

    /// A directory moved: everything inside may belong to another app now.
    fn after_rename(&mut self, directory_moved: bool) {
        if directory_moved {
            self.namespace.forget_apps();
        }
    }

    /// One transaction for all apps that a rename concerns: those of the objects, the
    /// app that a moved directory becomes, and the apps that lie inside a moved
    /// directory (what they changed before must not come after what their new app
    /// changes later).
    fn begin_rename(
        &mut self,
        moment: Moment,
        objects: &[ObjectId],
        moves: &[(ObjectId, &Side)],
    ) -> Result<TransactionId, Stop> {
        let mut apps: Vec<AppId> = Vec::new();
        for &id in objects {
            apps.push(self.namespace.app_of(id, &mut self.apps));
            apps.extend_from_slice(&self.namespace.inode(id)?.linked_apps);
        }
        for &(id, to) in moves {
            if self.namespace.inode(id)?.is_directory() {
                apps.extend(self.apps_below(id));
                apps.push(self.app_of_directory_at(to));
            }
        }
        let moves_apps = moves.iter().any(|&(id, to)| self.moves_apps(id, to));
        let transaction = self.begin_apps(apps, moment.now)?;
        if moves_apps {
            return Ok(self.reach_everywhere(transaction));
        }
        Ok(self.reach_unknown_names(transaction, objects))
    }

    /// Whether what lies inside a directory may belong to other apps once it has moved, which are
    /// not known yet: their later changes must not be committed before the move, or they would show
    /// at a path where they never were.
    fn moves_apps(&self, id: ObjectId, to: &Side) -> bool {
        if self
            .namespace
            .get(&id)
            .is_none_or(|inode| !inode.is_directory())
        {
            return false;
        }
        let places = [
            self.namespace
                .app_path_of(id, &self.apps)
                .map(|path| path.bytes),
            self.namespace
                .path_in(to.parent, to.name.as_bytes(), &self.apps),
        ];
        let mut places = places.into_iter().flatten();
        places.any(|path| self.apps.rules().has_apps_below(&path))
    }

    /// The apps that lie inside a directory.
    fn apps_below(&self, id: ObjectId) -> Vec<AppId> {
        // Deeper than the rules allow there are no apps.
        let Some(path) = self.namespace.app_path_of(id, &self.apps) else {
            return Vec::new();
        };
        let mut prefix = path.bytes;
        prefix.push(b'/');
        self.apps.with_prefix(prefix)
    }

    /// The app that a directory has once it is there.
    fn app_of_directory_at(&mut self, to: &Side) -> AppId {
        match self
            .namespace
            .app_place(to.parent, to.name.as_bytes(), &self.apps)
        {
            Some(path) => self.apps.at(path),
            None => self.namespace.app_of(to.parent, &mut self.apps),
        }
    }

    /// Before a directory moves to another app: a file that has one name in it may have
    /// another outside. No lookup of either follows, so that from now on a change of such
    /// a file concerns both apps must be marked here. Which names a file has is not known,
    /// hence of all that may be such a file.
    fn tie_parted_files(&mut self, moved: ObjectId, to: &Side) {
        if self
            .namespace
            .get(&moved)
            .is_none_or(|inode| !inode.is_directory())
        {
            return;
        }
        let (before, inside) = (
            self.namespace.app_of(moved, &mut self.apps),
            self.apps_below(moved),
        );
        let after = self.app_of_directory_at(to);
        if before == after && inside.is_empty() {
            return;
        }
        let may_be_parted = |(&id, inode): (&ObjectId, &Inode)| {
            let is_file = !inode.is_directory() && !inode.is_orphan();
            (is_file && inode.had_several_names).then_some(id)
        };
        let candidates: Vec<ObjectId> = self.namespace.iter().filter_map(may_be_parted).collect();
        for id in candidates {
            let own = self.namespace.app_of(id, &mut self.apps);
            let Some(inode) = self.namespace.get_mut(&id) else {
                continue;
            };
            let is_moved = |app: &AppId| *app == before || inside.contains(app);
            if !is_moved(&own) && !inode.linked_apps.iter().any(is_moved) {
                continue;
            }
            for app in [before, after] {
                if !inode.linked_apps.contains(&app) {
                    inode.linked_apps.push(app);
                }
            }
            // The apps inside get other paths, and become others.
            inode.has_unknown_names |= !inside.is_empty();
        }
    }
}
