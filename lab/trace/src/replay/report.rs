//! What a replay measured.

use std::collections::BTreeMap;

use mobifs_numerics::LatencyHistogram;

use crate::model::Trace;

/// Latencies of an operation, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latency {
    /// The operation's name.
    pub operation: &'static str,
    /// How often it was done.
    pub count: u64,
    /// Half were faster.
    pub p50_ns: u64,
    /// 99 of 100 were faster.
    pub p99_ns: u64,
    /// The slowest.
    pub max_ns: u64,
    /// What the trace says: half were faster. 0 if it does not say.
    pub recorded_p50_ns: u64,
}

/// Events that ended in another way than in the trace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// The operation's name.
    pub operation: &'static str,
    /// The error in the trace, 0 for none.
    pub recorded_errno: i64,
    /// The error now, 0 for none.
    pub errno: i64,
}

/// What a replay measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayReport {
    /// Events that were done. What users and devices did is waited for and not done.
    pub events: u64,
    /// Files that were there before the trace began, and were made for it.
    pub files_prepared: u64,
    /// Their size.
    pub bytes_prepared: u64,
    /// How long it took.
    pub elapsed_ns: u64,
    /// How long the trace is.
    pub recorded_ns: u64,
    /// How late the latest event began, of those that had to wait for their time.
    pub late_max_ns: u64,
    /// Latencies by operation.
    pub latencies: Vec<Latency>,
    /// How many events ended otherwise than in the trace.
    pub differences: BTreeMap<Difference, u64>,
    /// Reads that gave fewer or more bytes than in the trace.
    pub short_reads: u64,
    /// Symbolic links that would have led out of the directory, and got another target.
    pub links_changed: u64,
}

/// Files that were made before a replay.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Prepared {
    pub(super) files: u64,
    pub(super) bytes: u64,
}

/// Latencies up to 1,000 s, to three digits.
const LATENCY_MAX_NS: u64 = 1_000_000_000_000;
const DIGITS: u8 = 3;

/// What threads measure.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    latencies: BTreeMap<&'static str, LatencyHistogram>,
    pub(super) differences: BTreeMap<Difference, u64>,
    pub(super) events: u64,
    pub(super) late_max_ns: u64,
    pub(super) short_reads: u64,
    pub(super) links_changed: u64,
}

impl Recorder {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn latency(&mut self, operation: &'static str, latency_ns: u64) {
        self.events += 1;
        let latencies = self.latencies.entry(operation);
        latencies
            .or_insert_with(|| LatencyHistogram::new(LATENCY_MAX_NS, DIGITS))
            .record(latency_ns);
    }

    pub(super) fn merge(&mut self, other: Self) {
        for (operation, latencies) in other.latencies {
            match self.latencies.get_mut(operation) {
                Some(histogram) => histogram.add(&latencies),
                None => {
                    self.latencies.insert(operation, latencies);
                }
            }
        }
        for (difference, count) in other.differences {
            *self.differences.entry(difference).or_default() += count;
        }
        self.events += other.events;
        self.late_max_ns = self.late_max_ns.max(other.late_max_ns);
        self.short_reads += other.short_reads;
        self.links_changed += other.links_changed;
    }

    pub(super) fn report(self, trace: &Trace, prepared: Prepared, elapsed_ns: u64) -> ReplayReport {
        let mut recorded = Self::new();
        for event in trace.events.iter().filter(|event| event.duration_ns > 0) {
            recorded.latency(event.kind.name(), event.duration_ns);
        }
        let latencies = self.latencies.iter().map(|(&operation, histogram)| {
            let before = recorded.latencies.get(operation);
            Latency {
                operation,
                count: histogram.count(),
                p50_ns: histogram.quantile_ns(0.5),
                p99_ns: histogram.quantile_ns(0.99),
                max_ns: histogram.max_ns(),
                recorded_p50_ns: before.map_or(0, |before| before.quantile_ns(0.5)),
            }
        });
        ReplayReport {
            events: self.events,
            files_prepared: prepared.files,
            bytes_prepared: prepared.bytes,
            elapsed_ns,
            recorded_ns: trace.duration_ns(),
            late_max_ns: self.late_max_ns,
            latencies: latencies.collect(),
            differences: self.differences,
            short_reads: self.short_reads,
            links_changed: self.links_changed,
        }
    }
}
