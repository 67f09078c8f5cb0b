//! The threads that answer requests.
//!
//! By default one worker is pinned to each usable CPU. The kernel wakes the worker that
//! has waited longest, wherever it is, and the time of a request is the time of two
//! wake-ups. On a quiet machine pinning keeps every second wake-up on the sender's CPU.
//! On a machine whose CPUs are busy with other things it is the wrong choice: a pinned
//! worker waits for its CPU although another would be free, and a single worker that
//! follows its callers is then three times as fast. [`WorkerPlacement`] lets the two be
//! compared.
//!
//! A request may block its worker: reading from a slow device, an `fsync` in a durable app, a writer
//! that is throttled. When all workers are blocked that way, requests that could be
//! answered from memory would wait with them. So a guard watches: if all workers have
//! been busy for a while and no request has been taken meanwhile, it adds a spare
//! worker, which goes away when it is no longer needed. The guard sleeps as long as
//! some worker is idle, so it costs nothing on a quiet machine.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::adapter::SCRATCH_BYTES;
use crate::cpu;
use crate::options::WorkerPlacement;
use crate::protocol::REQUEST_BUFFER_BYTES;
use crate::reply::Reply;
use crate::request::{Malformed, Request};
use crate::session::{SessionError, Shared};
use crate::transport::Transport;

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
    /// Workers that wait for a request.
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
        let workers = Arc::new(Self {
            shared: Arc::clone(shared),
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
        for (number, role) in roles(shared.placement).into_iter().enumerate() {
            let workers = Arc::clone(&workers);
            match spawn(format!("fuse-{number}"), move || workers.work(role)) {
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

    fn work(self: &Arc<Self>, role: Role) {
        if let Role::Pinned { cpu } = role {
            cpu::pin_to(cpu);
        }
        let mut buffer = vec![0; REQUEST_BUFFER_BYTES];
        let mut scratch = vec![0; SCRATCH_BYTES];
        loop {
            self.idle.fetch_add(1, Ordering::SeqCst);
            let received = self.shared.transport.receive(&mut buffer);
            let others_idle = self.idle.fetch_sub(1, Ordering::SeqCst) - 1;
            let length = match received {
                Ok(length) => length,
                Err(Errno::NODEV) => return,
                Err(errno) => return self.fail(SessionError::Receive(errno)),
            };
            self.taken.fetch_add(1, Ordering::SeqCst);
            if others_idle == 0 {
                self.alarm();
            }
            if !self.answer(&buffer[..length], &mut scratch) {
                return self.fail(SessionError::Panicked);
            }
            if role == Role::Spare && self.idle.load(Ordering::SeqCst) > 0 {
                return;
            }
        }
    }

    /// Answers one request; false if that panicked.
    fn answer(&self, bytes: &[u8], scratch: &mut [u8]) -> bool {
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
                    self.add_spare();
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
            workers.work(Role::Spare);
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
