//! The kill search as a test: at least 3,000 kills, no violation. Another range of seeds:
//! `KILL_SEARCH_SEED=n`; longer: `KILL_SEARCH_KILLS=n`, or `make kill-search`. What it finds is shrunk.

use mobifs_testkit::campaign::{Campaign, number_from};
use mobifs_testkit::crash::search::kill::{KillOptions, search_scripts};

const KILLS_MIN: u64 = 3_000;
const FIRST_SEED: u64 = 1;

#[test]
fn every_kill_in_a_random_history_is_a_pause_and_no_more() {
    let kills_min = number_from("KILL_SEARCH_KILLS", KILLS_MIN);
    let campaign = Campaign {
        first_seed: number_from("KILL_SEARCH_SEED", FIRST_SEED),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        options: KillOptions::default(),
        shrink: true,
    };
    let result = campaign.run(|statistics| statistics.kills < kills_min);
    let total = result.statistics;
    println!(
        "seeds {}..{}: {total}",
        campaign.first_seed, result.next_seed
    );
    if let Some(violation) = result.violation {
        panic!("after {total}:\n{violation}");
    }
    assert!(total.kills >= kills_min);
    // A search that never kills where it is dangerous proves nothing.
    assert!(total.during_apply > 0 && total.during_resume > 0 && total.with_unnamed > 0);
    assert!(total.arrived > 0 && total.in_flight > total.arrived);
    assert!(total.failed_calls > 0 && total.cuts.crash_points > 0);
}

#[test]
fn a_scripted_history_may_be_killed_at_every_instant() {
    let total =
        search_scripts(&KillOptions::default()).unwrap_or_else(|violation| panic!("{violation}"));
    println!("{total}");
    assert!(total.kills > 1000 && total.during_apply > 0 && total.during_resume > 0);
}
