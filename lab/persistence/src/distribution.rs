//! How values are distributed.

use serde::Serialize;

/// How values are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Distribution {
    /// How many values.
    pub count: u64,
    /// Their mean.
    pub mean: f64,
    /// A tenth is not above it.
    pub p10: f64,
    /// A quarter is not above it.
    pub p25: f64,
    /// The median.
    pub p50: f64,
    /// Three quarters are not above it.
    pub p75: f64,
    /// Nine tenths are not above it.
    pub p90: f64,
    /// 99 of 100 are not above it.
    pub p99: f64,
    /// The greatest.
    pub max: f64,
}

impl Distribution {
    /// None of no values.
    pub(crate) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let &max = values.last()?;
        // The least value that so many of 100 do not exceed.
        let at = |percent: usize| values[(values.len() * percent).div_ceil(100).max(1) - 1];
        Some(Self {
            count: values.len() as u64,
            mean: values.iter().sum::<f64>() / values.len() as f64,
            p10: at(10),
            p25: at(25),
            p50: at(50),
            p75: at(75),
            p90: at(90),
            p99: at(99),
            max,
        })
    }
}

/// Which share of values is not above each of some bounds.
pub(crate) fn shares(values: &[f64], bounds: &[f64]) -> Vec<(f64, f64)> {
    let share = |bound: f64| {
        let below = values.iter().filter(|&&value| value <= bound).count();
        below as f64 / values.len().max(1) as f64
    };
    bounds.iter().map(|&bound| (bound, share(bound))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values() {
        let found = Distribution::of((1..=100).rev().map(f64::from).collect()).unwrap();
        assert_eq!(
            (found.p10, found.p50, found.p99, found.max),
            (10.0, 50.0, 99.0, 100.0)
        );
        let one = Distribution::of(vec![7.0]).unwrap();
        assert_eq!((one.p10, one.mean, one.max), (7.0, 7.0, 7.0));
        assert_eq!(Distribution::of(Vec::new()), None);
        assert_eq!(
            shares(&[1.0, 2.0, 3.0, 4.0], &[2.0, 9.0]),
            [(2.0, 0.5), (9.0, 1.0)]
        );
    }
}
