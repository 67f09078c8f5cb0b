//! Carries a plan out and has its process killed.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use mobifs_base::{Entry, ObjectId};
use mobifs_store::{Gate, JournalOptions, JournalStore, RestartState, Store, Transaction};
use parking_lot::Mutex;

use super::super::SearchOptions;
use super::super::operation::{After, Step, Topic};
use super::super::run::{Plan, Scene, compare_unnamed, learn, meet, perform, text};
use super::super::tree::{ROOT, Tree};
use super::super::verify::{Candidate, Search, compare_lower, panic_text};
use super::super::walk::plant;
use super::super::world::{Demand, World};
use super::check::{Ids, compare};
use super::recording_sink::RecordingSink;
use super::{KillOptions, KillStatistics};
use crate::crash::{Calls, CrashLower, Fault, Harm, Refusals};
use mobifs_numerics::Random;

/// `EIO`.
const EIO: i32 = 5;
/// How often a step is tried again before errors end.
const ATTEMPTS_MAX: u32 = 3;

/// What all lives of one history share.
struct Hunt {
    options: KillOptions,
    /// Checks power cuts, makes choices and keeps the first violation.
    cuts: Arc<Search>,
    statistics: Mutex<KillStatistics>,
}

/// A transaction that was handed over and not acknowledged.
#[derive(Clone)]
struct Begun {
    /// Several if it stands for transactions of several apps that are committed together.
    tags: Vec<u64>,
    entries: Vec<Entry>,
    /// The tree with it, and its ids.
    tree: Tree,
    ids: Ids,
}

/// The knowledge of an engine that survives its process.
#[derive(Clone)]
struct Moment {
    /// The store is open; before, there is no state to resume.
    is_open: bool,
    applying: bool,
    /// It does not know the ids of the tree's objects yet, or any more, and is looking them up.
    is_learning: bool,
    /// The tree with all acknowledged transactions, and the ids that the store reported.
    committed: Tree,
    ids: Ids,
    begun: Option<Begun>,
    /// What the store was asked for and has not answered.
    demands: Vec<Demand>,
    world: World,
    next_tag: u64,
}

/// A store between two kills.
struct Life {
    hunt: Arc<Hunt>,
    lower: CrashLower,
    sink: Arc<RecordingSink>,
    store: Option<JournalStore<Gate<CrashLower>>>,
    world: World,
    next_tag: u64,
    moment: Arc<Mutex<Moment>>,
    depth: u32,
    trail: String,
    /// Calls to the lower filesystem fail now and then.
    has_faults: bool,
}

/// Runs a whole plan.
pub(super) fn run(
    plan: &dyn Plan,
    seed: u64,
    options: &KillOptions,
) -> Result<KillStatistics, String> {
    let [journal_bytes, direct_bytes_max, held_bytes_max] = plan.limits();
    let journal = JournalOptions {
        journal_bytes,
        direct_bytes_max: Some(direct_bytes_max),
        held_bytes_max,
        uuid_if_new: [7; 16],
        reserve_bytes: 64 << 10,
        ahead_pages_min: 1,
        ..JournalOptions::default()
    };
    let cut_options = SearchOptions {
        depth_max: 1,
        nested_permille: 0,
        continued_permille: 0,
        ..SearchOptions::default()
    };
    let hunt = Arc::new(Hunt {
        options: *options,
        cuts: Arc::new(Search::new(cut_options, journal, seed)),
        statistics: Mutex::new(KillStatistics::default()),
    });
    let has_faults = seed % 3 == 2;
    let ran = catch_unwind(AssertUnwindSafe(|| run_steps(&hunt, plan, has_faults)));
    let ran = ran.unwrap_or_else(|panic| Err(format!("panic: {}", panic_text(&*panic))));
    // A violation seen by a hook came first.
    match (hunt.cuts.violation(), ran) {
        (Some(what), _) | (None, Err(what)) => Err(what),
        (None, Ok(())) => {
            let mut statistics = *hunt.statistics.lock();
            statistics.histories += 1;
            statistics.cuts = hunt.cuts.statistics();
            Ok(statistics)
        }
    }
}

