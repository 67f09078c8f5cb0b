//! What the tests that compare the simulator with a mount share: a volume whose clock moves by
//! hand, and a device that takes no time.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mobifs_base::{DeviceNumber, FileKind, MonotonicNs, ObjectId, Timestamp};
use mobifs_device_model::Preset;
use mobifs_engine::{AttributeChange, Caller, Moment, NodeSpec, RenameMode, WriteAt};
use mobifs_simulator::sim::{Action, ObjectNumber, Step, Stream};
use mobifs_store::Store;
use mobifs_trace::DeviceState;
use mobifs_volume::{BatterySource, Clock, Config, SetIdBits, Volume, VolumeOptions};

/// As the configuration's `apply_idle_ms` has it by default.
const APPLY_IDLE_NS: u64 = 30_000_000_000;
/// The largest request to write that the kernel sends.
const WRITE_BYTES_MAX: u64 = 128 * 1024;

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
pub(crate) struct Live<'s> {
    stream: &'s Stream,
    clock: Arc<HandClock>,
    store: Arc<dyn Store>,
    pub(crate) volume: Arc<Volume>,
    directories: Vec<ObjectId>,
    objects: Vec<Option<ObjectId>>,
    /// How often each object was written.
    writes: Vec<u8>,
    look_at: Option<MonotonicNs>,
    /// Moments of commits.
    pub(crate) commits: Vec<u64>,
    /// Commits seen so far.
    commits_seen: u64,
    /// Asked after commits, and before an apply.
    observer: Observer<'s>,
}

/// What looks at the store after commits; it is given the moment in nanoseconds.
pub(crate) type Observer<'s> = Box<dyn FnMut(u64) + 's>;

impl<'s> Live<'s> {
    /// A volume over a store that is empty.
    pub(crate) fn new(
        stream: &'s Stream,
        config: &Config,
        store: Arc<dyn Store>,
        observer: Observer<'s>,
    ) -> Self {
        let clock = Arc::new(HandClock::default());
        let options = VolumeOptions {
            background: false,
            clock: Arc::clone(&clock) as Arc<_>,
            ..VolumeOptions::new(config)
        };
        let volume = Volume::start(Arc::clone(&store), options).unwrap();
        let mut live = Self {
            stream,
            clock,
            store,
            volume,
            directories: Vec::new(),
            objects: vec![None; stream.objects.len()],
            writes: vec![0; stream.objects.len()],
            look_at: None,
            commits: Vec::new(),
            commits_seen: 0,
            observer: Box::new(|_| {}),
        };
        for app in 0..stream.apps.len() {
            let name = format!("app{app}");
            let made = live.make(ObjectId::ROOT, &name, FileKind::Directory);
            live.directories.push(made);
        }
        for initial in &stream.initial {
            live.create(initial.object, initial.name.0);
            if initial.bytes > 0 {
                live.resize(initial.object, initial.bytes);
            }
        }
        live.volume.sync_all().unwrap();
        live.store.apply().unwrap();
        live.commits_seen = live.store.pending().commits;
        live.observer = observer;
        (live.observer)(0);
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

    fn resize(&self, object: ObjectNumber, bytes: u64) {
        let change = AttributeChange {
            size: Some(bytes),
            ..AttributeChange::default()
        };
        let id = self.objects[object.index()].unwrap();
        let caller = Caller::default();
        self.volume.set_attributes(&caller, id, &change).unwrap();
    }

    /// Runs the checkpointer's rounds when they are due, until this moment.
    fn pass_time(&mut self, time_ns: u64) {
        while let Some(at) = self.look_at.filter(|at| at.0 <= time_ns) {
            let now = self.clock.moment().now.0.max(at.0);
            self.apply_if_idle(now);
            self.clock.0.store(now, Ordering::SeqCst);
            self.step();
            // The checkpointer itself sleeps a little at least.
            self.look_at = self.look_at.map(|next| next.max(MonotonicNs(now + 1)));
        }
        self.apply_if_idle(time_ns);
        self.clock.0.store(time_ns, Ordering::SeqCst);
    }

    /// The checkpointer's thread, which is none here, applies when nothing was committed for long.
    fn apply_if_idle(&mut self, now_ns: u64) {
        let last_ns = self.commits.last().copied().unwrap_or(0);
        if last_ns + APPLY_IDLE_NS <= now_ns && self.store.pending().journal_used_bytes > 0 {
            self.store.apply().unwrap();
            (self.observer)(now_ns);
        }
    }

    fn step(&mut self) {
        self.look_at = self.volume.checkpoint_step();
        self.note_commits();
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
                // No byte of a page is as it was before.
                let id = id(object);
                let times = &mut self.writes[object.index()];
                *times = *times % 251 + 1;
                let data = vec![*times; length as usize];
                let mut done = 0;
                while done < length {
                    // As the kernel's requests.
                    let at = offset + done;
                    let piece = (length - done).min(WRITE_BYTES_MAX - at % WRITE_BYTES_MAX);
                    let content = &data[done as usize..(done + piece) as usize];
                    self.volume
                        .write(id, WriteAt::Offset(at), content, SetIdBits::Stay, false)
                        .unwrap();
                    done += piece;
                }
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
                self.volume.fsync(id(object)).unwrap();
                self.note_commits();
            }
            Action::Resize { object, bytes } => self.resize(object, bytes),
            Action::User => self.volume.user_event(),
            Action::Device(state) => self.device_state(state),
            other => panic!("the streams of this test have no {other:?}"),
        }
    }

    /// Passes an event to the volume, as its sources would.
    fn device_state(&mut self, state: DeviceState) {
        match state {
            DeviceState::ScreenOn => self.volume.set_screen(true).unwrap(),
            DeviceState::ScreenOff => self.volume.set_screen(false).unwrap(),
            DeviceState::Suspend | DeviceState::Shutdown => self.volume.power_goes().unwrap(),
            DeviceState::BatteryLow => self.volume.set_battery_low(BatterySource::Kernel, true),
            DeviceState::BatteryOk => self.volume.set_battery_low(BatterySource::Kernel, false),
            DeviceState::Resume => {}
        }
        self.note_commits();
    }

    fn note_commits(&mut self) {
        let now_ns = self.clock.moment().now.0;
        let commits = self.store.pending().commits;
        if commits == self.commits_seen {
            return;
        }
        for _ in self.commits_seen..commits {
            self.commits.push(now_ns);
        }
        self.commits_seen = commits;
        (self.observer)(now_ns);
    }

    pub(crate) fn run(mut self) -> Self {
        for step in &self.stream.steps {
            self.pass_time(step.time_ns);
            self.perform(step);
            self.step();
        }
        self.pass_time(self.stream.duration_ns);
        self
    }
}

/// A device that takes no time, as the store of the mount here takes none: what a commit is
/// expected to take decides what fits into a pause.
pub(crate) fn instant() -> mobifs_device_model::Config {
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
