//! The calls of [`Lower`].

use std::io;
use std::sync::Arc;

use mobifs_base::{
    ByteRange, DeviceNumber, FileKind, SpaceInfo, Timestamp, Xattr, xattr_room_bytes,
};
use mobifs_store::Capabilities;
use mobifs_store::lower::{
    Blocks, Create, JOURNAL_BLOCK_BYTES, JournalBuffer, Lower, LowerEntry, LowerStat,
    SetAttributes, WrittenBack,
};
use rustix::io::Errno;

use super::blocks::{is_cached, tells_kind};
use super::effect::{Effect, EntryName, InodeKey, SECTOR, SECTOR_BYTES, Sector};
use super::faults::{self, Call};
use super::refusals::Action;
use super::state::{Inode, ROOT};
use super::{CrashHandle, CrashLower, Filesystem};

/// Number of the simulated device.
const DEVICE: u64 = 1;
fn fails<T>(errno: Errno) -> io::Result<T> {
    Err(errno.into())
}

impl Filesystem {
    fn inode(&self, key: InodeKey) -> io::Result<&Inode> {
        self.live
            .inodes
            .get(&key)
            .map(|inode| &**inode)
            .ok_or_else(|| Errno::STALE.into())
    }

    fn directory(&self, key: InodeKey) -> io::Result<&Inode> {
        let inode = self.inode(key)?;
        if inode.kind == FileKind::Directory {
            Ok(inode)
        } else {
            fails(Errno::NOTDIR)
        }
    }

    pub(super) fn file(&self, key: InodeKey) -> io::Result<&Inode> {
        let inode = self.inode(key)?;
        if inode.kind == FileKind::Regular {
            Ok(inode)
        } else {
            fails(Errno::BADF)
        }
    }

    fn lookup(&self, directory: InodeKey, name: &[u8]) -> io::Result<InodeKey> {
        check_name(name)?;
        let found = self.directory(directory)?.entries.get(name).copied();
        found.ok_or_else(|| Errno::NOENT.into())
    }

    /// Checks that `name` may be added to `directory`.
    fn check_free(&self, directory: InodeKey, name: &[u8]) -> io::Result<()> {
        check_name(name)?;
        let directory = self.directory(directory)?;
        if directory.entries.contains_key(name) {
            return fails(Errno::EXIST);
        }
        // A directory that was removed while it was open takes no entries.
        if directory.links == 0 {
            fails(Errno::NOENT)
        } else {
            Ok(())
        }
    }

    /// Checks that a directory of the tree has no unknown limit for another entry.
    fn check_index(&self, directory: InodeKey) -> io::Result<()> {
        let entries = self.directory(directory)?.entries.len();
        let is_full = self.refusals.names_max.is_some_and(|max| entries >= max);
        if is_full && directory != ROOT && !self.is_own(directory) {
            return fails(Errno::NOSPC);
        }
        Ok(())
    }

    /// Whether there is an inode for something new in a directory of the store's own one.
    fn has_inodes(&self, directory: InodeKey) -> bool {
        let Some(most) = self.refusals.inodes_max else {
            return true;
        };
        let is_linked = |inode: &&Arc<Inode>| inode.links > 0;
        let linked = || self.live.inodes.values().filter(is_linked).count();
        !self.is_staging(directory) || linked() < most
    }

    /// Whether this lies in the store's own directory.
    fn is_staging(&self, key: InodeKey) -> bool {
        let root = self.live.inodes.get(&ROOT);
        let own = root.and_then(|root| root.entries.get(&b".mobifs"[..]));
        self.is_own(key) && own != Some(&key)
    }

    /// Whether this is the store's own directory, or in it.
    pub(super) fn is_own(&self, key: InodeKey) -> bool {
        let root = self.live.inodes.get(&ROOT);
        let Some(&own) = root.and_then(|root| root.entries.get(&b".mobifs"[..])) else {
            return false;
        };
        let below = self.live.inodes.get(&own);
        key == own || below.is_some_and(|own| own.entries.values().any(|below| *below == key))
    }

    /// Checks that there is a descriptor for one more handle, or for the length of a call.
    pub(super) fn check_descriptors(&self) -> io::Result<()> {
        let open = Arc::strong_count(&self.handles) - 1;
        if open < self.handles_max {
            Ok(())
        } else {
            fails(Errno::MFILE)
        }
    }

    fn open(&mut self, key: InodeKey) -> io::Result<CrashHandle> {
        self.check_descriptors()?;
        Ok(CrashHandle {
            key,
            _open: self.open.entry(key).or_default().clone(),
            _counted: Arc::clone(&self.handles),
        })
    }

