//! The threads that answer requests.
//!
//! By default one worker is bound to each usable CPU, and [`leader`] decides which of them poll for
//! requests. After a request, a worker *spins* for a moment before it sleeps: a program that was
//! answered sends the next request within microseconds, and waking a sleeper costs more than that.
//! While it spins it yields to everything else on its CPU, the sender above all. Where other
//! programs want the CPUs it does not spin.
//!
//! A request may block its worker: reading from a slow device, an `fsync` in a durable app, a
//! writer that is throttled. When all workers that poll are blocked that way, requests that could
//! be answered from memory would wait with them. So a [`watchdog`] thread monitors them: if they
//! have been busy for a while and no request has been taken meanwhile, it lets the parked ones poll
//! too, or adds a spare worker, which ends when it is no longer needed. Where a worker says that it
//! waits, none of that time passes (see [`reserve_worker`]). The watchdog sleeps as long
//! as some worker is idle, so it costs nothing on a quiet machine. It also monitors a leader that
//! has lowered its priority, see [`priority`].
//!
//! A worker whose buffer holds a request that a predecessor left (see [`crate::in_flight`])
//! finishes that first. Nothing new has to wait for all of these: the kernel sends what depends
//! on an answer only after the answer, and what does not depend on one may come before it or
//! after it, as without a predecessor.

mod backoff;
pub(crate) mod cpu;
mod cpu_load;
mod leader;
mod priority;
mod reserve;
mod reserve_worker;
mod slice;
mod watchdog;
mod worker;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;

use crate::error::SessionError;
use crate::options::WorkerPlacement;
use crate::shared::Shared;
use crate::waiting::Waits;
use cpu_load::CpuLoad;
use leader::{Leadership, SPARE};
use priority::Priorities;
use reserve::Reserve;
use watchdog::Watchdog;

/// How long all workers must be stuck before a spare one is added.
const STALL_PATIENCE: Duration = Duration::from_millis(3);
/// Ticks without a stall after which the watchdog goes back to sleep.
const CALM_TICKS: u32 = 8;
/// Spare workers at a time. More blocked requests than that wait.
const SPARES_MAX: usize = 64;
/// Permanent workers where each needs a slot of a ledger: with the spare ones there are as many
/// as the slots of the largest ledger.
const PERMANENT_MAX: usize = 32;
/// Stack of a worker: no recursion, no large values on it.
const STACK_BYTES: usize = 512 * 1024;

/// What the workers and the watchdog know of each other.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    leadership: Leadership,
    /// Workers that wait for a request, other than parked ones.
    idle: AtomicUsize,
    /// Requests taken so far.
    taken: AtomicU64,
    spares: AtomicUsize,
    reserve: Reserve,
    priorities: Priorities,
    watchdog: Watchdog,
    /// The first failure of a worker.
    failure: Mutex<Option<SessionError>>,
    /// Requests of a predecessor that are not answered yet.
    in_flight: AtomicUsize,
    /// To be called when there are none any more.
    caught_up: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

/// A worker's part in the pool.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Pinned {
        cpu: usize,
    },
    Floating,
    /// Ends when others are idle.
    Spare,
}

impl Workers {
    /// Answers requests until the mount ends. `caught_up` is called when those that a
    /// predecessor left are answered.
    pub(crate) fn run(
        shared: &Arc<Shared>,
        caught_up: Box<dyn FnOnce() + Send>,
    ) -> Result<(), SessionError> {
        let mut roles = roles(shared.placement);
        if shared.buffers.outlive_process() {
            roles.truncate(PERMANENT_MAX);
        }
        let in_flight = shared.buffers.in_flight_count();
        let leadership = Leadership::new(bound_cpus(&roles));
        let workers = Arc::new(Self {
            shared: Arc::clone(shared),
            priorities: Priorities::new(leadership.candidates()),
            leadership,
            idle: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            spares: AtomicUsize::new(0),
            reserve: Reserve::default(),
            watchdog: Watchdog::default(),
            failure: Mutex::new(None),
            in_flight: AtomicUsize::new(in_flight),
            caught_up: Mutex::new(Some(caught_up)),
        });
        let reported: Arc<dyn Waits> = Arc::clone(&workers) as _;
        let known = shared.link.workers.set(Arc::downgrade(&reported));
        debug_assert!(known.is_ok(), "a session runs once");
        if in_flight == 0 {
            workers.report_caught_up();
        }
        let watchdog = {
            let workers = Arc::clone(&workers);
            spawn("fuse-watchdog".to_owned(), move || workers.watch())
                .map_err(SessionError::Spawn)?
        };
        // Whatever one of these requests waits for, it does not hold up the others.
        for _ in roles.len()..in_flight {
            workers.add_spare(|workers| workers.answer_all(SPARE, Role::Spare));
        }
        match workers.start(roles) {
            Ok(threads) => threads.into_iter().for_each(join),
            // A successor of this process can serve the mount.
            Err(error) if shared.buffers.outlive_process() => {
                *workers.failure.lock() = Some(SessionError::Spawn(error));
            }
            Err(error) => workers.fail(SessionError::Spawn(error)),
        }
        workers.watchdog.stop();
        join(watchdog);
        workers.failure.lock().take().map_or(Ok(()), Err)
    }

