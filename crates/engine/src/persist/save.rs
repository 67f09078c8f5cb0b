//! Saving: hands out what changed, for the restart image.

use alloc::sync::Arc;
use alloc::vec::Vec;

use mobifs_base::{AppId, ObjectId, PageIndex, TransactionId};

use crate::Engine;
use crate::persist::codec::Writer;
use crate::persist::transaction::{self, DIRTY, HELD, ORPHANED};
use crate::persist::{Counters, Key, Kind, RestartImage, inode};
use crate::transaction::Content;

impl Engine {
    /// Whether something changed since the last [`Engine::save`].
    pub fn is_unsaved(&self) -> bool {
        !self.inodes.unsaved.is_empty()
            || !self.open.unsaved.is_empty()
            || !self.closed.unsaved.is_empty()
            || !self.unsaved_apps.is_empty()
            || self.saved_counters != Some(self.counters())
    }

    /// Hands out everything that changed since the last call. Dirty pages are given to
    /// `image` to keep. The engine must have been made with
    /// [`crate::EngineConfig::is_saved`].
    pub fn save(&mut self, image: &mut dyn RestartImage) {
        let counters = self.counters();
        if self.saved_counters.replace(counters) != Some(counters) {
            let mut out = self.writer();
            out.u64(counters.next_transaction);
            out.u64(counters.next_object);
            out.u64(counters.app_epoch);
            out.u64(self.hash_seed);
            image.put(Key::new(Kind::Engine, 0, 0), &out.bytes);
            self.scratch = out;
        }
        let apps = self.unsaved_apps.take();
        apps.iter().for_each(|&app| self.save_app(app, image));
        self.unsaved_apps.recycle(apps);
        // What went before what came: an object may have left memory and come back.
        for (id, cookie) in core::mem::take(&mut self.inodes.gone_dentries) {
            image.remove(Key::new(Kind::Dentry, id.0, cookie));
        }
        for (id, index) in core::mem::take(&mut self.inodes.gone_pages) {
            image.remove(Key::new(Kind::Page, id.0, index.0));
        }
        for (kind, id, start) in core::mem::take(&mut self.inodes.gone_ranges) {
            image.remove(Key::new(kind, id.0, start));
        }
        let objects = self.inodes.unsaved.take();
        objects.iter().for_each(|&id| self.save_object(id, image));
        self.inodes.unsaved.recycle(objects);
        for (transaction, id) in core::mem::take(&mut self.open.gone_members) {
            image.remove(Key::new(Kind::Member, transaction.0, id.0));
        }
        for (transaction, serial) in core::mem::take(&mut self.open.gone_dentries) {
            image.remove(Key::new(Kind::DentryChange, transaction.0, serial));
        }
        let open = self.open.unsaved.take();
        open.iter()
            .for_each(|&transaction| self.save_open(transaction, image));
        self.open.unsaved.recycle(open);
        let closed = self.closed.unsaved.take();
        closed
            .iter()
            .for_each(|&transaction| self.save_closed(transaction, image));
        self.closed.unsaved.recycle(closed);
    }

    /// Hands out everything, for a restart image that has nothing yet.
    pub fn save_all(&mut self, image: &mut dyn RestartImage) {
        self.saved_counters = None;
        for number in 0..self.apps.len() {
            self.unsaved_apps.mark(AppId(number as u32));
        }
        self.inodes.mark_all_unsaved();
        self.open.mark_all_unsaved();
        self.closed.mark_all_unsaved();
        self.save(image);
    }

    pub(super) const fn counters(&self) -> Counters {
        Counters {
            next_transaction: self.next_transaction,
            next_object: self.next_object,
            app_epoch: self.app_epoch,
        }
    }

    /// An empty writer with memory that was used before.
    fn writer(&mut self) -> Writer {
        let mut out = core::mem::take(&mut self.scratch);
        out.bytes.clear();
        out
    }

    fn save_app(&mut self, id: AppId, image: &mut dyn RestartImage) {
        let mut out = self.writer();
        let Some(app) = self.apps.get(id.0 as usize) else {
            return;
        };
        out.bytes(&app.path);
        out.u64(app.written_bytes);
        out.u64(app.committed_bytes);
        out.u64(app.committed_transactions);
        out.u64(app.committed_written_pages);
        out.u64(app.committed_overwritten_pages);
        image.put(Key::new(Kind::App, id.0.into(), 0), &out.bytes);
        self.scratch = out;
    }

