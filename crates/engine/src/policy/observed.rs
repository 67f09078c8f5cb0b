//! The transaction of a store that collects changes by itself: a filesystem of the kernel.
//!
//! Such a store has one transaction at a time, for everything that lies in it, and a commit takes
//! all that it has by then. So what an engine knows of each page is only observed here: that there
//! is something uncommitted since some moment, and how many pages were written. The policies are
//! the same, and so is what [`Pacing`](crate::Pacing) decides.

use alloc::vec::Vec;

use mobifs_base::{MonotonicNs, TransactionId};

use crate::app::AppPolicy;
use crate::apps::ROOT_APP;
use crate::engine::Overdue;
use crate::policy::pacing::CommitQueue;
use crate::policy::schedule::Waiting;
use crate::policy::transactioning::{Closing, Efficiency};

/// What is known of the uncommitted changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Moment of the first of them.
    pub opened_at: MonotonicNs,
    /// What was written.
    pub efficiency: Efficiency,
    /// The policy, or a limit, wants them committed.
    pub is_closed: bool,
}

#[derive(Debug)]
struct Uncommitted {
    id: TransactionId,
    opened_at: MonotonicNs,
    closing: Closing,
    is_closed: bool,
}

/// What is observed of a store's one transaction, and when it is to be committed.
#[derive(Debug)]
pub struct ObservedTransaction {
    policy: AppPolicy,
    uncommitted: Option<Uncommitted>,
    /// The id of the last transaction.
    last: TransactionId,
    closings: u64,
}

impl ObservedTransaction {
    /// Nothing is uncommitted.
    pub const fn new(policy: AppPolicy) -> Self {
        Self {
            policy,
            uncommitted: None,
            last: TransactionId(0),
            closings: 0,
        }
    }

    /// The policy in force.
    pub const fn policy(&self) -> &AppPolicy {
        &self.policy
    }

    /// Another policy. What is closed stays closed; otherwise the policy begins anew with what was
    /// written so far.
    pub fn set_policy(&mut self, policy: AppPolicy) {
        self.policy = policy;
        if let Some(uncommitted) = &mut self.uncommitted {
            uncommitted.closing.set_policies([&policy].into_iter());
        }
    }

    /// Something changed; of that so many pages, some of which the transaction had before.
    pub fn changed(&mut self, now: MonotonicNs, written_pages: u64, overwritten_pages: u64) {
        let policy = self.policy;
        let last = &mut self.last;
        let uncommitted = self.uncommitted.get_or_insert_with(|| {
            last.0 += 1;
            Uncommitted {
                id: *last,
                opened_at: now,
                closing: Closing::new(&policy),
                is_closed: false,
            }
        });
        let mut overwritten_before = 0;
        for page in 1..=written_pages {
            // Spread evenly: in which order they came was not seen.
            let overwritten = page.saturating_mul(overwritten_pages) / written_pages;
            uncommitted
                .closing
                .page_written(overwritten > overwritten_before);
            overwritten_before = overwritten;
        }
        uncommitted
            .closing
            .operation_ended(now.ms_since(uncommitted.opened_at));
    }

    /// Closes the transaction if it is due; when that may be, if it is not and nothing more
    /// happens.
    pub fn tick(&mut self, now: MonotonicNs) -> Option<MonotonicNs> {
        let uncommitted = self.uncommitted.as_mut()?;
        if uncommitted.is_closed {
            return None;
        }
        if uncommitted
            .closing
            .is_due(now.ms_since(uncommitted.opened_at))
        {
            uncommitted.is_closed = true;
            self.closings += 1;
            return None;
        }
        let age_ns = uncommitted.closing.due_age_ms()?.saturating_mul(1_000_000);
        Some(MonotonicNs(uncommitted.opened_at.0.saturating_add(age_ns)))
    }

    /// Everything is committed: because it was handed out, or by the store itself.
    pub fn committed(&mut self) -> Option<Observed> {
        let committed = self.observed();
        self.uncommitted = None;
        committed
    }

    /// What is uncommitted, if anything.
    pub fn observed(&self) -> Option<Observed> {
        self.uncommitted.as_ref().map(|uncommitted| Observed {
            opened_at: uncommitted.opened_at,
            efficiency: *uncommitted.closing.efficiency(),
            is_closed: uncommitted.is_closed,
        })
    }

    fn closed(&self) -> Option<&Uncommitted> {
        let uncommitted = self.uncommitted.as_ref();
        uncommitted.filter(|uncommitted| uncommitted.is_closed)
    }
}

impl CommitQueue for ObservedTransaction {
    type Commit = TransactionId;

    fn next_commit(&mut self, only: Option<TransactionId>) -> Option<TransactionId> {
        let id = self.closed()?.id;
        only.is_none_or(|only| only == id).then_some(id)
    }

    fn is_uncommitted(&self, transaction: TransactionId) -> bool {
        let uncommitted = self.uncommitted.as_ref();
        uncommitted.is_some_and(|uncommitted| uncommitted.id == transaction)
    }

    fn waiting(&self) -> Vec<Waiting> {
        let waiting = self.closed().map(|closed| {
            let efficiency = closed.closing.efficiency();
            Waiting {
                id: closed.id,
                app: ROOT_APP,
                pages: efficiency.written_pages() - efficiency.overwritten_pages(),
            }
        });
        waiting.into_iter().collect()
    }

    fn closings(&self) -> u64 {
        self.closings
    }

    fn overdue(&self, now: MonotonicNs, age_min_ms: u64) -> Overdue {
        let mut overdue = Overdue::default();
        let Some(closed) = self.closed() else {
            return overdue;
        };
        let policy = &self.policy;
        let is_too_stale =
            closed.closing.efficiency().written_pages() >= policy.staleness_max_pages;
        let age_ns = policy.age_max_ms.max(age_min_ms).saturating_mul(1_000_000);
        let due_at = MonotonicNs(closed.opened_at.0.saturating_add(age_ns));
        if is_too_stale || due_at <= now {
            overdue.transactions.push(closed.id);
        } else {
            overdue.next_at = Some(due_at);
        }
        overdue
    }
}
