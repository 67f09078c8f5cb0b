//! Hand-made traces under native mode, with what they must come to.

use mobifs_device_model::Preset;
use mobifs_engine::TransactioningName;
use mobifs_engine::{AppPolicy, Class, PacingRules};
use mobifs_trace::DeviceState;
use proptest::prelude::*;

use super::super::tests::{SECOND_NS, Script, counted, device, run};
use super::super::{Contender, ContenderRules, DeviceChoice, simulate};
use super::{NativeFilesystem, NativeRules};

const PAGE: u64 = 4096;
/// Blocks of a small transaction of ext4 besides its content: descriptor, metadata and commit block.
const OVERHEAD: u64 = 5;

/// A fixed interval, and no other limit in sight.
fn interval(milliseconds: u64) -> NativeRules {
    let mut policy = AppPolicy {
        age_max_ms: 1_000_000,
        staleness_max_pages: u64::MAX,
        ..AppPolicy::default()
    };
    policy.transactioning.name = TransactioningName::Interval;
    policy.transactioning.interval.interval_ms = milliseconds;
    NativeRules {
        filesystem: NativeFilesystem::Ext4,
        policy,
        pacing: PacingRules::default(),
    }
}

/// Only the limits close a transaction.
fn limits(age_max_ms: u64, staleness_max_pages: u64) -> NativeRules {
    let mut rules = interval(u64::MAX);
    rules.policy.age_max_ms = age_max_ms;
    rules.policy.staleness_max_pages = staleness_max_pages;
    rules
}

fn contender(rules: NativeRules) -> Contender {
    let NativeRules {
        filesystem,
        policy,
        pacing,
    } = rules;
    Contender::native("native".to_owned(), filesystem, policy, pacing)
}

#[test]
fn one_transaction_takes_the_changes_of_all_apps() {
    let mut script = Script::new();
    script.app(b"one").at(0).write("one/a", 0);
    script.app(b"two").at(3000).write("two/b", 0);
    let stream = script.at(20_000).user().finish();
    let (outcome, storage) = run(&stream, &contender(interval(10_000)));
    for app in &outcome.apps {
        assert_eq!(app.flushes_ns(), [10 * SECOND_NS]);
        assert_eq!(app.flushed_pages, 1);
    }
    // At risk for 10 s and for 7 s of 20.
    assert!((outcome.apps[0].age_ms().max() - 10_000.0).abs() < 1.0);
    assert!((outcome.apps[1].age_ms().max() - 7_000.0).abs() < 1.0);
    // One transaction in the journal, and the two pages to their places at the end.
    assert_eq!(storage.cost().written_bytes, (2 + OVERHEAD + 2) * PAGE);
}

#[test]
fn fsync_is_skipped_unless_it_has_to_wait() {
    let mut script = Script::new();
    script.write("db", 0).write("other", 7).sync("db");
    script.at(5000).device(DeviceState::BatteryLow);
    script.at(6000).write("db", 1).sync("other").sync("db");
    script.at(7000).device(DeviceState::BatteryOk);
    let stream = script.at(8000).write("db", 2).sync("db").finish();
    let relaxed = interval(60_000);
    let (outcome, storage) = run(&stream, &contender(relaxed));
    // Everything as the battery becomes low; `db` while it is. `other` has nothing to commit.
    assert_eq!(outcome.apps[0].flushes_ns(), [5 * SECOND_NS, 6 * SECOND_NS]);
    assert_eq!(storage.cost().waits, 1);
    assert!(storage.cost().waited_ns > 0);

    let mut durable = relaxed;
    durable.policy.class = Class::Durable;
    let btrfs = NativeRules {
        filesystem: NativeFilesystem::Btrfs,
        ..relaxed
    };
    for waits in [durable, btrfs] {
        let (outcome, storage) = run(&stream, &contender(waits));
        let seconds = [0, 6, 8].map(|second| second * SECOND_NS);
        assert_eq!(outcome.apps[0].flushes_ns(), seconds);
        assert_eq!(storage.cost().waits, 3);
        // The first took `other` along.
        assert_eq!(outcome.apps[0].flushed_pages, 4);
    }
}

#[test]
fn what_is_written_again_in_a_transaction_is_committed_once() {
    let mut script = Script::new();
    for second in 0..20 {
        script.at(second * 1000 + 500).write("db", 0);
    }
    script
        .create("journal")
        .write("journal", 0)
        .unlink("journal");
    let stream = script.at(25_000).user().finish();
    let (outcome, _) = run(&stream, &contender(interval(10_000)));
    let app = &outcome.apps[0];
    assert_eq!(app.written_pages, 21);
    assert_eq!(app.overwritten_pages, 19);
    assert_eq!(app.flushed_pages, 2);
    // The second one began with the write at 10.5 s, just after the first was committed.
    assert_eq!(app.flushes_ns(), [10_500_000_000, 20_500_000_000]);
}