fn run_steps(hunt: &Arc<Hunt>, plan: &dyn Plan, has_faults: bool) -> Result<(), String> {
    let mut world = World::new();
    plan.prepare(&mut world);
    world.tree.root_times_known = false;
    world.accept_as_base();
    let lower = CrashLower::new();
    plant(&lower, &world.tree).map_err(|error| format!("planting the tree: {error}"))?;
    lower.set_refusals(hunt.cuts.refusals);
    let moment = Moment {
        is_open: false,
        applying: false,
        is_learning: false,
        committed: world.tree.clone(),
        ids: Ids::new(),
        begun: None,
        demands: Vec::new(),
        world,
        next_tag: 1,
    };
    let mut life = Life::new(
        hunt,
        lower,
        RecordingSink::default(),
        moment,
        0,
        String::new(),
    );
    life.has_faults = has_faults;
    life.open()?;
    for step in 0..plan.steps() {
        plan.perform(step, &mut life)?;
        life.end_step(plan.after(step))?;
        if hunt.cuts.has_failed() {
            return Ok(());
        }
    }
    life.finish()
}

/// Goes on after a kill, with a few steps and further kills.
fn survive(
    hunt: &Arc<Hunt>,
    lower: CrashLower,
    saved: RestartState,
    moment: Moment,
    (depth, trail): (u32, String),
) -> Result<(), String> {
    hunt.count(|statistics| {
        statistics.kills += 1;
        statistics.during_apply += u64::from(moment.applying);
        statistics.during_resume += u64::from(depth > 1);
        statistics.in_flight += u64::from(moment.begun.is_some());
        statistics.with_unnamed += u64::from(!moment.world.unnamed.is_empty());
    });
    let mut life = Life::new(hunt, lower, RecordingSink::of(&saved), moment, depth, trail);
    life.watch();
    let resumed = JournalStore::resume(
        Gate::new(life.lower.clone()),
        &hunt.cuts.journal,
        Arc::<RecordingSink>::clone(&life.sink),
        saved,
    );
    let (store, resumed) = resumed.map_err(|error| format!("resuming: {error}"))?;
    life.store = Some(store);
    life.take_over(&resumed.committed)?;
    let mut dice = Random::new(hunt.cuts.below(u64::MAX));
    let topic = Topic::random(&mut dice);
    for _ in 0..dice.below(3) {
        let step = Step::random(&mut dice, topic);
        perform(&step, &mut life)?;
        life.end_step(step.after)?;
    }
    life.finish()
}

impl Hunt {
    fn count(&self, count: impl FnOnce(&mut KillStatistics)) {
        count(&mut self.statistics.lock());
    }
}

/// What hooks need of a life.
struct Watch {
    hunt: Arc<Hunt>,
    moment: Arc<Mutex<Moment>>,
    depth: u32,
    trail: String,
}

impl Watch {
    /// Kills the process now, perhaps.
    fn instant(&self, lower: &CrashLower, sink: &RecordingSink, what: &str) {
        let hunt = &self.hunt;
        let permille = match self.depth {
            0 => hunt.options.kills_permille,
            // Fewer at greater depth, or the search would not end.
            depth => hunt.options.nested_permille / u64::from(depth.pow(2)),
        };
        let is_over = self.depth >= hunt.options.depth_max || hunt.cuts.has_failed();
        if is_over || !hunt.cuts.chance(permille) {
            return;
        }
        let moment = self.moment.lock().clone();
        if !moment.is_open {
            return;
        }
        let trail = format!("{}killed {what}; ", self.trail);
        let place = (self.depth + 1, trail.clone());
        let survived = catch_unwind(AssertUnwindSafe(|| {
            survive(hunt, lower.kill_image(), sink.saved(), moment, place)
        }));
        match survived {
            Ok(Ok(())) => {}
            Ok(Err(what)) => hunt.cuts.report(format!("{trail}{what}")),
            Err(panic) => {
                let text = panic_text(&*panic);
                hunt.cuts.report(format!("{trail}panic: {text}"));
            }
        }
    }

    /// Cuts the power now, perhaps.
    fn cut(&self, lower: &CrashLower, operation: u64) {
        let cuts = &self.hunt.cuts;
        if self.depth == 0 || !cuts.chance(self.hunt.options.cuts_permille) {
            return;
        }
        let (allowed, applying) = {
            let moment = self.moment.lock();
            if !moment.is_open {
                return;
            }
            let begun = moment.begun.as_ref().map(|begun| &begun.tree);
            let trees = [Some(&moment.committed), begun];
            let allowed: Vec<_> = trees.into_iter().flatten().map(Candidate::new).collect();
            (allowed, moment.applying)
        };
        cuts.count(|statistics| statistics.during_apply += u64::from(applying));
        let (image, what) = cuts.image(lower);
        let trail = format!("{}power cut at operation {operation}, {what}", self.trail);
        cuts.check(&image, &allowed, 1, &trail);
    }
}

