//! What a simulation measures, while it runs.

use mobifs_numerics::TimeHistogram;

use super::stream::AppNumber;

/// What is at risk of one app at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtRisk {
    /// Since when, in nanoseconds of the simulation; none if nothing is.
    pub since_ns: Option<u64>,
    /// How much, in bytes.
    pub bytes: u64,
}

/// Follows what is at risk, for the distribution over time.
#[derive(Clone, Debug, Default)]
struct Risk {
    now: AtRisk,
    seen_until_ns: u64,
    age_ms: TimeHistogram,
    bytes: TimeHistogram,
}

impl Risk {
    /// From `at_ns` on it is this.
    fn change(&mut self, at_ns: u64, to: AtRisk) {
        let from_ns = self.seen_until_ns;
        let length_ns = at_ns.saturating_sub(from_ns);
        match self.now.since_ns {
            Some(since_ns) => {
                let age_ms = |at_ns: u64| at_ns.saturating_sub(since_ns) as f64 / 1e6;
                self.age_ms
                    .growing(age_ms(from_ns), age_ms(from_ns + length_ns), length_ns);
            }
            None => self.age_ms.constant(0.0, length_ns),
        }
        self.bytes.constant(self.now.bytes as f64, length_ns);
        self.seen_until_ns = from_ns + length_ns;
        self.now = to;
    }
}

/// A point of an app's e curve (S0 §3): counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CurvePoint {
    /// Pages of content written.
    pub written_pages: u64,
    /// Written pages that were written again or dropped before they were flushed.
    pub overwritten_pages: u64,
    /// Flushes so far.
    pub flushes: usize,
}

/// Points of a curve; of a long one every second, every fourth, and so on.
#[derive(Clone, Debug, Default)]
struct EfficiencyCurve {
    points: Vec<CurvePoint>,
    /// Points between two that are kept; 0 is taken as 1.
    stride: usize,
    passed_over: usize,
}

impl EfficiencyCurve {
    const POINTS_MAX: usize = 2_000;

    fn push(&mut self, point: CurvePoint) {
        if self
            .points
            .last()
            .is_some_and(|last| last.written_pages == point.written_pages)
        {
            return;
        }
        self.passed_over += 1;
        if self.passed_over < self.stride {
            return;
        }
        self.passed_over = 0;
        self.points.push(point);
        if self.points.len() >= Self::POINTS_MAX {
            let mut is_odd = false;
            self.points.retain(|_| {
                is_odd = !is_odd;
                is_odd
            });
            self.stride = self.stride.max(1) * 2;
        }
    }
}

/// What became of one app's writes.
#[derive(Clone, Debug, Default)]
pub struct AppOutcome {
    /// Pages of content that were written: the data staleness of S0 §3, summed up.
    pub written_pages: u64,
    /// Written pages that were written again or dropped before they were flushed.
    pub overwritten_pages: u64,
    /// Pages of content that were flushed.
    pub flushed_pages: u64,
    /// Moments at which something of the app was flushed because a policy or a caller wanted it, in
    /// nanoseconds.
    flushes_ns: Vec<u64>,
    /// Something was flushed only because the trace ended.
    flushed_at_end: bool,
    /// When something was at risk for the first time.
    changed_first_ns: Option<u64>,
    risk: Risk,
    curve: EfficiencyCurve,
    /// Memory that flushes have given back, in bytes.
    released_bytes: u64,
    /// Memory over time if nothing that is flushed left memory, in bytes.
    kept_bytes: TimeHistogram,
    kept_until_ns: u64,
    kept_now_bytes: u64,
}

/// Times between the flushes of an app.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Intervals {
    /// Their sum, in nanoseconds.
    pub total_ns: u64,
    /// How many there are.
    pub count: u64,
}

impl Intervals {
    /// Both.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            total_ns: self.total_ns + other.total_ns,
            count: self.count + other.count,
        }
    }

    /// Their mean, in seconds; none if there are none.
    pub fn mean_seconds(self) -> Option<f64> {
        (self.count > 0).then(|| self.total_ns as f64 / 1e9 / self.count as f64)
    }
}

impl AppOutcome {
    /// For how long changes had which age, in milliseconds; 0 while nothing was at risk.
    pub const fn age_ms(&self) -> &TimeHistogram {
        &self.risk.age_ms
    }

    /// For how long how much was at risk, in bytes.
    pub const fn at_risk_bytes(&self) -> &TimeHistogram {
        &self.risk.bytes
    }

    /// How e developed.
    pub fn curve(&self) -> &[CurvePoint] {
        &self.curve.points
    }

    /// Memory over time if nothing that is flushed left memory, in bytes: the worst case of S0
    /// §7.2. What is flushed is kept at what it took while it was dirty, changes of names and
    /// attributes included.
    pub const fn kept_bytes(&self) -> &TimeHistogram {
        &self.kept_bytes
    }

    /// Notes where the e curve is now.
    pub(super) fn note_curve(&mut self) {
        self.curve.push(CurvePoint {
            written_pages: self.written_pages,
            overwritten_pages: self.overwritten_pages,
            flushes: self.flushes(),
        });
    }

