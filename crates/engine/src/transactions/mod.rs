//! Transactions: open, closed, committed.
//!
//! A transaction is what the paper calls a *versioned cache transaction* (VCT, S0 §4.2): all
//! changes that the apps it belongs to made between two moments, of each changed object, entry
//! and page one version, namely the last. While it is *open* it takes further changes, and a
//! page written again is overwritten in place. Once it is *closed* its versions never change: a
//! write to such a page makes a new version, in the next open transaction. When the store has
//! it durably it is *committed* and leaves memory.
//!
//! ```text
//!            begin            close              start_commit
//!   (none) ────────▶  open  ────────▶  closed  ──────────────▶  in flight
//!                      │ ▲               ▲ ▲                     │  │  │
//!                      └─┘ join          │ └────── put back ─────┘  │  └─▶ committed
//!                                        └── failed, then retried ──┘
//!                                            or merged with later ones
//! ```
//!
//! Transactions that depend on each other are committed in the order in which they were closed
//! ([`ClosedTransaction::depends_on`]).

mod closed;
mod merge;
mod open;
mod order;

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use mobifs_base::{AppId, MonotonicNs, ObjectId, TransactionId};

use crate::FsError;
use crate::accounting::Charged;
use crate::policy::transactioning::Closing;
use crate::versions::ORPHAN;

use closed::Closed;
pub(crate) use closed::{ClosedTransaction, Content};
pub use closed::{Commit, SizeChange};
pub(crate) use merge::Merged;
use open::Open;
pub(crate) use open::{DentryChange, OpenTransaction};
pub use order::ClosedUntil;

/// The open and closed transactions of one mount. Committed ones are not kept.
#[derive(Debug)]
pub(crate) struct Transactions {
    open: Open,
    closed: Closed,
    /// The open transaction that all apps' changes go to, if there is one.
    everywhere: Option<TransactionId>,
    /// The next number, of a transaction or of a place in the order of closing.
    next: u64,
    /// Transactions closed by this engine.
    closings: u64,
    /// The transactions into which closed ones were merged, until these are committed. Not saved:
    /// only waiting callers need it.
    merged_into: BTreeMap<TransactionId, TransactionId>,
    /// How often transactions were merged by this engine.
    merges: u64,
}

/// Opening, joining and closing.
impl Transactions {
    /// None yet. `is_tracked`: what changes is marked as unsaved.
    pub(crate) const fn new(is_tracked: bool) -> Self {
        Self {
            open: Open::new(is_tracked),
            closed: Closed::new(is_tracked),
            everywhere: None,
            // 0 is `ORPHAN`.
            next: ORPHAN.0 + 1,
            closings: 0,
            merged_into: BTreeMap::new(),
            merges: 0,
        }
    }

    fn next_number(&mut self) -> u64 {
        let number = self.next;
        assert!(number < u64::MAX, "numbers of transactions are used up");
        self.next += 1;
        number
    }

    /// Opens a transaction of one app.
    pub(crate) fn begin(
        &mut self,
        app: AppId,
        closing: Closing,
        now: MonotonicNs,
    ) -> TransactionId {
        let id = TransactionId(self.next_number());
        let open = OpenTransaction::new(app, closing, now, self.open.is_tracked());
        self.open.insert(id, open);
        id
    }

    /// An open transaction.
    pub(crate) fn open(&self, id: TransactionId) -> Option<&OpenTransaction> {
        self.open.get(&id)
    }

    /// An open transaction, to change it.
    pub(crate) fn open_mut(&mut self, id: TransactionId) -> Option<&mut OpenTransaction> {
        self.open.get_mut(&id)
    }

    /// Whether it is open.
    pub(crate) fn is_open(&self, id: TransactionId) -> bool {
        self.open.contains_key(&id)
    }

    /// The open transactions, in the order of their opening.
    pub(crate) fn all_open(&self) -> impl Iterator<Item = (TransactionId, &OpenTransaction)> {
        self.open.iter().map(|(&id, open)| (id, open))
    }

