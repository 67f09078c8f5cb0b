//! Transactions: open, closed, committed.
//!
//! A transaction is what the paper calls a *versioned cache transaction* (VCT, S0 §4.2): all
//! changes that the apps it belongs to made between two moments, of each changed object, entry
//! and page one version, namely the last. While it is *open* it takes further changes, and a
//! page written again is overwritten in place. Once it is *closed* its versions never change: who
//! writes such a page again makes a new version, in the next open transaction. When the store has
//! it durably it is *committed* and leaves memory.

use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;

use mobifs_base::{
    AppId, Entry, MonotonicNs, Name, ObjectId, ObjectState, Page, PageIndex, TransactionId,
};

use crate::FsError;
use crate::persist::dirty_tracking::{Dentries, Members};
use crate::policy::transactioning::{Closing, Efficiency};

/// Net effect on one directory entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DentryChange {
    /// What it named when the transaction opened.
    pub(crate) before: Option<ObjectId>,
    /// What it names now.
    pub(crate) now: Option<ObjectId>,
    /// Its number in the transaction.
    pub(crate) serial: u64,
}

/// An open transaction: the active section of the write log. The pages themselves
/// hang on their inodes; here is what belongs together.
#[derive(Debug)]
pub(crate) struct OpenTransaction {
    /// Apps whose changes it takes: one, or several joined by an operation across.
    pub(crate) apps: Vec<AppId>,
    /// It changes an object that may have names in any app: all apps' changes go to it
    /// as long as it is open, and none is committed before it once it is closed.
    pub(crate) is_everywhere: bool,
    /// Moment of its first change.
    pub(crate) opened_at: MonotonicNs,
    /// Linked objects with a change.
    pub(crate) dirty: Members,
    /// Net effect on directory entries: what each named before, and names now.
    pub(crate) dentries: Dentries,
    /// Objects that lost their last link in it.
    pub(crate) orphaned: Members,
    /// Objects that must stay in memory until it is committed: all that it mentions.
    pub(crate) held: Members,
    /// What it has written, and when it closes.
    pub(crate) closing: Closing,
    /// Bytes that write calls brought.
    pub(crate) written_bytes: u64,
    /// Memory of its pages and entries.
    pub(crate) bytes: u64,
    /// Room it will need in the lower filesystem at most.
    pub(crate) reserved_bytes: u64,
    /// Inodes it will need.
    pub(crate) reserved_inodes: u64,
}

impl OpenTransaction {
    pub(crate) fn new(app: AppId, closing: Closing, now: MonotonicNs, is_tracked: bool) -> Self {
        Self {
            apps: alloc::vec![app],
            is_everywhere: false,
            opened_at: now,
            dirty: Members::new(is_tracked),
            dentries: Dentries::new(is_tracked),
            orphaned: Members::new(is_tracked),
            held: Members::new(is_tracked),
            closing,
            written_bytes: 0,
            bytes: 0,
            reserved_bytes: 0,
            reserved_inodes: 0,
        }
    }
}

/// What a closed transaction holds. It never changes.
#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) objects: Vec<ObjectState>,
    pub(crate) dentries: Vec<(ObjectId, Name, Option<ObjectId>)>,
    pub(crate) pages: Vec<(ObjectId, PageIndex, Page)>,
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
    pub(crate) bytes: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) reserved_inodes: u64,
    pub(crate) content: Arc<Content>,
    /// Handed out by `next_commit`, not yet answered.
    pub(crate) in_flight: bool,
    /// The last attempt failed; wait for a retry, and tell this meanwhile.
    pub(crate) refusal: Option<FsError>,
}

impl ClosedTransaction {
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
    pub(crate) content: Arc<Content>,
}

impl Commit {
    /// The entries, in the order that [`Entry`] asks for. Pages are shared, not
    /// copied.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let objects = self.content.objects.iter().cloned().map(Entry::Object);
        let dentries = self
            .content
            .dentries
            .iter()
            .map(|(parent, name, child)| Entry::Dentry {
                parent: *parent,
                name: name.clone(),
                child: *child,
            });
        let pages = self
            .content
            .pages
            .iter()
            .map(|(object, index, page)| Entry::Page {
                object: *object,
                index: *index,
                page: page.clone(),
            });
        objects.chain(dentries).chain(pages)
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
