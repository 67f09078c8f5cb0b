//! The threads that answer requests.
//!
//! By default one worker is bound to each usable CPU, and [`crate::lead`] decides who of
//! them looks for requests. After a request, a worker *looks out* for the next one for a
//! moment before it sleeps: a program that was answered asks again within microseconds,
//! and waking a sleeper costs more than that. While it looks out it lets everybody else
//! on its CPU go first, the sender above all. Where CPUs are wanted by others it does not
//! look out.
//!
//! A request may block its worker: reading from a slow device, an `fsync` in a durable
//! app, a writer that is throttled. When all workers that look for requests are blocked
//! that way, requests that could be answered from memory would wait with them. So a
//! guard watches: if they have been busy for a while and no request has been taken
//! meanwhile, it lets the parked ones look too, or adds a spare worker, which goes away
//! when it is no longer needed. The guard sleeps as long as some worker is idle, so it
//! costs nothing on a quiet machine.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::adapter::SCRATCH_BYTES;
use crate::cpu;
use crate::lead::{Arrival, Lead, SPARE};
use crate::options::WorkerPlacement;
use crate::protocol::REQUEST_BUFFER_BYTES;
use crate::reply::Reply;
use crate::request::{Malformed, Request};
use crate::session::{SessionError, Shared};
use crate::transport::Transport;

/// A worker looks out for the next request for this long before it sleeps.
const LOOK_OUT: Duration = Duration::from_micros(20);
/// If somebody else had the CPU for longer than this while we looked out, it was at
/// least as much as a sender does between two requests.
const SENDER_TURN_MIN: Duration = Duration::from_micros(3);
/// If somebody else had the CPU for longer than this, CPUs are short.
const CONTENTION_MIN: Duration = Duration::from_micros(500);
/// How long all workers must be stuck before a spare one is added.
const STALL_PATIENCE: Duration = Duration::from_millis(3);
/// Ticks without a stall after which the guard goes back to sleep.
const CALM_TICKS: u32 = 8;
/// Spare workers at a time. More blocked requests than that wait.
const SPARES_MAX: usize = 64;
/// Stack of a worker: no recursion, no large values on it.
const STACK_BYTES: usize = 512 * 1024;

/// What the workers and the guard know of each other.
pub(crate) struct Workers {
    shared: Arc<Shared>,
    lead: Lead,
    /// Workers that wait for a request, other than parked ones.
    idle: AtomicUsize,
    /// Requests taken so far.
    taken: AtomicU64,
    spares: AtomicUsize,
    guard: Mutex<GuardState>,
    guard_wake: Condvar,
    /// The first failure of a worker.
    failure: Mutex<Option<SessionError>>,
}

#[derive(Default)]
struct GuardState {
    /// Somebody saw no idle worker.
    alarmed: bool,
    finished: bool,
}

/// A worker's part in the pool.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Pinned {
        cpu: usize,
    },
    Floating,
    /// Leaves when others are idle.
    Spare,
}

impl Workers {
    /// Answers requests until the mount ends.
    pub(crate) fn run(shared: &Arc<Shared>) -> Result<(), SessionError> {
        let roles = roles(shared.placement);
        let lead = Lead::new(bound_cpus(&roles));
        let workers = Arc::new(Self {
            shared: Arc::clone(shared),
            lead,
            idle: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            spares: AtomicUsize::new(0),
            guard: Mutex::default(),
            guard_wake: Condvar::new(),
            failure: Mutex::new(None),
        });
        let guard = {
            let workers = Arc::clone(&workers);
            spawn("fuse-guard".to_owned(), move || workers.watch()).map_err(SessionError::Spawn)?
        };
        let mut threads = Vec::new();
        let mut spawn_error = None;
        for (number, role) in roles.into_iter().enumerate() {
            let workers = Arc::clone(&workers);
            match spawn(format!("fuse-{number}"), move || workers.work(number, role)) {
                Ok(thread) => threads.push(thread),
                Err(error) => spawn_error = Some(error),
            }
        }
        if threads.is_empty() {
            workers.finish_guard();
            join(guard);
            workers.shared.abort_after_failure();
            let error = spawn_error.unwrap_or_else(|| std::io::Error::other("no usable CPU"));
            return Err(SessionError::Spawn(error));
        }
        if let Some(error) = spawn_error {
            tracing::warn!(%error, workers = threads.len(), "fewer workers than wanted");
        }
        threads.into_iter().for_each(join);
        workers.finish_guard();
        join(guard);
        workers.failure.lock().take().map_or(Ok(()), Err)
    }

    fn work(&self, number: usize, role: Role) {
        if let Role::Pinned { cpu } = role {
            cpu::pin_to(cpu);
        }
        if let Err(error) = self.answer_all(number, role) {
            self.fail(error);
        }
        if role != Role::Spare {
            self.lead.end();
        }
    }

    /// Answers requests until there will be none, or none for a spare worker.
    fn answer_all(&self, number: usize, role: Role) -> Result<(), SessionError> {
        let mut buffer = vec![0; REQUEST_BUFFER_BYTES];
        let mut scratch = vec![0; SCRATCH_BYTES];
        loop {
            let (length, arrival) = match self.next(number, &mut buffer) {
                Ok(received) => received,
                Err(Errno::NODEV) => return Ok(()),
                Err(errno) => return Err(SessionError::Receive(errno)),
            };
            self.taken.fetch_add(1, Ordering::SeqCst);
            if self.idle.load(Ordering::SeqCst) == 0 {
                self.alarm();
            }
            if !self.answer(number, &buffer[..length], arrival, &mut scratch) {
                return Err(SessionError::Panicked);
            }
            if role == Role::Spare && self.idle.load(Ordering::SeqCst) > 0 {
                return Ok(());
            }
        }
    }

