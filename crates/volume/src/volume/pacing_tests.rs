//! Commits that wait for the user, with a clock that moves by hand.
#![cfg(not(feature = "interleavings"))]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mobifs_base::{DeviceNumber, FileKind, MonotonicNs, ObjectId, Timestamp};
use mobifs_engine::{Caller, Moment, NodeSpec, SetIdBits, WriteAt};
use mobifs_store::{MemoryStore, Store as _};

use super::{Volume, VolumeOptions};
use crate::fixtures::node;
use crate::{Clock, Config, PolicyChange};

/// Milliseconds.
#[derive(Default)]
pub(super) struct HandClock(pub(super) AtomicU64);

impl Clock for HandClock {
    fn moment(&self) -> Moment {
        Moment {
            wall: Timestamp::default(),
            now: MonotonicNs(self.0.load(Ordering::SeqCst) * 1_000_000),
        }
    }
}

struct Bed {
    clock: Arc<HandClock>,
    store: Arc<MemoryStore>,
    volume: Arc<Volume>,
    files: Vec<ObjectId>,
}

/// Closes at 16 pages, long before the limits, which are 64 pages and 30 s.
const CONFIG: &str = "memory_budget_bytes = \"4MiB\"\n[defaults]\npolicy = \"staleness\"\n\
                      staleness_bytes = \"64KiB\"\nstaleness_max_bytes = \"256KiB\"\n\
                      staleness_min_bytes = 0\n";

impl Bed {
    /// A volume with a file in each of two apps, all committed, 10 s after the start.
    fn new() -> Self {
        Self::with("")
    }

    /// With this in the configuration, too.
    fn with(keys: &str) -> Self {
        let (clock, store) = (Arc::new(HandClock::default()), Arc::new(MemoryStore::new()));
        let config = Config::parse(&format!("{keys}\n{CONFIG}"), Path::new("test")).unwrap();
        let options = VolumeOptions {
            background: false,
            clock: Arc::clone(&clock) as Arc<_>,
            ..VolumeOptions::new(&config)
        };
        let volume = Volume::start(Arc::clone(&store) as Arc<_>, options).unwrap();
        let make = |parent, name: &str, kind| {
            let made = volume.create(&Caller::default(), parent, name.as_bytes(), &node(kind));
            made.unwrap().id
        };
        let files = ["a", "b"].map(|name| {
            let app = make(ObjectId::ROOT, name, FileKind::Directory);
            make(app, "file", FileKind::Regular)
        });
        volume.sync_all().unwrap();
        let bed = Self {
            clock,
            store,
            volume,
            files: files.to_vec(),
        };
        bed.pass(10_000);
        bed
    }

    fn pass(&self, ms: u64) {
        self.clock.0.fetch_add(ms, Ordering::SeqCst);
    }

    fn write(&self, app: usize, pages: u64) {
        for index in 0..pages {
            let at = WriteAt::Offset(index << 12);
            let written =
                self.volume
                    .write(self.files[app], at, &[1; 4096], SetIdBits::Stay, false);
            assert_eq!(written.unwrap(), 4096);
        }
    }

    /// Runs a round of the checkpointer; returns how many transactions it committed, and after how
    /// many milliseconds the next round is due.
    fn step(&self) -> (u64, Option<u64>) {
        let before = self.store.pending().commits;
        let next = self.volume.checkpoint_step();
        let now_ns = self.clock.moment().now.0;
        let rest = next.map(|at| at.0.saturating_sub(now_ns) / 1_000_000);
        (self.store.pending().commits - before, rest)
    }
}

#[test]
fn without_a_user_nothing_waits() {
    let bed = Bed::new();
    bed.write(0, 16);
    assert_eq!(bed.step(), (1, None));
    assert_eq!(bed.volume.status().user.state, "unknown");
}

#[test]
fn what_is_closed_waits_until_the_user_is_expected_to_stay_away() {
    let bed = Bed::new();
    bed.volume.user_event();
    bed.write(0, 16);
    assert_eq!(bed.step(), (0, Some(100)), "the operation may go on");
    bed.pass(100);
    assert_eq!(bed.step(), (0, Some(900)), "1 s after the operation");
    assert_eq!(bed.volume.status().user.state, "active");
    bed.pass(300);
    bed.volume.user_event();
    bed.pass(599);
    assert_eq!(bed.step().0, 0);
    // The interval of 400 ms is the shortest now: three times that.
    bed.pass(600);
    assert_eq!(bed.step().0, 0);
    bed.pass(1);
    assert_eq!(bed.step(), (1, None));
    assert_eq!(bed.volume.status().user.state, "away");
    assert_eq!(bed.volume.status().user.operations, 2);
    // As long as the prediction holds, what closes is committed.
    bed.write(1, 16);
    assert_eq!(bed.step(), (1, None));
}

/// The user is there all the time.
fn use_for(bed: &Bed, ms: u64) {
    for _ in 0..ms / 50 {
        bed.pass(50);
        bed.volume.user_event();
    }
}

#[test]
fn no_change_waits_longer_than_its_limit_of_age() {
    let bed = Bed::new();
    bed.volume.user_event();
    bed.write(0, 16);
    use_for(&bed, 29_950);
    assert_eq!(bed.step(), (0, Some(50)));
    use_for(&bed, 50);
    assert_eq!(bed.step().0, 1);
}

