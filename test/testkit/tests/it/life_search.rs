//! The life search as a test: daemons killed and power cut under random limits, no violation.
//! Another range of seeds: `LIFE_SEARCH_SEED=n`; longer: `LIFE_SEARCH_HISTORIES=n`; for long
//! campaigns there is the program `crash-campaign`.

use mobifs_testkit::campaign::{Campaign, number_from};
use mobifs_testkit::lives::LifeSearch;

const HISTORIES_MIN: u64 = 150;
const FIRST_SEED: u64 = 1;

#[test]
fn whatever_the_limits_a_kill_is_a_pause_and_a_cut_leaves_what_was() {
    let histories_min = number_from("LIFE_SEARCH_HISTORIES", HISTORIES_MIN);
    let campaign = Campaign {
        first_seed: number_from("LIFE_SEARCH_SEED", FIRST_SEED),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        options: LifeSearch,
        shrink: true,
    };
    let result = campaign.run(|statistics| statistics.histories < histories_min);
    let total = result.statistics;
    println!(
        "seeds {}..{}: {total}",
        campaign.first_seed, result.next_seed
    );
    if let Some(violation) = result.violation {
        panic!("after {total}:\n{violation}");
    }
    assert!(total.histories >= histories_min);
    // A search without kills proves nothing.
    assert!(total.kills > total.histories && total.cuts > 0);
}