#[test]
fn what_reaches_the_limit_of_age_is_committed() {
    let mut script = Script::new();
    script.at(500).write("db", 0);
    script.at(3000).write("db", 1);
    let stream = script.at(30_000).user().finish();
    let (outcome, _) = run(&stream, &contender(limits(7000, u64::MAX)));
    assert_eq!(outcome.apps[0].flushes_ns(), [7_500_000_000]);
}

#[test]
fn in_standby_the_kernel_commits_at_its_interval() {
    let mut script = Script::new();
    script.at(100).write("db", 0);
    script.at(200).device(DeviceState::ScreenOff);
    let stream = script.at(500).write("db", 1).at(60_000).user().finish();
    let mut rules = limits(7000, u64::MAX);
    rules.pacing.standby_age_max_ms = 50_000;
    let (outcome, _) = run(&stream, &contender(rules));
    // Everything when the screen goes off. Later the daemon would wait, but the kernel does not: at
    // a whole second.
    assert_eq!(outcome.apps[0].flushes_ns(), [200_000_000, 8 * SECOND_NS]);
}

/// The daemon looks every second, and the kernel counts in batches of 16 pages.
#[test]
fn what_reaches_the_limit_of_staleness_is_committed_when_the_daemon_looks() {
    let mut script = Script::new();
    for page in 0..31 {
        script.at(page * 30).write("db", page);
    }
    let stream = script.at(20_000).user().finish();
    let (outcome, _) = run(&stream, &contender(limits(100_000, 16)));
    assert_eq!(outcome.apps[0].flushes_ns(), [SECOND_NS]);
    let (outcome, _) = run(&stream, &contender(limits(100_000, 17)));
    assert_eq!(outcome.apps[0].flushes_ns(), [], "only at the end");
    assert_eq!(outcome.apps[0].flushed_pages, 31);
}

/// The kernel counts a page that becomes dirty, and what is in the journal is dirty until it is in
/// its place.
#[test]
fn pages_that_are_not_in_their_place_yet_do_not_count_as_written() {
    let mut script = Script::new();
    for burst in [0, 10_000, 80_000] {
        for page in 0..16 {
            script.at(burst).write("db", page);
        }
    }
    let stream = script.at(100_000).user().finish();
    let (outcome, _) = run(&stream, &contender(limits(35_000, 16)));
    // The first and the third burst reach the limit of staleness; the second one that of age.
    let flushes = outcome.apps[0].flushes_ns();
    assert_eq!(flushes, [1, 45, 81].map(|second| second * SECOND_NS));
}

/// Pages that fill no batch were seen one by one, so that `quiet` went on for as long as some came.
#[test]
fn quiet_sees_only_batches_of_pages() {
    let mut script = Script::new();
    for page in 0..15 {
        script.at(page * 600).write("db", page);
    }
    let stream = script.at(20_000).user().finish();
    let mut rules = limits(60_000, u64::MAX);
    rules.policy.transactioning.name = TransactioningName::Quiet;
    let (outcome, _) = run(&stream, &contender(rules));
    let flushes = outcome.apps[0].flushes_ns();
    // At the least age of 5 s, and so the next one after its first change.
    assert_eq!(flushes, [5 * SECOND_NS, 10_400_000_000]);
}

#[test]
fn what_was_committed_several_times_goes_to_its_place_once() {
    let mut script = Script::new();
    for second in 0..20 {
        script.at(second * 1000).write("db", 0);
    }
    let stream = script.at(36_000).user().finish();
    let (outcome, storage) = run(&stream, &contender(interval(500)));
    assert_eq!(outcome.apps[0].flushed_pages, 20);
    let committed = 20 * (1 + OVERHEAD);
    assert_eq!(storage.cost().written_bytes, (committed + 1) * PAGE);
    // Twenty commits and one write to the place, between 30 and 35 s after the page became dirty.
    let busy = &storage.cost().busy_ns;
    assert_eq!(busy.len(), 21);
    assert_eq!(busy[20].0, 30 * SECOND_NS);
}

#[test]
fn a_page_of_the_running_transaction_stays_until_that_is_committed() {
    let mut script = Script::new();
    script.at(0).write("db", 0).write("db", 1);
    script.at(29_000).write("db", 0);
    let stream = script.at(70_000).user().finish();
    let (_, storage) = run(&stream, &contender(interval(5000)));
    let starts: Vec<u64> = storage.cost().busy_ns.iter().map(|busy| busy.0).collect();
    // Page 1 at 30 s, page 0 after as long again.
    let seconds = [5, 30, 34, 60].map(|second| second * SECOND_NS);
    assert_eq!(starts, seconds);
    let blocks = (2 + OVERHEAD) + 1 + (1 + OVERHEAD) + 1;
    assert_eq!(storage.cost().written_bytes, blocks * PAGE);
}

