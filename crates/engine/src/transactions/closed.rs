//! Closed transactions: their content, and the order of their commits.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Deref;

use mobifs_base::{
    AppId, MonotonicNs, Name, ObjectId, ObjectState, Page, PageIndex, Room, Transaction,
    TransactionId,
};

use crate::FsError;
use crate::accounting::Charged;
use crate::persist::dirty_tracking::UnsavedKeys;
use crate::policy::transactioning::Efficiency;

/// What an object or an entry takes in a journal, roughly.
const BYTES_PER_NAME: u64 = 128;

/// The content of a closed transaction. It never changes; where transactions are merged, another
/// one takes its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    pub(crate) objects: Vec<ObjectState>,
    pub(crate) dentries: Vec<(ObjectId, Name, Option<ObjectId>)>,
    pub(crate) pages: Vec<(ObjectId, PageIndex, Page)>,
}

impl Content {
    /// Room that it takes in the lower filesystem at most.
    pub(crate) fn room(&self) -> Room {
        let files = self.pages.chunk_by(|(one, ..), (next, ..)| one == next);
        let pages = files.map(|pages| Room::of_pages(pages.iter().map(|(_, index, _)| *index)));
        let names = Room::of_names(&self.objects, &self.dentries);
        pages.fold(names, Room::saturating_add)
    }

    /// Memory of its pages.
    pub(crate) fn page_bytes(&self) -> u64 {
        let pages = self.pages.iter();
        pages.map(|(.., page)| page.stored_bytes() as u64).sum()
    }

    /// Memory of its pages, and some for each object and entry: roughly what it takes in a journal.
    pub(crate) fn bytes(&self) -> u64 {
        let names = self.objects.len() + self.dentries.len();
        self.page_bytes() + names as u64 * BYTES_PER_NAME
    }

    /// Whether everything that happened in the transaction was undone in it.
    pub(crate) const fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.dentries.is_empty()
    }
}

/// A closed transaction: part of the closed section of the write log.
#[derive(Debug)]
pub(crate) struct ClosedTransaction {
    /// Position in the order of closing, which is the order of commits.
    pub(crate) order: u64,
    /// As [`OpenTransaction::is_everywhere`].
    pub(crate) is_everywhere: bool,
    pub(crate) apps: Vec<AppId>,
    pub(crate) opened_at: MonotonicNs,
    pub(crate) orphaned: BTreeSet<ObjectId>,
    pub(crate) held: BTreeSet<ObjectId>,
    pub(crate) efficiency: Efficiency,
    /// As [`OpenTransaction::brought_bytes`].
    ///
    /// [`OpenTransaction::brought_bytes`]: crate::transactions::OpenTransaction::brought_bytes
    pub(crate) brought_bytes: u64,
    pub(crate) charged: Charged,
    pub(crate) content: Arc<Content>,
    /// Handed out by `next_commit`, not yet answered.
    pub(crate) in_flight: bool,
    /// The last attempt failed; it waits for a retry, and requests are refused with this.
    pub(crate) refusal: Option<FsError>,
}

impl ClosedTransaction {
    /// Bytes of content that the app wrote and that a commit of it makes durable. Of a page that
    /// was written in part only what was written counts, also if that is a few bytes again and again.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.content.page_bytes().min(self.brought_bytes)
    }

    /// Whether it can be handed out, as far as it alone is concerned.
    pub(crate) const fn is_waiting(&self) -> bool {
        !self.in_flight && self.refusal.is_none()
    }

    /// Whether this transaction must not be committed before `earlier` is: they
    /// mention a common object, or belong to a common app.
    pub(crate) fn depends_on(&self, earlier: &Self) -> bool {
        let (few, many) = if self.held.len() <= earlier.held.len() {
            (&self.held, &earlier.held)
        } else {
            (&earlier.held, &self.held)
        };
        self.is_everywhere
            || earlier.is_everywhere
            || self.apps.iter().any(|app| earlier.apps.contains(app))
            || few.iter().any(|id| many.contains(id))
    }
}

