//! What the policies cost for each page written, and nothing else.

use std::hint::black_box;
use std::time::Instant;

use mobifs_engine::policy::transactioning::{
    Efficiency, TplParameters, Transactioning as _, TransactioningName, TransactioningRule,
};
use mobifs_numerics::median;
use serde::Serialize;

/// Pages written for one figure.
const PAGES: u64 = 1 << 20;
/// Writes timed together, because a clock reading costs as much as many writes.
const BATCH: u64 = 1024;

/// Cost of one page written: counting it, telling the policy, asking whether to close.
#[derive(Clone, Debug, Serialize)]
pub struct PolicyCost {
    /// The policy.
    pub policy: &'static str,
    /// Points of the window, where there is one.
    pub window_points: Option<usize>,
    /// Median of batches, in picoseconds.
    pub write_ps: u64,
}

/// Measures every policy; trade-off point location with several windows.
pub fn measure() -> Vec<PolicyCost> {
    let mut costs = Vec::new();
    for name in TransactioningName::ALL {
        let windows: &[Option<usize>] = match name {
            TransactioningName::Tpl => &[Some(4), Some(16), Some(64), Some(1024)],
            _ => &[None],
        };
        for &window_points in windows {
            let mut rule = TransactioningRule {
                name,
                ..TransactioningRule::default()
            };
            rule.tpl = TplParameters {
                window_points: window_points.unwrap_or(rule.tpl.window_points),
                // Below every slope that there is: the curve goes on.
                slope_min_micropercent: i64::MIN,
                ..rule.tpl
            };
            rule.staleness.staleness_pages = u64::MAX;
            costs.push(PolicyCost {
                policy: name.as_str(),
                window_points,
                write_ps: write_ps(&rule),
            });
        }
    }
    costs
}

fn write_ps(rule: &TransactioningRule) -> u64 {
    let (mut efficiency, mut policy) = (Efficiency::default(), rule.begin());
    let mut batches = Vec::new();
    for first in (0..PAGES).step_by(BATCH as usize) {
        let started = Instant::now();
        for page in first..first + BATCH {
            // Two of three pages are overwrites, in no pattern that a branch predictor
            // could learn.
            let pattern = black_box(page.wrapping_mul(0x9e37_79b9) >> 13);
            efficiency.page_written(!pattern.is_multiple_of(3));
            policy.page_written(&efficiency);
            black_box(policy.is_due(&efficiency, black_box(1)));
        }
        batches.push(started.elapsed().as_nanos() as u64 * 1_000 / BATCH);
    }
    median(batches).unwrap_or(0)
}
