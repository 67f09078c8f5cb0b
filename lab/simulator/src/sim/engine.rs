//! MobiFS in virtual time: the engine of the mount itself over a store in memory.

use std::collections::BTreeMap;

use mobifs_base::{DeviceNumber, FileKind, MonotonicNs, ObjectId, PAGE_BYTES, Page, Timestamp};
use mobifs_engine::{
    AllocateMode, AppPolicy, AttributeChange, Caller, Class, Commit, Engine, EngineConfig, FsError,
    Limits, MachineEvent, Moment, Need, Next, NodeSpec, Pacing, PacingRules, RemovalMemory,
    RenameMode, SetIdBits, Stop, SyncPoint, TimeChange, TopLevelApps, WriteAt,
};
use mobifs_store::{MemoryStore, Store as _};
use mobifs_trace::DeviceState;

use super::device::Storage;
use super::error::SimulationError;
use super::journal::Transaction;
use super::machine::machine_event;
use super::outcome::{AtRisk, FlushReason, Outcome};
use super::stream::{Action, AppNumber, NameNumber, ObjectNumber, Step, Stream};
use super::written::WrittenPages;

/// Writes arrive in pieces of at most this, as from the kernel.
const WRITE_BYTES_MAX: u64 = 128 * 1024;
/// What is written. The engine looks at no content.
static CONTENT: [u8; WRITE_BYTES_MAX as usize] = [0x4d; WRITE_BYTES_MAX as usize];

/// The engine, driven by a stream.
pub struct EngineRun<'s> {
    stream: &'s Stream,
    /// The policy of all apps, as long as the battery is not low.
    policy: AppPolicy,
    engine: Engine,
    store: MemoryStore,
    storage: Storage,
    outcome: Outcome,
    /// The directory of each app.
    directories: Vec<ObjectId>,
    /// What the engine calls each object; none while it does not exist.
    objects: Vec<Option<ObjectId>>,
    numbers: BTreeMap<ObjectId, ObjectNumber>,
    /// Which closed transactions are committed when, as on a mount.
    pacing: Pacing,
    /// When the next transaction is due by its age.
    deadline: Option<MonotonicNs>,
    /// When a closed transaction that waits for the user is to be looked at.
    look_at: Option<MonotonicNs>,
    now_ns: u64,
    written: WrittenPages,
}

impl<'s> EngineRun<'s> {
    /// Runs a stream through the engine, all apps under the same policy; commits and
    /// applies everything at the end.
    ///
    /// # Errors
    /// The stream does what no filesystem can have done, or the device refuses what is
    /// written to it.
    pub fn run(
        stream: &'s Stream,
        policy: AppPolicy,
        pacing: PacingRules,
        storage: Storage,
    ) -> Result<(Outcome, Storage), SimulationError> {
        let mut run = Self::new(stream, policy, pacing, storage)?;
        run.make_initial()?;
        for step in &stream.steps {
            run.pass_time(step.time_ns)?;
            run.perform(step)?;
            run.look(step.app);
            run.commit_closed()?;
        }
        run.pass_time(stream.duration_ns)?;
        run.commit_all(FlushReason::EndOfTrace)?;
        run.storage.finish(stream.duration_ns)?;
        run.outcome.end(stream.duration_ns);
        Ok((run.outcome, run.storage))
    }

    fn new(
        stream: &'s Stream,
        policy: AppPolicy,
        pacing: PacingRules,
        storage: Storage,
    ) -> Result<Self, SimulationError> {
        let store = MemoryStore::new();
        let capabilities = store.capabilities();
        let root = store.object(ObjectId::ROOT)?;
        let config = EngineConfig {
            rules: Box::new(TopLevelApps(policy)),
            limits: Limits {
                memory_budget_bytes: u64::MAX,
                xattr_bytes_max: capabilities.xattr_bytes_max,
                file_bytes_max: capabilities.file_bytes_max,
                name_bytes_max: capabilities.name_bytes_max,
                symlink_bytes_max: capabilities.symlink_bytes_max,
                directory_bytes_max: u64::MAX,
                links_max: capabilities.links_max,
                device_max: capabilities.device_max,
                privileged: true,
                owner_uid: capabilities.owner_uid,
                read_only: false,
                objects_max: usize::MAX,
            },
            hash_seed: 0,
            is_saved: false,
        };
        Ok(Self {
            stream,
            policy,
            engine: Engine::new(config, &root),
            store,
            storage,
            outcome: Outcome::new(stream.apps.len()),
            directories: Vec::new(),
            objects: vec![None; stream.objects.len()],
            numbers: BTreeMap::new(),
            pacing: Pacing::new(pacing),
            deadline: None,
            look_at: None,
            now_ns: 0,
            written: WrittenPages::default(),
        })
    }

