//! A running engine over a store: what the kernel adapter and the tests call.
//!
//! One lock guards the engine; it is never held during a call of the store that may reach the
//! device. An operation that needs something from the store stops inside the engine with nothing
//! changed; the volume fetches it without the lock, and tries the operation again.
//!
//! A second lock, the *commit lock*, serialises what changes the store's committed state.
//! Its holder hands over closed transactions: the checkpointer thread, an
//! `fsync` in a durable app, a writer that found memory used up. It is always taken
//! before the engine's lock.

mod checkpointer;
mod commit;
mod data;
mod durable_syncs;
mod errors;
#[cfg(all(test, not(feature = "interleavings")))]
mod faulty;
mod freed_space;
mod group_commit;
mod last_commits;
mod locked_engine;
mod locks;
mod namespace;
mod needs;
mod pacing;
#[cfg(test)]
mod pacing_tests;
mod rollback_journals;
mod room;
mod settings;
mod status;
mod stepping;
mod sync;
#[cfg(test)]
mod tests;
mod trimmer;
mod types;
mod waiting_commit;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use mobifs_base::ObjectId;
use mobifs_engine::policy::prediction::Bursts;
use mobifs_engine::{Engine, EngineConfig, FsError, Limits, Moment, Pacing};
use mobifs_store::Store;

pub use checkpointer::Checkpointer;
pub use rollback_journals::{SyncCaller, WRITER_LOCK_AT, is_rollback_journal};
pub use types::{
    AppliedState, BatterySource, CallingThreads, KernelCache, VolumeError, VolumeOptions,
};

use self::durable_syncs::DurableSyncs;
use self::freed_space::FreedSpace;
use self::group_commit::CommitQueue;
use self::last_commits::{Checkpoint, FailedCommit};
use self::locked_engine::{EngineState, Keeping, LockedEngine};
use self::locks::{Applying, Committing, Rank, RankedMutex, RankedRwLock};
use self::rollback_journals::RollbackJournals;
use self::sync::thread::{self, JoinHandle};
use self::sync::{Condvar, Mutex};
use self::waiting_commit::CommitWaitingForRoom;
use crate::forecast::Forecast;
use crate::opened::Resumption;
use crate::{Arena, Rules};

/// A running engine over a store. All methods block and may be called from any thread.
///
/// `lookup`, `lookup_parent`, `create`, `create_unnamed` and `link` count one
/// reference to the object that they return; [`Volume::forget`] gives references
/// back.
pub struct Volume {
    shared: Arc<Shared>,
    /// The checkpointer and, for a volume with a kernel, the trimmer.
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").finish_non_exhaustive()
    }
}

