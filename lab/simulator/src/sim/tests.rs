//! Hand-made traces, with what they must come to.

use mobifs_device_model::Preset;
use mobifs_engine::AppPolicy;
use mobifs_engine::policy::transactioning::TransactioningName;
use mobifs_trace::{DeviceState, Event, EventKind, Header, OpenFlags, TraceBuilder, TraceNs};
use proptest::prelude::*;

use super::{Contender, DeviceChoice, Outcome, Storage, Stream, simulate};

pub(super) const SECOND_NS: u64 = 1_000_000_000;

/// Builds a trace from a few words.
pub(super) struct Script {
    builder: TraceBuilder,
    now_ns: u64,
    app: &'static [u8],
}

impl Script {
    pub(super) fn new() -> Self {
        Self {
            builder: TraceBuilder::new(Header::default()),
            now_ns: 0,
            app: b"app",
        }
    }

    pub(super) fn at(&mut self, milliseconds: u64) -> &mut Self {
        self.now_ns = milliseconds * 1_000_000;
        self
    }

    pub(super) fn app(&mut self, app: &'static [u8]) -> &mut Self {
        self.app = app;
        self
    }

    fn push(&mut self, kind: impl Fn(&mut TraceBuilder) -> EventKind, result: i64) -> &mut Self {
        let kind = kind(&mut self.builder);
        let app = self.builder.app(self.app);
        self.builder.push(Event {
            time: TraceNs(self.now_ns),
            app,
            process: 1,
            thread: 1,
            kind,
            result,
            duration_ns: 0,
        });
        self
    }

    pub(super) fn write(&mut self, path: &str, page: u64) -> &mut Self {
        let (offset, length) = (page * 4096, 4096);
        let kind = |b: &mut TraceBuilder| EventKind::Write {
            path: b.path(path.as_bytes()),
            offset,
            length,
        };
        self.push(kind, 4096)
    }

    pub(super) fn create(&mut self, path: &str) -> &mut Self {
        let kind = |b: &mut TraceBuilder| EventKind::Create {
            path: b.path(path.as_bytes()),
            mode: 0o644,
        };
        self.push(kind, 0)
    }

    pub(super) fn unlink(&mut self, path: &str) -> &mut Self {
        let kind = |b: &mut TraceBuilder| EventKind::Unlink {
            path: b.path(path.as_bytes()),
        };
        self.push(kind, 0)
    }

    fn rename(&mut self, from: &str, to: &str) -> &mut Self {
        let kind = |b: &mut TraceBuilder| EventKind::Rename {
            from: b.path(from.as_bytes()),
            to: b.path(to.as_bytes()),
            exchange: false,
        };
        self.push(kind, 0)
    }

    pub(super) fn sync(&mut self, path: &str) -> &mut Self {
        let kind = |b: &mut TraceBuilder| EventKind::Sync {
            path: b.path(path.as_bytes()),
            data_only: false,
        };
        self.push(kind, 0)
    }

    fn close(&mut self, path: &str) -> &mut Self {
        let kind = |b: &mut TraceBuilder| EventKind::Close {
            path: b.path(path.as_bytes()),
        };
        self.push(kind, 0)
    }

    pub(super) fn truncating_open(&mut self, path: &str) -> &mut Self {
        let flags = OpenFlags::WRITE | OpenFlags::TRUNCATE;
        let kind = |b: &mut TraceBuilder| EventKind::Open {
            path: b.path(path.as_bytes()),
            flags,
        };
        self.push(kind, 0)
    }

    pub(super) fn user(&mut self) -> &mut Self {
        self.push(|_| EventKind::User(mobifs_trace::UserOperation::Touch), 0)
    }

    pub(super) fn device(&mut self, state: DeviceState) -> &mut Self {
        self.push(|_| EventKind::Device(state), 0)
    }

    pub(super) fn finish(&mut self) -> Stream {
        Stream::new(&std::mem::take(&mut self.builder).finish())
    }
}

pub(super) fn device() -> DeviceChoice {
    DeviceChoice {
        name: "emmc51".to_owned(),
        config: Preset::Emmc51.config().unwrap(),
        capacity_bytes: 1 << 30,
    }
}

pub(super) fn run(stream: &Stream, contender: &Contender) -> (Outcome, Storage) {
    simulate(stream, contender, &device()).unwrap()
}

fn ext4() -> Contender {
    Contender::filesystem("ext4").unwrap()
}

