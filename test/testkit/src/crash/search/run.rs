//! Carries a history out on a store with simulated power cuts.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use mobifs_base::{ObjectId, PAGE_BYTES};
use mobifs_store::{Gate, JournalOptions, JournalStore, Store, StoreError};
use parking_lot::Mutex;

use super::operation::{After, History, Step, Topic};
use super::tree::{NodeId, ROOT, Tree};
use super::verify::{Candidate, Search, compare_lower, panic_text};
use super::walk::{plant, walk_store};
use super::world::{Demand, Unnamed, World};
use super::{SearchOptions, SearchStatistics};
use crate::crash::{CrashLower, Refusals, leftovers};
use mobifs_numerics::Random;

/// Crash images taken while a journal write is under way.
const IMAGES_OF_JOURNAL_WRITE: u64 = 3;

/// What a crash now may leave.
struct Progress {
    /// Trees from the last acknowledged transaction to the last begun one.
    allowed: Vec<Candidate>,
    /// Something is being applied.
    applying: bool,
}

/// A store with the model of what it holds.
struct Runner {
    search: Arc<Search>,
    lower: CrashLower,
    store: Option<JournalStore<Gate<CrashLower>>>,
    world: World,
    progress: Arc<Mutex<Progress>>,
}

pub(super) fn text(error: StoreError) -> String {
    error.to_string()
}

/// Where a plan is carried out.
pub(super) trait Scene {
    /// The model.
    fn world(&mut self) -> &mut World;
    /// Asks the store for what it has to do besides transactions.
    fn meet(&mut self, demands: &[Demand]) -> Result<(), String>;
}

/// Carries out a random step.
pub(super) fn perform(step: &Step, scene: &mut dyn Scene) -> Result<(), String> {
    for operation in &step.operations {
        let demands = scene.world().perform(operation);
        scene.meet(&demands)?;
    }
    Ok(())
}

/// Something that can be carried out on a store: a random [`History`] or a script.
pub(super) trait Plan {
    /// Size of the journal, largest transaction in one write, and memory for what is
    /// not applied.
    fn limits(&self) -> [u64; 3];
    /// Makes the tree that is there before the store is.
    fn prepare(&self, world: &mut World);
    /// Number of transactions.
    fn steps(&self) -> usize;
    /// Carries out what the `step`th transaction does.
    fn perform(&self, step: usize, scene: &mut dyn Scene) -> Result<(), String>;
    /// What follows that transaction.
    fn after(&self, step: usize) -> After;
}

impl Plan for History {
    fn limits(&self) -> [u64; 3] {
        [
            self.journal_bytes,
            self.direct_bytes_max,
            self.held_bytes_max,
        ]
    }

    fn prepare(&self, world: &mut World) {
        for operation in &self.before {
            // Its demands on a store do not matter yet.
            drop(world.perform(operation));
        }
    }

    fn steps(&self) -> usize {
        self.steps.len()
    }

    fn perform(&self, step: usize, scene: &mut dyn Scene) -> Result<(), String> {
        perform(&self.steps[step], scene)
    }

    fn after(&self, step: usize) -> After {
        self.steps[step].after
    }
}

/// Runs a whole plan.
pub(super) fn run(
    plan: &dyn Plan,
    seed: u64,
    options: &SearchOptions,
) -> Result<SearchStatistics, String> {
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
    let search = Arc::new(Search::new(*options, journal, seed));
    search.count(|statistics| statistics.histories += 1);
    let ran = catch_unwind(AssertUnwindSafe(|| run_steps(&search, plan)));
    let ran = ran.unwrap_or_else(|panic| Err(format!("panic: {}", panic_text(&*panic))));
    // A violation seen by a hook came first.
    match (search.violation(), ran) {
        (Some(what), _) | (None, Err(what)) => Err(what),
        (None, Ok(())) => Ok(search.statistics()),
    }
}

fn run_steps(search: &Arc<Search>, plan: &dyn Plan) -> Result<(), String> {
    let mut world = World::new();
    plan.prepare(&mut world);
    world.tree.root_times_known = false;
    world.accept_as_base();
    let lower = CrashLower::new();
    plant(&lower, &world.tree).map_err(|error| format!("planting the tree: {error}"))?;
    lower.set_refusals(search.refusals);
    let candidate = Candidate::new(&world.tree);
    let mut runner = Runner::new(search, lower, world, candidate);
    runner.cut_from_now_on(0, String::new());
    runner.open()?;
    for step in 0..plan.steps() {
        plan.perform(step, &mut runner)?;
        runner.end_step(plan.after(step))?;
        if search.has_failed() {
            break;
        }
    }
    runner.finish()
}

