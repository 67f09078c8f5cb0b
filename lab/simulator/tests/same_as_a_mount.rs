//! A trace through the volume of a mount, whose clock moves by hand, and through the
//! simulator: the same transactions at the same moments.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mobifs_base::{DeviceNumber, FileKind, MonotonicNs, ObjectId, Timestamp};
use mobifs_device_model::Preset;
use mobifs_engine::{AppRules as _, Caller, Moment, NodeSpec, RenameMode, WriteAt};
use mobifs_numerics::Random;
use mobifs_simulator::sim::{
    Action, Contender, DeviceChoice, ObjectNumber, Step, Stream, simulate,
};
use mobifs_store::{MemoryStore, Store as _};
use mobifs_trace::{
    DeviceState, Event, EventKind, Header, PathIndex, TraceBuilder, TraceNs, UserOperation,
};
use mobifs_volume::{BatterySource, Clock, Config, SetIdBits, Volume, VolumeOptions};

#[derive(Default)]
struct HandClock(AtomicU64);

impl Clock for HandClock {
    fn moment(&self) -> Moment {
        Moment {
            wall: Timestamp::default(),
            now: MonotonicNs(self.0.load(Ordering::SeqCst)),
        }
    }
}

/// A stream through a volume, as programs and the checkpointer would bring it there.
struct Live<'s> {
    stream: &'s Stream,
    clock: Arc<HandClock>,
    store: Arc<MemoryStore>,
    volume: Arc<Volume>,
    directories: Vec<ObjectId>,
    objects: Vec<Option<ObjectId>>,
    look_at: Option<MonotonicNs>,
    /// Moments of commits.
    commits: Vec<u64>,
}

impl<'s> Live<'s> {
    fn new(stream: &'s Stream, config: &Config) -> Self {
        let (clock, store) = (Arc::new(HandClock::default()), Arc::new(MemoryStore::new()));
        let options = VolumeOptions {
            background: false,
            clock: Arc::clone(&clock) as Arc<_>,
            ..VolumeOptions::new(config)
        };
        let volume = Volume::start(Arc::clone(&store) as Arc<_>, options).unwrap();
        let mut live = Self {
            stream,
            clock,
            store,
            volume,
            directories: Vec::new(),
            objects: vec![None; stream.objects.len()],
            look_at: None,
            commits: Vec::new(),
        };
        for app in 0..stream.apps.len() {
            let name = format!("app{app}");
            let made = live.make(ObjectId::ROOT, &name, FileKind::Directory);
            live.directories.push(made);
        }
        for &(object, name) in &stream.initial {
            live.create(object, name.0);
        }
        live.volume.sync_all().unwrap();
        live
    }

    fn make(&self, parent: ObjectId, name: &str, kind: FileKind) -> ObjectId {
        let spec = NodeSpec {
            kind,
            mode: 0o755,
            rdev: DeviceNumber(0),
            symlink_target: None,
        };
        let made = self
            .volume
            .create(&Caller::default(), parent, name.as_bytes(), &spec);
        made.unwrap().id
    }

    fn place(&self, name: u32) -> (ObjectId, String) {
        let app = self.stream.names[name as usize];
        (self.directories[app.index()], format!("{name:x}"))
    }

    fn create(&mut self, object: ObjectNumber, name: u32) {
        let (parent, name) = self.place(name);
        self.objects[object.index()] = Some(self.make(parent, &name, FileKind::Regular));
    }

    /// Lets the checkpointer look whenever it wants to, until this moment.
    fn pass_time(&mut self, time_ns: u64) {
        while let Some(at) = self.look_at.filter(|at| at.0 <= time_ns) {
            let now = self.clock.moment().now.0.max(at.0);
            self.clock.0.store(now, Ordering::SeqCst);
            self.step();
            // The checkpointer itself sleeps a little at least.
            self.look_at = self.look_at.map(|next| next.max(MonotonicNs(now + 1)));
        }
        self.clock.0.store(time_ns, Ordering::SeqCst);
    }

    fn step(&mut self) {
        let before = self.store.pending().commits;
        self.look_at = self.volume.checkpoint_step();
        self.note_commits(before);
    }

    fn perform(&mut self, step: &Step) {
        let id = |object: ObjectNumber| self.objects[object.index()].unwrap();
        match step.action {
            Action::Create { object, name } => self.create(object, name.0),
            Action::Write {
                object,
                offset,
                length,
            } => {
                let data = vec![1; length as usize];
                let at = WriteAt::Offset(offset);
                self.volume
                    .write(id(object), at, &data, SetIdBits::Stay, false)
                    .unwrap();
            }
            Action::Remove { name, .. } => {
                let (parent, name) = self.place(name.0);
                self.volume.unlink(parent, name.as_bytes()).unwrap();
            }
            Action::Rename { from, to, .. } => {
                let ((from, old), (to, new)) = (self.place(from.0), self.place(to.0));
                let (old, new) = (old.as_bytes(), new.as_bytes());
                let mode = RenameMode::NoReplace;
                self.volume.rename(from, old, to, new, mode).unwrap();
            }
            Action::Sync { object } => {
                let before = self.store.pending().commits;
                self.volume.fsync(id(object)).unwrap();
                self.note_commits(before);
            }
            Action::User => self.volume.user_event(),
            Action::Device(state) => self.device_state(state),
            other => panic!("the streams of this test have no {other:?}"),
        }
    }

    /// Tells the volume what the sources of events would.
    fn device_state(&mut self, state: DeviceState) {
        let before = self.store.pending().commits;
        match state {
            DeviceState::ScreenOn => self.volume.set_screen(true).unwrap(),
            DeviceState::ScreenOff => self.volume.set_screen(false).unwrap(),
            DeviceState::Suspend | DeviceState::Shutdown => self.volume.power_goes().unwrap(),
            DeviceState::BatteryLow => self.volume.set_battery_low(BatterySource::Kernel, true),
            DeviceState::BatteryOk => self.volume.set_battery_low(BatterySource::Kernel, false),
            DeviceState::Resume => {}
        }
        self.note_commits(before);
    }

    fn note_commits(&mut self, before: u64) {
        let now_ns = self.clock.moment().now.0;
        for _ in before..self.store.pending().commits {
            self.commits.push(now_ns);
        }
    }

    fn run(mut self) -> Self {
        for step in &self.stream.steps {
            self.pass_time(step.time_ns);
            self.perform(step);
            self.step();
        }
        self.pass_time(self.stream.duration_ns);
        self
    }
}

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

/// A device that takes no time, as the store of the mount here takes none: what a commit is
/// expected to take decides what fits into a pause.
fn instant() -> mobifs_device_model::Config {
    let mut config = Preset::Ufs31.config().unwrap();
    let (interface, timing) = (&mut config.interface, &mut config.timing);
    for time in [
        &mut interface.read_overhead_us,
        &mut interface.write_overhead_us,
        &mut interface.durable_overhead_us,
        &mut interface.flush_overhead_us,
        &mut timing.read_us,
        &mut timing.program_us,
        &mut timing.erase_us,
    ] {
        time.value = 0.0;
    }
    // As fast as the model allows.
    interface.bus_mb_per_s.value = 100_000.0;
    timing.channel_mb_per_s.value = 100_000.0;
    config
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
    let live = Live::new(&stream, &config).run();

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
