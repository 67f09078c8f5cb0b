//! The lives of a mount: a script runs on a volume over some medium, power cuts end a life, and the
//! next one must start from a state that the timeline allows.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mobifs_base::{MonotonicNs, Timestamp};
use mobifs_engine::Moment;
use mobifs_store::Store;
use mobifs_volume::{Arena, Clock, Volume, VolumeError, VolumeOptions};

use crate::configuration;
use crate::harness::{compare_trees, execute_on_both};
use crate::layout::{self, Layout};
use crate::media::Medium;
use crate::model::{Model, State};
use crate::operations::{Event, Operation, Script};
use crate::statistics::statistics;
use crate::target::{Target as _, VolumeTarget};
use crate::timeline::{Synced, Timeline};
use crate::tree::Compare;

statistics! {
    /// What a life search, or one history of it, did.
    pub struct LifeStatistics {
        /// Histories.
        pub histories: u64,
        /// Daemons that were killed, each in an operation, and resumed.
        pub kills: u64,
        /// Power cuts.
        pub cuts: u64,
    }
}

impl fmt::Display for LifeStatistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} daemons killed, {} power cuts in {} histories",
            self.kills, self.cuts, self.histories
        )
    }
}

/// A clock that advances by a tenth of a second whenever it is read.
#[derive(Debug, Default)]
pub struct SteppingClock(AtomicU64);

impl Clock for SteppingClock {
    fn moment(&self) -> Moment {
        let ms = self.0.fetch_add(100, Ordering::Relaxed) + 100;
        let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX - 2_000_000_000);
        Moment {
            wall: Timestamp::new(1_700_000_000 + seconds, (ms % 1000) as u32 * 1_000_000),
            now: MonotonicNs(ms * 1_000_000),
        }
    }
}

/// How a script is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The apps.
    pub layout: Layout,
    /// Further lines of the mount's configuration.
    pub config: String,
    /// Memory budget, in bytes.
    pub memory_budget_bytes: u64,
    /// Objects kept in memory although nothing uses them.
    pub objects_max: usize,
    /// Whether a checkpointer thread works beside the script, which cannot be repeated
    /// exactly then.
    pub background: bool,
    /// Whether the kernel remembers names, until the volume tidies up, and does not ask for
    /// them again.
    pub remembers_names: bool,
    /// The trees are compared after so many events (and at the end of every life).
    pub tree_every: usize,
    /// The volume can be resumed after a kill.
    pub outlives: bool,
}

impl Default for Plan {
    /// The default configuration with `gamma` durable.
    fn default() -> Self {
        Self {
            layout: layout::TOP_LEVEL,
            config: String::new(),
            memory_budget_bytes: 64 << 20,
            objects_max: 20,
            background: false,
            remembers_names: false,
            tree_every: 40,
            outlives: false,
        }
    }
}

/// A running volume beside the model.
struct Life {
    target: VolumeTarget,
    store: Arc<dyn Store>,
    model: Model,
    timeline: Timeline,
    /// What a killed daemon's successor gets.
    arena: Option<Arena>,
    /// The next event is interrupted by a kill, after so many writes to the arena and calls of
    /// a store that dies with it.
    kill_after: Option<u64>,
    /// How often it was tidied up.
    tidied: u64,
    /// What happened so far; the number of kills is that of the last request as well.
    count: LifeStatistics,
}

/// What an event promises when it succeeds.
enum Promise {
    Nothing,
    App(String),
    Everything,
    Synced(Synced),
}

/// The request slot of the only thread.
const SLOT: usize = 0;

/// Runs a script on a volume over a medium, one life after the other, and ends with
/// an orderly unmount.
///
/// # Errors
/// What differs from the model, or what no power cut may leave.
pub fn live(script: &Script, medium: &mut impl Medium, plan: &Plan) -> Result<(), String> {
    live_and_count(script, medium, plan).map(drop)
}