/// Goes on from a recovered image, applied or not, with a few steps and further crashes.
pub(super) fn continue_history(
    search: &Arc<Search>,
    lower: &CrashLower,
    found: &Candidate,
    depth: u32,
    trail: &str,
) -> Result<(), String> {
    let mut dice = Random::new(search.below(u64::MAX));
    let mut world = World::new();
    world.remount((*found.tree).clone(), ObjectId::FIRST_NEW);
    lower.set_refusals(search.refusals);
    let mut runner = Runner::new(search, lower.clone(), world, found.clone());
    runner.cut_from_now_on(depth, format!("{trail}; recovered and went on; then "));
    runner.open()?;
    let topic = Topic::random(&mut dice);
    for _ in 0..1 + dice.below(3) {
        let step = Step::random(&mut dice, topic);
        perform(&step, &mut runner)?;
        runner.end_step(step.after)?;
    }
    runner
        .finish()
        .map_err(|what| format!("going on after recovery: {what}"))
}

impl Runner {
    fn new(search: &Arc<Search>, lower: CrashLower, world: World, candidate: Candidate) -> Self {
        let progress = Progress {
            allowed: vec![candidate],
            applying: false,
        };
        Self {
            search: Arc::clone(search),
            lower,
            store: None,
            world,
            progress: Arc::new(Mutex::new(progress)),
        }
    }

    /// Checks crash images of what happens from now on.
    fn cut_from_now_on(&self, depth: u32, trail: String) {
        let (search, progress) = (Arc::clone(&self.search), Arc::clone(&self.progress));
        let permille = match depth {
            0 => search.options.images_permille,
            _ => search.options.nested_permille,
        };
        self.lower.set_hook(Box::new(move |operation, lower| {
            // A torn journal write finds more than another cut between two calls.
            let images = if depth == 0 && lower.is_writing_journal() {
                IMAGES_OF_JOURNAL_WRITE
            } else {
                u64::from(search.chance(permille))
            };
            for _ in 0..images {
                if search.has_failed() {
                    return;
                }
                let (allowed, applying) = {
                    let progress = progress.lock();
                    (progress.allowed.clone(), progress.applying)
                };
                search.count(|statistics| statistics.during_apply += u64::from(applying));
                let (image, what) = search.image(lower);
                let trail = format!("{trail}cut at operation {operation}, {what}");
                search.check(&image, &allowed, depth, &trail);
            }
        }));
    }

    fn store(&self) -> Result<&JournalStore<Gate<CrashLower>>, String> {
        self.store
            .as_ref()
            .ok_or_else(|| "the store is not open".to_owned())
    }

    fn open(&mut self) -> Result<(), String> {
        let (store, _) = self.search.open(&self.lower)?;
        let tree = self.world.tree.clone();
        self.world.remount(tree, store.first_new_object());
        self.store = Some(store);
        self.learn_ids()
    }

    /// Finds out which ids the store gives to the objects of the tree.
    fn learn_ids(&mut self) -> Result<(), String> {
        let mut ids = BTreeMap::new();
        learn(
            self.store()?,
            &self.world.tree,
            ROOT,
            ObjectId::ROOT,
            &mut ids,
        )?;
        let unnamed = self
            .world
            .unnamed
            .iter()
            .map(|unnamed| (unnamed.node, unnamed.id));
        ids.extend(unnamed);
        self.world.use_ids(ids, 0);
        Ok(())
    }

    /// Commits what was done, and what follows.
    fn end_step(&mut self, after: After) -> Result<(), String> {
        self.commit()?;
        let demands = self.world.take_demands();
        self.meet(&demands)?;
        self.compare()?;
        match after {
            After::Nothing => {}
            After::Apply => {
                self.applying(|runner| runner.search.refusable(runner.store()?.apply()))?;
                self.compare()?;
            }
            After::WriteAhead => {
                self.applying(|runner| {
                    runner.store()?.write_ahead();
                    Ok(())
                })?;
                self.compare()?;
            }
            After::Forget => {
                let ids: Vec<ObjectId> = self.world.ids.values().copied().collect();
                let pinned = |id: &ObjectId| self.world.unnamed.iter().any(|u| u.id == *id);
                let ids: Vec<_> = ids.into_iter().filter(|id| !pinned(id)).collect();
                self.store()?.forget(&ids, &BTreeSet::new());
                self.learn_ids()?;
                self.compare()?;
            }
            After::Drop => {
                self.store = None;
                self.applying(Self::open)?;
                self.compare()?;
            }
            After::Close => {
                self.applying(|runner| {
                    runner.search.refusable(runner.store()?.close())?;
                    runner.store = None;
                    runner.open()
                })?;
                self.compare()?;
            }
        }
        Ok(())
    }

    fn applying(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<(), String>,
    ) -> Result<(), String> {
        self.progress.lock().applying = true;
        let result = work(self);
        self.progress.lock().applying = false;
        result
    }