impl Life {
    fn new(
        hunt: &Arc<Hunt>,
        lower: CrashLower,
        sink: RecordingSink,
        moment: Moment,
        depth: u32,
        trail: String,
    ) -> Self {
        Self {
            hunt: Arc::clone(hunt),
            lower,
            sink: Arc::new(sink),
            store: None,
            world: moment.world.clone(),
            next_tag: moment.next_tag,
            moment: Arc::new(Mutex::new(moment)),
            depth,
            trail,
            has_faults: false,
        }
    }

    /// Kills, and cuts the power, from now on.
    fn watch(&self) {
        let watch = || Watch {
            hunt: Arc::clone(&self.hunt),
            moment: Arc::clone(&self.moment),
            depth: self.depth,
            trail: self.trail.clone(),
        };
        let (on_calls, on_reports) = (watch(), watch());
        let sink = Arc::clone(&self.sink);
        self.lower.set_hook(Box::new(move |operation, lower| {
            let what = format!("after operation {operation}");
            on_calls.instant(lower, &sink, &what);
            on_calls.cut(lower, operation);
        }));
        let (sink, lower) = (Arc::downgrade(&self.sink), self.lower.clone());
        self.sink.set_hook(Box::new(move || {
            if let Some(sink) = sink.upgrade() {
                let what = format!("after a telling, operation {}", lower.operations());
                on_reports.instant(&lower, &sink, &what);
            }
        }));
    }

    fn store(&self) -> Result<&JournalStore<Gate<CrashLower>>, String> {
        self.store
            .as_ref()
            .ok_or_else(|| "the store is not open".to_owned())
    }

    /// Opens the store as a mount does, without state to resume.
    fn open(&mut self) -> Result<(), String> {
        self.moment.lock().is_open = false;
        self.store = None;
        self.lower.clear_hook();
        self.sink.clear_hook();
        self.sink = Arc::new(RecordingSink::default());
        self.watch();
        let opened = JournalStore::open_with_sink(
            Gate::new(self.lower.clone()),
            &self.hunt.cuts.journal,
            Arc::<RecordingSink>::clone(&self.sink),
        );
        let (store, _) = opened.map_err(|error| format!("opening again: {error}"))?;
        let tree = self.world.tree.clone();
        self.world.remount(tree, store.first_new_object());
        self.store = Some(store);
        let mut moment = self.moment.lock();
        moment.committed = self.world.tree.clone();
        moment.ids = Ids::from([(ROOT, ObjectId::ROOT)]);
        moment.world = self.world.clone();
        moment.is_open = true;
        moment.is_learning = true;
        drop(moment);
        self.learn_ids()
    }

    /// Finds out which ids the store gives to the objects of the tree.
    fn learn_ids(&mut self) -> Result<(), String> {
        let mut ids = BTreeMap::new();
        let tree = &self.world.tree;
        learn(self.store()?, tree, ROOT, ObjectId::ROOT, &mut ids)?;
        let unnamed = self.world.unnamed.iter();
        ids.extend(unnamed.map(|unnamed| (unnamed.node, unnamed.id)));
        self.world.use_ids(ids.clone(), 0);
        let mut moment = self.moment.lock();
        moment.ids = ids;
        moment.world = self.world.clone();
        moment.is_learning = false;
        Ok(())
    }

    /// What was under way when the process was killed is completed.
    fn take_over(&mut self, committed: &[u64]) -> Result<(), String> {
        let (begun, next_tag, is_learning) = {
            let moment = self.moment.lock();
            (moment.begun.clone(), moment.next_tag, moment.is_learning)
        };
        if committed.iter().any(|&tag| tag >= next_tag) {
            return Err(format!("{committed:?} is said to be committed"));
        }
        let has_arrived = begun.as_ref().is_some_and(|begun| committed == begun.tags);
        if has_arrived {
            self.hunt.count(|statistics| statistics.arrived += 1);
            self.acknowledge();
        }
        self.compare()
            .map_err(|what| format!("committed {committed:?}: {what}"))?;
        if let Some(begun) = begun.filter(|_| !has_arrived) {
            self.hand_over(&begun)
                .map_err(|what| format!("handing over again: {what}"))?;
            self.acknowledge();
            self.compare()
                .map_err(|what| format!("after handing over again: {what}"))?;
        }
        if is_learning {
            self.learn_ids()?;
        }
        self.meet_demands()
            .map_err(|what| format!("asking again: {what}"))?;
        self.compare()
            .map_err(|what| format!("after asking again: {what}"))
    }

