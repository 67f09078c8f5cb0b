//! The schedulers, rule by rule.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::collections::BTreeMap;

use mobifs_base::{AppId, TransactionId};
use mobifs_engine::policy::schedule::{
    DeviceEstimate, Fifo, Round, SKIPS_MAX, SchedulerName, ThreeQueues, TransactionScheduler as _,
    Waiting,
};

/// One page takes one nanosecond, and a commit nothing else: times are lengths.
const DEVICE: DeviceEstimate = DeviceEstimate {
    latency_ns: 0,
    page_ns: 1,
};

const fn waiting(transaction: u64, app: u32, pages: u64) -> Waiting {
    Waiting {
        id: TransactionId(transaction),
        app: AppId(app),
        pages,
    }
}

/// The waiting transactions and the scheduler.
#[derive(Default)]
struct Bed {
    scheduler: ThreeQueues,
    waiting: Vec<Waiting>,
    round: u64,
}

impl Bed {
    fn new(waiting: &[Waiting]) -> Self {
        Self {
            waiting: waiting.to_vec(),
            ..Self::default()
        }
    }

    /// A new interval with room for so many pages; what was chosen leaves.
    fn interval(&mut self, pages: u64) -> Vec<u64> {
        self.round += 1;
        self.again(pages)
    }

    /// The same interval, with so much left of it.
    fn again(&mut self, pages: u64) -> Vec<u64> {
        let round = Round {
            number: self.round,
            available_ns: pages,
            device: DEVICE,
        };
        let chosen = self.scheduler.choose(&self.waiting, &round);
        self.waiting.retain(|w| !chosen.contains(&w.id));
        chosen
            .into_iter()
            .map(|transaction| transaction.0)
            .collect()
    }
}

#[test]
fn affinity_keeps_the_transactions_of_an_app_together() {
    let mut bed = Bed::new(&[
        waiting(1, 1, 10),
        waiting(2, 2, 10),
        waiting(3, 1, 10),
        waiting(4, 2, 10),
    ]);
    assert_eq!(bed.interval(30), [1, 3, 2]);
    assert_eq!(bed.interval(30), [4]);
}

#[test]
fn affinity_moves_an_app_up_that_was_skipped() {
    let mut bed = Bed::new(&[waiting(1, 1, 50), waiting(2, 2, 10)]);
    assert_eq!(bed.interval(20), [2]);
    bed.waiting.push(waiting(3, 2, 10));
    // The first app is in a higher queue now, so it goes first although both fit.
    assert_eq!(bed.interval(60), [1, 3]);
}

#[test]
fn age_lets_the_shortest_in_the_highest_queue_go_when_nothing_fits() {
    let mut bed = Bed::new(&[waiting(1, 1, 70), waiting(2, 2, 60)]);
    // Both in the lowest queue: the shortest.
    assert_eq!(bed.interval(5), [2]);
    bed.waiting.push(waiting(3, 3, 20));
    // Not the shortest of all, but the one in the highest queue.
    assert_eq!(bed.interval(5), [1]);
    assert_eq!(bed.again(5), [0; 0], "only once in an interval");
    assert_eq!(bed.interval(5), [3]);
}

#[test]
fn length_decides_what_is_feasible() {
    let mut bed = Bed::new(&[waiting(1, 1, 30), waiting(2, 2, 21), waiting(3, 3, 20)]);
    assert_eq!(bed.interval(20), [3]);
    // Exactly what is left is enough; the device's latency counts for each commit.
    let round = Round {
        number: 9,
        available_ns: 30 + 21 + 2 * 7,
        device: DeviceEstimate {
            latency_ns: 7,
            page_ns: 1,
        },
    };
    let both = bed.scheduler.clone().choose(&bed.waiting, &round);
    assert_eq!(both, [TransactionId(1), TransactionId(2)]);
    let round = Round {
        available_ns: round.available_ns - 1,
        ..round
    };
    assert_eq!(
        bed.scheduler.choose(&bed.waiting, &round),
        [TransactionId(1)]
    );
}