/// A closed transaction on its way to the store.
#[derive(Clone, Debug)]
pub struct Commit {
    /// To be named in [`crate::Engine::committed`] or
    /// [`crate::Engine::commit_failed`].
    pub transaction: TransactionId,
    /// Objects whose last link goes but which are still in use: the store must pin
    /// them before it gets the transaction.
    pub pins: Vec<ObjectId>,
    /// Paths of the apps whose changes it holds.
    pub apps: Vec<Vec<u8>>,
    /// What it changes of the room that files take, of those of which it does.
    pub sizes: Vec<SizeChange>,
    /// Room in the lower filesystem that the engine has promised for it: at least
    /// [`Room::of_transaction`].
    pub promised: Room,
    pub(crate) content: Arc<Content>,
}

/// What a transaction changes of the room that a file takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeChange {
    /// The file.
    pub id: ObjectId,
    /// The object is deleted.
    pub is_deleted: bool,
    /// Estimated bytes of earlier transactions' content that this one deletes or truncates: holes
    /// are not always known.
    pub freed_bytes: u64,
    /// Bytes by which the file grows.
    pub grown_bytes: u64,
}

impl Commit {
    /// What a store commits. Pages are shared, not copied.
    pub fn to_transaction(&self) -> Transaction {
        let mut pages: BTreeMap<ObjectId, BTreeMap<PageIndex, Page>> = BTreeMap::new();
        for (object, index, page) in &self.content.pages {
            let pages = pages.entry(*object).or_default();
            let earlier = pages.insert(*index, page.clone());
            debug_assert!(earlier.is_none(), "{object} has page {} twice", index.0);
        }
        Transaction {
            tags: alloc::vec![self.transaction.0],
            objects: self.content.objects.clone(),
            dentries: self.content.dentries.clone(),
            pages,
        }
    }

    /// Roughly what it takes in a journal.
    pub fn bytes(&self) -> u64 {
        self.content.bytes()
    }

    /// Bytes of page content in the transaction.
    pub fn page_bytes(&self) -> u64 {
        self.content
            .pages
            .iter()
            .map(|(_, _, page)| page.stored_bytes() as u64)
            .sum()
    }
}

/// The closed transactions. What they hold never changes; whether they are being committed
/// does, and is not tracked.
#[derive(Debug)]
pub(crate) struct Closed {
    map: BTreeMap<TransactionId, ClosedTransaction>,
    pub(crate) unsaved: UnsavedKeys<TransactionId>,
}

impl Deref for Closed {
    type Target = BTreeMap<TransactionId, ClosedTransaction>;

    fn deref(&self) -> &Self::Target {
        &self.map
    }
}

impl Closed {
    pub(crate) const fn new(is_tracked: bool) -> Self {
        Self {
            map: BTreeMap::new(),
            unsaved: UnsavedKeys::new(is_tracked),
        }
    }

    /// Marks everything as unsaved.
    pub(crate) fn mark_all_unsaved(&mut self) {
        self.map
            .keys()
            .for_each(|transaction| self.unsaved.mark(*transaction));
    }

    /// Changes its state, not its content.
    pub(crate) fn get_mut(
        &mut self,
        transaction: &TransactionId,
    ) -> Option<&mut ClosedTransaction> {
        self.map.get_mut(transaction)
    }

    /// As [`Closed::get_mut`].
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut ClosedTransaction> {
        self.map.values_mut()
    }

    pub(crate) fn insert(&mut self, transaction: TransactionId, closed: ClosedTransaction) {
        self.unsaved.mark(transaction);
        self.map.insert(transaction, closed);
    }

    pub(crate) fn remove(&mut self, transaction: &TransactionId) -> Option<ClosedTransaction> {
        self.unsaved.mark(*transaction);
        self.map.remove(transaction)
    }
}
