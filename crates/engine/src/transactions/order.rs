//! The order of commits: which closed transaction may be, or must be, committed before which.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use mobifs_base::{AppId, TransactionId};

use super::{ClosedTransaction, Transactions};
use crate::FsError;

/// All transactions that were closed at some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedUntil {
    /// The place in the order of closing that the next one gets.
    next_order: u64,
}

impl Transactions {
    /// Stands for everything that is closed now.
    pub(crate) const fn closed_until_now(&self) -> ClosedUntil {
        ClosedUntil {
            next_order: self.next(),
        }
    }

    /// A closed transaction.
    pub(crate) fn closed(&self, id: TransactionId) -> Option<&ClosedTransaction> {
        self.closed.get(&id)
    }

    /// Whether it is closed, and not committed, by itself or as a part of a merged one.
    pub(crate) fn is_closed(&self, id: TransactionId) -> bool {
        self.closed.contains_key(&self.after_merges(id))
    }

    /// The closed transactions, in the order of their numbers, which is not that of closing.
    pub(crate) fn all_closed(&self) -> impl Iterator<Item = (TransactionId, &ClosedTransaction)> {
        self.closed.iter().map(|(&id, closed)| (id, closed))
    }

    /// The closed transactions, in the order of closing.
    pub(crate) fn closed_in_order(&self) -> Vec<(TransactionId, &ClosedTransaction)> {
        let mut in_order: Vec<_> = self.all_closed().collect();
        in_order.sort_unstable_by_key(|(_, closed)| closed.order);
        in_order
    }

    /// Whether any closed transaction waits, or is in flight.
    pub(crate) fn has_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Whether any closed transaction waits for its commit.
    pub(crate) fn has_waiting(&self) -> bool {
        self.closed.values().any(ClosedTransaction::is_waiting)
    }

    /// The closed transaction of this kind that was closed last.
    pub(crate) fn last_closed(
        &self,
        is_meant: impl Fn(&ClosedTransaction) -> bool,
    ) -> Option<TransactionId> {
        let meant = self.all_closed().filter(|(_, closed)| is_meant(closed));
        let last = meant.max_by_key(|(_, closed)| closed.order);
        last.map(|(id, _)| id)
    }

    /// The closed transactions that must be committed before this one may be, and itself.
    pub(crate) fn needed_by(&self, id: TransactionId) -> BTreeSet<TransactionId> {
        let id = self.after_merges(id);
        let mut needed = BTreeSet::new();
        let Some(target) = self.closed.get(&id) else {
            return needed;
        };
        needed.insert(id);
        let mut earlier: Vec<(TransactionId, &ClosedTransaction)> = self
            .all_closed()
            .filter(|(_, closed)| closed.order < target.order)
            .collect();
        earlier.sort_unstable_by_key(|(_, closed)| core::cmp::Reverse(closed.order));
        let mut found = alloc::vec![target];
        for (id, closed) in earlier {
            if found.iter().any(|later| later.depends_on(closed)) {
                needed.insert(id);
                found.push(closed);
            }
        }
        needed
    }

    /// Why a transaction, or one that it depends on, failed to commit, if one did.
    pub(crate) fn refusal_of(&self, id: TransactionId) -> Option<FsError> {
        let needed = self.needed_by(id);
        let mut closed = needed.iter().filter_map(|id| self.closed.get(id));
        closed.find_map(|closed| closed.refusal)
    }

    /// Why a transaction of this app failed to commit, if one did.
    pub(crate) fn refusal_of_app(&self, app: AppId) -> Option<FsError> {
        let closed = self.closed.values();
        let mut of_app = closed.filter(|closed| closed.apps.contains(&app));
        of_app.find_map(|closed| closed.refusal)
    }

    /// The transactions that were closed before some moment.
    pub(crate) fn closed_before(&self, point: ClosedUntil) -> BTreeSet<TransactionId> {
        let until = self
            .all_closed()
            .filter(|(_, closed)| closed.order < point.next_order);
        until.map(|(id, _)| id).collect()
    }

    /// The next of these (none: of all) to commit: the first that waits and depends on none that
    /// is closed before it and stays.
    pub(crate) fn next_of(
        &self,
        wanted: Option<&BTreeSet<TransactionId>>,
    ) -> Option<TransactionId> {
        let mut blocked: Vec<&ClosedTransaction> = Vec::new();
        for (id, closed) in self.closed_in_order() {
            let waits =
                !closed.is_waiting() || blocked.iter().any(|earlier| closed.depends_on(earlier));
            if waits || wanted.is_some_and(|wanted| !wanted.contains(&id)) {
                blocked.push(closed);
            } else {
                return Some(id);
            }
        }
        None
    }
}