    fn stat(&self, key: InodeKey) -> io::Result<LowerStat> {
        let inode = self.inode(key)?;
        let subdirectories = || {
            let kinds = inode
                .entries
                .values()
                .filter_map(|child| self.live.inodes.get(child));
            kinds
                .filter(|child| child.kind == FileKind::Directory)
                .count()
        };
        Ok(LowerStat {
            device: DEVICE,
            inode: inode.number,
            born: Some(Timestamp::new(self.copies, 0)),
            kind: inode.kind,
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
            size: inode
                .target
                .as_ref()
                .map_or(inode.size, |target| target.len() as u64),
            allocated_bytes: inode.sectors.len() as u64 * SECTOR,
            immutable: false,
            nlink: match inode.kind {
                FileKind::Directory => 2 + u32::try_from(subdirectories()).unwrap_or(u32::MAX - 2),
                _ => inode.links,
            },
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.mtime,
        })
    }

    fn touch(&mut self, inode: InodeKey) {
        let mtime = self.now();
        self.record(Effect::Times {
            inode,
            atime: None,
            mtime,
        });
    }

    fn count_links(&mut self, key: InodeKey, change: i32) {
        if let Some(inode) = self.live.inode_mut(key) {
            inode.links = inode.links.saturating_add_signed(change);
            if inode.links == 0 {
                self.unlinked.push(key);
            }
        }
    }

    fn create(&mut self, directory: InodeKey, name: &[u8], what: &Create<'_>) -> io::Result<()> {
        self.check_free(directory, name)?;
        let longest = self.refusals.symlink_bytes_max.unwrap_or(usize::MAX);
        if matches!(what, Create::Symlink(target) if target.len() > longest) {
            return fails(Errno::NAMETOOLONG);
        }
        self.check_overflow(directory, name)?;
        if !self.has_inodes(directory) {
            return fails(Errno::NOSPC);
        }
        self.check_create(name, what)?;
        let (kind, rdev) = match *what {
            Create::Regular => (FileKind::Regular, DeviceNumber::default()),
            Create::Directory => (FileKind::Directory, DeviceNumber::default()),
            Create::Symlink(_) => (FileKind::Symlink, DeviceNumber::default()),
            Create::Fifo => (FileKind::Fifo, DeviceNumber::default()),
            Create::Socket => (FileKind::Socket, DeviceNumber::default()),
            Create::CharDevice(rdev) => (FileKind::CharDevice, rdev),
            Create::BlockDevice(rdev) => (FileKind::BlockDevice, rdev),
        };
        let (key, number, predecessor) = self.new_inode();
        let mut inode = Inode {
            rdev,
            predecessor,
            ..Inode::new(number, kind, self.now())
        };
        if let Create::Symlink(target) = *what {
            inode.target = Some(target.into());
        }
        let inode = Arc::new(inode);
        // The medium knows it as soon as an entry that names it lands.
        self.durable.inodes.insert(key, inode.clone());
        self.live.inodes.insert(key, inode);
        self.record(Effect::Link {
            directory,
            name: name.into(),
            inode: key,
            creation: true,
        });
        self.count_links(key, 1);
        self.touch(directory);
        Ok(())
    }

    fn link(
        &mut self,
        (directory, name): (InodeKey, &[u8]),
        (to, to_name): (InodeKey, &[u8]),
    ) -> io::Result<()> {
        let inode = self.lookup(directory, name)?;
        if self.inode(inode)?.kind == FileKind::Directory {
            return fails(Errno::PERM);
        }
        self.check_free(to, to_name)?;
        self.check_index(to)?;
        self.check_call(Action::Link, inode)?;
        self.record(Effect::Link {
            directory: to,
            name: to_name.into(),
            inode,
            creation: false,
        });
        self.count_links(inode, 1);
        self.touch(to);
        Ok(())
    }

    fn rename(
        &mut self,
        (from, from_name): (InodeKey, &[u8]),
        (to, to_name): (InodeKey, &[u8]),
    ) -> io::Result<()> {
        let inode = self.lookup(from, from_name)?;
        let kind = self.inode(inode)?.kind;
        if kind == FileKind::Directory && self.is_inside(to, inode) {
            return fails(Errno::INVAL);
        }
        self.check_free(to, to_name)?;
        self.check_index(to)?;
        self.check_overflow(to, to_name)?;
        self.check_rename(inode, from, to)?;
        let (from_name, to_name) = (EntryName::from(from_name), EntryName::from(to_name));
        self.record(Effect::Rename {
            from,
            from_name,
            to,
            to_name,
            inode,
            kind,
        });
        self.touch(from);
        self.touch(to);
        Ok(())
    }