/// What is shared with the checkpointer thread. [`Rank`] has the order of its locks.
struct Shared {
    engine_state: RankedMutex<EngineState>,
    /// Signals `EngineState::wake`.
    wake: Condvar,
    /// Signals `EngineState::is_trimming`.
    crowded: Condvar,
    /// Asks the kernel to forget objects; none: there is no kernel.
    kernel_cache: RankedMutex<Option<Arc<dyn KernelCache>>>,
    /// The trimmer's thread runs. Without it the checkpointer does its work.
    has_trimmer: AtomicBool,
    /// References that were given back since the trimmer's last round.
    forgotten_objects: AtomicU64,
    /// Its holder may change the store's committed state.
    commit_lock: RankedMutex<Committing>,
    /// Calls that wait for a commit.
    commit_queue: CommitQueue,
    /// To which the checkpointer gives way.
    durable_syncs: DurableSyncs,
    /// Transactions of SQLite under way.
    rollback_journals: RollbackJournals,
    store: Arc<dyn Store>,
    options: VolumeOptions,
    started: Moment,
    /// Held for reading while data is passed from the store to the engine, for writing
    /// while the store forgets.
    listing: RankedRwLock<()>,
    /// Rules in force; the engine has a copy.
    rules: RankedMutex<Rules>,
    /// Why an app is read-only, by its path.
    failures: RankedMutex<BTreeMap<Vec<u8>, FailedCommit>>,
    /// What deletions free with the next apply.
    freed_space: RankedMutex<FreedSpace>,
    /// A commit waits for room in the lower filesystem.
    waiting_commit: RankedMutex<Option<CommitWaitingForRoom>>,
    /// A program may still roll back what it is changing.
    may_roll_back: AtomicBool,
    /// Commits wait for room because of that.
    is_postponed: AtomicBool,
    /// The journal could not be applied to make room, and the log says so.
    is_stuck: AtomicBool,
    /// Held while the journal is applied, so that only one thread does.
    applying: RankedMutex<Applying>,
    /// Why applying failed the last time.
    apply_failure: RankedMutex<Option<String>>,
    /// Last checkpoint of each app, by its path.
    checkpoints: RankedMutex<BTreeMap<Vec<u8>, Checkpoint>>,
    /// When to commit what is closed.
    pacing: RankedMutex<Pacing>,
    /// Detects users by bursts of requests; none: not used.
    bursts: Option<RankedMutex<Bursts>>,
    /// How long memory would last.
    forecast: RankedMutex<Forecast>,
    /// Nothing is written any more: a drill, or the end.
    power_cut: AtomicBool,
    stopping: AtomicBool,
    /// The checkpointer is to commit and apply everything.
    pressure_flush: AtomicBool,
    /// The sources that say that the battery is low.
    low_batteries: RankedMutex<BTreeSet<BatterySource>>,
    /// What the kernel adapter found out about `sync(2)`.
    sync_reaches: AtomicBool,
    /// Shortest age at which the rules close a transaction, in milliseconds.
    age_min_ms: AtomicU64,
    /// Budget in force; the engine has a copy.
    memory_budget_bytes: AtomicU64,
}

impl Volume {
    /// Starts an engine over a store and, unless the options say otherwise, a checkpointer thread.
    ///
    /// # Errors
    /// If the store's root cannot be read, or a thread not be started.
    pub fn start(store: Arc<dyn Store>, options: VolumeOptions) -> Result<Arc<Self>, VolumeError> {
        Self::start_from(store, options, None)
    }

    /// Goes on from the state of a killed process: the engine is as [`VolumeOptions::arena`] has
    /// it, with everything that was not committed.
    ///
    /// # Errors
    /// As [`Volume::start`], or [`VolumeError::Arena`] if the saved state makes no sense.
    pub fn resume(
        store: Arc<dyn Store>,
        options: VolumeOptions,
        resumption: &Resumption,
    ) -> Result<Arc<Self>, VolumeError> {
        Self::start_from(store, options, Some(resumption))
    }

    /// The arena, if what is here outlives the process.
    pub fn arena(&self) -> Option<&Arena> {
        self.shared.options.arena.as_ref()
    }

