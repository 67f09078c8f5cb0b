//! Saving: hands out what changed, for the restart image.
//!
//! Each part of the engine tracks its changes ([`super::dirty_tracking`]); here they become
//! records. Removals are handed out before additions: an object may have left memory and come back
//! between two saves.

use alloc::sync::Arc;
use alloc::vec::Vec;

use mobifs_base::{ObjectId, Page, PageIndex, TransactionId};

use super::transaction::{self, DIRTY, HELD, ORPHANED};
use super::{Counters, Key, Kind, RestartImage, inode};
use crate::apps::{App, Apps};
use crate::inode::Inode;
use crate::namespace::Namespace;
use crate::transactions::{ClosedTransaction, Content, OpenTransaction, Transactions};
use crate::versions::Change;
use mobifs_base::codec::Writer;

/// State between two saves.
#[derive(Debug, Default)]
pub(crate) struct SaveState {
    /// The restart image's record of the engine itself.
    counters: Option<Counters>,
    /// Memory for records.
    scratch: Writer,
}

impl SaveState {
    /// Whether something changed since the last [`SaveState::save`].
    pub(crate) fn is_unsaved(
        &self,
        apps: &Apps,
        namespace: &Namespace,
        transactions: &Transactions,
    ) -> bool {
        namespace.is_unsaved()
            || transactions.is_unsaved()
            || apps.is_unsaved()
            || self.counters != Some(counters(namespace, transactions))
    }

    /// Hands out everything that changed since the last call.
    pub(crate) fn save(
        &mut self,
        apps: &mut Apps,
        namespace: &mut Namespace,
        transactions: &mut Transactions,
        image: &mut dyn RestartImage,
    ) {
        let out = &mut self.scratch;
        let counters = counters(namespace, transactions);
        if self.counters.replace(counters) != Some(counters) {
            out.clear();
            write_counters(out, &counters);
            image.put(Key::new(Kind::Engine, 0, 0), out.as_bytes());
        }
        apps.take_unsaved(|id, app| {
            out.clear();
            write_app(out, app);
            image.put(Key::new(Kind::App, id.0.into(), 0), out.as_bytes());
        });
        save_namespace(namespace, out, image);
        save_transactions(transactions, namespace, out, image);
    }

    /// The next save hands out the counters, whatever they are.
    pub(crate) const fn mark_unsaved(&mut self) {
        self.counters = None;
    }
}

const fn counters(namespace: &Namespace, transactions: &Transactions) -> Counters {
    let (next_object, app_epoch, hash_seed) = namespace.counters();
    Counters {
        next_transaction: transactions.next(),
        next_object,
        app_epoch,
        hash_seed,
    }
}

fn write_counters(out: &mut Writer, counters: &Counters) {
    let Counters {
        next_transaction,
        next_object,
        app_epoch,
        hash_seed,
    } = *counters;
    for number in [next_transaction, next_object, app_epoch, hash_seed] {
        out.u64(number);
    }
}

fn write_app(out: &mut Writer, app: &App) {
    out.bytes(&app.path);
    out.u64(app.written_bytes);
    out.u64(app.committed_bytes);
    out.u64(app.committed_transactions);
    out.u64(app.committed_written_pages);
    out.u64(app.committed_overwritten_pages);
}

fn save_namespace(namespace: &mut Namespace, out: &mut Writer, image: &mut dyn RestartImage) {
    for (kind, id, second) in namespace.take_gone() {
        image.remove(Key::new(kind, id.0, second));
    }
    let objects = namespace.unsaved.take();
    for &id in &objects {
        match namespace.get_mut_untracked(&id) {
            Some(inode) => save_object(id, inode, out, image),
            None => image.remove(Key::new(Kind::Object, id.0, 0)),
        }
    }
    namespace.unsaved.recycle(objects);
}

fn save_object(id: ObjectId, inode: &mut Inode, out: &mut Writer, image: &mut dyn RestartImage) {
    save_pages(id, inode, out, image);
    save_ranges(id, inode, out, image);
    save_entries(id, inode, out, image);
    save_xattrs(id, inode, out, image);
    out.clear();
    inode::write(out, inode);
    image.put(Key::new(Kind::Object, id.0, 0), out.as_bytes());
}

fn save_pages(id: ObjectId, inode: &mut Inode, out: &mut Writer, image: &mut dyn RestartImage) {
    inode.versions.take_unsaved_pages(|index, newest| {
        let key = Key::new(Kind::Page, id.0, index.0);
        let Some((page, transaction)) = newest else {
            image.remove(key);
            return;
        };
        image.keep(page);
        out.clear();
        out.u64(transaction.0);
        transaction::write_page(out, page);
        image.put(key, out.as_bytes());
    });
}

