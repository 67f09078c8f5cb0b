//! What is going on, for people and monitoring.

use alloc::vec::Vec;

use mobifs_base::{MonotonicNs, ObjectId};

use super::{Engine, age_ms};
use crate::app::AppPolicy;

/// One app's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppStatus {
    /// Path relative to the mount; `.` for what lies in no app directory.
    pub path: Vec<u8>,
    /// Its limits.
    pub policy: AppPolicy,
    /// A commit failed: the app accepts no changes.
    pub read_only: bool,
    /// Memory of uncommitted changes: what a power cut would take.
    pub at_risk_bytes: u64,
    /// Age of the oldest uncommitted change, in milliseconds; none if there is none.
    pub at_risk_ms: Option<u64>,
    /// When that change was made.
    pub at_risk_since: Option<MonotonicNs>,
    /// Open transactions (0 or 1).
    pub open_transactions: u64,
    /// Closed transactions that wait for their commit.
    pub closed_transactions: u64,
    /// Committed transactions since the mount.
    pub committed_transactions: u64,
    /// Pages written since the mount, committed or not.
    pub written_pages: u64,
    /// Pages of these that were overwritten or dropped before a commit.
    pub overwritten_pages: u64,
    /// Bytes that write calls brought since the mount.
    pub written_bytes: u64,
    /// Bytes of these that were committed since the mount.
    pub committed_bytes: u64,
}

/// The engine's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineStatus {
    /// All apps seen since the mount.
    pub apps: Vec<AppStatus>,
    /// Memory of uncommitted changes and of deleted files still in use.
    pub dirty_bytes: u64,
    /// Part of it: deleted files still in use.
    pub orphan_bytes: u64,
    /// The budget.
    pub memory_budget_bytes: u64,
    /// Objects in memory.
    pub objects: u64,
}

/// What each app has uncommitted, and whether it accepts changes.
impl Engine {
    /// Objects in memory that have a place in the tree, each with the directory that it was found
    /// in last; in no order, without the root.
    pub fn placed_objects(&self) -> impl Iterator<Item = (ObjectId, ObjectId)> {
        let placed = self
            .namespace
            .iter()
            .filter(|(_, inode)| !inode.is_orphan());
        let placed = placed.map(|(&id, inode)| (id, inode.home));
        placed.filter(|(id, _)| *id != ObjectId::ROOT)
    }

    /// Whether some app's `fsync` waits.
    pub const fn has_durable_apps(&self) -> bool {
        self.apps.has_durable()
    }

    /// Paths of the apps that accept no changes because a commit failed.
    pub fn failed_apps(&self) -> Vec<Vec<u8>> {
        self.apps
            .iter()
            .filter(|app| app.refusal.is_some())
            .map(|app| app.path.clone())
            .collect()
    }

    /// The state at this moment. Transactions of joined apps count for each.
    pub fn status(&self, now: MonotonicNs) -> EngineStatus {
        let mut apps: Vec<AppStatus> = self
            .apps
            .iter()
            .map(|app| AppStatus {
                path: app.path.clone(),
                policy: app.policy,
                read_only: app.refusal.is_some(),
                at_risk_bytes: 0,
                at_risk_ms: None,
                at_risk_since: None,
                open_transactions: 0,
                closed_transactions: 0,
                committed_transactions: app.committed_transactions,
                written_pages: app.committed_written_pages,
                overwritten_pages: app.committed_overwritten_pages,
                written_bytes: app.written_bytes,
                committed_bytes: app.committed_bytes,
            })
            .collect();
        for (_, open) in self.transactions.all_open() {
            // As when it closes.
            if let Some(first) = open.apps.first() {
                apps[first.0 as usize].written_bytes += open.written_bytes;
            }
        }
        let open = self.transactions.all_open().map(|(_, open)| {
            let efficiency = open.closing.efficiency();
            (&open.apps, open.opened_at, open.charged, efficiency, true)
        });
        let closed = self.transactions.all_closed().map(|(_, closed)| {
            let efficiency = &closed.efficiency;
            let charged = closed.charged;
            (&closed.apps, closed.opened_at, charged, efficiency, false)
        });
        for (of, opened_at, charged, efficiency, is_open) in open.chain(closed) {
            for app in of {
                let status = &mut apps[app.0 as usize];
                status.at_risk_bytes += charged.memory_bytes();
                let age_ms = age_ms(now, opened_at);
                status.at_risk_ms = Some(status.at_risk_ms.map_or(age_ms, |ms| ms.max(age_ms)));
                let since = status.at_risk_since;
                status.at_risk_since = Some(since.map_or(opened_at, |at| at.min(opened_at)));
                status.open_transactions += u64::from(is_open);
                status.closed_transactions += u64::from(!is_open);
                status.written_pages += efficiency.written_pages();
                status.overwritten_pages += efficiency.overwritten_pages();
            }
        }
        EngineStatus {
            apps,
            dirty_bytes: self.accounting.dirty_bytes(),
            orphan_bytes: self.accounting.orphan_bytes(),
            memory_budget_bytes: self.limits.memory_budget_bytes,
            objects: self.objects(),
        }
    }
}
