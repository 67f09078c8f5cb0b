//! A day in the life of several programs, in virtual time: volume, engine, policies and journal
//! store are the real ones, the disk is simulated, and a clock that only the test advances decides
//! when the checkpointer runs.
//!
//! While it lasts no app may wait longer than its limits allow; when everything is deleted and some
//! time has passed, nothing may be held or reserved, and the journal is empty, without any request
//! for it.
#![expect(
    clippy::unwrap_used,
    reason = "a helper of a test fails the test by panicking, as the test itself does"
)]

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mobifs_base::{MonotonicNs, Timestamp};
use mobifs_engine::Moment;
use mobifs_store::lower::Lower as _;
use mobifs_store::{Gate, JournalOptions, JournalStore, Store as _};
use mobifs_testkit::crash::CrashLower;
use mobifs_testkit::harness::{compare_trees, demand_nothing_held, execute_on_both};
use mobifs_testkit::model::Model;
use mobifs_testkit::operations::{FileRef, Operation as Op, Payload, RenameMode};
use mobifs_testkit::random::Random;
use mobifs_testkit::target::VolumeTarget;
use mobifs_testkit::tree::Compare;
use mobifs_volume::{BatterySource, Checkpointer, Clock, Config, Volume, VolumeOptions};

const SECOND_MS: u64 = 1000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;
/// Limits of the configuration below.
const AGE_MAX_SECONDS: f64 = 30.0;
const STANDBY_AGE_MAX_SECONDS: f64 = 600.0;
/// The checkpointer handles transactions that opened since its last round this often.
const ROUND_MAX_SECONDS: f64 = 1.0;

const CONFIG: &str = r#"
memory_budget_bytes = "16MiB"
standby_age_max_ms = 600000
user_events = "none"

[defaults]
age_max_ms = 30000

[[app]]
match = "database"
class = "durable"

[[app]]
match = "documents"
policy = "tpl"

[[app]]
match = "cache"
policy = "staleness"
staleness_bytes = "256KiB"

[[app]]
match = "camera"
policy = "quiet"

[[app]]
match = "mail"
policy = "fsync"
"#;

/// A clock that advances when the test says so.
#[derive(Debug, Default)]
struct VirtualClock(AtomicU64);

impl Clock for VirtualClock {
    fn moment(&self) -> Moment {
        let ms = self.0.load(Ordering::Relaxed);
        let seconds = 1_700_000_000 + (ms / 1000).cast_signed();
        Moment {
            wall: Timestamp::new(seconds, (ms % 1000) as u32 * 1_000_000),
            now: MonotonicNs(ms * 1_000_000),
        }
    }
}

/// What a program does with its files.
#[derive(Clone, Copy, Debug)]
enum Habit {
    /// Documents that are saved by a rename, with `fsync`.
    Documents,
    /// Many small files, of which the oldest go.
    Cache,
    /// A line at the end of one file.
    Log,
    /// Pages overwritten in place, with `fsync`.
    Database,
    /// A large file; now and then all of them are deleted.
    Camera,
    /// A few files at once, each with `fsync`; some are read and deleted.
    Mail,
}

struct Program {
    name: &'static str,
    habit: Habit,
    files: VecDeque<String>,
    made: u64,
}

impl Program {
    fn all() -> Vec<Self> {
        let habits = [
            ("documents", Habit::Documents),
            ("cache", Habit::Cache),
            ("log", Habit::Log),
            ("database", Habit::Database),
            ("camera", Habit::Camera),
            ("mail", Habit::Mail),
        ];
        let program = |(name, habit)| Self {
            name,
            habit,
            files: VecDeque::new(),
            made: 0,
        };
        habits.into_iter().map(program).collect()
    }

    fn new_path(&mut self) -> String {
        self.made += 1;
        format!("{}/{}", self.name, self.made)
    }

    /// A new file with content.
    fn make(&mut self, bytes: u64, operations: &mut Vec<Op>) -> String {
        let path = self.new_path();
        operations.push(Op::CreateFile {
            path: path.clone(),
            mode: 0o644,
        });
        operations.push(write(&path, 0, self.made, bytes));
        path
    }

