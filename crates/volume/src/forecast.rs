//! How long memory would last if nothing were committed (S0 §7.2).

use std::collections::VecDeque;

use mobifs_base::MonotonicNs;

/// The rate is that of so much of the past, in nanoseconds.
const PAST_NS: u64 = 300_000_000_000;
/// Samples are at least so far apart, in nanoseconds.
const SAMPLE_NS: u64 = 1_000_000_000;

/// What memory would hold if nothing had ever been committed, over the last minutes.
#[derive(Debug, Default)]
pub(crate) struct Forecast {
    /// Bytes that were committed since the beginning.
    committed_bytes: u64,
    samples: VecDeque<(MonotonicNs, u64)>,
}

impl Forecast {
    /// Records that this much was committed.
    pub(crate) const fn committed(&mut self, bytes: u64) {
        self.committed_bytes += bytes;
    }

    /// `dirty_bytes` is what is not committed. To be called now and then while something
    /// changes; where no samples are, nothing grew.
    pub(crate) fn sample(&mut self, now: MonotonicNs, dirty_bytes: u64) {
        let footprint_bytes = self.committed_bytes + dirty_bytes;
        let since_last = self
            .samples
            .back()
            .map(|(at, _)| now.0.saturating_sub(at.0));
        if since_last.is_none_or(|ns| ns >= SAMPLE_NS) {
            self.samples.push_back((now, footprint_bytes));
        }
        // One that is older stays: it says where the last minutes began.
        let is_old = |at: MonotonicNs| now.0.saturating_sub(at.0) >= PAST_NS;
        while self.samples.get(1).is_some_and(|(at, _)| is_old(*at)) {
            self.samples.pop_front();
        }
    }

    /// Seconds in which `free_bytes` would be full at the rate of the last minutes, with
    /// `dirty_bytes` not committed now; none if nothing grows, or too little is known.
    pub(crate) fn lasts_seconds(
        &self,
        now: MonotonicNs,
        dirty_bytes: u64,
        free_bytes: u64,
    ) -> Option<f64> {
        let began = MonotonicNs(now.0.saturating_sub(PAST_NS));
        let before = self.samples.iter().rev().find(|(at, _)| *at <= began);
        let (from, bytes) = match before {
            Some((_, bytes)) => (began, *bytes),
            None => *self.samples.front()?,
        };
        let past_ns = now.0.saturating_sub(from.0);
        let grown_bytes = (self.committed_bytes + dirty_bytes).saturating_sub(bytes);
        if past_ns < SAMPLE_NS || grown_bytes == 0 {
            return None;
        }
        Some(free_bytes as f64 * (past_ns as f64 / 1e9) / grown_bytes as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn second(second: u64) -> MonotonicNs {
        MonotonicNs(second * 1_000_000_000)
    }

    #[test]
    fn the_rate_is_that_of_the_last_minutes() {
        let mut forecast = Forecast::default();
        assert_eq!(forecast.lasts_seconds(second(0), 5, 100), None);
        // 10 bytes a second for an hour, then 1 for ten minutes.
        let mut bytes = 0;
        for at in 0..3_600 {
            forecast.sample(second(at), bytes);
            bytes += 10;
        }
        assert_eq!(
            forecast.lasts_seconds(second(3_600), bytes, 1_000),
            Some(100.0)
        );
        for at in 3_600..4_200 {
            forecast.sample(second(at), bytes);
            bytes += 1;
        }
        assert_eq!(
            forecast.lasts_seconds(second(4_200), bytes, 600),
            Some(600.0)
        );
        assert!(forecast.samples.len() <= 302);
        // Nothing happens for a day, and no sample is taken.
        let much_later = second(4_200 + 86_400);
        assert_eq!(forecast.lasts_seconds(much_later, bytes - 1, 600), None);
        // What is committed meanwhile still counts.
        forecast.committed(300);
        assert_eq!(
            forecast.lasts_seconds(much_later, bytes - 1, 600),
            Some(600.0)
        );
    }

    #[test]
    fn without_growth_there_is_no_end() {
        let mut forecast = Forecast::default();
        forecast.sample(second(1), 700);
        assert_eq!(
            forecast.lasts_seconds(second(1), 900, 1),
            None,
            "no time passed"
        );
        assert_eq!(forecast.lasts_seconds(second(9), 700, 1), None);
        assert_eq!(forecast.lasts_seconds(second(9), 600, 1), None);
    }
}