fn interval(milliseconds: u64) -> Contender {
    let mut policy = AppPolicy {
        age_max_ms: u64::MAX,
        staleness_max_pages: u64::MAX,
        ..AppPolicy::default()
    };
    policy.transactioning.name = TransactioningName::Interval;
    policy.transactioning.interval.interval_ms = milliseconds;
    Contender::engine("interval".to_owned(), policy)
}

fn flushed(stream: &Stream, contender: &Contender) -> u64 {
    run(stream, contender).0.flushed_pages()
}

#[test]
fn ext4_flushes_every_five_seconds_and_at_fsync() {
    let mut script = Script::new();
    for second in 0..20 {
        script.at(second * 1000 + 500).write("db", 0);
    }
    // 5, 10, 15 and 20 s: one page each.
    let stream = script.at(20_500).user().finish();
    let (outcome, storage) = run(&stream, &ext4());
    assert_eq!(outcome.apps[0].flushed_pages, 4);
    assert_eq!(outcome.apps[0].written_pages, 20);
    assert_eq!(outcome.apps[0].overwritten_pages, 16);
    assert_eq!(storage.cost().waits, 0);

    let mut script = Script::new();
    script.write("db", 0).write("other", 7).sync("db");
    let (outcome, storage) = run(&script.at(1000).user().finish(), &ext4());
    // `db` at the fsync, `other` at the end, which is no flush of a policy.
    assert_eq!(outcome.apps[0].flushes_ns(), [0]);
    assert_eq!(outcome.apps[0].flushes(), 2);
    assert_eq!(storage.cost().waits, 1);
    assert!(storage.cost().waited_ns > 0);
}

#[test]
fn a_rollback_journal_never_reaches_flash() {
    let mut script = Script::new();
    for transaction in 0..10 {
        script
            .at(transaction * 100)
            .create("db-journal")
            .write("db-journal", 0)
            .write("db-journal", 1)
            .sync("db-journal")
            .write("db", transaction % 2)
            .sync("db")
            .unlink("db-journal");
    }
    let stream = script.at(2000).user().finish();
    assert_eq!(flushed(&stream, &interval(30_000)), 2);
    assert_eq!(flushed(&stream, &ext4()), 10 * 3);
}

#[test]
fn a_file_that_is_used_without_a_name_ends_with_its_close() {
    let mut script = Script::new();
    script
        .create("t")
        .write("t", 0)
        .unlink("t")
        .write("t\0", 1)
        .at(12_000)
        .close("t\0")
        .write("t", 5)
        .at(13_000)
        .user();
    let stream = script.finish();
    // Without a name nothing of it is committed; the second `t` is a file of its own.
    assert_eq!(flushed(&stream, &interval(1_000)), 1);
    // A page cache flushes what is open: two pages, then the second file's.
    assert_eq!(flushed(&stream, &ext4()), 3);
}

#[test]
fn a_rename_takes_the_pages_along_and_drops_the_target() {
    let mut script = Script::new();
    script
        .create("new")
        .write("new", 0)
        .create("file")
        .write("file", 0)
        .write("file", 1)
        .rename("new", "file")
        .write("file", 0);
    let stream = script.at(1000).user().finish();
    let (outcome, _) = run(&stream, &interval(60_000));
    assert_eq!(outcome.flushed_pages(), 1);
    let (outcome, _) = run(&stream, &ext4());
    assert_eq!(outcome.flushed_pages(), 1);
    assert_eq!(outcome.apps[0].overwritten_pages, 3);
}

#[test]
fn truncation_drops_what_was_dirty() {
    let mut script = Script::new();
    script
        .write("log", 0)
        .write("log", 1)
        .truncating_open("log");
    let stream = script.write("log", 0).at(1000).user().finish();
    assert_eq!(flushed(&stream, &interval(60_000)), 1);
    assert_eq!(flushed(&stream, &ext4()), 1);
}

#[test]
fn apps_are_flushed_each_at_its_own_time() {
    let mut script = Script::new();
    script.app(b"one").at(0).write("one/a", 0);
    script.app(b"two").at(3000).write("two/b", 0);
    let stream = script.at(20_000).user().finish();
    let (outcome, _) = run(&stream, &interval(10_000));
    assert_eq!(outcome.apps[0].flushes_ns(), [10 * SECOND_NS]);
    assert_eq!(outcome.apps[1].flushes_ns(), [13 * SECOND_NS]);
    // At risk for 10 s of 20 each, from 0 s to 13 s together.
    for app in &outcome.apps {
        assert!(
            (app.age_ms().mean() - 2500.0).abs() < 30.0,
            "{}",
            app.age_ms().mean()
        );
        assert!((app.age_ms().max() - 10_000.0).abs() < 1.0);
    }
    assert_eq!(outcome.age_ms().quantile(0.34), 0.0);
    assert!(outcome.age_ms().quantile(0.37) > 0.0);
    assert!(outcome.footprint_max_bytes >= 2 * 4096);
}