#[test]
fn replenishment_sends_the_rest_of_an_app_to_the_lowest_queue() {
    let mut bed = Bed::new(&[waiting(1, 1, 100), waiting(2, 1, 90), waiting(3, 2, 40)]);
    // Both apps are skipped; the shorter goes, because one must.
    assert_eq!(bed.interval(10), [3]);
    // The first app is one queue up: it goes, and its rest is in the lowest queue again.
    assert_eq!(bed.interval(100), [1]);
    bed.waiting.push(waiting(4, 3, 95));
    assert_eq!(bed.interval(10), [2], "equal queues: the shortest");
    assert_eq!(bed.interval(10), [4]);
}

#[test]
fn within_an_interval_nothing_grows_older() {
    let mut bed = Bed::new(&[waiting(1, 1, 50), waiting(2, 2, 10)]);
    assert_eq!(bed.interval(20), [2]);
    for _ in 0..100 {
        bed.waiting.push(waiting(3, 2, 10));
        assert_eq!(bed.again(20), [3]);
    }
    assert_eq!(bed.interval(60), [1]);
}

#[test]
fn fifo_takes_everything_in_order() {
    let all = [waiting(5, 2, u64::MAX), waiting(6, 1, 1)];
    let round = Round {
        number: 1,
        available_ns: 0,
        device: DEVICE,
    };
    assert_eq!(
        Fifo.choose(&all, &round),
        [TransactionId(5), TransactionId(6)]
    );
}

/// Numbers that look random and are the same everywhere.
fn noise(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

#[test]
fn nothing_starves_and_order_within_an_app_is_kept() {
    for seed in 0..200 {
        let mut noise = noise(seed);
        let mut bed = Bed::default();
        // Round in which each came, and its place in its app by then.
        let mut came: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        let mut last_of_app: BTreeMap<AppId, u64> = BTreeMap::new();
        let mut next = 1;
        for _ in 0..400 {
            for _ in 0..noise(4) {
                let app = noise(5) as u32;
                // The first app's do not fit into any interval.
                let pages = if app == 0 { 1_000 } else { 1 + noise(90) };
                let of_app = bed.waiting.iter().filter(|w| w.app == AppId(app));
                came.insert(next, (bed.round, of_app.count() as u64));
                bed.waiting.push(waiting(next, app, pages));
                next += 1;
            }
            let before = bed.waiting.clone();
            let chosen = bed.interval(noise(100));
            for transaction in chosen {
                let app = before
                    .iter()
                    .find(|w| w.id == TransactionId(transaction))
                    .unwrap()
                    .app;
                let last = last_of_app.insert(app, transaction);
                assert!(
                    last < Some(transaction),
                    "{transaction} of {app:?} after {last:?}"
                );
                came.remove(&transaction);
            }
            for (transaction, (round, place)) in &came {
                let waited = bed.round - round;
                let bound = (place + 1) * u64::from(SKIPS_MAX + 1);
                assert!(waited < bound, "seed {seed}: {transaction} waited {waited}");
            }
        }
    }
}

#[test]
fn the_estimate_follows_the_device() {
    let mut device = DeviceEstimate::default();
    for _ in 0..100 {
        device.learn(1, 500_000 + 2_000);
        device.learn(1_000, 500_000 + 2_000_000);
    }
    let DeviceEstimate {
        latency_ns,
        page_ns,
    } = device;
    assert!((490_000..=510_000).contains(&latency_ns), "{latency_ns}");
    assert!((1_950..=2_050).contains(&page_ns), "{page_ns}");
    // Nonsense does no harm.
    device.learn(0, u64::MAX);
    device.learn(u64::MAX, 0);
    assert!(device.commit_ns(u64::MAX) > 0);
}

#[test]
fn names_are_found_again() {
    for name in SchedulerName::ALL {
        assert_eq!(SchedulerName::from_name(name.as_str()), Some(name));
    }
    assert_eq!(SchedulerName::from_name("lifo"), None);
}
