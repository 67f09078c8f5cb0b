//! The crash search as a test: at least 10,000 crash points, no violation. Another
//! range of seeds: `CRASH_SEARCH_SEED=n`; longer: `CRASH_SEARCH_POINTS=n`; for long
//! campaigns there is the program `crash-campaign`.

use mobifs_testkit::campaign::{Campaign, number_from};
use mobifs_testkit::crash::search::{SearchOptions, search_scripts};

const POINTS_MIN: u64 = 10_000;
const SCRIPT_ROUNDS: u64 = 4;
const FIRST_SEED: u64 = 1;

#[test]
fn every_crash_of_a_random_history_leaves_a_state_that_existed() {
    let points_min = number_from("CRASH_SEARCH_POINTS", POINTS_MIN);
    let campaign = Campaign {
        first_seed: number_from("CRASH_SEARCH_SEED", FIRST_SEED),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        options: SearchOptions::default(),
        shrink: true,
    };
    let result = campaign.run(|statistics| statistics.crash_points < points_min);
    let total = result.statistics;
    println!(
        "seeds {}..{}: {total}",
        campaign.first_seed, result.next_seed
    );
    if let Some(violation) = result.violation {
        panic!("after {total}:\n{violation}");
    }
    assert!(total.crash_points >= points_min);
    // A search that never cuts where it is dangerous proves nothing.
    assert!(total.during_apply > 0 && total.during_recovery > 0);
    assert!(total.during_nested_recovery > 0 && total.continued > 0 && total.torn_tails > 0);
    assert!(total.unapplied > 0 && total.reopened_unapplied > 0 && total.continued_unapplied > 0);
    assert!(total.copies > 0 && total.copies_refused > 0);
}

#[test]
fn every_crash_of_a_scripted_history_leaves_a_state_that_existed() {
    let total = search_scripts(SCRIPT_ROUNDS, &SearchOptions::default())
        .unwrap_or_else(|violation| panic!("{violation}"));
    println!("{total}");
    assert!(total.crash_points > 1000 && total.during_apply > 0 && total.during_recovery > 0);
}