/// As [`live`], and returns how many daemons were killed and how often the power was cut.
///
/// # Errors
/// As [`live`].
pub fn live_and_count(
    script: &Script,
    medium: &mut impl Medium,
    plan: &Plan,
) -> Result<LifeStatistics, String> {
    let clock = Arc::new(SteppingClock::default());
    let mut life = Life::begin(medium, plan, &clock)?;
    for (index, event) in script.events.iter().enumerate() {
        let at = |problem| format!("at event {index} ({event:?}): {problem}");
        let happened = match event {
            Event::Cut => Ok(()),
            event if life.kill_after.is_some() && !matches!(event, Event::Kill(_)) => {
                life = life.killed_in(event, medium, plan, &clock).map_err(at)?;
                continue;
            }
            event => life.happen(event, plan),
        };
        if *event == Event::Cut || medium.is_dead() {
            // The outcome of an event under way at the power cut is open.
            life = life.cut(medium, plan, &clock).map_err(at)?;
            continue;
        }
        happened.map_err(at)?;
        if (index + 1) % plan.tree_every == 0 {
            compare_trees(&life.model, &mut life.target, plan.view()).map_err(at)?;
        }
    }
    medium.secure();
    compare_trees(&life.model, &mut life.target, plan.view())
        .and_then(|()| life.end(medium, plan, &clock))
        .map_err(|problem| format!("at the end: {problem}"))
}

impl Plan {
    /// What is compared while a life lasts. The number of links of a directory with apps in it
    /// is that of its own app: after a cut it may count subdirectories that were not committed.
    const fn view(&self) -> Compare {
        Compare {
            root: false,
            directory_nlink: !self.layout.has_nested_apps,
            ..Compare::ALL
        }
    }
}

impl Life {
    fn begin(
        medium: &mut impl Medium,
        plan: &Plan,
        clock: &Arc<SteppingClock>,
    ) -> Result<Self, String> {
        let (target, store, arena) = start(medium, plan, clock)?;
        let model = Model::default();
        let timeline = Timeline::new(plan.layout, model.state().clone());
        Ok(Self {
            target,
            store,
            model,
            timeline,
            arena,
            kill_after: None,
            tidied: 0,
            count: LifeStatistics {
                histories: 1,
                ..LifeStatistics::default()
            },
        })
    }

    fn happen(&mut self, event: &Event, plan: &Plan) -> Result<(), String> {
        match event {
            Event::Do(operation) => {
                execute_on_both(&mut self.model, &mut self.target, operation)?;
                self.timeline.step(self.model.state());
                let promise = self.promise_of(operation, plan);
                self.keep(promise);
            }
            Event::Kill(writes) => self.kill_after = Some(*writes),
            event => {
                let promise = self.request(event)?;
                self.keep(promise);
            }
        }
        self.target.volume().check_arena()?;
        self.target.check_references()
    }

    /// An event other than a program's operation.
    fn request(&mut self, event: &Event) -> Result<Promise, String> {
        let volume = Arc::clone(self.target.volume());
        match event {
            Event::SyncApp(app) => match volume.sync_app(Some(app), false) {
                Ok(()) => return Ok(Promise::App(app.clone())),
                Err(VolumeError::UnknownApp { .. })
                    if !self.exists(app) || !self.timeline.may_be_app(app) => {}
                Err(error) => return Err(error.to_string()),
            },
            Event::SyncAll => {
                volume.sync_all().map_err(|error| error.to_string())?;
                return Ok(Promise::Everything);
            }
            Event::Close(app) => volume.close_app(app),
            Event::CommitNext => {
                volume.commit_next().map_err(|error| error.to_string())?;
            }
            Event::TidyUp => {
                // The kernel forgets by itself, or because it is asked to.
                self.tidied += 1;
                if self.tidied.is_multiple_of(2) {
                    self.target.forget_names();
                    volume.do_housekeeping();
                } else {
                    self.target.trim()?;
                }
            }
            Event::Apply => self.store.apply().map_err(|error| error.to_string())?,
            Event::Do(_) | Event::Cut | Event::Kill(_) => return Err("no request".into()),
        }
        Ok(Promise::Nothing)
    }

    /// Records the promise of an answered event.
    fn keep(&mut self, promise: Promise) {
        match promise {
            Promise::Nothing => {}
            Promise::App(app) => self.timeline.committed(&app),
            Promise::Everything => self.timeline.all_committed(),
            Promise::Synced(synced) => self.timeline.synced(&synced),
        }
    }

    /// Whether there is a directory at this path.
    fn exists(&self, app: &str) -> bool {
        let paths = self.model.state().paths();
        paths
            .get(app)
            .is_some_and(|(_, inode)| inode.kind() == mobifs_base::FileKind::Directory)
    }

    /// An `fsync` in a durable app returns when the app is committed, and all that was done
    /// to its object.
    fn promise_of(&self, operation: &Operation, plan: &Plan) -> Promise {
        match self.timeline.synced_by(&self.model, operation) {
            Some(synced) if plan.layout.is_durable(&synced.app) => Promise::Synced(synced),
            _ => Promise::Nothing,
        }
    }

