//! A filesystem's state, and how an effect changes it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use mobifs_base::{DeviceNumber, FileKind, Timestamp};

use super::effect::{Effect, EntryName, InodeKey, SECTOR, SECTOR_BYTES, Sector};

/// Key of the root directory.
pub(super) const ROOT: InodeKey = 1;

/// One inode. Cheap to clone where little was written: sectors are shared.
#[derive(Clone, Debug)]
pub(super) struct Inode {
    /// The number that `stat` shows; reused after the inode is gone.
    pub(super) number: u64,
    /// The inode that had the number before.
    pub(super) predecessor: Option<InodeKey>,
    pub(super) kind: FileKind,
    pub(super) mode: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: DeviceNumber,
    pub(super) size: u64,
    pub(super) atime: Timestamp,
    pub(super) mtime: Timestamp,
    pub(super) target: Option<Arc<[u8]>>,
    /// Content; what is not here is zero.
    pub(super) sectors: BTreeMap<u64, Sector>,
    pub(super) xattrs: BTreeMap<Arc<[u8]>, Arc<[u8]>>,
    pub(super) entries: BTreeMap<EntryName, InodeKey>,
    /// Where blocks that were allocated beyond the end, end.
    pub(super) allocated_end: u64,
    /// Up to here the file lies in one piece since it was moved; of the live state only.
    pub(super) moved_end: u64,
    /// Entries that name it. Kept in the live state, counted anew in a crash image.
    pub(super) links: u32,
}

impl Inode {
    pub(super) fn new(number: u64, kind: FileKind, now: Timestamp) -> Self {
        Self {
            number,
            predecessor: None,
            kind,
            mode: match kind {
                FileKind::Symlink => 0o777,
                FileKind::Directory => 0o700,
                _ => 0o600,
            },
            uid: 0,
            gid: 0,
            rdev: DeviceNumber::default(),
            size: 0,
            atime: now,
            mtime: now,
            target: None,
            sectors: BTreeMap::new(),
            xattrs: BTreeMap::new(),
            entries: BTreeMap::new(),
            allocated_end: 0,
            moved_end: 0,
            links: 0,
        }
    }

    /// Copies content into `out`, which must not reach beyond the end.
    pub(super) fn read(&self, out: &mut [u8], offset: u64) {
        let mut done = 0;
        while done < out.len() {
            let at = offset + done as u64;
            let within = (at % SECTOR) as usize;
            let count = (SECTOR_BYTES - within).min(out.len() - done);
            match self.sectors.get(&(at / SECTOR)) {
                Some(sector) => {
                    out[done..done + count].copy_from_slice(&sector[within..within + count]);
                }
                None => out[done..done + count].fill(0),
            }
            done += count;
        }
    }

    /// Drops everything after `size`, so that a later growth shows zeros.
    pub(super) fn cut_content(&mut self, size: u64) {
        self.sectors.split_off(&size.div_ceil(SECTOR));
        let kept = (size % SECTOR) as usize;
        if kept > 0
            && let Some(sector) = self.sectors.get_mut(&(size / SECTOR))
            && sector[kept..].iter().any(|&byte| byte != 0)
        {
            Arc::make_mut(sector)[kept..].fill(0);
        }
    }
}

/// All inodes. Cloning shares them until they are changed.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    pub(super) inodes: HashMap<InodeKey, Arc<Inode>>,
}

impl State {
    pub(super) fn inode_mut(&mut self, key: InodeKey) -> Option<&mut Inode> {
        self.inodes.get_mut(&key).map(Arc::make_mut)
    }

    fn set_entry(&mut self, directory: InodeKey, name: &EntryName, child: Option<InodeKey>) {
        let Some(directory) = self.inode_mut(directory) else {
            return;
        };
        match child {
            Some(child) => directory.entries.insert(name.clone(), child),
            None => directory.entries.remove(name),
        };
    }

    /// Lets an effect land. Links are not counted here.
    pub(super) fn apply(&mut self, effect: &Effect) {
        if let Some(key) = effect.content_of() {
            if let Some(inode) = self.inode_mut(key) {
                apply_content(inode, effect);
            }
            return;
        }
        match effect {
            Effect::Link {
                directory,
                name,
                inode,
                ..
            } => {
                self.set_entry(*directory, name, Some(*inode));
            }
            Effect::Unlink {
                directory, name, ..
            } => self.set_entry(*directory, name, None),
            Effect::Rename {
                from,
                from_name,
                to,
                to_name,
                inode,
                ..
            } => {
                self.set_entry(*from, from_name, None);
                self.set_entry(*to, to_name, Some(*inode));
            }
            _ => {}
        }
    }

    /// Drops what cannot be reached from the root and counts the links of the rest.
    /// Returns the directories that still have an entry somewhere but cannot be
    /// reached: parts of a cycle.
    pub(super) fn drop_unreachable(&mut self) -> Vec<InodeKey> {
        let mut links: HashMap<InodeKey, u32> = HashMap::from([(ROOT, 1)]);
        let mut next = vec![ROOT];
        while let Some(key) = next.pop() {
            let Some(inode) = self.inodes.get(&key) else {
                continue;
            };
            for &child in inode.entries.values() {
                let count = links.entry(child).or_insert(0);
                *count += 1;
                if *count == 1 {
                    next.push(child);
                }
            }
        }
        let mut lost = Vec::new();
        for (key, inode) in &self.inodes {
            if !links.contains_key(key) {
                let children = inode.entries.values();
                lost.extend(children.filter(|child| !links.contains_key(child)));
            }
        }
        self.inodes.retain(|key, _| links.contains_key(key));
        for (key, inode) in &mut self.inodes {
            if inode.links != links[key] {
                Arc::make_mut(inode).links = links[key];
            }
        }
        lost
    }
}

fn apply_content(inode: &mut Inode, effect: &Effect) {
    match effect {
        Effect::Sector {
            index,
            content: Some(content),
            ..
        } => {
            inode.sectors.insert(*index, content.clone());
        }
        Effect::Sector {
            index,
            content: None,
            ..
        } => {
            inode.sectors.remove(index);
        }
        Effect::Size { size, .. } => {
            // Also when it grows here: the content after it was truncated before it grew in the
            // live state.
            inode.cut_content(*size);
            if *size <= inode.size {
                inode.allocated_end = 0;
            }
            inode.size = *size;
        }
        Effect::Allocated { end, .. } => inode.allocated_end = inode.allocated_end.max(*end),
        Effect::Mode { mode, .. } => inode.mode = *mode,
        Effect::Owner { uid, gid, .. } => (inode.uid, inode.gid) = (*uid, *gid),
        Effect::Times { atime, mtime, .. } => {
            inode.atime = atime.unwrap_or(inode.atime);
            inode.mtime = *mtime;
        }
        Effect::Xattr { name, value, .. } => {
            match value {
                Some(value) => inode.xattrs.insert(name.clone(), value.clone()),
                None => inode.xattrs.remove(name),
            };
        }
        Effect::Link { .. } | Effect::Unlink { .. } | Effect::Rename { .. } => {}
    }
}
