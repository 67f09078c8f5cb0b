//! How a measure is spread over files, in memory that has a bound.

use std::collections::BTreeMap;

/// Degrees of fragmentation, to three digits: a few thousand different ones at most.
#[derive(Clone, Debug, Default)]
pub(crate) struct DofDistribution {
    /// How many files have a degree, by the degree in thousandths.
    counts: BTreeMap<u64, u64>,
    total: u64,
    /// The highest: none is shown above it.
    max: f64,
}

impl DofDistribution {
    pub(crate) fn add(&mut self, dof: f64) {
        *self.counts.entry(key(dof)).or_default() += 1;
        self.total += 1;
        self.max = self.max.max(dof);
    }

    /// Each degree with the share of files that have it or a lower one.
    pub(crate) fn cumulative(&self) -> Vec<(f64, f64)> {
        let mut sum = 0;
        let points = self.counts.iter().map(|(&key, &count)| {
            sum += count;
            (
                (key as f64 / 1e3).min(self.max),
                sum as f64 / self.total as f64,
            )
        });
        points.collect()
    }

    /// The least degree that at least this share of files does not exceed.
    pub(crate) fn quantile(&self, share: f64) -> Option<f64> {
        let points = self.cumulative().into_iter();
        let mut points = points.filter(|&(_, reached)| reached >= share);
        points.next().map(|(dof, _)| dof)
    }
}

/// Thousandths, rounded up to three digits.
fn key(dof: f64) -> u64 {
    // Casts of floats end at the limits of the integer.
    let thousandths = (dof * 1e3).round() as u64;
    let mut unit: u64 = 1;
    while thousandths / unit >= 1000 {
        unit *= 10;
    }
    // Whole degrees up to 1000 are exact.
    if thousandths <= 1_000_000 && thousandths.is_multiple_of(1000) {
        return thousandths;
    }
    thousandths.div_ceil(unit).saturating_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_cumulative() {
        let mut distribution = DofDistribution::default();
        for dof in [1.0, 1.0, 1.5, 21.0] {
            distribution.add(dof);
        }
        let points = [(1.0, 0.5), (1.5, 0.75), (21.0, 1.0)];
        assert_eq!(distribution.cumulative(), points);
        assert_eq!(distribution.quantile(0.5), Some(1.0));
        assert_eq!(distribution.quantile(0.9), Some(21.0));
        assert_eq!(DofDistribution::default().quantile(0.5), None);
        let mut rounded = DofDistribution::default();
        rounded.add(1.105);
        assert_eq!(rounded.quantile(0.5), Some(1.105), "not above the highest");
    }

    #[test]
    fn the_number_of_different_degrees_is_bounded() {
        let mut distribution = DofDistribution::default();
        for extents in 1..200_000u32 {
            distribution.add(f64::from(extents) / 3.0);
        }
        assert!(
            distribution.counts.len() < 8_000,
            "{}",
            distribution.counts.len()
        );
        assert_eq!(key(717.0), 717_000);
        assert_eq!(key(1234.5), 1_240_000);
        assert_eq!(key(f64::MAX), u64::MAX);
    }
}