    fn save_object(&mut self, id: ObjectId, image: &mut dyn RestartImage) {
        let key = Key::new(Kind::Object, id.0, 0);
        let mut out = self.writer();
        let Some(inode) = self.inodes.get_mut_untracked(&id) else {
            image.remove(key);
            return;
        };
        let indexes = inode.pages.unsaved.take();
        for &index in &indexes {
            let key = Key::new(Kind::Page, id.0, index.0);
            let Some(slot) = inode.pages.get_mut_untracked(&index) else {
                image.remove(key);
                continue;
            };
            image.keep(&mut slot.page);
            out.bytes.clear();
            out.u64(slot.transaction.0);
            transaction::write_page(&mut out, &slot.page);
            image.put(key, &out.bytes);
        }
        inode.pages.unsaved.recycle(indexes);
        if let Some(change) = &mut inode.change {
            let ranges = [
                (Kind::Zeroed, &mut change.zeroed),
                (Kind::Allocated, &mut change.allocated),
            ];
            for (kind, ranges) in ranges {
                ranges.take_changes(|start, end| {
                    let key = Key::new(kind, id.0, start);
                    let Some(end) = end else {
                        image.remove(key);
                        return;
                    };
                    out.bytes.clear();
                    inode::write_range_end(&mut out, end);
                    image.put(key, &out.bytes);
                });
            }
        }
        if let Some(directory) = inode.directory_mut() {
            let cookies = directory.unsaved.take();
            for &cookie in &cookies {
                let key = Key::new(Kind::Dentry, id.0, cookie);
                let Some((name, slot)) = directory.at(cookie) else {
                    image.remove(key);
                    continue;
                };
                out.bytes.clear();
                out.u64(slot.id.0);
                out.kind(slot.kind);
                out.bytes(name.as_bytes());
                image.put(key, &out.bytes);
            }
            directory.unsaved.recycle(cookies);
        }
        out.bytes.clear();
        inode::write(&mut out, inode);
        image.put(key, &out.bytes);
        self.scratch = out;
    }

    fn save_open(&mut self, transaction: TransactionId, image: &mut dyn RestartImage) {
        let key = Key::new(Kind::Open, transaction.0, 0);
        let mut out = self.writer();
        let Some(open) = self.open.get_mut_untracked(&transaction) else {
            image.remove(key);
            return;
        };
        let mut members = Vec::new();
        for marked in [&mut open.dirty, &mut open.orphaned, &mut open.held] {
            let keys = marked.unsaved.take();
            members.extend_from_slice(&keys);
            marked.unsaved.recycle(keys);
        }
        members.sort_unstable();
        members.dedup();
        for id in members {
            let flag = |is_there: bool, flag: u8| if is_there { flag } else { 0 };
            let flags = flag(open.dirty.contains(&id), DIRTY)
                | flag(open.orphaned.contains(&id), ORPHANED)
                | flag(open.held.contains(&id), HELD);
            let key = Key::new(Kind::Member, transaction.0, id.0);
            if flags == 0 {
                image.remove(key);
            } else {
                image.put(key, &[flags]);
            }
        }
        for entry in open.dentries.unsaved.take() {
            // Entries leave only with the whole transaction.
            let Some(change) = open.dentries.get(&entry) else {
                continue;
            };
            out.bytes.clear();
            out.u64(entry.0.0);
            out.bytes(entry.1.as_bytes());
            out.option(change.before, |out, id| out.u64(id.0));
            out.option(change.now, |out, id| out.u64(id.0));
            let key = Key::new(Kind::DentryChange, transaction.0, change.serial);
            image.put(key, &out.bytes);
        }
        out.bytes.clear();
        transaction::write_open(&mut out, open);
        image.put(key, &out.bytes);
        self.scratch = out;
    }

    /// A closed transaction is saved once: nothing of it changes.
    fn save_closed(&mut self, transaction: TransactionId, image: &mut dyn RestartImage) {
        let key = Key::new(Kind::Closed, transaction.0, 0);
        let Some(closed) = self.closed.get_mut(&transaction) else {
            image.remove(key);
            return;
        };
        // Pages of the operation that closed it were not kept yet when it got them.
        let content: &mut Content = match Arc::get_mut(&mut closed.content) {
            Some(content) => content,
            None => {
                let copy = Content {
                    objects: closed.content.objects.clone(),
                    dentries: closed.content.dentries.clone(),
                    pages: closed.content.pages.clone(),
                };
                closed.content = Arc::new(copy);
                match Arc::get_mut(&mut closed.content) {
                    Some(content) => content,
                    // It was made one line above and is not shared.
                    None => return,
                }
            }
        };
        for (id, index, page) in &mut content.pages {
            if page.place().is_none() {
                if let Some(kept) = newest_of(&self.inodes, *id, *index, transaction) {
                    *page = kept;
                }
                image.keep(page);
            }
        }
        let mut out = Writer::default();
        transaction::write_closed(&mut out, closed);
        image.put(key, &out.bytes);
    }
}

/// The page as its file has it, if that is still the transaction's version.
fn newest_of(
    inodes: &crate::persist::dirty_tracking::Inodes,
    id: ObjectId,
    index: PageIndex,
    transaction: TransactionId,
) -> Option<mobifs_base::Page> {
    let slot = inodes.get(&id)?.pages.get(&index)?;
    (slot.transaction == transaction).then(|| slot.page.clone())
}