    fn start_from(
        store: Arc<dyn Store>,
        options: VolumeOptions,
        resumption: Option<&Resumption>,
    ) -> Result<Arc<Self>, VolumeError> {
        let mut rules = options.rules.clone();
        if let Some(resumption) = resumption {
            resumption.settings_into(&mut rules);
        }
        let engine = start_engine(&*store, &options, &rules, resumption)?;
        let started = options.clock.moment();
        let background = options.background;
        let order = locks::new_order();
        let engine_state = EngineState {
            engine,
            checkpointer_idle: false,
            wake: false,
            closings_seen: 0,
            space_at: started.now,
            is_trimming: false,
            batched_bytes: 0,
        };
        let pacing = Pacing::new(options.pacing);
        let bursts = options
            .user_from_bursts
            .then(|| RankedMutex::new(order, Rank::Bursts, Bursts::default()));
        let shared = Arc::new(Shared {
            engine_state: RankedMutex::new(order, Rank::Engine, engine_state),
            wake: Condvar::new(),
            crowded: Condvar::new(),
            kernel_cache: RankedMutex::new(order, Rank::KernelCache, None),
            has_trimmer: AtomicBool::new(false),
            forgotten_objects: AtomicU64::new(0),
            commit_lock: RankedMutex::new(order, Rank::Commit, Committing),
            commit_queue: CommitQueue::new(order),
            durable_syncs: DurableSyncs::default(),
            rollback_journals: RollbackJournals::new(order, resumption.is_some()),
            listing: RankedRwLock::new(order, Rank::Listing, ()),
            store,
            started,
            age_min_ms: rules.due_age_ms_min().into(),
            memory_budget_bytes: options.memory_budget_bytes.into(),
            rules: RankedMutex::new(order, Rank::Rules, rules),
            failures: RankedMutex::new(order, Rank::Failures, BTreeMap::new()),
            freed_space: RankedMutex::new(order, Rank::FreedSpace, FreedSpace::default()),
            waiting_commit: RankedMutex::new(order, Rank::WaitingCommit, None),
            may_roll_back: AtomicBool::new(false),
            is_postponed: AtomicBool::new(false),
            is_stuck: AtomicBool::new(false),
            applying: RankedMutex::new(order, Rank::Applying, Applying),
            apply_failure: RankedMutex::new(order, Rank::ApplyFailure, None),
            checkpoints: RankedMutex::new(order, Rank::Checkpoints, BTreeMap::new()),
            pacing: RankedMutex::new(order, Rank::Pacing, pacing),
            bursts,
            forecast: RankedMutex::new(order, Rank::Forecast, Forecast::default()),
            power_cut: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            pressure_flush: AtomicBool::new(false),
            low_batteries: RankedMutex::new(order, Rank::LowBatteries, BTreeSet::new()),
            sync_reaches: AtomicBool::new(false),
            options,
        });
        // Also saves the engine's state in the arena.
        shared.refresh_space(&shared.commit_lock.lock())?;
        let volume = Self {
            shared: Arc::clone(&shared),
            threads: Mutex::new(Vec::new()),
        };
        if background {
            volume.spawn("checkpointer", move || shared.run_checkpointer())?;
        }
        Ok(Arc::new(volume))
    }

    /// Closes every transaction, without committing any.
    #[cfg(test)]
    pub(crate) fn close_all(&self) {
        self.shared.lock_engine().engine.close_all();
    }

    /// Ends the volume's life as a power cut would: from now on nothing more is
    /// written to the store, and every operation fails with `Io`. Returns when no
    /// write is on its way any more.
    pub fn cut_power(&self) {
        self.shared.power_cut.store(true, Ordering::SeqCst);
        self.shared.store.cut_power();
        self.stop_threads();
        // A thread in the middle of a commit has ended when the commit lock is free.
        drop(self.shared.commit_lock.lock());
    }

    /// Commits and applies everything, then stops the threads. Operations that come
    /// later are not committed any more.
    ///
    /// # Errors
    /// What could not be committed or applied; it is still in memory (or in the
    /// journal) then, and the call may be repeated.
    pub fn shutdown(&self) -> Result<(), VolumeError> {
        if self.shared.is_power_cut() {
            return Err(VolumeError::PowerCut);
        }
        self.sync_app(None, true)?;
        self.stop_threads();
        // Commits what was changed between the two.
        self.sync_app(None, true)
    }

    fn spawn(&self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), VolumeError> {
        let thread = thread::Builder::new().name(name.into()).spawn(body);
        self.threads
            .lock()
            .push(thread.map_err(VolumeError::Thread)?);
        Ok(())
    }

    fn stop_threads(&self) {
        self.shared.stopping.store(true, Ordering::SeqCst);
        {
            let mut locked = self.shared.lock_engine();
            locked.wake = true;
            self.shared.wake.notify_all();
            self.shared.crowded.notify_all();
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a thread of the volume has panicked");
            }
        }
    }
}

impl Drop for Volume {
    /// Stops the threads. What is not committed is lost: call
    /// [`Volume::shutdown`] first.
    fn drop(&mut self) {
        self.stop_threads();
    }
}