    /// Starts the permanent workers, or at least one.
    fn start(self: &Arc<Self>, roles: Vec<Role>) -> std::io::Result<Vec<JoinHandle<()>>> {
        let mut threads = Vec::new();
        let mut spawn_error = None;
        for (number, role) in roles.into_iter().enumerate() {
            let workers = Arc::clone(self);
            match spawn(format!("fuse-{number}"), move || {
                workers.work(number, role, || workers.answer_all(number, role));
            }) {
                Ok(thread) => threads.push(thread),
                Err(error) => spawn_error = Some(error),
            }
        }
        if let Some(error) = spawn_error {
            if threads.is_empty() {
                return Err(error);
            }
            tracing::warn!(%error, workers = threads.len(), "started fewer workers than configured");
        }
        Ok(threads)
    }

    fn report_caught_up(&self) {
        if let Some(caught_up) = self.caught_up.lock().take() {
            caught_up();
        }
    }

    fn fail(&self, error: SessionError) {
        tracing::error!(%error, "a worker failed");
        let first = self.failure.lock().replace(error).is_none();
        if first {
            self.shared.abort_after_failure();
        }
    }

    /// The watchdog's thread.
    fn watch(self: &Arc<Self>) {
        let mut attendance = self.watchdog.attend();
        let mut load = CpuLoad::new(self.leadership.candidates());
        while attendance.sleep() {
            let mut taken = self.taken.load(Ordering::SeqCst);
            let mut calm_ticks = 0;
            while calm_ticks < CALM_TICKS || attendance.is_held() {
                if !attendance.tick(STALL_PATIENCE) {
                    return;
                }
                let saturated = self.priorities.is_used() && load.is_saturated();
                let sender = self.leadership.sender();
                let starved = self.priorities.restore_starved(sender, saturated);
                let stuck = self.shared.has_watchdog
                    && self.idle.load(Ordering::SeqCst) == 0
                    && self.taken.load(Ordering::SeqCst) == taken
                    && !self.is_reserve_armed();
                taken = self.taken.load(Ordering::SeqCst);
                calm_ticks += 1;
                if starved || stuck {
                    calm_ticks = 0;
                    if !self.leadership.dissolve() && stuck {
                        self.add_spare(|workers| workers.answer_all(SPARE, Role::Spare));
                    }
                }
            }
            // A worker that found the watchdog still awake did not wake it again.
            if attendance.stand_down() && self.idle.load(Ordering::SeqCst) == 0 {
                attendance.stay_awake();
            }
        }
    }

    /// Starts a thread that does this, unless there are as many as there may be.
    fn add_spare(self: &Arc<Self>, body: fn(&Arc<Self>) -> Result<(), SessionError>) {
        if self.spares.load(Ordering::SeqCst) >= SPARES_MAX {
            return;
        }
        self.spares.fetch_add(1, Ordering::SeqCst);
        let workers = Arc::clone(self);
        let started = spawn("fuse-spare".to_owned(), move || {
            workers.work(SPARE, Role::Spare, || body(&workers));
            let before = workers.spares.fetch_sub(1, Ordering::SeqCst);
            debug_assert!(before > 0, "more spare workers ended than were started");
        });
        if let Err(error) = started {
            self.spares.fetch_sub(1, Ordering::SeqCst);
            tracing::warn!(%error, "cannot start a spare worker");
        }
    }
}

/// The permanent workers.
fn roles(placement: WorkerPlacement) -> Vec<Role> {
    let cpus = cpu::usable();
    match placement {
        WorkerPlacement::Pinned => cpus.into_iter().map(|cpu| Role::Pinned { cpu }).collect(),
        WorkerPlacement::Floating => vec![Role::Floating; cpus.len()],
        WorkerPlacement::Single => vec![Role::Floating],
    }
}

/// The CPUs that workers are bound to; none if they are not.
fn bound_cpus(roles: &[Role]) -> Vec<usize> {
    roles
        .iter()
        .filter_map(|role| match role {
            Role::Pinned { cpu } => Some(*cpu),
            Role::Floating | Role::Spare => None,
        })
        .collect()
}

fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
    Builder::new()
        .name(name)
        .stack_size(STACK_BYTES)
        .spawn(body)
}

fn join(thread: JoinHandle<()>) {
    if thread.join().is_err() {
        tracing::error!("a thread of the mount panicked outside a request");
    }
}
