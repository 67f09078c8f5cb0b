//! What is going on in a volume.

use std::sync::atomic::Ordering;

use mobifs_base::MonotonicNs;
use mobifs_engine::{AppStatus, EngineStatus};

use super::{Shared, Volume};
use crate::AppName;
use crate::status::{
    AppReport, AppTotals, CheckpointReport, INODES_ADVICE, MemoryStatus, PolicyReport, ROOM_ADVICE,
    SCHEMA_VERSION, Status, StoreStatus, TransactionCounts, bytes, rfc3339,
};

impl Volume {
    /// The state at this moment. Where it is mounted and which directory the store is
    /// in, the caller knows.
    pub fn status(&self) -> Status {
        let shared = &self.shared;
        let now = shared.moment().now;
        let read_only = shared.options.read_only;
        // A lock in the expression below would be held to its end.
        let not_applied = shared.apply_failure.lock().clone();
        let applied = shared.options.applied.as_ref();
        let history = applied.and_then(|applied| applied.history());
        let (engine, machine) = {
            // What the machine does and what the apps are, at one moment.
            let locked = shared.lock_engine();
            (locked.engine.status(now), shared.pacing.lock().machine())
        };
        let pending = shared.store.pending();
        let mut apps: Vec<AppReport> = engine
            .apps
            .iter()
            .map(|app| shared.app_report(app, now))
            .collect();
        apps.sort_by(|one, other| one.name.cmp(&other.name));
        Status {
            schema: SCHEMA_VERSION,
            daemon_pid: std::process::id(),
            supervised_by: None,
            restarts: 0,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mountpoint: None,
            uptime_ms: now.ms_since(shared.started.now),
            read_only: read_only || shared.store.capabilities().read_only,
            sync_reaches_mount: shared.sync_reaches.load(Ordering::Relaxed),
            memory: MemoryStatus {
                budget_bytes: engine.memory_budget_bytes,
                used_bytes: engine.dirty_bytes,
                deleted_in_use_bytes: engine.orphan_bytes,
                committed_held_bytes: pending.held_bytes,
                objects: engine.objects,
                budget_lasts_seconds: shared.budget_lasts_seconds(now, &engine),
            },
            store: StoreStatus {
                path: None,
                kind: "journal".to_owned(),
                journal_used_bytes: pending.journal_used_bytes,
                journal_total_bytes: pending.journal_total_bytes,
                commits: pending.commits,
                joined_transactions: shared.commit_queue.joined(),
                journal: (&pending).into(),
                calibration: shared.store.calibration().as_ref().map(Into::into),
                commit_written_bytes: pending.commit_written_bytes,
                apply_written_bytes: pending.apply_written_bytes,
                externally_modified: pending.externally_modified,
                preallocated_unused_bytes: pending.preallocated_bytes,
                moved_bytes: pending.moved_bytes,
                ordered_fsyncs: shared.rollback_journals.ordered(),
                not_applied,
                history,
            },
            user: shared.user_report(now),
            recording: None,
            battery_low: machine.is_battery_low(),
            screen_off: machine.is_screen_off(),
            totals: AppTotals::of(&apps),
            apps,
            apps_omitted: 0,
            native: None,
        }
    }
}

impl Volume {
    /// What the user can do about the lower filesystem that has no room, at present.
    pub fn room_advice(&self) -> &'static str {
        self.shared.room_advice()
    }
}

impl Shared {
    fn room_advice(&self) -> &'static str {
        match self.store.space() {
            Ok(space) if space.lacks_inodes() => INODES_ADVICE,
            _ => ROOM_ADVICE,
        }
    }

    fn budget_lasts_seconds(&self, now: MonotonicNs, engine: &EngineStatus) -> Option<f64> {
        let dirty_bytes = engine.dirty_bytes;
        let free_bytes = engine.memory_budget_bytes.saturating_sub(dirty_bytes);
        let forecast = self.forecast.lock();
        forecast.lasts_seconds(now, dirty_bytes, free_bytes)
    }

    fn app_report(&self, app: &AppStatus, now: MonotonicNs) -> AppReport {
        let checkpoint = self.checkpoints.lock().get(&app.path).copied();
        let read_only = app.read_only.then(|| {
            let failed = self.failures.lock().get(&app.path).cloned();
            // Asks the lower filesystem: not while that lock is held.
            match failed {
                Some(failed) if failed.is_full => {
                    format!("{}: {}", failed.reason, self.room_advice())
                }
                Some(failed) => failed.reason,
                None => "a commit failed".to_owned(),
            }
        });
        let written_pages = app.written_pages.max(1);
        let name = AppName::from(&*app.path);
        AppReport {
            name: String::from_utf8_lossy(&app.path).into_owned(),
            name_hex: name.as_text().is_none().then(|| name.to_hex()),
            class: crate::class_name(app.policy.class).to_owned(),
            bytes_at_risk: app.at_risk_bytes,
            seconds_at_risk: app.at_risk_ms.unwrap_or(0) as f64 / 1e3,
            transactions: TransactionCounts {
                open: app.open_transactions,
                closed: app.closed_transactions,
                committed: app.committed_transactions,
            },
            e: app.overwritten_pages as f64 / written_pages as f64,
            bytes_written_by_app: app.written_bytes,
            bytes_sent_to_store: app.committed_bytes,
            bytes_saved: app
                .written_bytes
                .saturating_sub(app.committed_bytes)
                .saturating_sub(app.at_risk_bytes),
            last_checkpoint: checkpoint.map(|last| CheckpointReport {
                age_seconds: now.ms_since(last.now) as f64 / 1e3,
                time: rfc3339(last.wall),
            }),
            read_only,
            age_max_ms: app.policy.age_max_ms,
            staleness_max_bytes: bytes(app.policy.staleness_max_pages),
            policy: PolicyReport::of(&app.policy.transactioning),
        }
    }
}