    fn delete_oldest(&mut self, kept: usize, operations: &mut Vec<Op>) {
        while self.files.len() > kept {
            let path = self.files.pop_front();
            operations.extend(path.map(|path| Op::Unlink { path }));
        }
    }

    /// The operations of its next step.
    fn act(&mut self, random: &mut Random) -> Vec<Op> {
        let mut operations = Vec::new();
        match self.habit {
            Habit::Documents => {
                let saved = self.make(2000 + random.below(60_000), &mut operations);
                operations.push(fsync(&saved));
                let document = format!("{}/document-{}", self.name, random.below(5));
                operations.push(Op::Rename {
                    from: saved,
                    to: document,
                    mode: RenameMode::Replace,
                });
            }
            Habit::Cache => {
                for _ in 0..1 + random.below(12) {
                    let path = self.make(1 + random.below(30_000), &mut operations);
                    self.files.push_back(path);
                }
                self.delete_oldest(30, &mut operations);
            }
            Habit::Log => {
                // Begun anew now and then, as logs are.
                if self.made.is_multiple_of(500) {
                    let path = self.make(100, &mut operations);
                    self.files.push_back(path);
                    self.delete_oldest(2, &mut operations);
                }
                self.made += 1;
                operations.extend(self.files.back().map(|path| Op::Append {
                    file: FileRef::Path(path.clone()),
                    data: payload(self.made, 120),
                }));
            }
            Habit::Database => {
                if self.files.is_empty() {
                    let path = self.make(200_000, &mut operations);
                    self.files.push_back(path);
                }
                let path = self.files[0].clone();
                for _ in 0..1 + random.below(4) {
                    self.made += 1;
                    operations.push(write(&path, random.below(50) * 4096, self.made, 4096));
                }
                operations.push(fsync(&path));
            }
            Habit::Camera => {
                let path = self.make(100_000 + random.below(900_000), &mut operations);
                self.files.push_back(path);
                if random.chance(15) {
                    self.delete_oldest(0, &mut operations);
                }
            }
            Habit::Mail => {
                for _ in 0..1 + random.below(5) {
                    let path = self.make(500 + random.below(9000), &mut operations);
                    operations.push(fsync(&path));
                    self.files.push_back(path);
                }
                self.delete_oldest(40, &mut operations);
            }
        }
        operations
    }
}

fn payload(tag: u64, length: u64) -> Payload {
    Payload {
        tag: tag as u32,
        length: length as u32,
    }
}

fn write(path: &str, offset: u64, tag: u64, bytes: u64) -> Op {
    Op::Write {
        file: FileRef::Path(path.into()),
        offset,
        data: payload(tag, bytes),
    }
}

fn fsync(path: &str) -> Op {
    Op::Fsync {
        file: FileRef::Path(path.into()),
    }
}

/// What happens at a moment.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// A program's turn, by its number.
    Act(usize),
    Touch,
    UserLeaves,
    Screen {
        on: bool,
    },
    Battery {
        low: bool,
    },
}

