//! A trace through the journal store of a mount and through the simulator: commits write the same
//! pages to the journal and the same number of bytes to their place.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::live::{Live, instant};
use mobifs_base::PAGE_BYTES_U64;
use mobifs_engine::AppRules as _;
use mobifs_numerics::Random;
use mobifs_simulator::sim::{CommitPages, Contender, DeviceChoice, Stream, simulate};
use mobifs_store::lower::{Gate, Lower as _};
use mobifs_store::{JournalOptions, JournalStore, PendingWork, Store};
use mobifs_testkit::crash::CrashLower;
use mobifs_trace::{AppIndex, Event, EventKind, Header, PathIndex, TraceBuilder, TraceNs};
use mobifs_volume::Config;

const PAGE_BYTES: usize = PAGE_BYTES_U64 as usize;
/// Files of each app.
const FILES: u64 = 12;

/// Pages in place and in the journal, by the moment of the commits.
type Written = BTreeMap<u64, (u64, u64)>;

/// Looks at the files of a store, to find what commits have written.
struct Watch {
    lower: CrashLower,
    store: Arc<JournalStore<Gate<CrashLower>>>,
    before: PendingWork,
    written: Written,
}

impl Watch {
    /// At `now_ns` there were commits, or an apply.
    fn look(&mut self, now_ns: u64) {
        let (before, now) = (self.before, self.store.pending());
        self.before = now;
        if now.commits == before.commits {
            return;
        }
        // Nothing is applied where something is committed: the trace has no more than the journal.
        let journal = before.journal_used_bytes..now.journal_used_bytes;
        let journal_bytes = journal.end - journal.start;
        let in_place = now.commit_written_bytes - before.commit_written_bytes - journal_bytes;
        assert_eq!(in_place % PAGE_BYTES_U64, 0);
        let in_journal = self.pages_in_journal(journal, now.journal_total_bytes);
        let total = self.written.entry(now_ns).or_default();
        total.0 += in_place / PAGE_BYTES_U64;
        total.1 += in_journal;
    }

    /// The pages in a part of the log: each is one byte, over and over.
    fn pages_in_journal(&self, part: std::ops::Range<u64>, log_bytes: u64) -> u64 {
        let own = self
            .lower
            .open(&self.lower.root().unwrap(), b".mobifs", false);
        let journal = self.lower.open(&own.unwrap(), b"journal", false).unwrap();
        let log_start = self.lower.stat(&journal).unwrap().size - log_bytes;
        let mut content = vec![0; (part.end - part.start) as usize];
        let read = self
            .lower
            .read_at(&journal, &mut content, log_start + part.start);
        assert_eq!(read.unwrap(), content.len());
        let runs = content.chunk_by(|one, next| one == next);
        let runs = runs.filter(|run| run[0] != 0 && run.len() >= PAGE_BYTES);
        runs.count() as u64
    }
}

/// What the journal store of a mount writes for a stream.
fn written_by_store(stream: &Stream, config: &Config) -> Written {
    let lower = CrashLower::new();
    let options = JournalOptions {
        direct_bytes_max: Some(128 << 10),
        ..JournalOptions::default()
    };
    let (store, _) = JournalStore::open(Gate::new(lower.clone()), &options).unwrap();
    let store = Arc::new(store);
    let watch = RefCell::new(Watch {
        lower,
        store: Arc::clone(&store),
        before: PendingWork::default(),
        written: Written::new(),
    });
    let observer = Box::new(|now_ns| watch.borrow_mut().look(now_ns));
    let live = Live::new(stream, config, store, observer).run();
    assert!(live.commits.len() > 3, "{} commits", live.commits.len());
    drop(live);
    // What was there before the trace is no part of it.
    let mut written = watch.into_inner().written;
    written.remove(&0);
    written
}

/// What the simulator says that it writes, until the trace ends.
fn written_by_simulator(stream: &Stream, config: &Config) -> Written {
    let device = DeviceChoice {
        name: String::new(),
        config: instant(),
        capacity_bytes: 1 << 30,
    };
    let contender = Contender::engine(String::new(), config.rules.policy(b"any"));
    let (_, storage) = simulate(stream, &contender, &device).unwrap();
    let mut written = Written::new();
    for &CommitPages {
        at_ns,
        in_place,
        journal,
    } in &storage.cost().commits
    {
        if at_ns < stream.duration_ns {
            let total = written.entry(at_ns).or_default();
            *total = (total.0 + in_place, total.1 + journal);
        }
    }
    written
}