    /// Whether `directory` is `ancestor` or below it.
    fn is_inside(&self, directory: InodeKey, ancestor: InodeKey) -> bool {
        let mut next = vec![ancestor];
        while let Some(key) = next.pop() {
            if key == directory {
                return true;
            }
            if let Some(inode) = self.live.inodes.get(&key) {
                next.extend(inode.entries.values());
            }
        }
        false
    }

    fn remove(&mut self, directory: InodeKey, name: &[u8], is_directory: bool) -> io::Result<()> {
        let key = self.lookup(directory, name)?;
        let inode = self.inode(key)?;
        let kind = inode.kind;
        match (is_directory, kind == FileKind::Directory) {
            (true, false) => return fails(Errno::NOTDIR),
            (false, true) => return fails(Errno::ISDIR),
            (true, true) if !inode.entries.is_empty() => return fails(Errno::NOTEMPTY),
            _ => {}
        }
        if !self.is_own(directory) {
            self.check_call(Action::Unlink, key)?;
        }
        self.record(Effect::Unlink {
            directory,
            name: name.into(),
            inode: key,
            kind,
        });
        self.count_links(key, -1);
        self.touch(directory);
        Ok(())
    }

    fn write(&mut self, inode: InodeKey, content: &[u8], offset: u64) -> io::Result<()> {
        let half = if self.writes_half {
            content.len() / 2
        } else {
            content.len()
        };
        let content = &content[..half];
        let end = offset + content.len() as u64;
        // Writing nothing does nothing, also after the end.
        let grows = !content.is_empty() && self.file(inode)?.size < end;
        let mut done = 0;
        while done < content.len() {
            let at = offset + done as u64;
            let within = (at % SECTOR) as usize;
            let count = (SECTOR_BYTES - within).min(content.len() - done);
            // A sector goes to the medium as memory holds it, older bytes included.
            let mut sector = self.sector(inode, at / SECTOR)?;
            sector[within..within + count].copy_from_slice(&content[done..done + count]);
            self.record_sector(inode, at / SECTOR, sector);
            done += count;
        }
        if grows {
            self.record(Effect::Size { inode, size: end });
        }
        Ok(())
    }

    pub(super) fn sector(&self, inode: InodeKey, index: u64) -> io::Result<[u8; SECTOR_BYTES]> {
        let found: Option<&Sector> = self.file(inode)?.sectors.get(&index);
        Ok(found.map_or([0; SECTOR_BYTES], |sector| **sector))
    }

    pub(super) fn record_sector(
        &mut self,
        inode: InodeKey,
        index: u64,
        sector: [u8; SECTOR_BYTES],
    ) {
        // Zeros are kept as holes, or an empty journal would fill the memory.
        let content = sector
            .iter()
            .any(|&byte| byte != 0)
            .then(|| Arc::new(sector));
        self.record(Effect::Sector {
            inode,
            index,
            content,
        });
    }

    fn zero(&mut self, inode: InodeKey, range: ByteRange) -> io::Result<()> {
        let file = self.file(inode)?;
        let end = range.end.min(file.size);
        let (first, last) = (range.start / SECTOR, end.div_ceil(SECTOR));
        let touched: Vec<u64> = file
            .sectors
            .range(first..last.max(first))
            .map(|(&index, _)| index)
            .collect();
        for index in touched {
            let mut sector = self.sector(inode, index)?;
            let start = range.start.saturating_sub(index * SECTOR).min(SECTOR) as usize;
            let stop = end.saturating_sub(index * SECTOR).min(SECTOR) as usize;
            if start < stop {
                sector[start..stop].fill(0);
                self.record_sector(inode, index, sector);
            }
        }
        Ok(())
    }

    fn set_attributes(&mut self, key: InodeKey, wanted: &SetAttributes) -> io::Result<()> {
        let inode = self.inode(key)?;
        let (uid, gid) = (wanted.uid, wanted.gid);
        let owner_changes = (inode.uid, inode.gid) != (uid, gid);
        let mode_changes = inode.kind != FileKind::Symlink && inode.mode != wanted.mode;
        if owner_changes {
            self.record(Effect::Owner {
                inode: key,
                uid,
                gid,
            });
        }
        if mode_changes {
            self.record(Effect::Mode {
                inode: key,
                mode: wanted.mode,
            });
        }
        let (atime, mtime) = (Some(wanted.atime), wanted.mtime);
        self.record(Effect::Times {
            inode: key,
            atime,
            mtime,
        });
        Ok(())
    }
}