/// A day, which begins at midnight: a night with the screen off, hours of use, hours in which
/// only the log is written, hours of nothing at all, a battery that becomes empty.
fn plan(random: &mut Random) -> Vec<(u64, Event)> {
    let mut events = vec![
        (0, Event::Screen { on: false }),
        (7 * HOUR_MS, Event::Screen { on: true }),
        (9 * HOUR_MS, Event::UserLeaves),
        (18 * HOUR_MS, Event::Battery { low: true }),
        (19 * HOUR_MS, Event::Battery { low: false }),
        (22 * HOUR_MS, Event::Screen { on: false }),
        // The battery is nearly empty in standby as well.
        (23 * HOUR_MS, Event::Battery { low: true }),
        (23 * HOUR_MS + 30 * MINUTE_MS, Event::Battery { low: false }),
    ];
    for minute in 0..24 * 60 {
        let hour = minute / 60;
        let acts = match hour {
            // A user works, with pauses.
            7 | 8 | 12 | 15..=18 => {
                let acts = if random.chance(70) {
                    4 + random.below(16)
                } else {
                    0
                };
                for _ in 0..acts / 4 {
                    let at = minute * MINUTE_MS + random.below(MINUTE_MS);
                    events.push((at, Event::Touch));
                }
                acts
            }
            // Bursts of requests without a user.
            9..=11 => 80 * u64::from(random.chance(5)),
            19..=21 => random.below(3),
            13 | 14 => continue,
            _ => 0,
        };
        for _ in 0..acts {
            let at = minute * MINUTE_MS + random.below(MINUTE_MS);
            events.push((at, Event::Act(random.below(6) as usize)));
        }
        // The log goes on, also in standby, and mail comes.
        let log = minute * MINUTE_MS + random.below(MINUTE_MS);
        events.push((log, Event::Act(2)));
        if minute % 15 == 0 {
            events.push((log, Event::Act(5)));
        }
    }
    events.sort_by_key(|(at, _)| *at);
    events
}

struct Day<'v> {
    clock: Arc<VirtualClock>,
    volume: &'v Volume,
    target: VolumeTarget,
    model: Model,
    programs: Vec<Program>,
    random: Random,
    checkpointer: Checkpointer<'v>,
    look_at: Option<MonotonicNs>,
    is_screen_on: bool,
    is_battery_low: bool,
    looks: u64,
    operations: u64,
}

impl Day<'_> {
    /// Advances the clock to this moment.
    fn go_to(&mut self, ms: u64) {
        while let Some(at) = self.look_at.map(|at| at.0.div_ceil(1_000_000))
            && at <= ms
        {
            self.clock.0.fetch_max(at, Ordering::Relaxed);
            self.check_limits();
            self.look();
        }
        self.clock.0.fetch_max(ms, Ordering::Relaxed);
    }

    fn look(&mut self) {
        self.look_at = self.checkpointer.run_round();
        self.looks += 1;
        while self.checkpointer.is_called() {
            self.look_at = self.checkpointer.run_round();
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Act(number) => {
                let operations = self.programs[number].act(&mut self.random);
                self.execute(&operations);
            }
            Event::Touch => self.volume.user_event(),
            Event::UserLeaves => self.volume.user_left(),
            Event::Screen { on } => {
                self.is_screen_on = on;
                self.volume.set_screen(on).unwrap();
            }
            Event::Battery { low } => {
                self.is_battery_low = low;
                self.volume.set_battery_low(BatterySource::Kernel, low);
            }
        }
        if self.checkpointer.is_called() {
            self.look();
        }
    }

    fn execute(&mut self, operations: &[Op]) {
        self.operations += operations.len() as u64;
        for operation in operations {
            execute_on_both(&mut self.model, &mut self.target, operation).unwrap();
            // The checkpointer's thread might run between two calls of a program as well.
            if self.random.chance(10) && self.checkpointer.is_called() {
                self.look();
            }
        }
    }

    /// No change waits longer than was promised.
    fn check_limits(&self) {
        let limit = if self.is_screen_on || self.is_battery_low {
            AGE_MAX_SECONDS
        } else {
            STANDBY_AGE_MAX_SECONDS
        };
        for app in self.volume.status().apps {
            assert!(
                app.seconds_at_risk <= limit + ROUND_MAX_SECONDS && app.read_only.is_none(),
                "at {} s: {app:?}",
                self.clock.0.load(Ordering::Relaxed) / 1000
            );
        }
    }

    fn compare(&mut self) {
        let view = Compare {
            root: false,
            mtime: false,
            ..Compare::ALL
        };
        compare_trees(&self.model, &mut self.target, view).unwrap();
    }

    /// Everything that the programs have left, the deepest first.
    fn delete_everything(&mut self) {
        let paths = self.model.state().paths();
        let mut operations = Vec::new();
        for (path, (_, inode)) in paths.iter().rev().filter(|(path, _)| !path.is_empty()) {
            let path = path.clone();
            operations.push(match inode.kind() {
                mobifs_base::FileKind::Directory => Op::RemoveDirectory { path },
                _ => Op::Unlink { path },
            });
        }
        self.execute(&operations);
    }
}

