//! Reads the uncommitted transactions of a restart image without making an engine of it.
//!
//! [`crate::Engine::restore`] makes everything that a mount needs, and refuses records that do not
//! fit together. Where that cannot be done, this is for the last process of a mount: it reads one
//! transaction after the other, in the order of their commits, makes nothing else, and reports and
//! skips what it cannot read, with everything that belongs to that object.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use foldhash::fast::FixedState;
use mobifs_base::{AppId, Entry, Name, ObjectId, Page, TransactionId};

use super::transaction::{self, DIRTY, HELD, ORPHANED};
use super::{Key, Kind, RestartImageError, inode};
use crate::engine::object_state;
use crate::inode::Inode;
use mobifs_base::codec::{Reader, page_index};

/// Names of a path that are shown at most.
const PATH_DEPTH_MAX: usize = 64;

/// The records of an engine, wherever they are kept.
pub trait SavedRecords {
    /// The keys of one kind, in order; with `first`, only those with this number.
    fn keys(&self, kind: Kind, first: Option<u64>) -> Vec<Key>;
    /// The record of a key; empty if there is none.
    fn value(&self, key: Key) -> Vec<u8>;
    /// The page whose content is kept at a place, with its length in bytes.
    fn page(&self, place: u64, length: usize) -> Option<Page>;
}

/// A transaction that was not committed: its readable parts.
#[derive(Clone, Debug)]
pub struct Uncommitted {
    /// Its number, by which the store may know that it was committed after all.
    pub transaction: TransactionId,
    /// Its entries, in the order that [`Entry`] asks for.
    pub entries: Vec<Entry>,
    /// What could not be read.
    pub unreadable: Vec<Unreadable>,
    apps: Vec<AppId>,
    objects: BTreeSet<ObjectId>,
    is_everywhere: bool,
}

impl Uncommitted {
    /// Whether this one must not be committed where `earlier` could not be: they mention a
    /// common object, or belong to a common app.
    pub fn depends_on(&self, earlier: &Self) -> bool {
        self.is_everywhere
            || earlier.is_everywhere
            || self.apps.iter().any(|app| earlier.apps.contains(app))
            || !self.objects.is_disjoint(&earlier.objects)
    }

    fn lose(&mut self, object: Option<ObjectId>, error: &RestartImageError) {
        let why = error.0;
        self.unreadable.push(Unreadable { object, why });
    }
}

/// Something of a transaction that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The object that it belongs to, if that is known.
    pub object: Option<ObjectId>,
    /// What is wrong with it.
    pub why: &'static str,
}

/// The transactions that were not committed, in an order in which they can be.
pub fn uncommitted(records: &dyn SavedRecords) -> Vec<Key> {
    // Closed ones in the order of their closing, as they were to be committed. A record too
    // short for that comes last: all that can be read of it is nothing.
    let order_of = |key: &Key| Reader::new(&records.value(*key)).u64().unwrap_or(u64::MAX);
    let mut closed = records.keys(Kind::Closed, None);
    closed.sort_by_cached_key(order_of);
    // Open ones share no object with each other: those that do are joined.
    closed.extend(records.keys(Kind::Open, None));
    closed
}

/// Reads the transaction of this key.
pub fn read(records: &dyn SavedRecords, key: Key) -> Uncommitted {
    let mut uncommitted = Uncommitted {
        transaction: TransactionId(key.first),
        entries: Vec::new(),
        unreadable: Vec::new(),
        apps: Vec::new(),
        objects: BTreeSet::new(),
        is_everywhere: false,
    };
    let outcome = match key.kind {
        Kind::Closed => read_closed(records, key, &mut uncommitted),
        _ => read_open(records, key, &mut uncommitted),
    };
    if let Err(error) = outcome {
        uncommitted.lose(None, &error);
    }
    uncommitted
}

fn read_closed(
    records: &dyn SavedRecords,
    key: Key,
    uncommitted: &mut Uncommitted,
) -> Result<(), RestartImageError> {
    let value = records.value(key);
    let mut from = Reader::new(&value);
    let head = transaction::read_closed_head(&mut from)?;
    uncommitted.apps = head.apps;
    uncommitted.is_everywhere = head.is_everywhere;
    uncommitted.objects = head.held;
    // Each list is read element by element: the elements before the damage are as valid as in a
    // whole record.
    for _ in 0..from.u32()? {
        uncommitted
            .entries
            .push(Entry::Object(transaction::read_state(&mut from)?));
    }
    for _ in 0..from.u32()? {
        let (parent, name) = (from.id()?, from.name()?);
        let child = from.option(Reader::id)?;
        uncommitted.entries.push(Entry::Dentry {
            parent,
            name,
            child,
        });
    }
    for _ in 0..from.u32()? {
        let (object, index) = (from.id()?, from.index()?);
        let (place, length) = transaction::read_page_place(&mut from)?;
        match page_at(records, place, length) {
            Ok(page) => uncommitted.entries.push(Entry::Page {
                object,
                index,
                page,
            }),
            Err(error) => uncommitted.lose(Some(object), &error),
        }
    }
    Ok(())
}