    /// Makes and commits what was there before the trace began.
    fn make_initial(&mut self) -> Result<(), SimulationError> {
        for app in 0..self.stream.apps.len() {
            let name = app_directory(AppNumber(app as u32));
            let directory = self.create(ObjectId::ROOT, name.as_bytes(), FileKind::Directory)?;
            self.directories.push(directory);
        }
        for initial in &self.stream.initial {
            self.make(initial.object, initial.name)?;
            if initial.bytes > 0 {
                self.resize(initial.object, initial.bytes)?;
            }
            self.storage.add_initial(initial.object, initial.bytes);
        }
        self.engine.close_all();
        while let Some(commit) = self.engine.next_commit(None) {
            self.hand_over(&commit)?;
            self.engine.committed(commit.transaction);
        }
        Ok(())
    }

    fn moment(&self) -> Moment {
        Moment {
            wall: Timestamp::default(),
            now: MonotonicNs(self.now_ns),
        }
    }

    /// Lets transactions close by their age until `time_ns`.
    fn pass_time(&mut self, time_ns: u64) -> Result<(), SimulationError> {
        loop {
            let next = [self.deadline, self.look_at].into_iter().flatten().min();
            let Some(next) = next.filter(|next| next.0 <= time_ns) else {
                break;
            };
            self.now_ns = self.now_ns.max(next.0);
            self.deadline = self.engine.tick(MonotonicNs(self.now_ns));
            self.commit_closed()?;
        }
        self.now_ns = time_ns;
        Ok(())
    }

    fn perform(&mut self, step: &Step) -> Result<(), SimulationError> {
        if let Some(object) = step.action.object()
            && self.objects[object.index()].is_some()
        {
            let app = self.stream.objects[object.index()].app;
            let counts = self.outcome.app_mut(app);
            self.written.perform(&step.action, counts);
        }
        match step.action {
            Action::Create { object, name } => self.make(object, name),
            Action::Link { object, name } => {
                let (parent, name) = self.place(name);
                self.on_object(object, |engine, moment, id| {
                    engine.link(moment, id, parent, &name).map(drop)
                })
            }
            Action::Remove {
                object,
                name,
                is_last,
                is_open,
            } => self.remove(object, name, is_last, is_open),
            Action::Rename { from, to, .. } => {
                let (from, to) = (self.place(from), self.place(to));
                self.change(|engine, moment| {
                    let (from, to) = ((from.0, &from.1[..]), (to.0, &to.1[..]));
                    engine.rename(moment, from, to, RenameMode::NoReplace)
                })
            }
            Action::Release { object } => {
                if let Some(id) = self.objects[object.index()] {
                    self.engine.release(id);
                    self.forget(object, id);
                }
                Ok(())
            }
            Action::Write {
                object,
                offset,
                length,
            } => self.write(object, offset, length),
            Action::Resize { object, bytes } => self.resize(object, bytes),
            Action::Punch {
                object,
                offset,
                length,
            } => self.on_object(object, |engine, moment, id| {
                engine.allocate(moment, id, AllocateMode::PunchHole, offset, length)
            }),
            Action::SetAttributes { object } => {
                let change = AttributeChange {
                    mtime: Some(TimeChange::Now),
                    ..AttributeChange::default()
                };
                self.set_attributes(object, &change)
            }
            Action::Sync { object } => self.sync(object),
            Action::User => {
                self.pacing.user_event(MonotonicNs(self.now_ns));
                Ok(())
            }
            Action::SyncAll => self.commit_all(FlushReason::Wanted),
            Action::Device(state) => self.device_state(state),
        }
    }

    /// What a mount does on this event.
    fn device_state(&mut self, state: DeviceState) -> Result<(), SimulationError> {
        let Some(event) = machine_event(state) else {
            return Ok(());
        };
        let must_commit = self.pacing.machine_event(event);
        if matches!(event, MachineEvent::BatteryLow | MachineEvent::BatteryOk) {
            let class = if self.pacing.machine().is_battery_low() {
                Class::Durable
            } else {
                self.policy.class
            };
            let policy = AppPolicy {
                class,
                ..self.policy
            };
            self.engine.set_rules(Box::new(TopLevelApps(policy)));
        }
        if must_commit {
            self.commit_all(FlushReason::Wanted)?;
        }
        Ok(())
    }

    fn make(&mut self, object: ObjectNumber, name: NameNumber) -> Result<(), SimulationError> {
        let is_directory = self.stream.objects[object.index()].is_directory;
        let kind = if is_directory {
            FileKind::Directory
        } else {
            FileKind::Regular
        };
        let (parent, name) = self.place(name);
        let id = self.create(parent, &name, kind)?;
        self.objects[object.index()] = Some(id);
        self.numbers.insert(id, object);
        Ok(())
    }