    /// Their numbers.
    pub(crate) fn open_ids(&self) -> Vec<TransactionId> {
        self.open.keys().copied().collect()
    }

    /// The open transaction that all apps' changes go to, if there is one.
    pub(crate) const fn everywhere(&self) -> Option<TransactionId> {
        self.everywhere
    }

    /// From now on all apps' changes go to this one, which has absorbed all others.
    pub(crate) fn set_everywhere(&mut self, id: TransactionId) {
        if let Some(open) = self.open.get_mut(&id) {
            open.is_everywhere = true;
            self.everywhere = Some(id);
        }
    }

    /// Takes an open transaction out: it joins another one, or closes.
    pub(crate) fn take_open(&mut self, id: TransactionId) -> Option<OpenTransaction> {
        let open = self.open.remove(&id)?;
        if self.everywhere == Some(id) {
            self.everywhere = None;
        }
        debug_assert!(
            open.holds_all(),
            "a transaction holds in memory all that it mentions"
        );
        Some(open)
    }

    /// Adds an open transaction, taken out, as a closed one with this content.
    pub(crate) fn insert_closed(
        &mut self,
        id: TransactionId,
        open: OpenTransaction,
        content: Content,
    ) {
        let order = self.next_number();
        debug_assert!(
            self.closed.values().all(|earlier| earlier.order < order),
            "the order of closing is the order of numbers"
        );
        debug_assert!(
            open.charged.room().covers(content.room()),
            "{:?} is promised for what takes {:?}",
            open.charged.room(),
            content.room()
        );
        self.closings += 1;
        let closed = ClosedTransaction {
            order,
            is_everywhere: open.is_everywhere,
            apps: open.apps,
            opened_at: open.opened_at,
            orphaned: open.orphaned.into_set(),
            held: open.held.into_set(),
            efficiency: *open.closing.efficiency(),
            brought_bytes: open.brought_bytes,
            charged: open.charged,
            content: alloc::sync::Arc::new(content),
            in_flight: false,
            refusal: None,
        };
        self.closed.insert(id, closed);
    }

    /// Transactions closed by this engine.
    pub(crate) const fn closings(&self) -> u64 {
        self.closings
    }

    /// What each transaction, open or closed, is charged.
    pub(crate) fn charged(&self) -> impl Iterator<Item = Charged> {
        let open = self.open.values().map(|open| open.charged);
        open.chain(self.closed.values().map(|closed| closed.charged))
    }

    /// The apps of each transaction, open or closed, and the memory that it takes.
    fn memory_of_each(&self) -> impl Iterator<Item = (&Vec<AppId>, u64)> {
        let open = self.open.values().map(|open| (&open.apps, open.charged));
        let closed = self.closed.values();
        let closed = closed.map(|closed| (&closed.apps, closed.charged));
        open.chain(closed)
            .map(|(apps, charged)| (apps, charged.memory_bytes()))
    }

    /// Memory of the transactions whose apps all have no more than this in memory.
    pub(crate) fn memory_of_small_apps(&self, most_bytes: u64) -> u64 {
        let mut of_apps: BTreeMap<AppId, u64> = BTreeMap::new();
        for (apps, bytes) in self.memory_of_each() {
            for app in apps {
                *of_apps.entry(*app).or_default() += bytes;
            }
        }
        let is_small = |app: &AppId| of_apps.get(app).is_none_or(|&bytes| bytes <= most_bytes);
        let small = self
            .memory_of_each()
            .filter(|(apps, _)| apps.iter().all(is_small));
        small.map(|(_, bytes)| bytes).sum()
    }

    /// What an app is charged: in its open transaction, and in its closed ones.
    pub(crate) fn charged_to(&self, app: AppId, open: Option<TransactionId>) -> Charged {
        let mut sum = Charged::default();
        if let Some(open) = open.and_then(|id| self.open(id)) {
            sum.absorb(open.charged);
        }
        let closed = self.closed.values();
        let of_app = closed.filter(|closed| closed.apps.contains(&app));
        of_app.for_each(|closed| sum.absorb(closed.charged));
        sum
    }