    fn commit(&mut self) -> Result<(), String> {
        let entries = self.world.take_entries();
        if entries.is_empty() {
            return Ok(());
        }
        let candidate = Candidate::new(&self.world.tree);
        self.progress.lock().allowed.push(candidate);
        let store = self.store()?;
        let copied = store.pending().journal.copied_pages;
        let commit = || store.commit(entries.iter().cloned().collect());
        match commit() {
            Err(error) if self.search.is_refusal(&error) => {
                self.search.refusable(Err(error))?;
                // There is room again, and the engine tries again.
                self.lower.set_refusals(Refusals::default());
                commit().map_err(text)?;
            }
            done => done.map_err(text)?,
        }
        let copied = self.store()?.pending().journal.copied_pages - copied;
        self.search.count(|statistics| {
            statistics.transactions += 1;
            statistics.copied_pages += copied;
        });
        self.progress.lock().allowed.remove(0);
        Ok(())
    }

    /// Compares what the store shows with the model.
    fn compare(&self) -> Result<(), String> {
        let store = self.store()?;
        let found = walk_store(store)
            .map_err(|error| format!("without any crash the store fails: {error}"))?;
        if let Some(difference) = self.world.tree.seen().first_difference(&found) {
            return Err(format!(
                "without any crash the store shows a wrong tree: {difference}"
            ));
        }
        let mut unnamed = self.world.unnamed.iter();
        unnamed.try_for_each(|unnamed| compare_unnamed(store, unnamed))
    }

    fn finish(mut self) -> Result<(), String> {
        if self.search.has_failed() {
            return Ok(());
        }
        self.applying(|runner| runner.search.refusable(runner.store()?.apply()))?;
        self.lower.set_refusals(Refusals::default());
        self.applying(|runner| runner.store()?.apply().map_err(text))?;
        let unnamed = std::mem::take(&mut self.world.unnamed);
        if !unnamed.is_empty() {
            for unnamed in unnamed {
                self.store()?.unpin(unnamed.id);
            }
            // Not only when something is applied again.
            demand_nothing_staged(&self.lower)?;
        }
        self.applying(|runner| runner.store()?.apply().map_err(text))?;
        self.compare()?;
        self.applying(|runner| runner.store()?.close().map_err(text))?;
        self.store = None;
        self.lower.clear_hook();
        let (calls, moves) = (self.lower.operations(), self.lower.moves());
        self.search.count(|statistics| {
            statistics.lower_calls += calls;
            statistics.moves += moves;
            statistics.histories_with_moves += u64::from(moves > 0);
        });
        compare_lower(&self.lower, &self.world.tree.seen())
    }
}

/// Fails if `stage/` has files that are not in use.
fn demand_nothing_staged(lower: &CrashLower) -> Result<(), String> {
    let mut found = leftovers(lower).map_err(|error| error.to_string())?;
    found.retain(|name| name.starts_with("stage/"));
    if found.is_empty() {
        Ok(())
    } else {
        Err(format!(
            "left behind at the last close: {}",
            found.join(", ")
        ))
    }
}

impl Scene for Runner {
    fn world(&mut self) -> &mut World {
        &mut self.world
    }

    fn meet(&mut self, demands: &[Demand]) -> Result<(), String> {
        let store = self.store()?;
        demands.iter().try_for_each(|demand| {
            if let Demand::Spill(id, pages) = demand {
                match store.spill(*id, pages) {
                    Err(error) if self.search.is_refusal(&error) => {
                        self.search.refusable(Err(error))?;
                        self.lower.set_refusals(Refusals::default());
                    }
                    done => return done.map_err(text),
                }
            }
            meet(store, demand)
        })
    }
}

/// Asks a store for one thing.
pub(super) fn meet(store: &impl Store, demand: &Demand) -> Result<(), String> {
    match demand {
        Demand::Pin(id) => store.pin(*id),
        Demand::Unpin(id) => store.unpin(*id),
        Demand::Spill(id, pages) => store.spill(*id, pages).map_err(text)?,
    }
    Ok(())
}

/// Compares the content of an open file without a name.
pub(super) fn compare_unnamed(store: &impl Store, unnamed: &Unnamed) -> Result<(), String> {
    for (index, page) in &unnamed.content.pages {
        let mut out = [0xcc; PAGE_BYTES];
        let offset = index * PAGE_BYTES as u64;
        store.read(unnamed.id, offset, &mut out).map_err(text)?;
        let length = (unnamed.content.attributes.size - offset).min(PAGE_BYTES as u64);
        if out[..length as usize] != page.to_array()[..length as usize] {
            return Err(format!("page {index} of {}, open, is wrong", unnamed.id));
        }
    }
    Ok(())
}

/// Finds out which ids a store gives to the objects of a tree.
pub(super) fn learn(
    store: &impl Store,
    tree: &Tree,
    node: NodeId,
    id: ObjectId,
    ids: &mut BTreeMap<NodeId, ObjectId>,
) -> Result<(), String> {
    ids.insert(node, id);
    let entries = &tree.node(node).entries;
    if entries.is_empty() {
        return Ok(());
    }
    for entry in store.list_directory(id).map_err(text)? {
        match entries.get(&entry.name) {
            Some(&child) => learn(store, tree, child, entry.id, ids)?,
            None => return Err(format!("{} lists an unknown object {}", id, entry.name)),
        }
    }
    Ok(())
}
