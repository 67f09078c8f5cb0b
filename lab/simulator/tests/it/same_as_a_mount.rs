//! A trace through the volume of a mount, whose clock moves by hand, and through the
//! simulator: the same transactions at the same moments.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::path::Path;
use std::sync::Arc;

use crate::live::{Live, instant};
use mobifs_engine::AppRules as _;
use mobifs_numerics::Random;
use mobifs_simulator::sim::{Contender, DeviceChoice, Stream, simulate};
use mobifs_store::MemoryStore;
use mobifs_trace::{
    DeviceState, Event, EventKind, Header, PathIndex, TraceBuilder, TraceNs, UserOperation,
};
use mobifs_volume::Config;

/// What happens around the apps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Around {
    Nothing,
    /// A user comes and goes.
    User,
    /// The screen, sleep and the battery change, and there is no user.
    Machine,
    /// Both.
    Everything,
}

impl Around {
    fn has_user(self) -> bool {
        matches!(self, Self::User | Self::Everything)
    }

    fn has_machine(self) -> bool {
        matches!(self, Self::Machine | Self::Everything)
    }
}

/// What happens to the file at `path` of the app `name`, and its result.
fn change(
    random: &mut Random,
    builder: &mut TraceBuilder,
    name: &str,
    path: PathIndex,
) -> (EventKind, i64) {
    match random.below(12) {
        0 => (EventKind::Unlink { path }, 0),
        1 => (
            EventKind::Sync {
                path,
                data_only: false,
            },
            0,
        ),
        2 => {
            let to = format!("{name}/{}", 4 + random.below(3));
            let to = builder.path(to.as_bytes());
            (
                EventKind::Rename {
                    from: path,
                    to,
                    exchange: false,
                },
                0,
            )
        }
        _ => {
            let (offset, length) = (random.below(24) * 4096, 4096);
            (
                EventKind::Write {
                    path,
                    offset,
                    length,
                },
                4096,
            )
        }
    }
}

/// Two apps that write in bursts, rename, delete, and what happens around them.
fn stream(seed: u64, around: Around) -> Stream {
    let mut random = Random::new(seed);
    let mut builder = TraceBuilder::new(Header::default());
    let apps = [builder.app(b"one"), builder.app(b"two")];
    let mut now_ns = 0;
    let push = |builder: &mut TraceBuilder, now_ns, app, kind, result| {
        builder.push(Event {
            time: TraceNs(now_ns),
            app,
            process: 1,
            thread: 1,
            kind,
            result,
            duration_ns: 0,
        });
    };
    for _ in 0..120 {
        // Odd nanoseconds: nothing falls on the very moment of a deadline.
        now_ns += random.below(4_000) * 1_000_000 + 1 + random.below(1_000);
        if around.has_user() && random.below(4) == 0 {
            for _ in 0..random.below(5) {
                push(
                    &mut builder,
                    now_ns,
                    apps[0],
                    EventKind::User(UserOperation::Touch),
                    0,
                );
                now_ns += 300_000_000;
            }
        }
        if around.has_machine() && random.below(3) == 0 {
            let states = DeviceState::ALL;
            let state = states[random.below(states.len() as u64) as usize];
            push(&mut builder, now_ns, apps[0], EventKind::Device(state), 0);
            now_ns += 1_000_003;
        }
        let which = random.below(2) as usize;
        let (app, name) = (apps[which], ["one", "two"][which]);
        for _ in 0..random.below(40) {
            now_ns += random.below(20) * 1_000_000 + 1;
            let file = format!("{name}/{}", random.below(4));
            let path = builder.path(file.as_bytes());
            let (kind, result) = change(&mut random, &mut builder, name, path);
            push(&mut builder, now_ns, app, kind, result);
        }
    }
    Stream::new(&builder.finish())
}

fn compare(policy: &str, seed: u64, around: Around) {
    let stream = stream(seed, around);
    let config = Config::parse(&format!("[defaults]\n{policy}"), Path::new("test")).unwrap();
    let device = DeviceChoice {
        name: String::new(),
        config: instant(),
        capacity_bytes: 1 << 30,
    };
    let contender = Contender::engine(String::new(), config.rules.policy(b"any"));
    let (outcome, _) = simulate(&stream, &contender, &device).unwrap();
    let store = Arc::new(MemoryStore::new());
    let live = Live::new(&stream, &config, store, Box::new(|_| {})).run();

    let context = format!("{policy}, seed {seed}, {around:?}");
    let end_ns = stream.duration_ns;
    let moments = outcome.apps.iter().flat_map(|app| app.flushes_ns());
    let mut simulated: Vec<u64> = moments.copied().filter(|&at| at < end_ns).collect();
    simulated.sort_unstable();
    let live_commits: Vec<u64> = live
        .commits
        .iter()
        .copied()
        .filter(|&at| at < end_ns)
        .collect();
    assert_eq!(simulated, live_commits, "{context}");
    assert!(
        simulated.len() > 3,
        "{context}: {} commits",
        simulated.len()
    );
    live.volume.sync_all().unwrap();
    let status = live.volume.status();
    for (number, app) in outcome.apps.iter().enumerate() {
        let name = format!("app{number}");
        let found = status
            .apps
            .iter()
            .find(|status| status.name == name)
            .unwrap();
        assert_eq!(
            found.bytes_sent_to_store / 4096,
            app.flushed_pages,
            "{context}"
        );
    }
}

#[test]
fn without_a_user() {
    for seed in 0..6 {
        compare(
            "policy = \"tpl\"\nstaleness_min_bytes = \"64KiB\"",
            seed,
            Around::Nothing,
        );
        compare(
            "policy = \"interval\"\ninterval_ms = 1500",
            seed,
            Around::Nothing,
        );
        compare(
            "policy = \"quiet\"\nquiet_ms = 300\nquiet_age_min_ms = 900",
            seed,
            Around::Nothing,
        );
        compare(
            "policy = \"staleness\"\nstaleness_bytes = \"100KiB\"",
            seed,
            Around::Nothing,
        );
        compare("policy = \"fsync\"", seed, Around::Nothing);
    }
}

#[test]
fn with_a_user_whose_pauses_are_predicted() {
    for seed in 10..16 {
        compare(
            "policy = \"staleness\"\nstaleness_bytes = \"64KiB\"",
            seed,
            Around::User,
        );
        compare(
            "policy = \"quiet\"\nquiet_ms = 200\nquiet_age_min_ms = 500",
            seed,
            Around::User,
        );
    }
}

#[test]
fn with_a_machine_that_rests_sleeps_and_runs_low() {
    for (around, seeds) in [(Around::Machine, 20..26), (Around::Everything, 20..40)] {
        for seed in seeds {
            compare("policy = \"interval\"\ninterval_ms = 1500", seed, around);
            compare("policy = \"fsync\"", seed, around);
            compare(
                "policy = \"staleness\"\nstaleness_bytes = \"64KiB\"",
                seed,
                around,
            );
        }
    }
}