    /// Cuts the power, starts the next life and checks what it finds.
    fn cut(
        self,
        medium: &mut impl Medium,
        plan: &Plan,
        clock: &Arc<SteppingClock>,
    ) -> Result<Self, String> {
        self.target.volume().cut_power();
        drop((self.target, self.store));
        medium.cut();
        let (mut target, store, _arena) = start(medium, plan, clock)?;
        let found = target
            .tree()
            .map_err(|error| format!("the tree cannot be read: {error:?}"))?;
        self.timeline.explain(&found, plan.view())?;
        // The next life must not use what the walk has loaded: it starts with nothing
        // in memory.
        drop((target, store));
        let (target, store, arena) = start(medium, plan, clock)?;
        let state = State::from_tree(&found);
        let timeline = Timeline::new(plan.layout, state.clone());
        Ok(Self {
            target,
            store,
            model: Model::new(state),
            timeline,
            arena,
            kill_after: None,
            tidied: self.tidied,
            count: LifeStatistics {
                cuts: self.count.cuts + 1,
                ..self.count
            },
        })
    }

    /// Kills the daemon in an event; another one goes on with what the arena has.
    fn killed_in(
        mut self,
        event: &Event,
        medium: &mut impl Medium,
        plan: &Plan,
        clock: &Arc<SteppingClock>,
    ) -> Result<Self, String> {
        self.count.kills += 1;
        let after = self.kill_after.take().unwrap_or(0);
        let arena = self.arena.take().ok_or("nothing outlives this volume")?;
        let is_whole = is_whole(event, medium.dies_with_arena());
        let names = self.target.known_names();
        if !is_whole {
            arena.kill_after(after);
        }
        let last = self.last_event(event, plan);
        let was_killed = arena.is_killed();
        arena.kill_after(0);
        if medium.is_dead() {
            return self.cut(medium, plan, clock);
        }
        match last {
            Ok(promise) if !was_killed => self.keep(promise),
            Err(what) if !was_killed => return Err(what),
            // The answer did not reach the program.
            _ => {}
        }
        medium.secure();
        let (volume, store, arena) = resume(&arena, after, medium, plan, clock)?;
        let left = volume.in_flight_request(SLOT, self.count.kills);
        if was_killed {
            let answers_object = answers_object(event);
            self.target
                .go_on_unanswered(volume, names, &left, answers_object);
        } else {
            self.target.go_on(volume);
        }
        self.target
            .check_references()
            .map_err(|problem| format!("killed after {after} steps, {left:?}: {problem}"))?;
        if let Event::Do(operation) = event
            && (left.outcome.is_some() || is_whole)
        {
            // An error is as good as a success.
            let _outcome = self.model.execute(operation);
        }
        self.timeline.step(self.model.state());
        compare_trees(&self.model, &mut self.target, plan.view())
            .map_err(|problem| format!("killed after {after} steps, {left:?}: {problem}"))?;
        Ok(Self {
            store,
            arena: Some(arena),
            ..self
        })
    }

    /// The daemon's last event; how far it gets is open.
    fn last_event(&mut self, event: &Event, plan: &Plan) -> Result<Promise, String> {
        let volume = Arc::clone(self.target.volume());
        let Event::Do(operation) = event else {
            return volume.serving(SLOT, self.count.kills, || self.request(event));
        };
        let mut model = self.model.clone();
        volume.serving(SLOT, self.count.kills, || {
            execute_on_both(&mut model, &mut self.target, operation)
        })?;
        Ok(self.promise_of(operation, plan))
    }

    /// Unmounts, and checks the tree in the next life and, where the medium has one,
    /// in the lower filesystem.
    fn end(
        mut self,
        medium: &mut impl Medium,
        plan: &Plan,
        clock: &Arc<SteppingClock>,
    ) -> Result<LifeStatistics, String> {
        let volume = Arc::clone(self.target.volume());
        // What is in use without a name is kept, also when everything is in its place, and
        // not any longer than that.
        let applied = volume.sync_app(None, true);
        applied.map_err(|error| error.to_string())?;
        self.target.close_all();
        volume.do_housekeeping();
        // A kill may lose that a reference was given back, which the end of the mount does.
        let mut left = if self.count.kills == 0 {
            medium.leftovers()?
        } else {
            Vec::new()
        };
        // A file stays there whose other names were not looked up.
        left.retain(|name| !name.starts_with("limbo/"));
        if !left.is_empty() {
            return Err(format!(
                "left behind at the last close: {}",
                left.join(", ")
            ));
        }
        volume.shutdown().map_err(|error| error.to_string())?;
        drop((self.target, self.store, volume));
        if let Some(plain) = medium.plain_tree() {
            self.model
                .tree()
                .difference(&plain?, plan.view())
                .map_or(Ok(()), |difference| {
                    Err(format!("after the unmount: {difference}"))
                })?;
        }
        let (mut target, _store, _arena) = start(medium, plan, clock)?;
        compare_trees(&self.model, &mut target, plan.view())
            .map_err(|problem| format!("after the next mount: {problem}"))?;
        Ok(self.count)
    }
}