/// Builds the trace of one program.
struct Script {
    random: Random,
    builder: TraceBuilder,
    app: AppIndex,
    now_ns: u64,
}

impl Script {
    fn push(&mut self, kind: EventKind, result: u64) {
        // Odd nanoseconds: nothing falls on the very moment of a deadline.
        self.now_ns += self.random.below(20) * 1_000_000 + 1;
        self.builder.push(Event {
            time: TraceNs(self.now_ns),
            app: self.app,
            process: 1,
            thread: 1,
            kind,
            result: result as i64,
            duration_ns: 0,
        });
    }

    fn file(&mut self) -> PathIndex {
        let name = format!("app/{}", self.random.below(FILES));
        self.builder.path(name.as_bytes())
    }

    fn write(&mut self, path: PathIndex, first_page: u64, pages: u64) {
        let (offset, length) = (first_page * PAGE_BYTES_U64, pages * PAGE_BYTES_U64);
        self.push(
            EventKind::Write {
                path,
                offset,
                length,
            },
            length,
        );
    }

    /// Many small new files at once, more than a megabyte together.
    fn unpack(&mut self, round: u64) {
        for number in 0..40 + self.random.below(60) {
            let name = format!("app/{round}-{number}");
            let path = self.builder.path(name.as_bytes());
            self.push(EventKind::Create { path, mode: 0o644 }, 0);
            let pages = 1 + self.random.below(12);
            self.write(path, 0, pages);
            self.now_ns -= self.now_ns % 1_000_000;
        }
    }

    fn change(&mut self) {
        let path = self.file();
        match self.random.below(16) {
            0 => self.push(EventKind::Unlink { path }, 0),
            1 => self.push(
                EventKind::Sync {
                    path,
                    data_only: false,
                },
                0,
            ),
            2 => {
                let length = self.random.below(64) * PAGE_BYTES_U64;
                self.push(EventKind::Truncate { path, length }, 0);
            }
            3 => {
                // Only of a file that is large, as far as the trace shows it.
                let (offset, length) = (self.random.below(64) * PAGE_BYTES_U64, PAGE_BYTES_U64);
                self.push(
                    EventKind::Read {
                        path,
                        offset,
                        length,
                    },
                    length,
                );
            }
            4 => {
                let to = self.file();
                self.push(
                    EventKind::Rename {
                        from: path,
                        to,
                        exchange: false,
                    },
                    0,
                );
            }
            5..9 => {
                let (first, pages) = (self.random.below(96), 1 + self.random.below(4));
                self.write(path, first, pages);
            }
            _ => {
                let (first, pages) = (self.random.below(64), 1 + self.random.below(80));
                self.write(path, first, pages);
            }
        }
    }
}

fn stream(seed: u64) -> Stream {
    let mut builder = TraceBuilder::new(Header::default());
    let app = builder.app(b"app");
    let mut script = Script {
        random: Random::new(seed),
        builder,
        app,
        now_ns: 1_000,
    };
    for round in 0..40 {
        // Now and then nothing for so long that the journal is applied.
        script.now_ns += script.random.below(50_000) * 1_000_000 + 1;
        if script.random.below(6) == 0 {
            script.unpack(round);
        }
        for _ in 0..script.random.below(20) {
            script.change();
        }
    }
    Stream::new(&script.builder.finish())
}

fn compare(policy: &str, seed: u64) {
    let stream = stream(seed);
    let config = Config::parse(&format!("[defaults]\n{policy}"), Path::new("test")).unwrap();
    let mut store = written_by_store(&stream, &config);
    store.retain(|&at_ns, _| at_ns < stream.duration_ns);
    let simulated = written_by_simulator(&stream, &config);
    for (at_ns, pages) in &store {
        let expected = simulated.get(at_ns);
        assert_eq!(expected, Some(pages), "{policy}, seed {seed}, {at_ns} ns");
    }
    assert_eq!(store.len(), simulated.len(), "{policy}, seed {seed}");
    let totals = store
        .values()
        .fold((0, 0), |sum, pages| (sum.0 + pages.0, sum.1 + pages.1));
    assert!(
        totals.0 > 500 && totals.1 > 100,
        "{policy}, seed {seed}: {totals:?}"
    );
}

#[test]
fn of_each_commit_the_same_pages_go_to_the_journal_and_to_their_place() {
    for seed in 0..8 {
        compare("policy = \"interval\"\ninterval_ms = 1500", seed);
        compare("policy = \"tpl\"", seed);
        compare("policy = \"fsync\"", seed);
    }
}