impl Shared {
    /// Locks the engine.
    fn lock_engine(&self) -> LockedEngine<'_> {
        self.lock_engine_keeping(Keeping::Now)
    }

    /// Locks the engine.
    fn lock_engine_keeping(&self, keeping: Keeping) -> LockedEngine<'_> {
        let guard = self.engine_state.lock();
        LockedEngine::new(guard, self.options.arena.as_ref(), keeping)
    }

    fn moment(&self) -> Moment {
        self.options.clock.moment()
    }

    fn is_power_cut(&self) -> bool {
        self.power_cut.load(Ordering::SeqCst)
    }

    /// Fails after a power cut: memory is gone.
    fn check_power(&self) -> Result<(), FsError> {
        if self.is_power_cut() {
            Err(FsError::Io)
        } else {
            Ok(())
        }
    }

    /// After an operation that may have changed something: wakes the checkpointer if
    /// there is something to do for it.
    fn after_change(&self, locked: &mut LockedEngine<'_>) {
        let crowded = locked.engine.dirty_bytes() > self.memory_high_bytes();
        // An `fsync` commits what it closes, and has done so by now.
        let has_closed =
            locked.engine.closings() != locked.closings_seen && locked.engine.has_waiting();
        if locked.checkpointer_idle || crowded || has_closed {
            self.wake(locked);
        }
        self.after_crowding(locked);
    }

    /// Has the checkpointer commit and apply everything.
    fn request_pressure_flush(&self) {
        self.pressure_flush.store(true, Ordering::SeqCst);
        self.wake(&mut self.lock_engine());
    }

    /// Has the checkpointer run a round at once.
    fn wake(&self, locked: &mut LockedEngine<'_>) {
        if !locked.wake {
            locked.wake = true;
            self.wake.notify_one();
        }
    }

    /// After an object lost a user: wakes the checkpointer if that was the last user of a deleted
    /// object. Nothing else may wake it, in particular where deleted files fill the disk.
    fn after_release(&self, locked: &mut LockedEngine<'_>) {
        if locked.engine.has_unpinned() {
            self.wake(locked);
        }
        self.after_crowding(locked);
    }

    /// Above this the checkpointer starts to free memory before writers must wait.
    fn memory_high_bytes(&self) -> u64 {
        self.memory_budget_bytes.load(Ordering::Relaxed) / 2
    }

    fn age_min(&self) -> Duration {
        Duration::from_millis(self.age_min_ms.load(Ordering::Relaxed))
    }
}

fn limits(store: &dyn Store, options: &VolumeOptions) -> Limits {
    let capabilities = store.capabilities();
    Limits {
        memory_budget_bytes: options.memory_budget_bytes,
        objects_max: options.objects_max,
        xattr_bytes_max: capabilities.xattr_bytes_max,
        file_bytes_max: capabilities.file_bytes_max,
        name_bytes_max: capabilities.name_bytes_max,
        symlink_bytes_max: capabilities.symlink_bytes_max,
        directory_bytes_max: capabilities.directory_bytes_max,
        links_max: capabilities.links_max,
        device_max: capabilities.device_max,
        privileged: capabilities.privileged,
        owner_uid: capabilities.owner_uid,
        read_only: capabilities.read_only || options.read_only,
    }
}

/// A new engine over the store, or the one of which the arena has the state.
fn start_engine(
    store: &dyn Store,
    options: &VolumeOptions,
    rules: &Rules,
    resumption: Option<&Resumption>,
) -> Result<Engine, VolumeError> {
    let root = store.object(ObjectId::ROOT)?;
    let config = EngineConfig {
        rules: Box::new(rules.clone()),
        limits: limits(store, options),
        hash_seed: options.hash_seed.unwrap_or_else(random_seed),
        is_saved: options.arena.is_some(),
    };
    if let (Some(resumption), Some(arena)) = (resumption, &options.arena) {
        return Ok(resumption.engine(arena, config, &root, store)?);
    }
    let mut engine = Engine::new(config, &root);
    engine.number_objects_from(store.first_new_object());
    Ok(engine)
}

/// An unpredictable seed, so that chosen file names cannot collide in hash tables.
fn random_seed() -> u64 {
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}