    /// The open transaction that takes most memory.
    pub(crate) fn largest_open(&self) -> Option<TransactionId> {
        let largest = self
            .all_open()
            .max_by_key(|(_, open)| open.charged.memory_bytes());
        largest.map(|(id, _)| id)
    }

    /// The transactions that mention an object, open and closed; there are `count` of them.
    pub(crate) fn with_object(&self, id: ObjectId, count: usize) -> Vec<TransactionId> {
        let open = self.open.iter().filter(|(_, open)| open.held.contains(&id));
        let closed = self.closed.iter();
        let closed = closed.filter(|(_, closed)| closed.held.contains(&id));
        let all = open.map(|(&id, _)| id).chain(closed.map(|(&id, _)| id));
        all.take(count).collect()
    }
}

/// Restoring and saving.
impl Transactions {
    /// The number that comes next.
    pub(crate) const fn next(&self) -> u64 {
        self.next
    }

    /// Continues with this number.
    pub(crate) const fn restore_next(&mut self, next: u64) {
        self.next = next;
    }

    /// Puts back an open transaction.
    pub(crate) fn restore_open(&mut self, id: TransactionId, open: OpenTransaction) {
        if open.is_everywhere {
            self.everywhere = Some(id);
        }
        self.open.insert(id, open);
    }

    /// Puts back a closed one.
    pub(crate) fn restore_closed(&mut self, id: TransactionId, closed: ClosedTransaction) {
        self.closed.insert(id, closed);
    }

    /// Whether changes are marked as unsaved.
    pub(crate) const fn is_tracked(&self) -> bool {
        self.open.is_tracked()
    }

    /// The containers of the transactions, for saving them.
    pub(crate) const fn parts_to_save(&mut self) -> (&mut Open, &mut Closed) {
        (&mut self.open, &mut self.closed)
    }

    /// Whether something of them is not saved.
    pub(crate) fn is_unsaved(&self) -> bool {
        !self.open.unsaved.is_empty() || !self.closed.unsaved.is_empty()
    }

    /// Marks everything as unsaved.
    pub(crate) fn mark_all_unsaved(&mut self) {
        self.open.mark_all_unsaved();
        self.closed.mark_all_unsaved();
    }
}

/// Commits.
impl Transactions {
    /// The content of a committed transaction; it leaves memory.
    pub(crate) fn take_committed(&mut self, id: TransactionId) -> Option<ClosedTransaction> {
        let closed = self.closed.remove(&id)?;
        self.merged_into.retain(|_, into| *into != id);
        debug_assert!(
            closed.content.is_empty()
                || self
                    .closed
                    .values()
                    .all(|other| other.order > closed.order || !closed.depends_on(other)),
            "what a transaction depends on is committed before it"
        );
        Some(closed)
    }

    /// Hands a closed transaction out.
    pub(crate) fn start_commit(&mut self, id: TransactionId) -> Option<&ClosedTransaction> {
        let closed = self.closed.get_mut(&id)?;
        debug_assert!(closed.is_waiting(), "it is handed out once at a time");
        closed.in_flight = true;
        Some(closed)
    }

    /// The store could not commit it: it waits for a retry. Returns its apps.
    pub(crate) fn commit_failed(&mut self, id: TransactionId, refusal: FsError) -> Vec<AppId> {
        let Some(closed) = self.closed.get_mut(&id) else {
            return Vec::new();
        };
        closed.in_flight = false;
        closed.refusal = Some(refusal);
        closed.apps.clone()
    }

    /// A commit failed that may wait: it is handed out again.
    pub(crate) fn put_back(&mut self, id: TransactionId) {
        if let Some(closed) = self.closed.get_mut(&id) {
            closed.in_flight = false;
        }
    }

    /// Hands transactions that failed this way out again; with none, all that failed.
    pub(crate) fn retry_failed(&mut self, only: Option<FsError>) {
        for closed in self.closed.values_mut() {
            if only.is_none() || closed.refusal == only {
                closed.refusal = None;
            }
        }
    }
}