fn read_open(
    records: &dyn SavedRecords,
    key: Key,
    uncommitted: &mut Uncommitted,
) -> Result<(), RestartImageError> {
    let mut dirty = Vec::new();
    for member in records.keys(Kind::Member, Some(key.first)) {
        let value = records.value(member);
        let flags = Reader::new(&value).u8().unwrap_or(DIRTY);
        let id = ObjectId(member.second);
        uncommitted.objects.insert(id);
        if flags & DIRTY != 0 {
            dirty.push(id);
        }
        debug_assert_eq!(flags & !(DIRTY | ORPHANED | HELD), 0, "no other flags");
    }
    let value = records.value(key);
    match transaction::read_open(&value, false) {
        Ok(open) => {
            uncommitted.apps = open.apps;
            uncommitted.is_everywhere = open.is_everywhere;
        }
        Err(error) => {
            // It may depend on any other transaction.
            uncommitted.is_everywhere = true;
            uncommitted.lose(None, &error);
        }
    }
    let mut pages = Vec::new();
    for id in dirty {
        match read_object(records, id).and_then(|object| with_parts(records, id, object)) {
            Ok(object) => {
                let Some(change) = object
                    .versions
                    .change()
                    .filter(|change| change.transaction() == uncommitted.transaction)
                else {
                    continue;
                };
                uncommitted
                    .entries
                    .push(Entry::Object(object_state(id, &object, change)));
                read_pages(records, id, uncommitted, &mut pages);
            }
            Err(error) => uncommitted.lose(Some(id), &error),
        }
    }
    read_dentries(records, key.first, uncommitted);
    uncommitted.entries.append(&mut pages);
    Ok(())
}

fn read_pages(
    records: &dyn SavedRecords,
    object: ObjectId,
    uncommitted: &mut Uncommitted,
    pages: &mut Vec<Entry>,
) {
    for key in records.keys(Kind::Page, Some(object.0)) {
        let value = records.value(key);
        let mut from = Reader::new(&value);
        let mut read = || {
            let of = from.transaction()?;
            let index = page_index(key.second)?;
            let (place, length) = transaction::read_page_place(&mut from)?;
            Ok((of, index, place, length))
        };
        match read() {
            Ok((of, ..)) if of != uncommitted.transaction => {}
            Ok((_, index, place, length)) => match page_at(records, place, length) {
                Ok(page) => pages.push(Entry::Page {
                    object,
                    index,
                    page,
                }),
                Err(error) => uncommitted.lose(Some(object), &error),
            },
            Err(error) => uncommitted.lose(Some(object), &error),
        }
    }
}

fn read_dentries(records: &dyn SavedRecords, transaction: u64, uncommitted: &mut Uncommitted) {
    for key in records.keys(Kind::DentryChange, Some(transaction)) {
        let value = records.value(key);
        let mut from = Reader::new(&value);
        let mut read = || -> Result<_, RestartImageError> {
            let ((parent, name), change) = transaction::read_dentry_change(&mut from, key.second)?;
            Ok((parent, name, change.before, change.now))
        };
        match read() {
            Ok((parent, name, before, child)) if before != child => {
                uncommitted.entries.push(Entry::Dentry {
                    parent,
                    name,
                    child,
                });
            }
            Ok(_) => {}
            Err(error) => uncommitted.lose(None, &error),
        }
    }
}

fn page_at(
    records: &dyn SavedRecords,
    place: u64,
    length: usize,
) -> Result<Page, RestartImageError> {
    if length == 0 {
        return Ok(Page::zero());
    }
    let page = records.page(place, length);
    page.ok_or(RestartImageError("a page is not where it was kept"))
}

fn read_object(records: &dyn SavedRecords, id: ObjectId) -> Result<Inode, RestartImageError> {
    let value = records.value(Key::new(Kind::Object, id.0, 0));
    inode::read(&value, &FixedState::with_seed(0), false)
}

/// An object with the ranges that its open change has, and its extended attributes.
fn with_parts(
    records: &dyn SavedRecords,
    id: ObjectId,
    mut object: Inode,
) -> Result<Inode, RestartImageError> {
    for kind in [Kind::Zeroed, Kind::Allocated] {
        for key in records.keys(kind, Some(id.0)) {
            let value = records.value(key);
            inode::restore_range(&mut object, key, &mut Reader::new(&value))?;
        }
    }
    for key in records.keys(Kind::Xattrs, Some(id.0)) {
        let value = records.value(key);
        inode::restore_xattrs(&mut object, &mut Reader::new(&value))?;
    }
    inode::check_parts(&object, &records.value(Key::new(Kind::Object, id.0, 0)))?;
    Ok(object)
}

/// Where an object was found last, for messages: as much of its path as can be read.
pub fn last_known_path(records: &dyn SavedRecords, id: ObjectId) -> Option<Vec<u8>> {
    let mut names: Vec<Name> = Vec::new();
    let mut at = id;
    while at != ObjectId::ROOT && names.len() < PATH_DEPTH_MAX {
        let object = read_object(records, at).ok()?;
        names.push(object.name?);
        at = object.home;
    }
    let parts: Vec<&[u8]> = names.iter().rev().map(|name| name.as_bytes()).collect();
    Some(parts.join(&b'/'))
}
