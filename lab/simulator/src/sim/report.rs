//! What a simulation found, for people and programs.

use mobifs_base::PAGE_BYTES_U64;
use mobifs_engine::policy::prediction::TOUCH_GAP_NS;
use mobifs_numerics::TimeHistogram;
use serde::Serialize;

use super::device::Storage;
use super::outcome::{AppOutcome, Outcome};
use super::stream::Stream;
use super::user::{PredictionReport, user_operations};

/// All traces under all contenders.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// By what part the first policy flushed less than ext4, over all traces: 0.6 means that
    /// it flushed 40 % of what ext4 did. Negative if it flushed more.
    pub flush_reduction_vs_ext4: f64,
    /// The policy that this is about.
    pub policy: String,
    /// The device.
    pub device: String,
    /// Each trace.
    pub traces: Vec<TraceReport>,
}

/// One trace.
#[derive(Clone, Debug, Serialize)]
pub struct TraceReport {
    /// Its file.
    pub trace: String,
    /// How long it is.
    pub duration_seconds: f64,
    /// As [`Report::flush_reduction_vs_ext4`], of this trace.
    pub flush_reduction_vs_ext4: f64,
    /// User operations in it.
    pub user_operations: u64,
    /// How well each predictor foresees the user's pauses; none without a user.
    pub predictions: Vec<PredictionReport>,
    /// The policy and what it was compared with.
    pub contenders: Vec<ContenderReport>,
}

/// One trace under one contender.
#[derive(Clone, Debug, Serialize)]
pub struct ContenderReport {
    /// Its name.
    pub name: String,
    /// Pages of content that were flushed, in bytes.
    pub flushed_bytes: u64,
    /// By what part that is less than ext4's.
    pub flush_reduction_vs_ext4: f64,
    /// Overwritten or dropped before they were flushed, of all pages written: e of S0 §3.
    pub efficiency: f64,
    /// Age of the oldest change of any app that a power cut would take, over time.
    pub age_at_risk: Distribution,
    /// Memory of all changes that a power cut would take, over time.
    pub bytes_at_risk: Distribution,
    /// Most memory that changes took: the footprint.
    pub footprint_max_bytes: u64,
    /// What the device had to do.
    pub device: DeviceReport,
    /// Each app that wrote anything.
    pub apps: Vec<AppReport>,
}

/// A quantity over time: the share of the time in which it was at most so much.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Distribution {
    /// Mean over time.
    pub mean: f64,
    /// Half of the time.
    pub p50: f64,
    /// 90 % of the time.
    pub p90: f64,
    /// 99 % of the time.
    pub p99: f64,
    /// All the time.
    pub max: f64,
}

impl Distribution {
    fn of(seen: &TimeHistogram, unit: f64) -> Self {
        Self {
            mean: seen.mean() / unit,
            p50: seen.quantile(0.5) / unit,
            p90: seen.quantile(0.9) / unit,
            p99: seen.quantile(0.99) / unit,
            max: seen.max() / unit,
        }
    }
}

/// What the device had to do.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct DeviceReport {
    /// Bytes that were sent to it, journals included.
    pub written_bytes: u64,
    /// Bytes programmed into cells for each of them.
    pub write_amplification: Option<f64>,
    /// Energy for commands and the device's own work, without idling.
    pub energy_mj: f64,
    /// How long it was busy with flushes.
    pub busy_ms: f64,
    /// Flushes, commits and applications of the journal.
    pub flushes: u64,
    /// How long callers of `fsync` waited for it.
    pub fsync_wait_ms: f64,
    /// How often they did.
    pub fsync_waits: u64,
    /// User operations while it was busy.
    pub user_conflicts: u64,
    /// How long it was busy within a second after a user operation.
    pub busy_in_users_way_ms: f64,
}

/// How long after a user operation the user waits for what it brings, in nanoseconds.
const USERS_TURN_NS: u64 = 1_000_000_000;

/// User operations inside busy times, and busy time just after user operations.
fn in_users_way(busy_ns: &[(u64, u64)], operations: &[u64]) -> (u64, u64) {
    let (mut conflicts, mut overlap_ns) = (0, 0);
    for &(start, end) in busy_ns {
        let first = operations.partition_point(|&at| at.saturating_add(USERS_TURN_NS) <= start);
        let mut covered_until = start;
        for &at in operations[first..].iter().take_while(|&&at| at < end) {
            conflicts += u64::from(at >= start);
            let from = at.max(covered_until);
            let to = at.saturating_add(USERS_TURN_NS).min(end);
            overlap_ns += to.saturating_sub(from);
            covered_until = covered_until.max(to);
        }
    }
    (conflicts, overlap_ns)
}

impl DeviceReport {
    fn new(storage: &Storage, operations: &[u64]) -> Self {
        let cost = storage.cost();
        let (user_conflicts, in_way_ns) = in_users_way(&cost.busy_ns, operations);
        Self {
            written_bytes: cost.written_bytes,
            write_amplification: storage.write_amplification(),
            energy_mj: storage.energy_mj(),
            busy_ms: cost.busy_total_ns() as f64 / 1e6,
            flushes: cost.busy_ns.len() as u64,
            fsync_wait_ms: cost.waited_ns as f64 / 1e6,
            fsync_waits: cost.waits,
            user_conflicts,
            busy_in_users_way_ms: in_way_ns as f64 / 1e6,
        }
    }
}

