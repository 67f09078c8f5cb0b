//! A transaction on its way from the engine to a store.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::{Entry, Name, ObjectId, ObjectState, Page, PageIndex};

/// The net effect of a transaction, grouped as a store takes it.
///
/// There is at most one state for an object and one entry for a directory and name; every object
/// that has pages has a state. Order carries no meaning.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    /// What the caller calls it, or each of those that it was [joined](Self::join) from, so that it
    /// is known whether a transaction that was being committed when the process was killed arrived.
    pub tags: Vec<u64>,
    /// States of objects.
    pub objects: Vec<ObjectState>,
    /// Directory, name, and the object that it names; none: the entry does not exist.
    pub dentries: Vec<(ObjectId, Name, Option<ObjectId>)>,
    /// Content, by file.
    pub pages: BTreeMap<ObjectId, BTreeMap<PageIndex, Page>>,
}

impl Transaction {
    /// A transaction of these entries, with a tag.
    pub fn tagged(tag: u64, entries: impl IntoIterator<Item = Entry>) -> Self {
        let mut transaction: Self = entries.into_iter().collect();
        transaction.tags = alloc::vec![tag];
        transaction
    }

    /// Adds everything that another transaction changes, which mentions no object that this one
    /// mentions: a store commits both, or none.
    pub fn join(&mut self, other: Self) {
        self.tags.extend(other.tags);
        self.objects.extend(other.objects);
        self.dentries.extend(other.dentries);
        for (object, pages) in other.pages {
            let earlier = self.pages.insert(object, pages);
            debug_assert!(earlier.is_none(), "{object} is in both transactions");
        }
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.dentries.is_empty() && self.pages.is_empty()
    }

    /// Adds an entry.
    pub fn push(&mut self, entry: Entry) {
        match entry {
            Entry::Object(state) => self.objects.push(state),
            Entry::Dentry {
                parent,
                name,
                child,
            } => self.dentries.push((parent, name, child)),
            Entry::Page {
                object,
                index,
                page,
            } => {
                self.pages.entry(object).or_default().insert(index, page);
            }
        }
    }

    /// Its entries one by one: objects, directory entries, pages. Pages are shared, not copied.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let objects = self.objects.iter().cloned().map(Entry::Object);
        let dentries = self.dentries.iter();
        let dentries = dentries.map(|(parent, name, child)| Entry::Dentry {
            parent: *parent,
            name: name.clone(),
            child: *child,
        });
        let pages = self.pages.iter().flat_map(|(&object, pages)| {
            pages.iter().map(move |(&index, page)| Entry::Page {
                object,
                index,
                page: page.clone(),
            })
        });
        objects.chain(dentries).chain(pages)
    }
}

impl Extend<Entry> for Transaction {
    fn extend<I: IntoIterator<Item = Entry>>(&mut self, entries: I) {
        entries.into_iter().for_each(|entry| self.push(entry));
    }
}

impl FromIterator<Entry> for Transaction {
    fn from_iter<I: IntoIterator<Item = Entry>>(entries: I) -> Self {
        let mut transaction = Self::default();
        transaction.extend(entries);
        transaction
    }
}