fn check_name(name: &[u8]) -> io::Result<()> {
    if name.len() > 255 {
        return fails(Errno::NAMETOOLONG);
    }
    if matches!(name, b"" | b"." | b"..") || name.iter().any(|b| matches!(b, b'/' | 0)) {
        return fails(Errno::INVAL);
    }
    Ok(())
}

impl Lower for CrashLower {
    type Handle = CrashHandle;

    fn root(&self) -> io::Result<CrashHandle> {
        self.look(|filesystem| filesystem.open(ROOT))
    }

    /// As many as a store wants: it must cope if there are fewer.
    fn handles_max(&self) -> usize {
        512
    }

    fn is_in_scope(&self, _name: &[u8]) -> bool {
        true
    }

    fn open(&self, directory: &CrashHandle, name: &[u8], _write: bool) -> io::Result<CrashHandle> {
        self.look(|filesystem| {
            let key = filesystem.lookup(directory.key, name)?;
            filesystem.open(key)
        })
    }

    fn stat(&self, object: &CrashHandle) -> io::Result<LowerStat> {
        self.look(|filesystem| filesystem.stat(object.key))
    }

    fn stat_at(&self, directory: &CrashHandle, name: &[u8]) -> io::Result<LowerStat> {
        self.look(|filesystem| filesystem.stat(filesystem.lookup(directory.key, name)?))
    }

    fn list(&self, directory: &CrashHandle) -> io::Result<Vec<LowerEntry>> {
        self.look(|filesystem| {
            filesystem.check_descriptors()?;
            let entries = filesystem.directory(directory.key)?.entries.iter();
            entries
                .map(|(name, &key)| {
                    let inode = filesystem.inode(key)?;
                    let kind = tells_kind(inode.number).then_some(inode.kind);
                    Ok(LowerEntry {
                        name: name.to_vec(),
                        inode: inode.number,
                        kind,
                    })
                })
                .collect()
        })
    }

    fn read_link(&self, directory: &CrashHandle, name: &[u8]) -> io::Result<Vec<u8>> {
        self.look(|filesystem| {
            let key = filesystem.lookup(directory.key, name)?;
            let target = filesystem.inode(key)?.target.as_ref();
            target
                .map(|target| target.to_vec())
                .ok_or_else(|| Errno::INVAL.into())
        })
    }

    fn create(&self, directory: &CrashHandle, name: &[u8], what: Create<'_>) -> io::Result<()> {
        self.mutate(Call::Grow, |filesystem| {
            filesystem.create(directory.key, name, &what)
        })
    }

    fn link(
        &self,
        directory: &CrashHandle,
        name: &[u8],
        to_directory: &CrashHandle,
        to_name: &[u8],
    ) -> io::Result<()> {
        let (from, to) = ((directory.key, name), (to_directory.key, to_name));
        self.mutate(Call::Grow, |filesystem| filesystem.link(from, to))
    }

    fn rename(
        &self,
        directory: &CrashHandle,
        name: &[u8],
        to_directory: &CrashHandle,
        to_name: &[u8],
    ) -> io::Result<()> {
        let (from, to) = ((directory.key, name), (to_directory.key, to_name));
        self.mutate(Call::Change, |filesystem| filesystem.rename(from, to))
    }

    fn unlink(&self, directory: &CrashHandle, name: &[u8]) -> io::Result<()> {
        self.mutate(Call::Change, |filesystem| {
            filesystem.remove(directory.key, name, false)
        })
    }

    fn remove_directory(&self, directory: &CrashHandle, name: &[u8]) -> io::Result<()> {
        self.mutate(Call::Change, |filesystem| {
            filesystem.remove(directory.key, name, true)
        })
    }

    fn read_at(&self, file: &CrashHandle, out: &mut [u8], offset: u64) -> io::Result<usize> {
        self.look(|filesystem| {
            let inode = filesystem.file(file.key)?;
            let count = inode.size.saturating_sub(offset).min(out.len() as u64) as usize;
            inode.read(&mut out[..count], offset);
            Ok(count)
        })
    }