    fn create(
        &mut self,
        parent: ObjectId,
        name: &[u8],
        kind: FileKind,
    ) -> Result<ObjectId, SimulationError> {
        let spec = NodeSpec {
            kind,
            mode: 0o755,
            rdev: DeviceNumber::default(),
            symlink_target: None,
        };
        let caller = Caller::default();
        let mut made = ObjectId::ROOT;
        self.change(|engine, moment| {
            made = engine.create(&caller, moment, parent, name, &spec)?.id;
            Ok(())
        })?;
        Ok(made)
    }

    fn remove(
        &mut self,
        object: ObjectNumber,
        name: NameNumber,
        is_last: bool,
        is_open: bool,
    ) -> Result<(), SimulationError> {
        let Some(id) = self.objects[object.index()] else {
            return Ok(());
        };
        let (parent, name) = self.place(name);
        if is_open {
            self.change(|engine, _| engine.open(id))?;
        }
        if self.stream.objects[object.index()].is_directory {
            self.change(|engine, moment| {
                engine.remove_directory(moment, parent, &name, RemovalMemory::WithinBudget)
            })?;
        } else {
            self.change(|engine, moment| {
                engine.unlink(moment, parent, &name, RemovalMemory::WithinBudget)
            })?;
        }
        if is_last && !is_open {
            self.forget(object, id);
        }
        Ok(())
    }

    /// No program uses an object any more that has no name.
    fn forget(&mut self, object: ObjectNumber, id: ObjectId) {
        self.engine.forget(id, 1);
        self.objects[object.index()] = None;
    }

    fn write(
        &mut self,
        object: ObjectNumber,
        offset: u64,
        length: u64,
    ) -> Result<(), SimulationError> {
        let mut done = 0;
        while done < length {
            let at = offset + done;
            // Pieces end at multiples of their size, as the kernel's do.
            let piece = (length - done).min(WRITE_BYTES_MAX - at % WRITE_BYTES_MAX);
            let data = &CONTENT[..piece as usize];
            self.on_object(object, |engine, moment, id| {
                engine
                    .write(moment, id, WriteAt::Offset(at), data, SetIdBits::Stay)
                    .map(drop)
            })?;
            done += piece;
        }
        Ok(())
    }

    fn resize(&mut self, object: ObjectNumber, bytes: u64) -> Result<(), SimulationError> {
        let change = AttributeChange {
            size: Some(bytes),
            mtime: Some(TimeChange::Now),
            ..AttributeChange::default()
        };
        self.set_attributes(object, &change)
    }

    fn set_attributes(
        &mut self,
        object: ObjectNumber,
        change: &AttributeChange,
    ) -> Result<(), SimulationError> {
        self.on_object(object, |engine, moment, id| {
            engine.set_attributes(moment, id, change).map(drop)
        })
    }

    fn sync(&mut self, object: ObjectNumber) -> Result<(), SimulationError> {
        let Some(id) = self.objects[object.index()] else {
            return Ok(());
        };
        let SyncPoint::Committed(transactions) = self.engine.sync_point(id) else {
            return Ok(());
        };
        let mut ended_ns = self.now_ns;
        for transaction in transactions {
            while let Some(commit) = self.engine.next_commit(Some(transaction)) {
                ended_ns = self.commit(&commit, FlushReason::Wanted)?;
            }
        }
        self.storage.waited(ended_ns - self.now_ns);
        Ok(())
    }

    /// The directory and name that stand for a name.
    fn place(&self, name: NameNumber) -> (ObjectId, Vec<u8>) {
        let app = self.stream.names[name.0 as usize];
        let directory = self.directories[app.index()];
        (directory, format!("{:x}", name.0).into_bytes())
    }

    fn on_object(
        &mut self,
        object: ObjectNumber,
        operation: impl Fn(&mut Engine, Moment, ObjectId) -> Result<(), Stop>,
    ) -> Result<(), SimulationError> {
        match self.objects[object.index()] {
            Some(id) => self.change(|engine, moment| operation(engine, moment, id)),
            None => Ok(()),
        }
    }

    /// Runs an operation, bringing what the engine asks for.
    fn change(
        &mut self,
        mut operation: impl FnMut(&mut Engine, Moment) -> Result<(), Stop>,
    ) -> Result<(), SimulationError> {
        loop {
            let moment = self.moment();
            match operation(&mut self.engine, moment) {
                Ok(()) => break,
                Err(Stop::Need(need)) => self.fetch(need)?,
                Err(Stop::Fail(error)) => return Err(self.refused(error)),
            }
        }
        // A transaction that it opened may be due before the others.
        self.deadline = self.engine.tick(MonotonicNs(self.now_ns));
        Ok(())
    }

    fn refused(&self, error: FsError) -> SimulationError {
        SimulationError::Refused {
            time_ns: self.now_ns,
            error,
        }
    }

