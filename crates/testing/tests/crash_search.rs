//! The crash search as a test: at least 10,000 crash points, no violation. Another
//! range of seeds: `CRASH_SEARCH_SEED=n`; longer: `CRASH_SEARCH_POINTS=n`.

use mobifs_testing::crash::search::{SearchOptions, SearchStatistics, search_and_shrink};

const POINTS_MIN: u64 = 10_000;
const FIRST_SEED: u64 = 1;

fn number(variable: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(variable) else {
        return default;
    };
    text.parse()
        .unwrap_or_else(|_| panic!("{variable}={text} is no number"))
}

#[test]
fn every_crash_leaves_a_state_that_existed() {
    let points_min = number("CRASH_SEARCH_POINTS", POINTS_MIN);
    let first_seed = number("CRASH_SEARCH_SEED", FIRST_SEED);
    let options = SearchOptions::default();
    let mut total = SearchStatistics::default();
    let mut seed = first_seed;
    while total.crash_points < points_min {
        match search_and_shrink(seed, &options) {
            Ok(statistics) => total += statistics,
            Err(violation) => panic!("after {total}:\n{violation}"),
        }
        seed += 1;
    }
    println!("seeds {first_seed}..{seed}: {total}");
    assert!(total.during_apply > 0 && total.during_recovery > 0);
    assert!(total.during_nested_recovery > 0 && total.continued > 0 && total.torn_tails > 0);
}