/// One app under one contender.
#[derive(Clone, Debug, Serialize)]
pub struct AppReport {
    /// Its name.
    pub name: String,
    /// Pages of content written.
    pub written_pages: u64,
    /// Written pages that were written again or dropped before they were flushed.
    pub overwritten_pages: u64,
    /// Overwritten of written: e of S0 §3.
    pub efficiency: f64,
    /// Pages of content that were flushed, in bytes.
    pub flushed_bytes: u64,
    /// Flushed bytes by time, in KB (1,000 bytes) a second, as S0 Fig. 13 has it.
    pub flushed_kb_per_second: f64,
    /// By what part that is less than ext4's.
    pub flush_reduction_vs_ext4: f64,
    /// Flushes that concerned it.
    pub flushes: u64,
    /// Mean time between them, without the one that the trace's end forces; none if there was no
    /// other.
    pub interval_mean_seconds: Option<f64>,
    /// Age of the oldest change that a power cut would take, over time, in seconds.
    pub age_at_risk: Distribution,
    /// Memory of what a power cut would take, over time.
    pub bytes_at_risk: Distribution,
}

impl AppReport {
    fn new(name: &str, app: &AppOutcome, ext4: &AppOutcome, duration_seconds: f64) -> Self {
        let flushed_bytes = app.flushed_pages * PAGE_BYTES_U64;
        Self {
            name: name.to_owned(),
            written_pages: app.written_pages,
            overwritten_pages: app.overwritten_pages,
            efficiency: ratio(app.overwritten_pages, app.written_pages),
            flushed_bytes,
            flushed_kb_per_second: if duration_seconds > 0.0 {
                flushed_bytes as f64 / 1e3 / duration_seconds
            } else {
                0.0
            },
            flush_reduction_vs_ext4: reduction(app.flushed_pages, ext4.flushed_pages),
            flushes: app.flushes() as u64,
            interval_mean_seconds: app.intervals().mean_seconds(),
            age_at_risk: Distribution::of(app.age_ms(), 1e3),
            bytes_at_risk: Distribution::of(app.at_risk_bytes(), 1.0),
        }
    }
}

impl ContenderReport {
    /// The report of a run, compared with ext4's.
    pub fn new(
        name: &str,
        stream: &Stream,
        outcome: &Outcome,
        storage: &Storage,
        ext4: &Outcome,
    ) -> Self {
        let duration_seconds = stream.duration_ns as f64 / 1e9;
        let operations = user_operations(stream, TOUCH_GAP_NS);
        let sum = |of: fn(&AppOutcome) -> u64| outcome.apps.iter().map(of).sum::<u64>();
        let apps = stream.apps.iter().zip(&outcome.apps).zip(&ext4.apps);
        Self {
            name: name.to_owned(),
            flushed_bytes: outcome.flushed_pages() * PAGE_BYTES_U64,
            flush_reduction_vs_ext4: reduction(outcome.flushed_pages(), ext4.flushed_pages()),
            efficiency: ratio(
                sum(|app| app.overwritten_pages),
                sum(|app| app.written_pages),
            ),
            age_at_risk: Distribution::of(outcome.age_ms(), 1e3),
            bytes_at_risk: Distribution::of(outcome.at_risk_bytes(), 1.0),
            footprint_max_bytes: outcome.footprint_max_bytes,
            device: DeviceReport::new(storage, &operations),
            apps: apps
                .filter(|((_, app), _)| app.written_pages > 0 || app.flushes() > 0)
                .map(|((name, app), ext4)| AppReport::new(name, app, ext4, duration_seconds))
                .collect(),
        }
    }
}

impl Report {
    /// The report of several traces, all under the same contenders: the policy first, ext4 somewhere.
    pub fn new(device: &str, traces: Vec<TraceReport>, ext4: &str) -> Self {
        let flushed = |trace: &TraceReport, name: Option<&str>| {
            let mut contenders = trace.contenders.iter();
            let contender = match name {
                Some(name) => contenders.find(|contender| contender.name == name),
                None => contenders.next(),
            };
            contender.map_or(0, |contender| contender.flushed_bytes)
        };
        let policy_bytes = traces.iter().map(|trace| flushed(trace, None)).sum();
        let ext4_bytes = traces.iter().map(|trace| flushed(trace, Some(ext4))).sum();
        let first = traces.first().and_then(|trace| trace.contenders.first());
        Self {
            flush_reduction_vs_ext4: reduction(policy_bytes, ext4_bytes),
            policy: first.map_or_else(String::new, |contender| contender.name.clone()),
            device: device.to_owned(),
            traces,
        }
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// By what part `flushed` is less than `reference`; 0 if nothing was flushed at all.
fn reduction(flushed: u64, reference: u64) -> f64 {
    if reference == 0 {
        0.0
    } else {
        1.0 - flushed as f64 / reference as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_times_are_held_against_the_user() {
        const S: u64 = 1_000_000_000;
        let busy = [(0, S), (5 * S, 7 * S), (20 * S, 21 * S)];
        let operations = [S / 2, 9 * S / 2, 11 * S / 2, 40 * S];
        // One in the first half second; of the second one from 5 to 5.5 and 5.5 to 6.5.
        assert_eq!(in_users_way(&busy, &operations), (2, S / 2 + 3 * S / 2));
        assert_eq!(in_users_way(&busy, &[]), (0, 0));
    }
}
