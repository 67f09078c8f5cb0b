//! One run of a history, in which calls may fail.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use mobifs_base::FileKind;
use mobifs_store::{Gate, JournalStore, Store};
use mobifs_volume::{Arena, Clock, Resumption, Volume, VolumeError, VolumeOptions};
use rustix::io::Errno;

use super::image::{Collector, check_image, demand_no_leftovers};
use super::{Cuts, FaultStatistics, History, Setting};
use crate::crash::{CrashLower, Fault};
use crate::harness::{compare_trees, demand_nothing_held};
use crate::layout::TOP_LEVEL;
use crate::model::Model;
use crate::operations::{Event, Operation};
use crate::random::Random;
use crate::target::{Target as _, VolumeTarget, describe};
use crate::timeline::{Synced, Timeline};

/// No run takes so many calls: the store loops.
const CALLS_MAX: u64 = 1_000_000;

/// What a run did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Calls to the lower filesystem until the end of the history, the unmount included.
    pub calls: u64,
    /// What counts for the search.
    pub statistics: FaultStatistics,
}

/// A mounted volume.
pub(super) struct Mounted {
    pub(super) target: VolumeTarget,
    pub(super) store: Arc<JournalStore<Gate<CrashLower>>>,
    /// The arena for a killed daemon's successor, if there may be one.
    arena: Option<Arena>,
}

/// Opens the store and starts a volume.
pub(super) fn mount(
    lower: &CrashLower,
    setting: &Setting,
    clock: &Arc<dyn Clock>,
) -> Result<Mounted, String> {
    let opened = JournalStore::open(Gate::new(lower.clone()), &setting.journal_options());
    let (store, _report) = opened.map_err(|error| error.to_string())?;
    start(store, setting, clock, None)
}

/// Mounts with a daemon that may be killed.
fn mount_to_be_killed(
    lower: &CrashLower,
    setting: &Setting,
    clock: &Arc<dyn Clock>,
) -> Result<Mounted, String> {
    let arena = Arena::create().map_err(|error| error.to_string())?;
    let sink = Arc::new(arena.clone());
    let opened =
        JournalStore::open_with_sink(Gate::new(lower.clone()), &setting.journal_options(), sink);
    let (store, _report) = opened.map_err(|error| error.to_string())?;
    start(store, setting, clock, Some(arena))
}

fn start(
    store: JournalStore<Gate<CrashLower>>,
    setting: &Setting,
    clock: &Arc<dyn Clock>,
    arena: Option<Arena>,
) -> Result<Mounted, String> {
    let store = Arc::new(store);
    let options = VolumeOptions {
        arena: arena.clone(),
        ..setting.volume_options(Arc::clone(clock))?
    };
    let volume = Volume::start(
        Arc::<JournalStore<Gate<CrashLower>>>::clone(&store),
        options,
    )
    .map_err(|error| error.to_string())?;
    Ok(Mounted {
        target: VolumeTarget::new(volume),
        store,
        arena,
    })
}

/// The volume and the store of a killed daemon's successor.
type Successor = (Arc<Volume>, Arc<JournalStore<Gate<CrashLower>>>, Arena);

/// Resumes the state of a killed daemon.
fn resume(
    lower: &CrashLower,
    setting: &Setting,
    clock: &Arc<dyn Clock>,
    left: &Arena,
) -> Result<Successor, String> {
    let memory = left.descriptor().try_clone_to_owned();
    let arena = Arena::attach(memory.map_err(|error| error.to_string())?)
        .map_err(|error| error.to_string())?;
    let mut resumption = Resumption::of(&arena).map_err(|error| error.to_string())?;
    let (store, resumed) = JournalStore::resume(
        Gate::new(lower.clone()),
        &setting.journal_options(),
        Arc::new(arena.clone()),
        resumption.store().clone(),
    )
    .map_err(|error| error.to_string())?;
    resumption.set_committed(resumed.committed);
    let store = Arc::new(store);
    let options = VolumeOptions {
        arena: Some(arena.clone()),
        ..setting.volume_options(Arc::clone(clock))?
    };
    let backend = Arc::<JournalStore<Gate<CrashLower>>>::clone(&store);
    let volume =
        Volume::resume(backend, options, &resumption).map_err(|error| error.to_string())?;
    volume.check_arena()?;
    Ok((volume, store, arena))
}