    fn keep(&mut self, at_ns: u64) {
        let length_ns = at_ns.saturating_sub(self.kept_until_ns);
        self.kept_bytes
            .constant(self.kept_now_bytes as f64, length_ns);
        self.kept_until_ns += length_ns;
        self.kept_now_bytes = self.released_bytes + self.risk.now.bytes;
    }

    /// Something of the app is flushed: because a policy or a caller wants it, or only because the
    /// trace ends.
    pub(super) fn note_flush(&mut self, at_ns: u64, reason: FlushReason) {
        match reason {
            FlushReason::EndOfTrace => self.flushed_at_end = true,
            FlushReason::Wanted => self.flushes_ns.push(at_ns),
        }
    }

    /// Moments at which something of the app was flushed, in nanoseconds, without the flush that
    /// ends the trace.
    pub fn flushes_ns(&self) -> &[u64] {
        &self.flushes_ns
    }

    /// Flushes, the one that ends the trace included.
    pub const fn flushes(&self) -> usize {
        self.flushes_ns.len() + self.flushed_at_end as usize
    }

    /// From the app's first change to its first flush, and from flush to flush. What is flushed
    /// because the trace ends is no interval of a policy: it is as long as the trace happens to
    /// be.
    pub fn intervals(&self) -> Intervals {
        let (Some(first), Some(last)) = (self.changed_first_ns, self.flushes_ns.last()) else {
            return Intervals::default();
        };
        // Two transactions that are committed at the same moment have no interval between them.
        let later = self.flushes_ns.windows(2).filter(|pair| pair[0] < pair[1]);
        Intervals {
            total_ns: last.saturating_sub(first),
            count: 1 + later.count() as u64,
        }
    }
}

/// Why something is flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlushReason {
    /// A policy, or a program that called `fsync` or `sync`.
    Wanted,
    /// Nothing comes any more.
    EndOfTrace,
}

/// What became of all apps' writes under one policy.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Each app's, by its number in the stream.
    pub apps: Vec<AppOutcome>,
    /// The oldest change of any app.
    total: Risk,
    /// Most memory that changes took, in bytes.
    pub footprint_max_bytes: u64,
}

impl Outcome {
    /// For a stream with so many apps.
    pub fn new(apps: usize) -> Self {
        Self {
            apps: vec![AppOutcome::default(); apps],
            ..Self::default()
        }
    }

    /// One app's.
    pub fn app_mut(&mut self, app: AppNumber) -> &mut AppOutcome {
        &mut self.apps[app.index()]
    }

    /// A flush has ended, and from `at_ns` on this is at risk of an app: the difference is
    /// memory that the flush gives back.
    pub(super) fn flushed(&mut self, at_ns: u64, app: AppNumber, risk: AtRisk) {
        let counts = &mut self.apps[app.index()];
        counts.released_bytes += counts.risk.now.bytes.saturating_sub(risk.bytes);
        self.at_risk(at_ns, app, risk);
    }

    /// From `at_ns` on this is at risk of an app.
    pub fn at_risk(&mut self, at_ns: u64, app: AppNumber, risk: AtRisk) {
        let app = &mut self.apps[app.index()];
        app.note_curve();
        if app.risk.now == risk {
            return;
        }
        if app.changed_first_ns.is_none() {
            app.changed_first_ns = risk.since_ns;
        }
        app.risk.change(at_ns, risk);
        app.keep(at_ns);
        let oldest = self.apps.iter().filter_map(|app| app.risk.now.since_ns);
        let total = AtRisk {
            since_ns: oldest.min(),
            bytes: self.apps.iter().map(|app| app.risk.now.bytes).sum(),
        };
        self.footprint_max_bytes = self.footprint_max_bytes.max(total.bytes);
        self.total.change(at_ns, total);
    }

    /// Nothing happens after `at_ns`.
    pub fn end(&mut self, at_ns: u64) {
        for app in &mut self.apps {
            let now = app.risk.now;
            app.risk.change(at_ns, now);
            app.keep(at_ns);
        }
        let now = self.total.now;
        self.total.change(at_ns, now);
    }

    /// For how long the oldest change of any app had which age, in milliseconds.
    pub const fn age_ms(&self) -> &TimeHistogram {
        &self.total.age_ms
    }

    /// For how long how much was at risk in all apps, in bytes.
    pub const fn at_risk_bytes(&self) -> &TimeHistogram {
        &self.total.bytes
    }

    /// Pages of content that were flushed, of all apps.
    pub fn flushed_pages(&self) -> u64 {
        self.apps.iter().map(|app| app.flushed_pages).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_at_one_moment_have_no_interval_and_the_end_of_a_trace_is_none() {
        let mut app = AppOutcome {
            changed_first_ns: Some(1),
            ..AppOutcome::default()
        };
        assert_eq!(app.intervals(), Intervals::default());
        for at_ns in [5, 5, 9] {
            app.note_flush(at_ns, FlushReason::Wanted);
        }
        app.note_flush(100, FlushReason::EndOfTrace);
        let (total_ns, count) = (8, 2);
        assert_eq!(app.intervals(), Intervals { total_ns, count });
        assert_eq!((app.flushes(), app.flushes_ns().len()), (4, 3));
    }
}
