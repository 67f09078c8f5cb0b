//! The fault search as a test: faults at calls of random histories, no violation; and more
//! histories in which nothing fails. Another range of seeds: `FAULT_SEARCH_SEED=n`; longer:
//! `FAULT_SEARCH_POINTS=n`, `LIMITS_SEARCH_HISTORIES=n`; for long campaigns there is the
//! program `crash-campaign`.

use mobifs_testkit::campaign::{Campaign, number_from};
use mobifs_testkit::faults::FaultSearchOptions;

const POINTS_MIN: u64 = 2_000;
/// Within so many points a daemon was killed after transactions were merged.
const RARE_POINTS_MAX: u64 = 10 * POINTS_MIN;
const HISTORIES_MIN: u64 = 2_000;
const FIRST_SEED: u64 = 1;

fn campaign(options: FaultSearchOptions) -> Campaign<FaultSearchOptions> {
    Campaign {
        first_seed: number_from("FAULT_SEARCH_SEED", FIRST_SEED),
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        options,
        shrink: true,
    }
}

#[test]
fn every_fault_in_a_random_history_is_answered_as_promised() {
    let points_min = number_from("FAULT_SEARCH_POINTS", POINTS_MIN);
    let campaign = campaign(FaultSearchOptions {
        calls_permille: 60,
        ..FaultSearchOptions::default()
    });
    let result = campaign.run(|statistics| {
        let is_rare_missing = statistics.killed_after_merge == 0;
        // One in a hundred histories merges transactions and is killed after it.
        let limit = if is_rare_missing {
            RARE_POINTS_MAX
        } else {
            POINTS_MIN
        };
        statistics.fault_points < points_min.max(limit)
    });
    let total = result.statistics;
    println!(
        "seeds {}..{}: {total}",
        campaign.first_seed, result.next_seed
    );
    if let Some(violation) = result.violation {
        panic!("after {total}:\n{violation}");
    }
    assert!(total.fault_points >= points_min);
    // A search in which nothing goes wrong proves nothing.
    assert!(total.failed_requests > 0 && total.read_only > 0 && total.failed_mounts > 0);
    assert!(total.merges > 0 && total.killed_after_merge > 0);
    assert!(total.crash_points > 0 && total.recovery_faults > 0 && total.lasting > 0);
}

#[test]
fn random_histories_hold_with_next_to_no_memory_and_journal() {
    let histories_min = number_from("LIMITS_SEARCH_HISTORIES", HISTORIES_MIN);
    let result = campaign(FaultSearchOptions::WITHOUT_FAULTS)
        .run(|statistics| statistics.histories < histories_min);
    if let Some(violation) = result.violation {
        panic!("{violation}");
    }
    assert!(result.statistics.histories >= histories_min);
}