/// A volume, its store, and what outlives the process, if anything does.
type Started = (VolumeTarget, Arc<dyn Store>, Option<Arena>);

/// Whether an event is not interrupted by a kill but followed by one: what it does is not
/// one change of the engine, or goes on in a store that does not die with it.
fn is_whole(event: &Event, store_dies: bool) -> bool {
    match event {
        Event::Do(
            Operation::Open { .. }
            | Operation::OpenUnnamed { .. }
            | Operation::Close { .. }
            | Operation::Hold { .. }
            | Operation::CloseHeld { .. },
        ) => true,
        Event::Do(operation) => {
            !store_dies && (operation.is_fsync() || operation.may_end_rollback())
        }
        _ => !store_dies,
    }
}

/// Whether the outcome of a request is an object, to which a reference is counted.
const fn answers_object(event: &Event) -> bool {
    matches!(
        event,
        Event::Do(
            Operation::CreateFile { .. }
                | Operation::MakeDirectory { .. }
                | Operation::MakeSymlink { .. }
                | Operation::MakeNode { .. }
                | Operation::Link { .. }
                | Operation::LinkHandle { .. }
        )
    )
}

/// The volume and store of a killed daemon's successor, and what outlives that one.
type Resumed = (Arc<Volume>, Arc<dyn Store>, Arena);

/// Starts the successor of a killed daemon; of three, one is killed in that as well.
fn resume(
    arena: &Arena,
    after: u64,
    medium: &mut impl Medium,
    plan: &Plan,
    clock: &Arc<SteppingClock>,
) -> Result<Resumed, String> {
    let attach = || {
        let memory = arena.descriptor().try_clone_to_owned();
        Arena::attach(memory.map_err(|error| error.to_string())?).map_err(|error| error.to_string())
    };
    let mut go_on = |successor: &Arena| {
        let (store, resumption) = medium.resume(successor)?;
        let options = options(plan, clock, Some(successor.clone()))?;
        let volume = Volume::resume(Arc::clone(&store), options, &resumption)
            .map_err(|error| error.to_string())?;
        Ok::<_, String>((volume, store))
    };
    if after.is_multiple_of(3) {
        let successor = attach()?;
        successor.kill_after(after);
        let resumed = go_on(&successor);
        if !successor.is_killed() {
            resumed?;
        }
        successor.kill_after(0);
    }
    let successor = attach()?;
    let (volume, store) = go_on(&successor)?;
    volume.check_arena()?;
    Ok((volume, store, successor))
}

fn start(
    medium: &mut impl Medium,
    plan: &Plan,
    clock: &Arc<SteppingClock>,
) -> Result<Started, String> {
    let arena = plan.outlives.then(Arena::create).transpose();
    let arena = arena.map_err(|error| error.to_string())?;
    let store = medium.open(arena.as_ref())?;
    let options = options(plan, clock, arena.clone())?;
    let volume = Volume::start(Arc::clone(&store), options).map_err(|error| error.to_string())?;
    let target = VolumeTarget::new(volume);
    let target = if plan.remembers_names {
        target.remembering_names()
    } else {
        target
    };
    Ok((target, store, arena))
}

fn options(
    plan: &Plan,
    clock: &Arc<SteppingClock>,
    arena: Option<Arena>,
) -> Result<VolumeOptions, String> {
    let text = format!("{}{}", plan.layout.config, plan.config);
    let config = configuration::parsed(&text)?;
    Ok(VolumeOptions {
        memory_budget_bytes: plan.memory_budget_bytes,
        objects_max: plan.objects_max,
        background: plan.background,
        clock: Arc::<SteppingClock>::clone(clock),
        hash_seed: Some(7),
        arena,
        ..VolumeOptions::new(&config)
    })
}
