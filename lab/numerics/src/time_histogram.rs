//! How a quantity was spread over time.

/// Each bucket is wider than the one before by this factor.
const GROWTH: f64 = 1.01;

/// For how long a quantity had which values: values in buckets 1 % wide, weighted by time.
#[derive(Clone, Debug, Default)]
pub struct TimeHistogram {
    /// Nanoseconds at zero.
    zero_ns: f64,
    /// Nanoseconds in the bucket from `GROWTH^i` to `GROWTH^(i+1)`.
    buckets: Vec<f64>,
    total_ns: f64,
    /// ∫ value dt.
    area: f64,
    max: f64,
}

impl TimeHistogram {
    /// The value was the same for a while.
    pub fn constant(&mut self, value: f64, nanoseconds: u64) {
        let time = nanoseconds as f64;
        self.total_ns += time;
        self.area += value * time;
        if time > 0.0 {
            self.max = self.max.max(value);
        }
        if value < 1.0 {
            self.zero_ns += time;
        } else {
            *self.bucket_mut(bucket_of(value)) += time;
        }
    }

    /// The value grew evenly from `from` to `to`.
    pub fn growing(&mut self, from: f64, to: f64, nanoseconds: u64) {
        if to <= from {
            self.constant(from, nanoseconds);
            return;
        }
        let time = nanoseconds as f64;
        self.total_ns += time;
        self.area += f64::midpoint(from, to) * time;
        self.max = self.max.max(to);
        let time_per_unit = time / (to - from);
        let mut low = from;
        if low < 1.0 {
            let high = to.min(1.0);
            self.zero_ns += (high - low) * time_per_unit;
            low = high;
        }
        while low < to {
            let bucket = bucket_of(low);
            // Rounding must not keep us in one bucket for ever.
            let end = GROWTH.powi(bucket as i32 + 1).max(low * (1.0 + 1e-9));
            let high = to.min(end);
            *self.bucket_mut(bucket) += (high - low) * time_per_unit;
            low = high;
        }
    }

    /// The value that was not exceeded for this share of the time, within 1 %.
    pub fn quantile(&self, share: f64) -> f64 {
        let mut rest = self.total_ns * share - self.zero_ns;
        if rest <= 0.0 {
            return 0.0;
        }
        for (bucket, &time) in self.buckets.iter().enumerate() {
            if rest <= time {
                return GROWTH.powi(bucket as i32 + 1).min(self.max);
            }
            rest -= time;
        }
        self.max
    }

    /// Mean over time.
    pub fn mean(&self) -> f64 {
        if self.total_ns > 0.0 {
            self.area / self.total_ns
        } else {
            0.0
        }
    }

    /// Largest value.
    pub const fn max(&self) -> f64 {
        self.max
    }

    /// Adds what another one has seen.
    pub fn add(&mut self, other: &Self) {
        self.zero_ns += other.zero_ns;
        self.total_ns += other.total_ns;
        self.area += other.area;
        self.max = self.max.max(other.max);
        for (bucket, time) in other.buckets.iter().enumerate() {
            *self.bucket_mut(bucket) += time;
        }
    }

    fn bucket_mut(&mut self, bucket: usize) -> &mut f64 {
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + 1, 0.0);
        }
        &mut self.buckets[bucket]
    }
}

fn bucket_of(value: f64) -> usize {
    // Values are at least 1, so the logarithm is not negative.
    (value.ln() / GROWTH.ln()) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(left: f64, right: f64) -> bool {
        (left - right).abs() <= right.abs() * 0.011
    }

    #[test]
    fn quantiles_of_an_even_growth() {
        let mut seen = TimeHistogram::default();
        seen.growing(0.0, 1000.0, 5_000);
        assert!(near(seen.quantile(0.5), 500.0), "{}", seen.quantile(0.5));
        assert!(near(seen.quantile(0.9), 900.0), "{}", seen.quantile(0.9));
        assert!(near(seen.mean(), 500.0));
        assert!(near(seen.max(), 1000.0));
    }

    #[test]
    fn time_at_zero_counts() {
        let mut seen = TimeHistogram::default();
        seen.constant(0.0, 600);
        seen.constant(70.0, 400);
        assert_eq!(seen.quantile(0.5), 0.0);
        assert!(near(seen.quantile(0.7), 70.0));
        assert!(near(seen.mean(), 28.0));
    }

    #[test]
    fn a_sum_of_two_histograms_has_the_samples_of_both() {
        let (mut left, mut right, mut both) = <[TimeHistogram; 3]>::default().into();
        for (number, part) in [(1, &mut left), (2, &mut right)] {
            part.growing(f64::from(number), 50.0, 1_000);
            both.growing(f64::from(number), 50.0, 1_000);
        }
        left.add(&right);
        assert!(near(left.quantile(0.5), both.quantile(0.5)));
        assert!(near(left.mean(), both.mean()));
    }
}