#[test]
fn what_is_removed_in_time_is_written_once_or_never() {
    let mut script = Script::new();
    script.create("t").write("t", 0);
    script.at(2000).unlink("t");
    let stream = script.at(40_000).user().finish();
    let (outcome, storage) = run(&stream, &contender(interval(1000)));
    assert_eq!(outcome.apps[0].flushed_pages, 1);
    assert_eq!(
        storage.cost().written_bytes,
        (1 + OVERHEAD + OVERHEAD) * PAGE,
        "in the journal, and then its removal"
    );
    let (outcome, _) = run(&stream, &contender(interval(5000)));
    assert_eq!(outcome.apps[0].flushed_pages, 0);
}

#[test]
fn before_the_machine_sleeps_everything_is_in_its_place() {
    let mut script = Script::new();
    script
        .at(0)
        .write("db", 0)
        .at(3000)
        .device(DeviceState::Suspend);
    let stream = script.at(100_000).user().finish();
    let (outcome, storage) = run(&stream, &contender(interval(20_000)));
    assert_eq!(outcome.apps[0].flushes_ns(), [3 * SECOND_NS]);
    assert_eq!(storage.cost().busy_ns.len(), 2);
    assert!(storage.cost().busy_ns[1].0 < 4 * SECOND_NS);
}

#[test]
fn a_transaction_takes_a_third_of_the_journal_and_old_ones_make_room() {
    let mut script = Script::new();
    let pages = 4 * 6000;
    for page in 0..pages {
        script.at(page / 100).write("file", page);
    }
    let stream = script.at(1000).user().finish();
    let large = DeviceChoice {
        name: "emmc51".to_owned(),
        config: Preset::Emmc51.config().unwrap(),
        capacity_bytes: 4 << 30,
    };
    let (outcome, storage) = simulate(&stream, &contender(interval(60_000)), &large).unwrap();
    assert_eq!(
        outcome.apps[0].flushes_ns().len(),
        4,
        "the kernel's commits"
    );
    assert_eq!(outcome.apps[0].flushed_pages, pages);
    let written = storage.cost().written_bytes / PAGE;
    // Descriptors for 254 pages each, besides the usual.
    assert!(written > 2 * pages && written < 2 * pages + pages / 254 + 5 * OVERHEAD + 1);
    // Before the third transaction the first goes to its place, and so on.
    assert!(storage.cost().busy_ns.len() > 4 + 1 + 1);
}

#[test]
fn the_user_is_not_disturbed_and_btrfs_commits_what_is_not_reported() {
    let mut script = Script::new();
    script.at(1000).user().at(2000).user();
    let stream = script.at(15_000).write("db", 0).at(60_000).user().finish();
    let mut rules = interval(20_000);
    rules.policy.age_max_ms = 30_000;
    let (outcome, _) = run(&stream, &contender(rules));
    let ext4 = outcome.apps[0].flushes_ns().to_vec();
    rules.filesystem = NativeFilesystem::Btrfs;
    let (outcome, _) = run(&stream, &contender(rules));
    // After the last commit, not after the change.
    assert_eq!(outcome.apps[0].flushes_ns(), [30 * SECOND_NS]);
    assert!(
        ext4[0] >= 35 * SECOND_NS && ext4[0] <= 45 * SECOND_NS,
        "{ext4:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_fixed_interval_flushes_what_counting_says_and_nothing_is_written_thrice(
        steps in proptest::collection::vec((0_u64..4000, 0_u64..12, 0_u8..3), 1..60),
        interval_ms in 1_u64..20_000,
    ) {
        let mut script = Script::new();
        let (mut now, mut writes) = (0, Vec::new());
        for (pause, page, file) in steps {
            now += pause;
            script.at(now).write(["a", "b", "c"][usize::from(file)], page);
            // Counting knows one file.
            writes.push((now, u64::from(file) * 100 + page));
        }
        let stream = script.finish();
        let rules = contender(interval(interval_ms));
        let ContenderRules::Native(_) = rules.rules else {
            unreachable!("made as native mode");
        };
        let (outcome, storage) = simulate(&stream, &rules, &device()).unwrap();
        let app = &outcome.apps[0];
        prop_assert_eq!(app.flushed_pages, counted(&writes, interval_ms));
        prop_assert_eq!(app.flushed_pages + app.overwritten_pages, app.written_pages);
        let overhead = app.flushes() as u64 * OVERHEAD;
        let pages = storage.cost().written_bytes / PAGE - overhead;
        prop_assert!(pages > app.flushed_pages && pages <= 2 * app.flushed_pages);
    }
}