    /// Waits for the next request and reads it.
    fn next(&self, number: usize, buffer: &mut [u8]) -> Result<(usize, Arrival), Errno> {
        let transport = &self.shared.transport;
        let mut arrival = Arrival::Here;
        loop {
            if !self.lead.looks(number) {
                self.lead.park(number);
            }
            self.idle.fetch_add(1, Ordering::SeqCst);
            let found = self.look_out(buffer, &mut arrival).transpose();
            let slept = found.is_none().then(|| transport.sleep());
            self.idle.fetch_sub(1, Ordering::SeqCst);
            if let Some(length) = found {
                return Ok((length?, arrival));
            }
            slept.transpose()?;
            arrival = Arrival::Elsewhere;
            // Who was woken also looks, whoever leads now.
            if let Some(length) = transport.try_receive(buffer)? {
                return Ok((length, arrival));
            }
        }
    }

    /// Looks for a request for a while, giving way to whoever wants this CPU.
    fn look_out(&self, buffer: &mut [u8], arrival: &mut Arrival) -> Result<Option<usize>, Errno> {
        let since = Instant::now();
        let mut now = since;
        loop {
            if let Some(length) = self.shared.transport.try_receive(buffer)? {
                return Ok(Some(length));
            }
            if now - since >= LOOK_OUT || self.lead.is_paused() {
                return Ok(None);
            }
            std::thread::yield_now();
            let before = std::mem::replace(&mut now, Instant::now());
            let away = now - before;
            *arrival = if away >= SENDER_TURN_MIN {
                Arrival::Here
            } else {
                Arrival::Elsewhere
            };
            if away >= CONTENTION_MIN {
                self.lead.contended();
            }
        }
    }

    /// Answers one request; false if that panicked.
    fn answer(&self, number: usize, bytes: &[u8], arrival: Arrival, scratch: &mut [u8]) -> bool {
        let transport = &self.shared.transport;
        let request = match Request::parse(bytes, self.shared.agreement.set_xattr_extended()) {
            Ok(request) => request,
            Err(Malformed::Arguments {
                unique,
                expects_reply,
            }) => {
                tracing::error!(unique, "the kernel sent a malformed request");
                if expects_reply {
                    Reply::new(transport, unique).error(Errno::INVAL);
                }
                return true;
            }
            Err(Malformed::Header) => {
                tracing::error!("the kernel sent a request without a header");
                return true;
            }
        };
        self.lead.taken(number, request.header.pid, arrival);
        if self.shared.aborted.load(Ordering::SeqCst) {
            if request.expects_reply() {
                Reply::new(transport, request.header.unique).error(Errno::IO);
            }
            return true;
        }
        // A panic leaves a request unanswered and its sender waiting for good. It is
        // turned into the end of the mount. The handler's state is not used again.
        let handler = AssertUnwindSafe(|| {
            self.shared.handler.handle(transport, &request, scratch);
        });
        catch_unwind(handler).is_ok()
    }

    fn fail(&self, error: SessionError) {
        tracing::error!(%error, "a worker failed");
        let first = self.failure.lock().replace(error).is_none();
        if first {
            self.shared.abort_after_failure();
        }
    }

    /// No worker is idle: the guard should look.
    fn alarm(&self) {
        let mut guard = self.guard.lock();
        if !guard.alarmed {
            guard.alarmed = true;
            self.guard_wake.notify_one();
        }
    }

    fn finish_guard(&self) {
        self.guard.lock().finished = true;
        self.guard_wake.notify_one();
    }

    /// The guard's thread.
    fn watch(self: &Arc<Self>) {
        loop {
            let mut guard = self.guard.lock();
            while !guard.alarmed && !guard.finished {
                self.guard_wake.wait(&mut guard);
            }
            let mut taken = self.taken.load(Ordering::SeqCst);
            let mut calm_ticks = 0;
            while calm_ticks < CALM_TICKS {
                if guard.finished {
                    return;
                }
                self.guard_wake.wait_for(&mut guard, STALL_PATIENCE);
                let stuck = self.idle.load(Ordering::SeqCst) == 0
                    && self.taken.load(Ordering::SeqCst) == taken;
                taken = self.taken.load(Ordering::SeqCst);
                if stuck {
                    calm_ticks = 0;
                    if !self.lead.dissolve() {
                        self.add_spare();
                    }
                } else {
                    calm_ticks += 1;
                }
            }
            guard.alarmed = false;
            // A worker that found the flag still set did not raise it again.
            if self.idle.load(Ordering::SeqCst) == 0 {
                guard.alarmed = true;
            }
        }
    }

    fn add_spare(self: &Arc<Self>) {
        if self.spares.load(Ordering::SeqCst) >= SPARES_MAX {
            return;
        }
        self.spares.fetch_add(1, Ordering::SeqCst);
        let workers = Arc::clone(self);
        let started = spawn("fuse-spare".to_owned(), move || {
            workers.work(SPARE, Role::Spare);
            workers.spares.fetch_sub(1, Ordering::SeqCst);
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