/// What a volume at rest holds, with everything deleted: nothing.
fn demand_all_given_back(
    volume: &Volume,
    store: &JournalStore<Gate<CrashLower>>,
    lower: &CrashLower,
) {
    demand_nothing_held(volume, store).unwrap();
    let memory = volume.status().memory;
    assert!(memory.objects <= 1, "{memory:?}");
    let mut below = store.space().unwrap();
    below.free_inodes -= below.own_inodes();
    assert_eq!(volume.statfs().unwrap(), below);
    let root = lower.root().unwrap();
    assert_eq!(lower.list(&root).unwrap().len(), 1);
    let own = lower.open(&root, b".mobifs", false).unwrap();
    for name in ["stage", "limbo", "lost"] {
        let directory = lower.open(&own, name.as_bytes(), false).unwrap();
        assert_eq!(lower.list(&directory).unwrap(), [], "{name}");
    }
}

/// The first hours of a day, and its end.
fn live(seed: u64, until_ms: u64) {
    let lower = CrashLower::new();
    let options = JournalOptions {
        journal_bytes: 8 << 20,
        direct_bytes_max: Some(128 << 10),
        ..JournalOptions::default()
    };
    let (store, _) = JournalStore::open(Gate::new(lower.clone()), &options).unwrap();
    let store = Arc::new(store);
    let clock = Arc::new(VirtualClock::default());
    let config = Config::parse(CONFIG, Path::new("day.toml")).unwrap();
    let options = VolumeOptions {
        background: false,
        objects_max: 100,
        clock: Arc::<VirtualClock>::clone(&clock),
        hash_seed: Some(seed),
        ..VolumeOptions::new(&config)
    };
    let volume = Volume::start(
        Arc::<JournalStore<Gate<CrashLower>>>::clone(&store),
        options,
    )
    .unwrap();
    let mut random = Random::new(seed);
    let events = plan(&mut random);
    let mut day = Day {
        clock,
        volume: &volume,
        target: VolumeTarget::new(Arc::clone(&volume)),
        model: Model::default(),
        programs: Program::all(),
        random,
        checkpointer: volume.checkpointer(),
        look_at: None,
        is_screen_on: true,
        is_battery_low: false,
        looks: 0,
        operations: 0,
    };
    let directories: Vec<Op> = (day.programs.iter().map(|program| program.name))
        .map(|name| Op::MakeDirectory {
            path: name.into(),
            mode: 0o755,
        })
        .collect();
    day.execute(&directories);
    day.look();
    for (at, event) in events.into_iter().take_while(|(at, _)| *at < until_ms) {
        day.go_to(at);
        day.check_limits();
        day.happen(event);
    }
    day.go_to(until_ms);
    day.compare();
    day.delete_everything();
    if !day.is_screen_on {
        day.happen(Event::Screen { on: true });
    }
    day.go_to(until_ms + HOUR_MS);
    assert_eq!(day.look_at, None, "there is nothing to wait for");
    demand_all_given_back(&volume, &store, &lower);
    println!(
        "seed {seed}: {} operations, {} looks, {} commits",
        day.operations,
        day.looks,
        store.pending().commits
    );
    let Day { model, target, .. } = day;
    assert_eq!(model.state().paths().len(), 1);
    drop(target);
    volume.shutdown().unwrap();
}

/// Seeds of the test; `MOBIFS_CASES` gives it more.
#[test]
fn a_day_ends_with_nothing_held_and_no_wait_is_too_long() {
    let cases = std::env::var("MOBIFS_CASES").map_or(1, |cases| cases.parse().unwrap());
    for seed in 1..=cases {
        live(seed, DAY_MS);
    }
}