    /// The transaction under way is committed; the store is to be asked for what follows.
    fn acknowledge(&mut self) {
        let mut moment = self.moment.lock();
        if let Some(begun) = moment.begun.take() {
            moment.committed = begun.tree;
            moment.ids = begun.ids;
            moment.demands = self.world.take_demands();
            moment.world = self.world.clone();
        }
    }

    /// Asks the store for what it has not answered yet.
    fn meet_demands(&self) -> Result<(), String> {
        let demands = self.moment.lock().demands.clone();
        for demand in demands {
            self.plan_fault();
            loop {
                let before = self.lower.failed_calls();
                match meet(self.store()?, &demand) {
                    Ok(()) => break,
                    Err(_) if self.lower.failed_calls() > before => self.end_faults(),
                    Err(_) if self.lower.has_refusals() => self.make_room(),
                    Err(what) => return Err(what),
                }
            }
            self.moment.lock().demands.remove(0);
        }
        Ok(())
    }

    /// Compares everything, but not what the store was asked for and may have done or not.
    fn compare(&self) -> Result<(), String> {
        let store = self.store()?;
        let moment = self.moment.lock().clone();
        for unnamed in &self.world.unnamed {
            let is_open = moment.demands.iter().any(|demand| match demand {
                Demand::Pin(id) | Demand::Unpin(id) | Demand::Spill(id, _) => *id == unnamed.id,
            });
            if !is_open {
                compare_unnamed(store, unnamed)?;
            }
        }
        compare(store, &moment.committed, &moment.ids)
    }

    fn end_step(&mut self, after: After) -> Result<(), String> {
        self.plan_fault();
        self.commit()?;
        self.meet_demands()?;
        match after {
            After::Nothing => {}
            After::Apply => self.apply()?,
            After::WriteAhead => self.write_ahead()?,
            After::Forget => {
                let unnamed = self.world.unnamed.iter().map(|unnamed| unnamed.id);
                let unnamed: Vec<ObjectId> = unnamed.collect();
                let ids = self.world.ids.values().copied();
                let ids: Vec<_> = ids.filter(|id| !unnamed.contains(id)).collect();
                {
                    let mut moment = self.moment.lock();
                    moment.ids = Ids::from([(ROOT, ObjectId::ROOT)]);
                    moment.is_learning = true;
                }
                self.store()?.forget(&ids, &BTreeSet::new());
                self.end_faults();
                self.learn_ids()?;
            }
            After::Drop => {
                self.end_faults();
                self.open()?;
            }
            After::Close => {
                self.end_faults();
                self.hunt.cuts.refusable(self.store()?.close())?;
                self.open()?;
            }
        }
        self.end_faults();
        self.compare()
            .map_err(|what| format!("without any kill: {what}"))
    }

    fn commit(&mut self) -> Result<(), String> {
        let entries = self.world.take_entries();
        if entries.is_empty() {
            self.moment.lock().world = self.world.clone();
            return Ok(());
        }
        let count = if self.hunt.cuts.chance(300) { 3 } else { 1 };
        let begun = Begun {
            tags: (self.next_tag..self.next_tag + count).collect(),
            entries,
            tree: self.world.tree.clone(),
            ids: self.world.ids.clone(),
        };
        self.next_tag += count;
        {
            let mut moment = self.moment.lock();
            moment.begun = Some(begun.clone());
            moment.world = self.world.clone();
            moment.next_tag = self.next_tag;
        }
        self.hand_over(&begun)?;
        if self.hunt.cuts.chance(150) {
            // Another thread applies before the engine learns of the commit.
            self.apply()?;
        }
        self.acknowledge();
        Ok(())
    }