fn save_ranges(id: ObjectId, inode: &mut Inode, out: &mut Writer, image: &mut dyn RestartImage) {
    let Some(change) = inode.versions.change_mut() else {
        return;
    };
    change.take_unsaved_ranges(|kind, start, end| {
        let key = Key::new(kind, id.0, start);
        let Some(end) = end else {
            image.remove(key);
            return;
        };
        out.clear();
        inode::write_range_end(out, end);
        image.put(key, out.as_bytes());
    });
}

fn save_xattrs(id: ObjectId, inode: &mut Inode, out: &mut Writer, image: &mut dyn RestartImage) {
    let change = inode.versions.change_mut();
    let is_changed = change.is_some_and(Change::take_unsaved_xattrs);
    if !(inode.xattrs.take_unsaved() || is_changed) {
        return;
    }
    let key = Key::new(Kind::Xattrs, id.0, 0);
    if inode.has_xattr_record() {
        out.clear();
        inode::write_xattrs(out, inode);
        image.put(key, out.as_bytes());
    } else {
        image.remove(key);
    }
}

fn save_entries(id: ObjectId, inode: &mut Inode, out: &mut Writer, image: &mut dyn RestartImage) {
    let Some(directory) = inode.directory_mut() else {
        return;
    };
    let cookies = directory.unsaved.take();
    for &cookie in &cookies {
        let key = Key::new(Kind::Dentry, id.0, cookie);
        let Some((name, slot)) = directory.at(cookie) else {
            image.remove(key);
            continue;
        };
        out.clear();
        out.u64(slot.id.0);
        out.kind(slot.kind);
        out.bytes(name.as_bytes());
        image.put(key, out.as_bytes());
    }
    directory.unsaved.recycle(cookies);
}

fn save_transactions(
    transactions: &mut Transactions,
    namespace: &Namespace,
    out: &mut Writer,
    image: &mut dyn RestartImage,
) {
    let (open, closed) = transactions.parts_to_save();
    for (id, member) in core::mem::take(&mut open.gone_members) {
        image.remove(Key::new(Kind::Member, id.0, member.0));
    }
    for (id, serial) in core::mem::take(&mut open.gone_dentries) {
        image.remove(Key::new(Kind::DentryChange, id.0, serial));
    }
    let ids = open.unsaved.take();
    for &id in &ids {
        match open.get_mut_untracked(&id) {
            Some(open) => save_open(id, open, out, image),
            None => image.remove(Key::new(Kind::Open, id.0, 0)),
        }
    }
    open.unsaved.recycle(ids);
    let ids = closed.unsaved.take();
    for &id in &ids {
        match closed.get_mut(&id) {
            Some(closed) => save_closed(id, closed, namespace, image),
            None => image.remove(Key::new(Kind::Closed, id.0, 0)),
        }
    }
    closed.unsaved.recycle(ids);
}

fn save_open(
    id: TransactionId,
    open: &mut OpenTransaction,
    out: &mut Writer,
    image: &mut dyn RestartImage,
) {
    let mut members = Vec::new();
    for of in [&mut open.dirty, &mut open.orphaned, &mut open.held] {
        let keys = of.unsaved.take();
        members.extend_from_slice(&keys);
        of.unsaved.recycle(keys);
    }
    members.sort_unstable();
    members.dedup();
    for member in members {
        let flag = |is_there: bool, flag: u8| if is_there { flag } else { 0 };
        let flags = flag(open.dirty.contains(&member), DIRTY)
            | flag(open.orphaned.contains(&member), ORPHANED)
            | flag(open.held.contains(&member), HELD);
        let key = Key::new(Kind::Member, id.0, member.0);
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
        out.clear();
        transaction::write_dentry_change(out, &entry, change);
        let key = Key::new(Kind::DentryChange, id.0, change.serial);
        image.put(key, out.as_bytes());
    }
    out.clear();
    transaction::write_open(out, open);
    image.put(Key::new(Kind::Open, id.0, 0), out.as_bytes());
}

/// A closed transaction is saved once: it never changes.
fn save_closed(
    id: TransactionId,
    closed: &mut ClosedTransaction,
    namespace: &Namespace,
    image: &mut dyn RestartImage,
) {
    // Pages of the operation that closed it were not kept yet when it got them.
    let content: &mut Content = Arc::make_mut(&mut closed.content);
    for (file, index, page) in &mut content.pages {
        if page.place().is_none() {
            if let Some(kept) = newest_of(namespace, *file, *index, id) {
                *page = kept;
            }
            image.keep(page);
        }
    }
    let mut out = Writer::default();
    transaction::write_closed(&mut out, closed);
    image.put(Key::new(Kind::Closed, id.0, 0), out.as_bytes());
}

/// The page as its file has it, if that is still the transaction's version.
fn newest_of(
    namespace: &Namespace,
    id: ObjectId,
    index: PageIndex,
    transaction: TransactionId,
) -> Option<Page> {
    let versions = &namespace.get(&id)?.versions;
    versions.newest_of(transaction, index).cloned()
}