#[test]
fn no_more_than_the_limit_of_staleness_waits() {
    let bed = Bed::new();
    bed.volume.user_event();
    for _ in 0..3 {
        bed.write(0, 16);
        assert_eq!(bed.step().0, 0);
    }
    bed.write(0, 15);
    assert_eq!(bed.step().0, 0);
    bed.write(1, 16);
    assert_eq!(bed.step().0, 0, "another app's writes do not count");
    // 64 pages of the first app, of which 16 each are in a transaction.
    bed.write(0, 1);
    let committed = bed.step().0;
    assert!((1..=4).contains(&committed), "{committed}");
    let report = bed.volume.status();
    let app = report.apps.iter().find(|app| app.name == "a").unwrap();
    assert!(app.bytes_at_risk < 256 << 10, "{}", app.bytes_at_risk);
}

#[test]
fn an_urgent_commit_does_not_wait_for_the_user() {
    let bed = Bed::new();
    bed.volume.user_event();
    let durable = PolicyChange::parse("class = \"durable\"");
    bed.volume.set_app("a", durable).unwrap();
    bed.write(0, 16);
    bed.volume.fsync(bed.files[0]).unwrap();
    assert_eq!(bed.step().0, 0, "it is committed already");
    bed.write(0, 16);
    bed.volume.sync_all().unwrap();
    assert_eq!(bed.volume.status().memory.used_bytes, 0);
    // Memory: more than half of the budget, in transactions that wait.
    let many = PolicyChange::parse("staleness_max_bytes = 409600000");
    bed.volume.set_app("b", many).unwrap();
    for _ in 0..40 {
        bed.write(1, 16);
    }
    assert!(bed.volume.status().memory.used_bytes > 2 << 20);
    assert!(bed.step().0 > 0);
    assert!(bed.volume.status().memory.used_bytes <= 2 << 20);
    bed.volume.shutdown().unwrap();
    assert_eq!(bed.volume.status().memory.used_bytes, 0);
}

#[test]
fn memory_is_given_back_when_the_machine_needs_it() {
    let config = Config::parse("[defaults]\nage_max_ms = 1000000\n", Path::new("test"));
    let options = VolumeOptions::new(&config.unwrap());
    let volume = Volume::start(Arc::new(MemoryStore::new()), options).unwrap();
    let spec = NodeSpec {
        kind: FileKind::Regular,
        mode: 0o644,
        rdev: DeviceNumber(0),
        symlink_target: None,
    };
    let made = volume.create(&Caller::default(), ObjectId::ROOT, b"file", &spec);
    let (file, mebibyte) = (made.unwrap().id, vec![1; 1 << 20]);
    let written = volume.write(file, WriteAt::Offset(0), &mebibyte, SetIdBits::Stay, false);
    assert_eq!(written.unwrap(), 1 << 20);
    volume.flush_under_pressure();
    // Ends when the checkpointer has done it; if it does not, the runner's limit ends us.
    while volume.status().memory.used_bytes > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn standby_begins_with_a_commit_and_puts_off_what_comes_then() {
    let bed = Bed::new();
    bed.write(0, 1);
    bed.volume.set_screen(false).unwrap();
    assert_eq!(bed.volume.status().memory.used_bytes, 0);
    assert!(bed.volume.status().screen_off);
    bed.write(0, 16);
    assert_eq!(
        bed.step(),
        (0, Some(30_000)),
        "until the age that is promised"
    );
    bed.volume.fsync(bed.files[0]).unwrap();
    assert_eq!(bed.step().0, 0, "no program waits for a relaxed one");
    let durable = PolicyChange::parse("class = \"durable\"");
    bed.volume.set_app("b", durable).unwrap();
    bed.write(1, 16);
    let before = bed.store.pending().commits;
    bed.volume.fsync(bed.files[1]).unwrap();
    assert_eq!(bed.store.pending().commits, before + 1);
    bed.volume.set_screen(true).unwrap();
    assert_eq!(bed.step(), (1, None), "no user was ever seen");
    assert!(!bed.volume.status().screen_off);
}

#[test]
fn standby_may_last_longer_than_the_limit_of_age_where_that_is_configured() {
    let bed = Bed::with("standby_age_max_ms = 100000");
    bed.volume.set_screen(false).unwrap();
    bed.write(0, 16);
    bed.pass(99_999);
    assert_eq!(bed.step(), (0, Some(1)));
    let config = Config::parse(CONFIG, Path::new("test")).unwrap();
    bed.volume.reload(&config).unwrap();
    assert_eq!(bed.step().0, 1, "30 s hold again");
}

#[test]
fn everything_is_committed_before_the_power_goes() {
    let bed = Bed::new();
    bed.volume.set_screen(false).unwrap();
    for _ in 0..2 {
        bed.write(0, 16);
        bed.write(1, 1);
        bed.volume.power_goes().unwrap();
        assert_eq!(bed.volume.status().memory.used_bytes, 0);
    }
}

#[test]
fn a_user_is_seen_in_a_burst_of_requests_where_that_is_configured() {
    for (keys, operations) in [("user_events = \"bursts\"", 1), ("", 0)] {
        let bed = Bed::with(keys);
        for _ in 0..100 {
            bed.volume.attributes(bed.files[0]).unwrap();
        }
        bed.write(0, 16);
        let status = bed.volume.status();
        assert_eq!(status.user.operations, operations, "{keys}");
        let waits = operations == 1;
        assert_eq!(bed.step().0, u64::from(!waits), "{keys}");
    }
}