    fn hand_over(&self, begun: &Begun) -> Result<(), String> {
        self.attempt(|store| {
            let mut transaction: Transaction = begun.entries.iter().cloned().collect();
            transaction.tags.clone_from(&begun.tags);
            store.commit(transaction)
        })
    }

    fn apply(&self) -> Result<(), String> {
        self.moment.lock().applying = true;
        let cuts = &self.hunt.cuts;
        let applied = self.attempt(|store| match store.apply() {
            // What is refused stays where it is.
            Err(error) if cuts.is_refusal(&error) => {
                cuts.count(|statistics| statistics.refused += 1);
                Ok(())
            }
            applied => applied,
        });
        self.moment.lock().applying = false;
        applied
    }

    fn write_ahead(&self) -> Result<(), String> {
        self.moment.lock().applying = true;
        self.store()?.write_ahead();
        self.moment.lock().applying = false;
        Ok(())
    }

    /// Tries until it succeeds; errors that nothing explains count.
    fn attempt(
        &self,
        mut work: impl FnMut(&JournalStore<Gate<CrashLower>>) -> Result<(), mobifs_store::StoreError>,
    ) -> Result<(), String> {
        let store = self.store()?;
        for _ in 0..ATTEMPTS_MAX {
            let before = self.lower.failed_calls();
            match work(store) {
                Ok(()) => return Ok(()),
                Err(error) if self.hunt.cuts.is_refusal(&error) => self.make_room(),
                Err(error) if self.lower.failed_calls() == before => return Err(text(error)),
                // Another operation may come in between.
                Err(_) if self.hunt.cuts.chance(500) => drop(store.apply()),
                Err(_) => {}
            }
        }
        self.end_faults();
        let last = match work(store) {
            // The first refusal, where all attempts before met a fault.
            Err(error) if self.hunt.cuts.is_refusal(&error) => {
                self.make_room();
                work(store)
            }
            last => last,
        };
        last.map_err(|error| format!("though nothing fails any more: {error}"))
    }

    /// Some of the calls that follow fail, perhaps.
    fn plan_fault(&self) {
        let cuts = &self.hunt.cuts;
        if !self.has_faults || !cuts.chance(400) {
            return;
        }
        let calls = [Calls::All, Calls::Changes, Calls::Journal, Calls::Syncs];
        let harm = [Harm::Nothing, Harm::Half, Harm::Everything];
        let within = [2, 40][cuts.below(2) as usize];
        self.lower.set_fault(Some(Fault {
            first: self.lower.calls() + 1 + cuts.below(within),
            count: 1 + cuts.below(4),
            calls: calls[cuts.below(4) as usize],
            errno: EIO,
            harm: harm[cuts.below(3) as usize],
        }));
    }

    /// The lower filesystem refuses nothing any more.
    fn make_room(&self) {
        self.hunt.cuts.count(|statistics| statistics.refused += 1);
        self.lower.set_refusals(Refusals::default());
    }

    fn end_faults(&self) {
        self.lower.set_fault(None);
    }

    fn finish(mut self) -> Result<(), String> {
        if self.hunt.cuts.has_failed() {
            return Ok(());
        }
        // Changes that the killed process did not commit.
        self.commit()?;
        self.meet_demands()?;
        let unnamed = std::mem::take(&mut self.world.unnamed);
        let demands: Vec<Demand> = unnamed.iter().map(|one| Demand::Unpin(one.id)).collect();
        self.meet(&demands)?;
        self.apply()?;
        self.end_faults();
        self.compare()?;
        self.make_room();
        self.apply()?;
        self.compare()?;
        let failed_calls = self.lower.failed_calls();
        self.hunt
            .count(|statistics| statistics.failed_calls += failed_calls);
        let closed = self.store()?.close();
        closed.map_err(|error| format!("closing: {error}"))?;
        self.store = None;
        self.lower.clear_hook();
        compare_lower(&self.lower, &self.moment.lock().committed.seen())
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        // They form a reference cycle.
        self.lower.clear_hook();
        self.sink.clear_hook();
    }
}

impl Scene for Life {
    fn world(&mut self) -> &mut World {
        &mut self.world
    }

    fn meet(&mut self, demands: &[Demand]) -> Result<(), String> {
        {
            let mut moment = self.moment.lock();
            moment.world = self.world.clone();
            moment.demands = demands.to_vec();
        }
        self.meet_demands()
    }
}
