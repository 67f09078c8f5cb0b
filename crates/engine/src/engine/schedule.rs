//! What waits for its commit, and what must not wait any longer.

use alloc::vec::Vec;

use mobifs_base::{AppId, MonotonicNs, TransactionId};

use super::Engine;
use crate::policy::schedule::Waiting;
use crate::transaction::ClosedTransaction;

/// Closed transactions whose commit must not be put off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overdue {
    /// Which, in the order of closing.
    pub transactions: Vec<TransactionId>,
    /// When the next of those that wait will be, by its age.
    pub next_at: Option<MonotonicNs>,
}

impl Engine {
    /// The closed transactions that can be handed out, in the order of closing.
    pub fn waiting(&self) -> Vec<Waiting> {
        let waiting = self.closed_in_order().into_iter();
        let waiting = waiting.filter(|(_, closed)| !closed.in_flight && closed.refusal.is_none());
        waiting
            .filter_map(|(transaction, closed)| {
                Some(Waiting {
                    id: transaction,
                    app: *closed.apps.first()?,
                    pages: (closed.content.pages.len() + closed.content.dentries.len()) as u64,
                })
            })
            .collect()
    }

    /// The closed transactions of which an app has reached a limit, counted from the
    /// first change and with what came after: what is promised about age and staleness
    /// holds for what is not committed, not for what is not closed. No limit of age below
    /// `age_min_ms` milliseconds counts: where that is more than 0, an age is promised that
    /// is longer than the apps' own.
    pub fn overdue(&self, now: MonotonicNs, age_min_ms: u64) -> Overdue {
        let mut overdue = Overdue::default();
        for (transaction, closed) in self.closed_in_order() {
            if closed.in_flight || closed.refusal.is_some() {
                continue;
            }
            let due_at = self.due_at(closed, age_min_ms);
            if due_at.is_some_and(|at| at <= now) || self.is_too_stale(closed) {
                overdue.transactions.push(transaction);
            } else {
                let next = [overdue.next_at, due_at].into_iter().flatten().min();
                overdue.next_at = next;
            }
        }
        overdue
    }

    /// How often a transaction was closed since the engine was made.
    pub const fn closings(&self) -> u64 {
        self.closings
    }

    fn closed_in_order(&self) -> Vec<(TransactionId, &ClosedTransaction)> {
        let mut in_order: Vec<_> = self
            .closed
            .iter()
            .map(|(&id, closed)| (id, closed))
            .collect();
        in_order.sort_unstable_by_key(|(_, closed)| closed.order);
        in_order
    }

    /// When the first of its apps reaches its limit of age; none if none has one.
    fn due_at(&self, closed: &ClosedTransaction, age_min_ms: u64) -> Option<MonotonicNs> {
        let policies = closed.apps.iter().map(|app| &self.app(*app).policy);
        let bounded = policies.filter(|policy| policy.transactioning.name.is_bounded());
        let age_ms = bounded.map(|policy| policy.age_max_ms).min()?;
        let age_ms = age_ms.max(age_min_ms);
        let age_ns = age_ms.saturating_mul(1_000_000);
        Some(MonotonicNs(closed.opened_at.0.saturating_add(age_ns)))
    }

    /// Whether one of its apps has reached its limit of staleness.
    fn is_too_stale(&self, closed: &ClosedTransaction) -> bool {
        closed.apps.iter().any(|&id| {
            let app = self.app(id);
            let open = app.open.and_then(|transaction| self.open.get(&transaction));
            let open = open.map_or(0, |open| open.closing.efficiency().written_pages());
            let of_app = self
                .closed
                .values()
                .filter(|other| other.apps.contains(&id));
            let waiting: u64 = of_app.map(|other| other.efficiency.written_pages()).sum();
            app.policy.transactioning.name.is_bounded()
                && open + waiting >= app.policy.staleness_max_pages
        })
    }

    fn app(&self, id: AppId) -> &crate::app::App {
        &self.apps[id.0 as usize]
    }
}