    fn read_cached(&self, file: &CrashHandle, out: &mut [u8], offset: u64) -> io::Result<usize> {
        let number = self.look(|filesystem| Ok(filesystem.file(file.key)?.number))?;
        let end = offset + out.len() as u64;
        let mut pages = (offset..end).step_by(4096).chain(end.checked_sub(1));
        if pages.any(|at| !is_cached(number, at)) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.read_at(file, out, offset)
    }

    fn write_at(&self, file: &CrashHandle, content: &[u8], offset: u64) -> io::Result<()> {
        let kind = self
            .0
            .filesystem
            .lock()
            .write_kind(file.key, content, offset);
        self.mutate(kind, |filesystem| {
            filesystem.check_call(Action::Write, file.key)?;
            filesystem.write(file.key, content, offset)?;
            filesystem.touch(file.key);
            Ok(())
        })
    }

    fn truncate(&self, file: &CrashHandle, size: u64) -> io::Result<()> {
        self.mutate(Call::Change, |filesystem| {
            let before = filesystem.file(file.key)?.size;
            let most = filesystem.refusals.file_bytes_max.unwrap_or(u64::MAX);
            if size > most && size > before && !filesystem.is_own(file.key) {
                return fails(Errno::FBIG);
            }
            filesystem.check_call(Action::Size, file.key)?;
            filesystem.record(Effect::Size {
                inode: file.key,
                size,
            });
            filesystem.touch(file.key);
            Ok(())
        })
    }

    fn zero_range(&self, file: &CrashHandle, range: ByteRange) -> io::Result<()> {
        self.mutate(Call::Change, |filesystem| {
            filesystem.check_call(Action::Zero, file.key)?;
            filesystem.zero(file.key, range)?;
            filesystem.touch(file.key);
            Ok(())
        })
    }

    fn preallocate(&self, file: &CrashHandle, range: ByteRange) -> io::Result<()> {
        self.mutate(Call::Grow, |filesystem| {
            filesystem.allocate(file.key, range)
        })
    }

    fn device_identity(&self) -> Option<String> {
        self.0.filesystem.lock().device.clone()
    }

    fn keeps_preallocation(&self) -> bool {
        true
    }

    fn moves_content(&self) -> bool {
        self.0.filesystem.lock().moves_content
    }

    fn is_scattered(&self, file: &CrashHandle) -> io::Result<bool> {
        self.look(|filesystem| filesystem.is_scattered(file.key))
    }

    fn move_content(
        &self,
        _own_directory: &CrashHandle,
        file: &CrashHandle,
        _content: &[u8],
        room_bytes: u64,
    ) -> io::Result<Option<CrashHandle>> {
        self.mutate(Call::Grow, |all| {
            let donor = all.move_content(file.key, room_bytes)?;
            donor.map(|donor| all.open(donor)).transpose()
        })
    }

    fn move_back(&self, file: &CrashHandle, donor: &CrashHandle) -> io::Result<()> {
        self.mutate(Call::Change, |all| all.move_back(file.key, donor.key))
    }

    fn allocated_after(&self, file: &CrashHandle, offset: u64) -> io::Result<Option<u64>> {
        self.look(|filesystem| filesystem.allocated_after(file.key, offset))
    }

    fn is_in_place(
        &self,
        file: &CrashHandle,
        range: ByteRange,
        _counted: Blocks,
    ) -> io::Result<bool> {
        self.look(|filesystem| {
            let sectors = &filesystem.file(file.key)?.sectors;
            let wanted = range.start / SECTOR..range.end.div_ceil(SECTOR);
            let there = sectors.range(wanted.clone()).count() as u64;
            Ok(there == wanted.end - wanted.start)
        })
    }

    fn seek_data(&self, file: &CrashHandle, offset: u64) -> io::Result<Option<u64>> {
        self.look(|filesystem| filesystem.seek_data(file.key, offset))
    }

    fn seek_hole(&self, file: &CrashHandle, offset: u64) -> io::Result<Option<u64>> {
        self.look(|filesystem| filesystem.seek_hole(file.key, offset))
    }

    fn set_attributes(&self, object: &CrashHandle, wanted: &SetAttributes) -> io::Result<()> {
        self.mutate(Call::Change, |filesystem| {
            filesystem.check_call(Action::Attributes, object.key)?;
            filesystem.set_attributes(object.key, wanted)
        })
    }

    fn xattrs(&self, object: &CrashHandle) -> io::Result<Vec<Xattr>> {
        self.look(|filesystem| {
            let xattrs = filesystem.inode(object.key)?.xattrs.iter();
            Ok(xattrs
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect())
        })
    }

