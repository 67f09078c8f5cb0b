//! What `mobifs status` shows of a steered filesystem.

use mobifs_engine::Moment;
use mobifs_engine::policy::prediction::UserState;
use mobifs_volume::{
    AppReport, AppTotals, CheckpointReport, JournalReport, MemoryStatus, NativeStatus,
    PolicyReport, SCHEMA_VERSION, Status, StoreStatus, TransactionCounts, UserReport, bytes,
    class_name, rfc3339,
};

use crate::only::Only;
use crate::steering::{State, Steering};
use crate::takeover::Difference;

impl Steering {
    /// The state at this moment.
    pub fn status(&self) -> Status {
        self.look_for_status();
        let now = Self::moment().now;
        let mut state = self.state();
        let state = &mut *state;
        let apps = vec![report(state, now)];
        let machine = state.pacing.machine();
        let used_bytes = apps.iter().map(|app| app.bytes_at_risk).sum();
        Status {
            schema: SCHEMA_VERSION,
            daemon_pid: std::process::id(),
            supervised_by: None,
            restarts: 0,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            mountpoint: Some(self.mount().mountpoint.to_string_lossy().into_owned()),
            uptime_ms: now.ms_since(state.started.now),
            read_only: state.promise.changed == Some(Difference::ReadOnly),
            sync_reaches_mount: true,
            memory: MemoryStatus {
                budget_bytes: self
                    .largest_transaction_bytes()
                    .unwrap_or(bytes(state.observed.policy().staleness_max_pages)),
                used_bytes,
                deleted_in_use_bytes: 0,
                committed_held_bytes: 0,
                objects: 0,
                budget_lasts_seconds: None,
            },
            store: StoreStatus {
                path: Some(self.mount().source.to_string_lossy().into_owned()),
                kind: "native".to_owned(),
                journal_used_bytes: 0,
                journal_total_bytes: 0,
                commits: state.counts.own_commits,
                commit_written_bytes: state.counts.device_written_bytes(self.filesystem()),
                apply_written_bytes: 0,
                preallocated_unused_bytes: 0,
                moved_bytes: 0,
                ordered_fsyncs: 0,
                joined_transactions: 0,
                journal: JournalReport::default(),
                calibration: None,
                externally_modified: 0,
                not_applied: None,
                history: None,
            },
            user: user(state, now),
            recording: None,
            battery_low: machine.is_battery_low(),
            screen_off: machine.is_screen_off(),
            totals: AppTotals::of(&apps),
            apps,
            apps_omitted: 0,
            native: Some(self.native(state)),
        }
    }

    fn native(&self, state: &State) -> NativeStatus {
        let taken = state.takeover.taken();
        let interval_ms = taken.commit_interval_s.saturating_mul(1000);
        let filesystem = self.filesystem();
        NativeStatus {
            filesystem: filesystem.kind().to_owned(),
            promise_withdrawn: state.promise.why_withdrawn(),
            calls_return_at_once: state.promise.is_in_force(),
            commit_interval_s: taken.commit_interval_s,
            age_max_without_daemon_ms: interval_ms
                .saturating_add(filesystem.age_before_transaction_ms()),
            other_commits: filesystem.commits().map(|_| state.counts.other_commits),
            largest_transaction_bytes: self.largest_transaction_bytes(),
            not_counted: state.not_counted.clone(),
            written_counter: self.written_counter().to_owned(),
            options_before: state.takeover.before().shown(),
            history: state.history.clone(),
            only: state.only.as_ref().map_or_else(Vec::new, Only::shown),
        }
    }
}

/// All that lies in the filesystem.
fn report(state: &State, now: mobifs_base::MonotonicNs) -> AppReport {
    let observed = state.observed.observed();
    let counts = &state.counts;
    let at_risk = observed.map_or(0, |observed| observed.efficiency.written_pages());
    let since = observed.map_or(0, |observed| now.ms_since(observed.opened_at));
    let policy = state.observed.policy();
    let is_closed = observed.is_some_and(|observed| observed.is_closed);
    let class = state.observed.policy().class;
    AppReport {
        name: ".".to_owned(),
        name_hex: None,
        class: class_name(class).to_owned(),
        bytes_at_risk: bytes(at_risk),
        seconds_at_risk: since as f64 / 1e3,
        transactions: TransactionCounts {
            open: u64::from(observed.is_some() && !is_closed),
            closed: u64::from(is_closed),
            committed: counts.own_commits,
        },
        e: 0.0,
        bytes_written_by_app: bytes(counts.written_pages),
        bytes_sent_to_store: bytes(counts.committed_pages),
        bytes_saved: 0,
        last_checkpoint: last_commit(state).map(|last| CheckpointReport {
            age_seconds: now.ms_since(last.now) as f64 / 1e3,
            time: rfc3339(last.wall),
        }),
        read_only: None,
        age_max_ms: policy.age_max_ms,
        staleness_max_bytes: bytes(policy.staleness_max_pages),
        policy: PolicyReport::of(&policy.transactioning),
    }
}

/// The last commit, of the daemon or of another process.
fn last_commit(state: &State) -> Option<Moment> {
    let both = [state.last_commit, state.last_other_commit];
    both.into_iter().flatten().max_by_key(|moment| moment.now)
}

fn user(state: &mut State, now: mobifs_base::MonotonicNs) -> UserReport {
    let rules = state.pacing.rules();
    let user = state.pacing.user_mut();
    let shown = match user.state(now) {
        UserState::Unknown => "unknown",
        UserState::Active { .. } => "active",
        UserState::Away(_) => "away",
    };
    UserReport {
        state: shown.to_owned(),
        operations: user.operations(),
        predictor: rules.prediction.predictor.as_str().to_owned(),
        scheduler: rules.scheduler.as_str().to_owned(),
    }
}
