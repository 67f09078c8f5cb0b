//! The lives of a mount: a script runs on a volume over some medium, power cuts end
//! a life, and the next one must start where the timeline allows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mobifs_core::Moment;
use mobifs_runtime::{Arena, Clock, Config, Volume, VolumeError, VolumeOptions};
use mobifs_store::Store;
use mobifs_types::{MonotonicNs, ObjectId, Timestamp};

use crate::harness::{compare_trees, execute_on_both};
use crate::media::Medium;
use crate::model::{Model, State};
use crate::operations::{Answer, Event, FileRef, Operation, Script};
use crate::target::{Target as _, VolumeTarget};
use crate::timeline::{Timeline, top_level_apps};
use crate::tree::Compare;

/// A clock that goes on by a tenth of a second whenever it is read.
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
    /// Configuration of the mount.
    pub config: String,
    /// Apps that the configuration makes durable.
    pub durable: Vec<String>,
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
    /// The volume can be gone on with after a kill.
    pub outlives: bool,
}

impl Default for Plan {
    /// The default configuration with `gamma` durable.
    fn default() -> Self {
        Self {
            config: "[[app]]\nmatch = \"gamma\"\nclass = \"durable\"\n".into(),
            durable: vec!["gamma".into()],
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
    /// The next operation is interrupted by a kill, behind so many writes to the arena.
    kill_after: Option<u64>,
    /// Requests that were interrupted by kills.
    requests: u64,
}

/// Runs a script on a volume over a medium, one life after the other, and ends with
/// an orderly unmount.
///
/// # Errors
/// What differs from the model, or what no power cut may leave.
pub fn live(script: &Script, medium: &mut impl Medium, plan: &Plan) -> Result<(), String> {
    let clock = Arc::new(SteppingClock::default());
    let mut life = Life::begin(medium, plan, &clock)?;
    for (index, event) in script.events.iter().enumerate() {
        let at = |problem| format!("at event {index} ({event:?}): {problem}");
        let happened = match event {
            Event::Cut => Ok(()),
            Event::Do(operation) if life.kill_after.is_some() => {
                life = life
                    .killed_in(operation, medium, plan, &clock)
                    .map_err(at)?;
                continue;
            }
            event => life.happen(event, plan),
        };
        if *event == Event::Cut || medium.is_dead() {
            // What an event answered that was under way when the power went is open.
            life = life.cut(medium, plan, &clock).map_err(at)?;
            continue;
        }
        happened.map_err(at)?;
        if (index + 1) % plan.tree_every == 0 {
            compare_trees(&life.model, &mut life.target, VIEW).map_err(at)?;
        }
    }
    medium.secure();
    compare_trees(&life.model, &mut life.target, VIEW)
        .and_then(|()| life.end(medium, plan, &clock))
        .map_err(|problem| format!("at the end: {problem}"))
}

/// What is compared while a life lasts.
const VIEW: Compare = Compare {
    root: false,
    ..Compare::ALL
};

impl Life {
    fn begin(
        medium: &mut impl Medium,
        plan: &Plan,
        clock: &Arc<SteppingClock>,
    ) -> Result<Self, String> {
        let (target, store, arena) = start(medium, plan, clock)?;
        let model = Model::default();
        let timeline = Timeline::new(top_level_apps, model.state().clone());
        Ok(Self {
            target,
            store,
            model,
            timeline,
            arena,
            kill_after: None,
            requests: 0,
        })
    }

    fn happen(&mut self, event: &Event, plan: &Plan) -> Result<(), String> {
        let volume = Arc::clone(self.target.volume());
        match event {
            Event::Do(operation) => {
                execute_on_both(&mut self.model, &mut self.target, operation)?;
                self.timeline.step(self.model.state());
                self.note_durable(operation, plan);
            }
            Event::SyncApp(app) => match volume.sync_app(Some(app), false) {
                Ok(()) => self.timeline.committed(app),
                Err(VolumeError::UnknownApp { .. }) if !self.exists(app) => {}
                Err(error) => return Err(error.to_string()),
            },
            Event::SyncAll => {
                volume.sync_all().map_err(|error| error.to_string())?;
                self.timeline.all_committed();
            }
            Event::Close(app) => volume.close_app(app),
            Event::CommitNext => {
                volume.commit_next().map_err(|error| error.to_string())?;
            }
            Event::TidyUp => {
                self.target.forget_names();
                volume.tidy_up();
            }
            Event::Apply => self.store.apply().map_err(|error| error.to_string())?,
            Event::Cut => return Err("a cut ends the life".into()),
            Event::Kill(writes) => self.kill_after = Some(*writes),
        }
        volume.check_arena()
    }

    /// Whether there is a top-level directory of that name.
    fn exists(&self, app: &str) -> bool {
        let paths = self.model.state().paths();
        paths
            .get(app)
            .is_some_and(|(_, inode)| inode.kind() == mobifs_types::FileKind::Directory)
    }

    /// An `fsync` in a durable app returns when the app is committed.
    fn note_durable(&mut self, operation: &Operation, plan: &Plan) {
        let Operation::Fsync {
            file: FileRef::Path(path),
        } = operation
        else {
            return;
        };
        let app = top_level_apps(path, mobifs_types::FileKind::Regular);
        let succeeded = self.model.execute(operation) == Ok(Answer::Done);
        if succeeded && plan.durable.contains(&app) {
            self.timeline.committed(&app);
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
        self.timeline.explain(&found, VIEW)?;
        // The next life must not profit from what was looked at: it starts with nothing
        // in memory.
        drop((target, store));
        let (target, store, arena) = start(medium, plan, clock)?;
        let state = State::from_tree(&found);
        let timeline = Timeline::new(top_level_apps, state.clone());
        Ok(Self {
            target,
            store,
            model: Model::new(state),
            timeline,
            arena,
            kill_after: None,
            requests: 0,
        })
    }

    /// Kills the daemon in an operation; another one goes on with what the arena has.
    fn killed_in(
        mut self,
        operation: &Operation,
        medium: &mut impl Medium,
        plan: &Plan,
        clock: &Arc<SteppingClock>,
    ) -> Result<Self, String> {
        const SLOT: usize = 0;
        self.requests += 1;
        let unique = self.requests;
        let writes = self.kill_after.take().unwrap_or(0);
        let arena = self.arena.take().ok_or("nothing outlives this volume")?;
        let volume = Arc::clone(self.target.volume());
        let is_whole = is_whole(operation);
        if !is_whole {
            arena.kill_after(writes);
        }
        let answer = volume.serving(SLOT, unique, || self.target.execute(operation));
        arena.kill_after(0);
        if medium.is_dead() {
            return self.cut(medium, plan, clock);
        }
        medium.secure();
        let memory = arena.descriptor().try_clone_to_owned();
        drop((volume, self.store));
        let successor = Arena::attach(memory.map_err(|error| error.to_string())?)
            .map_err(|error| error.to_string())?;
        let (store, resumption) = medium.resume(&successor)?;
        let options = options(plan, clock, Some(successor.clone()))?;
        let volume = Volume::resume(Arc::clone(&store), options, &resumption)
            .map_err(|error| error.to_string())?;
        volume.check_arena()?;
        let left = volume.left_by(SLOT, unique);
        let mut taken: BTreeMap<ObjectId, i64> = BTreeMap::new();
        for (id, count) in &left.references {
            *taken.entry(*id).or_default() += count;
        }
        for (id, count) in taken {
            // What it took and did not give back any more.
            volume.forget(id, u64::try_from(count).unwrap_or(0));
        }
        self.target = self.target.taken_over(volume);
        if left.outcome.is_some() || answer.is_err() || is_whole {
            let expected = self.model.execute(operation);
            if left.outcome.is_none() && !is_whole && expected.is_ok() {
                return Err(format!("{answer:?} instead of {expected:?}"));
            }
        }
        self.timeline.step(self.model.state());
        compare_trees(&self.model, &mut self.target, VIEW)
            .map_err(|problem| format!("killed behind {writes} writes, {left:?}: {problem}"))?;
        Ok(Self {
            store,
            arena: Some(successor),
            ..self
        })
    }

    /// Unmounts, and checks the tree in the next life and, where the medium has one,
    /// in the lower filesystem.
    fn end(
        mut self,
        medium: &mut impl Medium,
        plan: &Plan,
        clock: &Arc<SteppingClock>,
    ) -> Result<(), String> {
        self.target.close_all();
        self.target
            .volume()
            .shutdown()
            .map_err(|error| error.to_string())?;
        drop((self.target, self.store));
        if let Some(plain) = medium.plain_tree() {
            self.model
                .tree()
                .difference(&plain?, VIEW)
                .map_or(Ok(()), |difference| {
                    Err(format!("after the unmount: {difference}"))
                })?;
        }
        let (mut target, _store, _arena) = start(medium, plan, clock)?;
        compare_trees(&self.model, &mut target, VIEW)
            .map_err(|problem| format!("after the next mount: {problem}"))
    }
}

/// A volume, its store, and what outlives the process, if anything does.
type Started = (VolumeTarget, Arc<dyn Store>, Option<Arena>);

/// Whether an operation is not interrupted by a kill but followed by one: what it does
/// is not one change of the engine, or goes on in the store, which does not die here.
const fn is_whole(operation: &Operation) -> bool {
    matches!(
        operation,
        Operation::Fsync { .. }
            | Operation::Open { .. }
            | Operation::OpenUnnamed { .. }
            | Operation::Close { .. }
    )
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
    let config = Config::parse(&plan.config, std::path::Path::new("test.toml"))
        .map_err(|error| error.to_string())?;
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