    fn set_xattr(&self, object: &CrashHandle, name: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        let kind = if value.is_some() {
            Call::Grow
        } else {
            Call::Change
        };
        self.mutate(kind, |filesystem| {
            filesystem.check_call(Action::Xattr, object.key)?;
            let xattrs = &filesystem.inode(object.key)?.xattrs;
            let others = xattrs.iter().filter(|(other, _)| other.as_ref() != name);
            let room = others
                .map(|(name, value)| (name.len(), value.len()))
                .chain(value.map(|value| (name.len(), value.len())))
                .map(|(name_bytes, value_bytes)| xattr_room_bytes(name_bytes, value_bytes));
            if value.is_some() && room.sum::<usize>() > filesystem.capabilities.xattr_bytes_max {
                return Err(io::Error::from_raw_os_error(super::ENOSPC));
            }
            let value = value.map(Arc::from);
            filesystem.record(Effect::Xattr {
                inode: object.key,
                name: name.into(),
                value,
            });
            Ok(())
        })
    }

    fn sync(&self, object: &CrashHandle) -> io::Result<()> {
        let key = object.key;
        self.mutate(Call::Sync, |filesystem| {
            filesystem.inode(key)?;
            filesystem.make_durable(|effect| effect.content_of() == Some(key) || effect.is_in(key));
            Ok(())
        })
    }

    fn sync_content(&self, file: &CrashHandle) -> io::Result<()> {
        let key = file.key;
        self.mutate(Call::Sync, |filesystem| {
            filesystem.inode(key)?;
            filesystem
                .make_durable(|effect| effect.is_content() && effect.content_of() == Some(key));
            Ok(())
        })
    }

    fn write_back(&self, file: &CrashHandle, _: WrittenBack) -> io::Result<()> {
        let key = file.key;
        // What is in the device's cache is lost at a cut like what never left memory.
        self.mutate(Call::Sync, |filesystem| filesystem.inode(key).map(|_| ()))
    }

    fn sync_all(&self) -> io::Result<()> {
        self.mutate(Call::Sync, |filesystem| {
            filesystem.make_all_durable();
            Ok(())
        })
    }

    fn space(&self) -> io::Result<SpaceInfo> {
        self.look(|filesystem| {
            Ok(if filesystem.faults.is_full() {
                faults::without_room(filesystem.space)
            } else {
                filesystem.space
            })
        })
    }

    fn capabilities(&self, _scratch_directory: &CrashHandle) -> io::Result<Capabilities> {
        self.look(|filesystem| Ok(filesystem.capabilities))
    }

    fn open_journal(
        &self,
        directory: &CrashHandle,
        name: &[u8],
    ) -> io::Result<(CrashHandle, bool)> {
        let exists = self.look(|filesystem| Ok(filesystem.lookup(directory.key, name).is_ok()))?;
        if !exists {
            self.create(directory, name, Create::Regular)?;
        }
        let handle = self.open(directory, name, true)?;
        self.look(|filesystem| filesystem.file(handle.key).map(|_| ()))?;
        Ok((handle, true))
    }

    fn journal_write(
        &self,
        journal: &CrashHandle,
        blocks: &JournalBuffer,
        offset: u64,
        durable: bool,
    ) -> io::Result<()> {
        let content = blocks.as_bytes();
        if !offset.is_multiple_of(JOURNAL_BLOCK_BYTES as u64) {
            return fails(Errno::INVAL);
        }
        self.mutate(Call::Journal, |filesystem| {
            filesystem.journal_write_pending = true;
            filesystem.write(journal.key, content, offset)
        })?;
        if !durable {
            return Ok(());
        }
        let sectors = offset / SECTOR..(offset + content.len() as u64) / SECTOR;
        self.mutate(Call::JournalSync, |filesystem| {
            filesystem.journal_write_pending = false;
            filesystem.make_durable(|effect| match effect {
                Effect::Sector { inode, index, .. } => {
                    *inode == journal.key && sectors.contains(index)
                }
                Effect::Size { inode, .. } => *inode == journal.key,
                _ => false,
            });
            Ok(())
        })
    }

    fn journal_flush(&self, journal: &CrashHandle) -> io::Result<()> {
        self.mutate(Call::JournalSync, |filesystem| {
            filesystem.journal_flushes += 1;
            filesystem.journal_write_pending = false;
            filesystem.make_durable(|effect| {
                matches!(effect, Effect::Sector { inode, .. } | Effect::Size { inode, .. }
                    if *inode == journal.key)
            });
            Ok(())
        })
    }
}