struct Run<'h> {
    setting: &'h Setting,
    lower: CrashLower,
    clock: Arc<dyn Clock>,
    mounted: Mounted,
    model: Model,
    timeline: Timeline,
    random: Random,
    collector: Collector,
    statistics: FaultStatistics,
    /// Merges of the volume that were seen.
    merges_seen: u64,
}

/// Runs a history with a fault (or without), takes crash images after it has fired, repairs
/// the filesystem and unmounts. `seed` decides where the images are taken and what lands.
///
/// # Errors
/// What is not as promised.
pub fn run(
    history: &History,
    fault: Option<Fault>,
    seed: u64,
    cuts: Cuts,
) -> Result<Outcome, String> {
    let lower = CrashLower::new();
    lower.limit_calls(CALLS_MAX);
    lower.set_fault(fault);
    lower.limit_handles(history.setting.handles_max);
    let ran = catch_unwind(AssertUnwindSafe(|| run_on(&lower, history, seed, cuts)));
    lower.clear_hook();
    ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

fn run_on(lower: &CrashLower, history: &History, seed: u64, cuts: Cuts) -> Result<Outcome, String> {
    let setting = &history.setting;
    let clock = setting.clock.clock(seed);
    let mut statistics = FaultStatistics::default();
    let mount_first = || {
        if history.has_kills() {
            mount_to_be_killed(lower, setting, &clock)
        } else {
            mount(lower, setting, &clock)
        }
    };
    let mounted = match mount_first() {
        Err(_) if lower.failed_calls() > 0 => {
            // A fault at the mount is an error; without it the mount succeeds.
            statistics.failed_mounts = 1;
            lower.set_fault(None);
            mount_first().map_err(|what| format!("second mount: {what}"))?
        }
        other => other?,
    };
    let model = Model::default();
    let mut run = Run {
        setting,
        lower: lower.clone(),
        clock,
        mounted,
        timeline: Timeline::new(TOP_LEVEL, model.state().clone()),
        model,
        random: Random::new(seed),
        collector: Collector::install(lower, seed, cuts),
        statistics,
        merges_seen: 0,
    };
    for (index, event) in history.events.iter().enumerate() {
        run.step(event)
            .map_err(|what| format!("at event {index} ({event:?}): {what}"))?;
    }
    run.unmount_as_it_is()
        .map_err(|what| format!("unmounting: {what}"))?;
    let calls = run.lower.calls();
    run.repair()
        .map_err(|what| format!("after the fault: {what}"))?;
    Ok(Outcome {
        calls,
        statistics: run.end()?,
    })
}

/// What a request promises when it succeeds.
enum Promise {
    Nothing,
    App(String),
    Everything,
    Synced(Synced),
}

impl Run<'_> {
    fn volume(&self) -> &Arc<Volume> {
        self.mounted.target.volume()
    }

    fn step(&mut self, event: &Event) -> Result<(), String> {
        let failed_before = self.lower.failed_calls();
        let promise = match event {
            Event::Do(operation) => self.operate(operation, failed_before)?,
            Event::Kill(_) => self.kill()?,
            event => self.request(event, failed_before)?,
        };
        self.record_merges()?;
        // What was found on the medium meanwhile was not promised yet.
        self.check_images()?;
        match promise {
            Promise::Nothing => {}
            Promise::App(app) => self.timeline.committed(&app),
            Promise::Everything => self.timeline.all_committed(),
            Promise::Synced(synced) => self.timeline.synced(&synced),
        }
        if self.lower.failed_calls() > failed_before {
            self.record_read_only()?;
            // Reading brings objects into memory, so not always.
            if self.random.chance(50) {
                self.compare()?;
            }
        }
        Ok(())
    }

    /// A successor has what was merged, too.
    fn record_merges(&mut self) -> Result<(), String> {
        let merges = self.volume().merges();
        let new = merges - self.merges_seen;
        self.merges_seen = merges;
        self.statistics.merges += new;
        if new > 0 {
            self.volume().check_arena()?;
        }
        Ok(())
    }

    fn operate(&mut self, operation: &Operation, failed_before: u64) -> Result<Promise, String> {
        let was_full = self.lower.is_full();
        let mut next = self.model.clone();
        let expected = next.execute(operation);
        let found = self.mounted.target.execute(operation);
        let agree = match (&expected, &found) {
            (Err(expected), Err(found)) => self
                .mounted
                .target
                .is_equivalent(operation, *expected, *found),
            _ => expected == found,
        };
        if agree {
            self.model = next;
            self.timeline.step(self.model.state());
            return Ok(self.promise_of(operation));
        }
        if let Err(errno) = found
            && (self.is_excused(operation, errno, failed_before)
                // There may be room again when the operation has found that there is none.
                || (was_full && errno == Errno::NOSPC))
        {
            self.statistics.failed_requests += 1;
            self.close_slot_of(operation);
            return Ok(Promise::Nothing);
        }
        Err(format!(
            "answered {}, expected {}",
            describe(&found),
            describe(&expected)
        ))
    }

    /// Kills the daemon between two events. Its successor has all that was answered, or fails
    /// because calls do; then there is another one.
    fn kill(&mut self) -> Result<Promise, String> {
        let Some(arena) = self.mounted.arena.take() else {
            return Err("nothing outlives this mount".into());
        };
        arena.kill_after(0);
        self.lower = self.lower.hand_over();
        self.statistics.kills += 1;
        self.statistics.killed_after_merge += u64::from(self.merges_seen > 0);
        self.merges_seen = 0;
        let failed_before = self.lower.failed_calls();
        let resume = |lower| resume(lower, self.setting, &self.clock, &arena);
        let (volume, store, arena) = match resume(&self.lower) {
            Err(_) if self.lower.failed_calls() > failed_before || self.lower.is_full() => {
                self.statistics.failed_mounts += 1;
                self.lower.set_fault(None);
                resume(&self.lower).map_err(|what| format!("another daemon: {what}"))?
            }
            other => other?,
        };
        self.mounted.target.go_on(volume);
        self.mounted.store = store;
        self.mounted.arena = Some(arena);
        if self.random.chance(50) {
            self.compare()?;
        }
        Ok(Promise::Nothing)
    }

    /// An `fsync` in a durable app returns when the app is committed, and all that was done
    /// to its object.
    fn promise_of(&self, operation: &Operation) -> Promise {
        match self.timeline.synced_by(&self.model, operation) {
            Some(synced) if self.setting.durable.contains(&synced.app) => Promise::Synced(synced),
            _ => Promise::Nothing,
        }
    }

    /// Whether an operation may fail with this error at this moment.
    fn is_excused(&self, operation: &Operation, errno: Errno, failed_before: u64) -> bool {
        let a_call_failed = self.lower.failed_calls() > failed_before;
        let has_read_only = || !self.read_only_apps().is_empty();
        match errno {
            Errno::IO => a_call_failed || (operation.is_fsync() && has_read_only()),
            Errno::ROFS => has_read_only(),
            Errno::NOSPC => a_call_failed || self.lower.is_full() || has_read_only(),
            _ => false,
        }
    }

    /// Two calls of a program are one operation here: the first, closing the slot,
    /// never fails.
    fn close_slot_of(&mut self, operation: &Operation) {
        let close = match operation {
            Operation::Open { slot, .. } | Operation::OpenUnnamed { slot, .. } => {
                Operation::Close { slot: *slot }
            }
            Operation::Hold { slot, .. } => Operation::CloseHeld { slot: *slot },
            _ => return,
        };
        // Closing an empty slot fails and changes nothing.
        let _closed = self.model.execute(&close);
        self.timeline.step(self.model.state());
    }

    fn request(&mut self, event: &Event, failed_before: u64) -> Result<Promise, String> {
        let volume = Arc::clone(self.volume());
        let (result, promise) = match event {
            Event::SyncApp(app) => {
                let result = volume.sync_app(Some(app), false);
                let is_app = self.exists(app) && self.timeline.may_be_app(app);
                if matches!(result, Err(VolumeError::UnknownApp { .. })) && !is_app {
                    return Ok(Promise::Nothing);
                }
                (text(result), Promise::App(app.clone()))
            }
            Event::SyncAll => (text(volume.sync_all()), Promise::Everything),
            Event::CommitNext => {
                let result = volume.commit_next();
                if result.is_err() && self.read_only_apps().is_empty() {
                    return Err("a commit failed and no app is read-only".into());
                }
                (text(result.map(drop)), Promise::Nothing)
            }
            Event::Apply => (text(self.mounted.store.apply()), Promise::Nothing),
            Event::Close(app) => {
                volume.close_app(app);
                (Ok(()), Promise::Nothing)
            }
            Event::TidyUp => {
                volume.do_housekeeping();
                (Ok(()), Promise::Nothing)
            }
            Event::Do(_) | Event::Cut | Event::Kill(_) => return Err("no request".into()),
        };
        self.judge(result, failed_before, promise)
    }

    /// A request may fail only if calls failed under it.
    fn judge(
        &mut self,
        result: Result<(), String>,
        failed_before: u64,
        promise: Promise,
    ) -> Result<Promise, String> {
        match result {
            Ok(()) => {
                if matches!(promise, Promise::Everything) {
                    self.demand_writable()?;
                }
                Ok(promise)
            }
            Err(_) if self.lower.failed_calls() > failed_before || self.lower.is_full() => {
                self.statistics.failed_requests += 1;
                Ok(Promise::Nothing)
            }
            Err(what) => Err(format!("failed although no call did: {what}")),
        }
    }

    fn exists(&self, app: &str) -> bool {
        let paths = self.model.state().paths();
        paths
            .get(app)
            .is_some_and(|(_, inode)| inode.kind() == FileKind::Directory)
    }

    fn read_only_apps(&self) -> Vec<(String, String)> {
        let apps = self.volume().status().apps.into_iter();
        apps.filter_map(|app| app.read_only.map(|reason| (app.name, reason)))
            .collect()
    }

    /// An app is read-only for a reason that the status reports.
    fn record_read_only(&mut self) -> Result<(), String> {
        let read_only = self.read_only_apps();
        if !read_only.is_empty() {
            self.statistics.read_only = 1;
        }
        match read_only
            .iter()
            .find(|(_, reason)| !reason.contains("failed:"))
        {
            None => Ok(()),
            Some(app) => Err(format!("the status gives no reason: {app:?}")),
        }
    }

    fn demand_writable(&self) -> Result<(), String> {
        match self.read_only_apps().first() {
            None => Ok(()),
            Some(app) => Err(format!(
                "everything is committed, and yet read-only: {app:?}"
            )),
        }
    }

    /// Compares what the mount shows with what was acknowledged.
    fn compare(&mut self) -> Result<(), String> {
        let (model, target, view) = (&self.model, &mut self.mounted.target, self.setting.view());
        self.lower
            .unharmed(|| compare_trees(model, target, view))
            .map_err(|what| format!("the mount shows something else than was acknowledged: {what}"))
    }

    fn check_images(&mut self) -> Result<(), String> {
        for image in self.collector.take() {
            self.statistics.crash_points += 1;
            let faulty = check_image(&image, self.setting, &self.timeline, &mut self.random)
                .map_err(|what| format!("{}: {what}", image.what))?;
            self.statistics.recovery_faults += u64::from(faulty);
        }
        Ok(())
    }

    /// Unmounts in every second run while calls may still fail.
    fn unmount_as_it_is(&mut self) -> Result<(), String> {
        if self.random.chance(50) {
            return Ok(());
        }
        let failed_before = self.lower.failed_calls();
        let unmounted = text(self.volume().shutdown()).and_then(|()| {
            self.mounted
                .store
                .close()
                .map_err(|error| error.to_string())
        });
        let promise = self.judge(unmounted, failed_before, Promise::Everything)?;
        self.check_images()?;
        if matches!(promise, Promise::Everything) {
            self.timeline.all_committed();
        }
        Ok(())
    }

    /// Ends the fault and checks that everything works again.
    fn repair(&mut self) -> Result<(), String> {
        self.collector.add(&self.lower, "after the last event");
        self.check_images()?;
        self.lower.set_fault(None);
        self.compare()?;
        let failed = self.lower.failed_calls();
        self.step(&Event::SyncAll)
            .map_err(|what| format!("sync: {what}"))?;
        for place in self.probes() {
            let operation = Operation::CreateFile {
                path: place,
                mode: 0o640,
            };
            let before = self.model.state().paths().len();
            self.step(&Event::Do(operation.clone()))
                .map_err(|what| format!("{operation:?}: {what}"))?;
            if self.model.state().paths().len() == before {
                return Err(format!("{operation:?} did nothing"));
            }
        }
        if self.lower.failed_calls() != failed {
            return Err("a call failed without a fault".into());
        }
        Ok(())
    }

    /// A new file for every app.
    fn probes(&self) -> Vec<String> {
        let paths = self.model.state().paths();
        let apps = paths.iter().filter(|(path, (_, inode))| {
            inode.kind() == FileKind::Directory && !path.contains('/') && !path.is_empty()
        });
        let mut probes = vec!["probe".to_owned()];
        probes.extend(apps.map(|(path, _)| format!("{path}/probe")));
        probes
    }

    /// Commits and applies all, and checks that nothing is held any more; then unmounts.
    fn end(mut self) -> Result<FaultStatistics, String> {
        let volume = Arc::clone(self.volume());
        text(volume.sync_app(None, true)).map_err(|what| format!("the last sync: {what}"))?;
        self.timeline.all_committed();
        self.compare()?;
        self.mounted.target.close_all();
        volume.do_housekeeping();
        self.demand_all_given_back()?;
        text(volume.shutdown()).map_err(|what| format!("the shutdown: {what}"))?;
        drop(volume);
        let closed = self.mounted.store.close();
        closed.map_err(|error| format!("closing the store: {error}"))?;
        let Self {
            setting,
            lower,
            clock,
            mounted,
            model,
            mut statistics,
            ..
        } = self;
        lower.clear_hook();
        let fired = lower.failed_calls();
        statistics.failed_calls = fired;
        statistics.fault_points = u64::from(fired > 0);
        statistics.lasting = u64::from(fired > 1);
        drop(mounted);
        for medium in [
            lower.crash_image(&mut |_| crate::crash::Fate::Vanish),
            lower,
        ] {
            let mut again = mount(&medium, setting, &clock)
                .map_err(|what| format!("mounting again: {what}"))?;
            compare_trees(&model, &mut again.target, setting.view())
                .map_err(|what| format!("after mounting again: {what}"))?;
            // This walk is not the store's.
            medium.limit_handles(usize::MAX);
            demand_no_leftovers(&medium)?;
        }
        Ok(statistics)
    }

    fn demand_all_given_back(&self) -> Result<(), String> {
        demand_nothing_held(self.volume(), &*self.mounted.store)?;
        let (room, mut lower_room) = (
            self.volume().statfs().map_err(|error| error.to_string())?,
            self.mounted
                .store
                .space()
                .map_err(|error| error.to_string())?,
        );
        lower_room.free_inodes = lower_room
            .free_inodes
            .saturating_sub(lower_room.own_inodes());
        if room == lower_room {
            Ok(())
        } else {
            Err(format!("reservations are left: {room:?} of {lower_room:?}"))
        }
    }
}

fn text<T, E: std::fmt::Display>(result: Result<T, E>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}
