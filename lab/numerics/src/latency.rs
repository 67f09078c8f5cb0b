//! Latencies, as a histogram of bounded size.

use hdrhistogram::Histogram;

/// Latencies in nanoseconds to a number of decimal digits (an HDR histogram): memory does not
/// depend on how many there are.
#[derive(Clone, Debug)]
pub struct LatencyHistogram(Histogram<u64>);

impl LatencyHistogram {
    /// For latencies up to `max_ns`, at least 2, with `digits` digits, at most 5. Longer ones
    /// count as `max_ns`, shorter ones than a nanosecond as one.
    ///
    /// # Panics
    /// The bounds are others than those.
    #[must_use]
    pub fn new(max_ns: u64, digits: u8) -> Self {
        match Histogram::new_with_bounds(1, max_ns, digits) {
            Ok(histogram) => Self(histogram),
            Err(error) => panic!("bounds of a histogram: {error}"),
        }
    }

    /// One more.
    pub fn record(&mut self, latency_ns: u64) {
        self.0.saturating_record(latency_ns.max(1));
    }

    /// Adds what another one of the same bounds has seen.
    pub fn add(&mut self, other: &Self) {
        let added = self.0.add(&other.0);
        assert!(added.is_ok(), "both have the same bounds");
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// Mean; 0 of none.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        self.0.mean()
    }

    /// Least; 0 of none.
    #[must_use]
    pub fn min_ns(&self) -> u64 {
        self.0.min()
    }

    /// The latency that this share of them did not exceed; 0 of none.
    #[must_use]
    pub fn quantile_ns(&self, share: f64) -> u64 {
        self.0.value_at_quantile(share)
    }

    /// Greatest; 0 of none.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.0.max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_two_added_are_those_of_all() {
        let mut both = LatencyHistogram::new(1_000_000, 3);
        let mut other = both.clone();
        (1..=50).for_each(|latency| both.record(latency));
        (51..=100).for_each(|latency| other.record(latency));
        both.add(&other);
        assert_eq!(both.count(), 100);
        assert_eq!(both.quantile_ns(0.5), 50);
        assert_eq!((both.min_ns(), both.max_ns()), (1, 100));
        assert!((both.mean_ns() - 50.5).abs() < 1e-9);
    }

    #[test]
    fn what_is_out_of_bounds_counts_as_the_bound() {
        let mut seen = LatencyHistogram::new(1_000, 2);
        seen.record(0);
        seen.record(u64::MAX);
        assert_eq!(seen.count(), 2);
        assert_eq!(seen.min_ns(), 1);
        assert!(seen.max_ns() >= 1_000);
    }
}