    fn fetch(&mut self, need: Need) -> Result<(), SimulationError> {
        match need {
            Need::Object { id, epoch } => {
                self.engine
                    .provide_object(id, epoch, self.store.object(id)?);
            }
            Need::Directory { id, epoch } => {
                let entries = self.store.list_directory(id)?;
                self.engine.provide_directory(id, epoch, entries);
            }
            Need::Xattrs { id, epoch } => {
                self.engine
                    .provide_xattrs(id, epoch, self.store.xattrs(id)?);
            }
            Need::SymlinkTarget { id, epoch } => {
                let target = self.store.read_link(id)?;
                self.engine.provide_symlink_target(id, epoch, target);
            }
            Need::Page {
                object,
                index,
                version,
            } => {
                let page = Page::new(&CONTENT[..PAGE_BYTES]);
                self.engine.provide_page(object, index, version, page);
            }
            // Memory and room have no limit here.
            Need::Memory | Need::Space | Need::Place { .. } => {
                return Err(self.refused(FsError::NoSpace));
            }
        }
        Ok(())
    }

    /// Commits what is closed and need not wait for the user.
    fn commit_closed(&mut self) -> Result<(), SimulationError> {
        loop {
            let now = MonotonicNs(self.now_ns);
            match self.pacing.next(&mut self.engine, now, false) {
                Next::Commit(commit) => {
                    self.commit(&commit, FlushReason::Wanted)?;
                }
                Next::Nothing { until } => {
                    // A moment that has passed would be handled again and again.
                    self.look_at = until.map(|until| until.max(MonotonicNs(now.0 + 1)));
                    return Ok(());
                }
            }
        }
    }

    /// Commits everything that is closed, whether or not the user uses the device.
    fn commit_all(&mut self, reason: FlushReason) -> Result<(), SimulationError> {
        self.engine.close_all();
        while let Some(commit) = self.engine.next_commit(None) {
            self.commit(&commit, reason)?;
        }
        Ok(())
    }

    /// Commits one transaction; says when the device is done with it.
    fn commit(&mut self, commit: &Commit, reason: FlushReason) -> Result<u64, SimulationError> {
        let transaction = self.hand_over(commit)?;
        let mut pages = 0;
        for (object, page) in transaction.pages() {
            pages += 1;
            let app = self.stream.objects[object.index()].app;
            let counts = self.outcome.app_mut(app);
            self.written.flushed(counts, object, page);
        }
        let ended_ns = self.storage.commit(self.now_ns, &transaction)?;
        let took_ns = ended_ns.saturating_sub(self.now_ns);
        self.pacing.learn(pages, took_ns);
        let apps = self.apps_of(commit);
        for &app in &apps {
            self.look(app);
        }
        self.engine.committed(commit.transaction);
        for app in apps {
            let counts = self.outcome.app_mut(app);
            counts.note_flush(self.now_ns, reason);
            if let Some(risk) = self.risk(app) {
                self.outcome.flushed(self.now_ns, app, risk);
            }
        }
        Ok(ended_ns)
    }

    fn apps_of(&self, commit: &Commit) -> Vec<AppNumber> {
        let numbers = 0..self.stream.apps.len() as u32;
        let directories = numbers.map(|app| (app_directory(AppNumber(app)), AppNumber(app)));
        let directories: BTreeMap<String, AppNumber> = directories.collect();
        let apps = commit.apps.iter();
        let apps = apps.filter_map(|path| directories.get(std::str::from_utf8(path).ok()?));
        apps.copied().collect()
    }

    /// Gives a transaction to the store, without content, which is never read. Returns what it
    /// changes.
    fn hand_over(&mut self, commit: &Commit) -> Result<Transaction, SimulationError> {
        let mut transaction = commit.to_transaction();
        let changed = Transaction::new(&transaction, &self.numbers);
        transaction.pages.clear();
        for &pin in &commit.pins {
            self.store.pin(pin);
        }
        self.store.commit(transaction)?;
        Ok(changed)
    }

    /// Notes what is at risk of an app now.
    fn look(&mut self, app: AppNumber) {
        if let Some(risk) = self.risk(app) {
            self.outcome.at_risk(self.now_ns, app, risk);
        }
    }

    /// What is at risk of an app now; none if the engine does not know it yet.
    fn risk(&self, app: AppNumber) -> Option<AtRisk> {
        let path = app_directory(app);
        let status = self.engine.status(MonotonicNs(self.now_ns));
        let app = status.apps.iter().find(|app| app.path == path.as_bytes())?;
        Some(AtRisk {
            since_ns: app.at_risk_since.map(|since| since.0),
            bytes: app.at_risk_bytes,
        })
    }
}

/// The name of an app's directory below the root.
fn app_directory(app: AppNumber) -> String {
    format!("app{}", app.0)
}