#[test]
fn a_failed_call_and_a_stat_do_nothing() {
    let mut script = Script::new();
    script.push(
        |b| EventKind::Write {
            path: b.path(b"x"),
            offset: 0,
            length: 4096,
        },
        -28,
    );
    script.push(|b| EventKind::Stat { path: b.path(b"y") }, 0);
    let stream = script.finish();
    assert!(stream.steps.is_empty() && stream.initial.is_empty());
}

#[test]
fn a_directory_takes_its_files_along() {
    let mut script = Script::new();
    script.push(
        |b| EventKind::MakeDirectory {
            path: b.path(b"d"),
            mode: 0o755,
        },
        0,
    );
    script
        .create("d/f")
        .write("d/f", 0)
        .rename("d", "e")
        .write("e/f", 0);
    let stream = script.finish();
    assert_eq!(stream.objects.len(), 2, "e/f is the file that was d/f");
    assert_eq!(flushed(&stream, &interval(60_000)), 1);
}

#[test]
fn the_report_holds_policies_against_ext4() {
    let mut script = Script::new();
    for second in 0..20 {
        script.at(second * 1000 + 500).write("db", 0);
    }
    let stream = script.at(20_500).user().finish();
    let traces = [super::NamedStream {
        name: "t".to_owned(),
        stream,
    }];
    let contenders = [interval(60_000), ext4()];
    let report = super::compare(&traces, &contenders, &device(), &|_, _| {}).unwrap();
    assert!((report.flush_reduction_vs_ext4 - 0.75).abs() < 1e-9);
    let table = report.table();
    assert!(table.contains("75.0 %"), "{table}");
    let mut parquet = Vec::new();
    report.write_parquet(&mut parquet).unwrap();
    assert!(parquet.starts_with(b"PAR1") && parquet.ends_with(b"PAR1"));
}

/// What a fixed interval must flush, found by counting: a window opens with a write and
/// takes all that follow for so long; each page of it is flushed once.
pub(super) fn counted(writes: &[(u64, u64)], interval_ms: u64) -> u64 {
    let mut pages = std::collections::BTreeSet::new();
    let (mut flushed, mut ends_at) = (0, 0);
    for &(at, page) in writes {
        if at >= ends_at {
            flushed += pages.len() as u64;
            pages.clear();
            ends_at = at + interval_ms;
        }
        pages.insert(page);
    }
    flushed + pages.len() as u64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_engine_flushes_what_counting_says(
        steps in proptest::collection::vec((0_u64..4000, 0_u64..12), 1..60),
        interval_ms in 1_u64..20_000,
    ) {
        let mut script = Script::new();
        let (mut now, mut writes) = (0, Vec::new());
        for (pause, page) in steps {
            now += pause;
            writes.push((now, page));
            script.at(now).write("file", page);
        }
        let stream = script.finish();
        prop_assert_eq!(flushed(&stream, &interval(interval_ms)), counted(&writes, interval_ms));
        // And the published baseline, whose windows begin at multiples of 5 s.
        let mut windows: Vec<(u64, u64)> =
            writes.iter().map(|&(at, page)| (at / 5000, page)).collect();
        windows.sort_unstable();
        windows.dedup();
        prop_assert_eq!(flushed(&stream, &ext4()), windows.len() as u64);
    }

    #[test]
    fn the_ideal_is_a_bound_and_nothing_is_counted_twice(
        steps in proptest::collection::vec((0_u64..3000, 0_u64..8, 0_u8..4), 1..80),
    ) {
        let mut script = Script::new();
        let mut now = 0;
        for (pause, page, what) in steps {
            now += pause;
            script.at(now);
            match what {
                0 => script.sync("a"),
                1 => script.write("b", page),
                _ => script.write("a", page),
            };
        }
        let stream = script.finish();
        let mut ideal = interval(0);
        let super::ContenderRules::Engine(policy, _) = &mut ideal.rules else {
            unreachable!("made as an engine");
        };
        policy.transactioning.name = TransactioningName::Ideal;
        let least = flushed(&stream, &ideal);
        for contender in [interval(1), interval(4000), ext4()] {
            let (outcome, _) = run(&stream, &contender);
            prop_assert!(outcome.flushed_pages() >= least);
            for app in &outcome.apps {
                prop_assert_eq!(app.flushed_pages + app.overwritten_pages, app.written_pages);
            }
        }
    }
}
