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
//! costs nothing on a quiet machine. It also watches over a leader that has given up its
//! priority, see [`crate::priority`].
//!
//! A worker whose buffer holds a request that a predecessor left (see [`crate::slots`])
//! finishes that first. Nothing new has to wait for all of these: the kernel sends what
//! depends on an answer only after the answer, and what does not depend on one may come
//! before it or after it, as ever.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;

use crate::adapter::SCRATCH_BYTES;
use crate::alarm::Alarm;
use crate::cpu;
use crate::lead::{Arrival, Lead, SPARE};
use crate::options::WorkerPlacement;
use crate::pressure::Pressure;
use crate::priority::Priorities;
use crate::reply::Reply;
use crate::request::{Malformed, Request};
use crate::session::{SessionError, Shared};
use crate::slots::RequestBuffer;
use crate::transport::{NotedTransport, Transport};

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
/// Permanent workers where each needs a slot: with the spare ones there are as many as
/// slots.
const PERMANENT_MAX: usize = 32;
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
    priorities: Priorities,
    /// Wakes the guard.
    alarm: Alarm,
    /// The first failure of a worker.
    failure: Mutex<Option<SessionError>>,
    /// Requests of a predecessor that are not answered yet.
    left: AtomicUsize,
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
    /// Leaves when others are idle.
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
        if shared.slots.outlive_process() {
            roles.truncate(PERMANENT_MAX);
        }
        let left = shared.slots.left_count();
        let lead = Lead::new(bound_cpus(&roles));
        let workers = Arc::new(Self {
            shared: Arc::clone(shared),
            priorities: Priorities::new(lead.candidates()),
            lead,
            idle: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            spares: AtomicUsize::new(0),
            alarm: Alarm::default(),
            failure: Mutex::new(None),
            left: AtomicUsize::new(left),
            caught_up: Mutex::new(Some(caught_up)),
        });
        if left == 0 {
            workers.report_caught_up();
        }
        let guard = {
            let workers = Arc::clone(&workers);
            spawn("fuse-guard".to_owned(), move || workers.watch()).map_err(SessionError::Spawn)?
        };
        // Whatever one of the left requests waits for, it does not hold up the others.
        for _ in roles.len()..left {
            workers.add_spare();
        }
        let threads = workers.start(roles);
        if let Ok(threads) = threads {
            threads.into_iter().for_each(join);
        } else if let Err(error) = threads {
            workers.fail(SessionError::Spawn(error));
        }
        workers.alarm.finish();
        join(guard);
        workers.failure.lock().take().map_or(Ok(()), Err)
    }

    /// Starts the permanent workers, or at least one.
    fn start(self: &Arc<Self>, roles: Vec<Role>) -> std::io::Result<Vec<JoinHandle<()>>> {
        let mut threads = Vec::new();
        let mut spawn_error = None;
        for (number, role) in roles.into_iter().enumerate() {
            let workers = Arc::clone(self);
            match spawn(format!("fuse-{number}"), move || workers.work(number, role)) {
                Ok(thread) => threads.push(thread),
                Err(error) => spawn_error = Some(error),
            }
        }
        if let Some(error) = spawn_error {
            if threads.is_empty() {
                return Err(error);
            }
            tracing::warn!(%error, workers = threads.len(), "fewer workers than wanted");
        }
        Ok(threads)
    }

    fn work(&self, number: usize, role: Role) {
        if let Role::Pinned { cpu } = role {
            cpu::pin_to(cpu);
        }
        self.priorities.enter(number);
        let answered = self.answer_all(number, role);
        self.priorities.leave(number, &self.alarm);
        if let Err(error) = answered {
            self.fail(error);
        }
        if role != Role::Spare {
            self.lead.end();
        }
    }

    /// Answers requests until there will be none, or none for a spare worker.
    fn answer_all(&self, number: usize, role: Role) -> Result<(), SessionError> {
        let mut scratch = vec![0; SCRATCH_BYTES];
        let finished = self.finish_left(&mut scratch)?;
        if role == Role::Spare && finished > 0 && self.idle.load(Ordering::SeqCst) > 0 {
            return Ok(());
        }
        let Some(mut buffer) = self.shared.slots.take() else {
            // Only a spare worker can be one too many.
            return Ok(());
        };
        self.answer_from(number, role, &mut buffer, &mut scratch)
    }

    fn answer_from(
        &self,
        number: usize,
        role: Role,
        buffer: &mut RequestBuffer,
        scratch: &mut [u8],
    ) -> Result<(), SessionError> {
        // A predecessor may have died while it cleared it.
        buffer.clear();
        loop {
            let (length, arrival) = match self.next(number, buffer.bytes()) {
                Ok(received) => received,
                Err(Errno::NODEV) => return Ok(()),
                Err(errno) => return Err(SessionError::Receive(errno)),
            };
            self.took_one();
            if !self.answer(number, buffer, length, arrival, scratch) {
                return Err(SessionError::Panicked);
            }
            buffer.clear();
            if role == Role::Spare && self.idle.load(Ordering::SeqCst) > 0 {
                return Ok(());
            }
        }
    }

    /// A request is in hand.
    fn took_one(&self) {
        self.taken.fetch_add(1, Ordering::SeqCst);
        if self.idle.load(Ordering::SeqCst) == 0 {
            self.alarm.raise();
        }
    }

    /// Answers what a predecessor had read and not answered, as long as there is any;
    /// returns how many requests that were.
    fn finish_left(&self, scratch: &mut [u8]) -> Result<usize, SessionError> {
        let mut finished = 0;
        while let Some(mut buffer) = self.shared.slots.take_left() {
            self.took_one();
            if !self.finish_one(&mut buffer, scratch) {
                return Err(SessionError::Panicked);
            }
            buffer.clear();
            finished += 1;
            if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.report_caught_up();
            }
        }
        Ok(finished)
    }

    fn report_caught_up(&self) {
        let caught_up = self.caught_up.lock().take();
        if let Some(caught_up) = caught_up {
            caught_up();
        }
    }

    /// Waits for the next request and reads it.
    fn next(&self, number: usize, buffer: &mut [u8]) -> Result<(usize, Arrival), Errno> {
        let transport = &self.shared.transport;
        let mut arrival = Arrival::Here;
        loop {
            if !self.lead.looks(number) {
                self.priorities.rest(number, &self.alarm);
                self.lead.park(number);
            }
            self.idle.fetch_add(1, Ordering::SeqCst);
            let found = self.look_out(buffer, &mut arrival).transpose();
            let slept = found.is_none().then(|| {
                self.priorities.rest(number, &self.alarm);
                transport.sleep()
            });
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
    fn answer(
        &self,
        number: usize,
        buffer: &mut RequestBuffer,
        length: usize,
        arrival: Arrival,
        scratch: &mut [u8],
    ) -> bool {
        let device = &self.shared.transport;
        let (bytes, slot) = buffer.request(length);
        let noted = slot.map(|(slot, refusal)| (slot, NotedTransport::new(device, refusal)));
        let transport: &dyn Transport = match &noted {
            Some((_, noted)) => noted,
            None => device,
        };
        let Some(request) = self.parse(bytes, transport) else {
            return true;
        };
        self.lead.taken(number, request.header.pid, arrival);
        let leads = self.lead.is_led_by(number);
        self.priorities.took(number, leads, &self.alarm);
        if self.shared.aborted.load(Ordering::SeqCst) {
            if request.expects_reply() {
                Reply::new(transport, request.header.unique).error(Errno::IO);
            }
            return true;
        }
        self.survives(|| {
            let handler = &self.shared.handler;
            match &noted {
                Some((slot, noted)) => handler.handle_in_slot(*slot, noted, &request, scratch),
                None => handler.handle(transport, &request, scratch),
            }
        })
    }

    /// Answers the request that a predecessor left in this buffer; false if that
    /// panicked.
    fn finish_one(&self, buffer: &mut RequestBuffer, scratch: &mut [u8]) -> bool {
        let (Some(length), refused) = (buffer.left_bytes(), buffer.refused()) else {
            return true;
        };
        let length = length.min(buffer.bytes().len());
        let (bytes, Some((slot, refusal))) = buffer.request(length) else {
            return true;
        };
        let noted = NotedTransport::new(&self.shared.transport, refusal);
        let Some(request) = self.parse(bytes, &noted) else {
            return true;
        };
        let (unique, opcode) = (request.header.unique, request.header.opcode);
        tracing::debug!(slot, unique, opcode, ?refused, "left by the predecessor");
        if let Some(error) = refused {
            // This is how it ended. If the sender has heard so already, the kernel says
            // that nobody waits, and that is fine.
            Reply::new(&noted, unique).error(Errno::from_raw_os_error(-error));
            return true;
        }
        self.survives(|| {
            self.shared
                .handler
                .finish_left(slot, &noted, &request, scratch);
        })
    }

    /// The request in these bytes; what is none is answered here.
    fn parse<'a>(&self, bytes: &'a [u8], transport: &dyn Transport) -> Option<Request<'a>> {
        match Request::parse(bytes, self.shared.agreement.set_xattr_extended()) {
            Ok(request) => return Some(request),
            Err(Malformed::Arguments {
                unique,
                expects_reply,
            }) => {
                tracing::error!(unique, "the kernel sent a malformed request");
                if expects_reply {
                    Reply::new(transport, unique).error(Errno::INVAL);
                }
            }
            Err(Malformed::Header) => {
                tracing::error!("the kernel sent a request without a header");
            }
        }
        None
    }

    /// Runs a handler; false if it panicked.
    ///
    /// A panic leaves a request unanswered and its sender waiting for good, and the
    /// handler's state in the middle of something. Where a successor can take over, this
    /// process ends at once: the successor starts from the state before the request.
    /// Elsewhere the mount ends, and the handler's state is not used again.
    fn survives(&self, handle: impl FnOnce()) -> bool {
        let survived = catch_unwind(AssertUnwindSafe(handle)).is_ok();
        if !survived && self.shared.slots.outlive_process() {
            tracing::error!("a worker panicked; a new process has to take over");
            std::process::abort();
        }
        survived
    }

    fn fail(&self, error: SessionError) {
        tracing::error!(%error, "a worker failed");
        let first = self.failure.lock().replace(error).is_none();
        if first {
            self.shared.abort_after_failure();
        }
    }

    /// The guard's thread.
    fn watch(self: &Arc<Self>) {
        let mut watch = self.alarm.watch();
        let mut pressure = Pressure::new(self.lead.candidates());
        while watch.sleep() {
            let mut taken = self.taken.load(Ordering::SeqCst);
            let mut calm_ticks = 0;
            while calm_ticks < CALM_TICKS || watch.is_held() {
                if !watch.tick(STALL_PATIENCE) {
                    return;
                }
                let crowded = self.priorities.is_used() && pressure.is_crowded();
                let starved = self.priorities.lift(self.lead.sender(), crowded);
                let stuck = self.idle.load(Ordering::SeqCst) == 0
                    && self.taken.load(Ordering::SeqCst) == taken;
                taken = self.taken.load(Ordering::SeqCst);
                calm_ticks += 1;
                if starved || stuck {
                    calm_ticks = 0;
                    if !self.lead.dissolve() && stuck {
                        self.add_spare();
                    }
                }
            }
            // A worker that found the alarm still raised did not raise it again.
            if watch.take_back() && self.idle.load(Ordering::SeqCst) == 0 {
                watch.raise();
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
