//! The scheduling priority of the leader.
//!
//! A round trip is cheap when the sender is woken on the CPU where it fell asleep, which
//! is the one where its request was answered (see [`super::leader`]). But the kernel prefers
//! an idle CPU, and that one is busy: with the worker. So it moves the sender away, and
//! when the leadership has followed, back again. A CPU that runs nothing but `SCHED_IDLE` threads
//! counts as idle, though, and what is woken there runs at once. So a leader that finds
//! request after request runs under that policy, and the sender stays.
//!
//! Such a thread gets next to nothing of a CPU that another one wants, and it may hold a
//! lock. Therefore:
//! * The leader lowers its priority only to answer and to spin. It takes it back
//!   before it sleeps: woken on a busy CPU it would wait.
//! * It keeps the watchdog awake meanwhile. If it takes no request from one tick to the next, the
//!   watchdog restores its priority from its own thread, and needs for that no lock that the leader
//!   could hold. So a waiting thread is delayed by two ticks at most.
//! * No leader lowers it for a while after one was stuck while a sender waited for it,
//!   or while no CPU is idle: then there is none to which the sender would be moved.
//! * The two system calls cost about as much as a request, so requests without sleep have
//!   to come first.
//! * A process that may not take the old policy back (`RLIMIT_NICE`, seccomp), or that was
//!   started with another one than the default, never does it.
//!
//! With one usable CPU no worker leads. The policy belongs to the thread, so spare workers,
//! which the watchdog starts, and a successor of this process have the default one. A leader
//! that is killed ends with the policy it has; that can take long only if others begin to
//! want its CPU at that moment.
//!
//! In control groups (and sessions, with autogrouping) the scheduler compares groups first:
//! the sender is woken on the worker's CPU nevertheless, but waits until the worker yields,
//! and others in other groups starve the worker less.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;

use super::backoff::Backoff;
use super::cpu;
use super::watchdog::Watchdog;

/// How many requests without sleep make a leader give up its priority.
const UNBROKEN: u32 = 8;
/// When the watchdog had to help, no leader lowers its priority for so long; twice as long each
/// time it happens again soon.
const SUSPENSION_MIN: Duration = Duration::from_millis(20);
const SUSPENSION_MAX: Duration = Duration::from_secs(1);

/// The policy is the default one.
const NORMAL: u8 = 0;
/// The policy is, or will be at once, `SCHED_IDLE`.
const LOW: u8 = 1;
/// As `LOW`; but the watchdog has restored it, and the worker does not know it yet.
const RESTORED: u8 = 2;

/// Which workers have lowered their priority.
pub(crate) struct Priorities {
    /// Those that may lead, by number; none if none can.
    workers: Vec<Worker>,
    suspension: Backoff,
    /// No CPU is idle, as the watchdog saw it at its last tick.
    saturated: AtomicBool,
    /// Held while the watchdog uses thread ids, and while a worker takes its own away:
    /// a thread that has ended could have left its id to another process.
    threads: Mutex<()>,
}

/// One worker. Lines of their own, because each worker writes its own all the time.
#[repr(align(128))]
#[derive(Default)]
struct Worker {
    /// Its thread's id; 0 before it begins and after it ends.
    thread: AtomicI32,
    /// [`NORMAL`], [`LOW`] or [`RESTORED`]; the watchdog only turns the second into the third.
    standing: AtomicU8,
    /// Requests taken since it slept, up to [`UNBROKEN`].
    unbroken: AtomicU32,
    /// Requests taken so far, and what the watchdog saw of it at its last tick.
    taken: AtomicU64,
    taken_before: AtomicU64,
}

impl Priorities {
    /// For so many workers that may lead.
    pub(crate) fn new(workers: usize) -> Self {
        let usable = workers > 0 && may_return();
        tracing::debug!(usable, "giving up priority while leading");
        Self::of(if usable { workers } else { 0 })
    }

    fn of(workers: usize) -> Self {
        Self {
            workers: (0..workers).map(|_| Worker::default()).collect(),
            suspension: Backoff::new(SUSPENSION_MIN, SUSPENSION_MAX),
            saturated: AtomicBool::new(false),
            threads: Mutex::new(()),
        }
    }

    /// Whether any worker may ever lower its priority.
    pub(crate) fn is_used(&self) -> bool {
        !self.workers.is_empty()
    }

    /// The calling thread is `worker` from now on.
    pub(crate) fn enter(&self, worker: usize) {
        if let Some(own) = self.workers.get(worker) {
            let thread = rustix::thread::gettid().as_raw_nonzero().get();
            own.thread.store(thread, Ordering::SeqCst);
        }
    }

    /// The calling thread, so far `worker`, will end.
    pub(crate) fn leave(&self, worker: usize, watchdog: &Watchdog) {
        if let Some(own) = self.workers.get(worker) {
            own.restore(watchdog);
            let threads = self.threads.lock();
            own.thread.store(0, Ordering::SeqCst);
            drop(threads);
        }
    }

    /// `worker`, the caller, has taken a request: what is its priority while it answers?
    pub(crate) fn request_taken(&self, worker: usize, leads: bool, watchdog: &Watchdog) {
        let Some(own) = self.workers.get(worker) else {
            return;
        };
        // No other thread writes it.
        let taken = own.taken.load(Ordering::Relaxed);
        own.taken.store(taken + 1, Ordering::Relaxed);
        match own.standing.load(Ordering::Relaxed) {
            LOW if leads => {}
            NORMAL => {
                let unbroken = own.unbroken.load(Ordering::Relaxed);
                if unbroken < UNBROKEN {
                    own.unbroken.store(unbroken + 1, Ordering::Relaxed);
                } else if leads && self.is_useful() {
                    own.lower(watchdog);
                }
            }
            _ => own.restore(watchdog),
        }
    }

    /// `worker`, the caller, will sleep.
    pub(crate) fn before_sleep(&self, worker: usize, watchdog: &Watchdog) {
        if let Some(own) = self.workers.get(worker) {
            own.unbroken.store(0, Ordering::Relaxed);
            if own.standing.load(Ordering::Relaxed) != NORMAL {
                own.restore(watchdog);
            }
        }
    }

    fn is_useful(&self) -> bool {
        !self.saturated.load(Ordering::Relaxed) && !self.suspension.is_active()
    }

    /// The watchdog's part, once a tick: restores the priority of every worker that has lowered
    /// it and has taken nothing since the last tick, or all if no CPU is idle
    /// (`saturated`). True if there was one that had taken nothing.
    ///
    /// `sender` is the thread that sent the last request. It does so again at each tick,
    /// because the worker may have been about to give its priority up.
    pub(crate) fn restore_starved(&self, sender: u32, saturated: bool) -> bool {
        self.saturated.store(saturated, Ordering::Relaxed);
        let mut stuck = false;
        let threads = self.threads.lock();
        for worker in &self.workers {
            let has_taken = worker.has_taken();
            if worker.standing.load(Ordering::SeqCst) == NORMAL || (has_taken && !saturated) {
                continue;
            }
            stuck |= !has_taken;
            // Read before the priority is restored: afterwards it may change at once.
            let starved = !has_taken && worker.wants_cpu() && !cpu::is_wanted_by(sender);
            if worker.restore_from_outside() && starved {
                self.suspension.begin();
            }
        }
        drop(threads);
        stuck
    }
}

impl Worker {
    /// Whether it has taken anything since this was asked last.
    fn has_taken(&self) -> bool {
        let taken = self.taken.load(Ordering::Relaxed);
        self.taken_before.swap(taken, Ordering::Relaxed) != taken
    }

    /// If not, it waits for something else, such as a disk.
    fn wants_cpu(&self) -> bool {
        let thread = self.thread.load(Ordering::SeqCst);
        u32::try_from(thread).is_ok_and(cpu::is_wanted_by)
    }

    /// Restores its priority, from another thread; true if it does not know yet. The
    /// worker has not ended.
    fn restore_from_outside(&self) -> bool {
        let thread = self.thread.load(Ordering::SeqCst);
        if let Err(errno) = set_policy(thread, SCHED_OTHER) {
            tracing::error!(%errno, "cannot restore the priority of a worker");
        }
        // If the worker restores it itself at this moment, the worker's state stays.
        self.standing
            .compare_exchange(LOW, RESTORED, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// The caller is this worker. It holds the watchdog first.
    fn lower(&self, watchdog: &Watchdog) {
        watchdog.hold();
        self.standing.store(LOW, Ordering::SeqCst);
        if set_policy(0, libc::SCHED_IDLE).is_err() {
            self.restore(watchdog);
        }
    }

    /// The caller is this worker.
    fn restore(&self, watchdog: &Watchdog) {
        if self.standing.load(Ordering::SeqCst) == NORMAL {
            return;
        }
        if let Err(errno) = set_policy(0, SCHED_OTHER) {
            tracing::error!(%errno, "cannot restore the thread's priority");
        }
        self.unbroken.store(0, Ordering::Relaxed);
        self.standing.store(NORMAL, Ordering::SeqCst);
        watchdog.release();
    }
}

/// Whether a thread of this process may give up its priority and take it back; tried out
/// with one that is used for nothing else.
fn may_return() -> bool {
    let tried = std::thread::Builder::new().spawn(|| {
        policy(0) == Ok(SCHED_OTHER)
            && set_policy(0, libc::SCHED_IDLE).is_ok()
            && set_policy(0, SCHED_OTHER).is_ok()
    });
    tried.is_ok_and(|thread| thread.join().unwrap_or(false))
}

/// The policy of threads that ask for none, which the libc of Android does not name.
const SCHED_OTHER: libc::c_int = 0;

/// What the system call takes. The C libraries' type of this name has more fields in musl.
#[repr(C)]
struct SchedulingParameters {
    priority: libc::c_int,
}

/// Sets the policy of a thread of this process, 0 for the caller; its nice value stays.
fn set_policy(thread: libc::pid_t, policy: libc::c_int) -> Result<(), Errno> {
    let parameters = SchedulingParameters { priority: 0 };
    // The system call and not the function of the C library, which does nothing in musl.
    // SAFETY: `parameters` lives during the call, which only reads it.
    let failed = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            thread,
            policy,
            &raw const parameters,
        )
    };
    if failed == 0 { Ok(()) } else { Err(errno()) }
}

/// The policy of a thread of this process, 0 for the caller.
fn policy(thread: libc::pid_t) -> Result<libc::c_int, Errno> {
    // SAFETY: the call touches no memory of ours.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread) };
    libc::c_int::try_from(policy)
        .ok()
        .filter(|&policy| policy >= 0)
        .ok_or_else(errno)
}

/// Why the last system call of this thread failed.
fn errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::JoinHandle;

    use rustix::process::{Resource, getrlimit};

    use super::*;

    /// No thread has this id.
    const NO_THREAD: u32 = u32::MAX;

    /// None if this process may not do it.
    fn priorities() -> Option<Arc<Priorities>> {
        if !may_return() {
            mobifs_skip::skip("needs CAP_SYS_NICE");
            return None;
        }
        Some(Arc::new(Priorities::new(2)))
    }

    /// Worker 0, on a thread of its own that the test controls.
    struct Puppet {
        orders: Sender<Box<dyn FnOnce() + Send>>,
        thread: JoinHandle<()>,
    }

    impl Puppet {
        fn start(priorities: &Arc<Priorities>) -> Self {
            let (orders, inbox): (_, Receiver<Box<dyn FnOnce() + Send>>) = channel();
            let thread = std::thread::spawn(move || inbox.into_iter().for_each(|order| order()));
            let puppet = Self { orders, thread };
            let own = Arc::clone(priorities);
            puppet.order(move || own.enter(0));
            puppet
        }

        /// Has something done, and returns when it is done.
        fn order<T: Send + 'static>(&self, what: impl FnOnce() -> T + Send + 'static) -> T {
            let (answer, answered) = channel();
            self.orders
                .send(Box::new(move || answer.send(what()).unwrap()))
                .unwrap();
            answered.recv().unwrap()
        }

        fn policy(&self) -> libc::c_int {
            self.order(|| policy(0).unwrap())
        }

        fn takes(
            &self,
            priorities: &Arc<Priorities>,
            watchdog: &Arc<Watchdog>,
            leads: bool,
            count: u32,
        ) {
            let (priorities, watchdog) = (Arc::clone(priorities), Arc::clone(watchdog));
            self.order(move || {
                (0..count).for_each(|_| priorities.request_taken(0, leads, &watchdog))
            });
        }

        fn end(self) {
            drop(self.orders);
            self.thread.join().unwrap();
        }
    }

    fn is_held(watchdog: &Watchdog) -> bool {
        watchdog.attend().is_held()
    }

    #[test]
    fn a_leader_gives_its_priority_up_and_takes_it_back_before_it_sleeps() {
        let Some(priorities) = priorities() else {
            return;
        };
        let watchdog = Arc::new(Watchdog::default());
        let worker = Puppet::start(&priorities);
        for _ in 0..2 {
            worker.takes(&priorities, &watchdog, true, UNBROKEN);
            assert_eq!(worker.policy(), SCHED_OTHER);
            worker.takes(&priorities, &watchdog, true, 1);
            assert_eq!(worker.policy(), libc::SCHED_IDLE);
            assert!(is_held(&watchdog));
            let (own, rested) = (Arc::clone(&priorities), Arc::clone(&watchdog));
            worker.order(move || own.before_sleep(0, &rested));
            assert_eq!(worker.policy(), SCHED_OTHER);
            assert!(!is_held(&watchdog));
        }
        worker.end();
    }

    #[test]
    fn only_a_leader_gives_its_priority_up() {
        let Some(priorities) = priorities() else {
            return;
        };
        let watchdog = Arc::new(Watchdog::default());
        let worker = Puppet::start(&priorities);
        worker.takes(&priorities, &watchdog, false, 10 * UNBROKEN);
        assert_eq!(worker.policy(), SCHED_OTHER);
        worker.takes(&priorities, &watchdog, true, 1);
        assert_eq!(worker.policy(), libc::SCHED_IDLE);
        worker.takes(&priorities, &watchdog, false, 1);
        assert_eq!(worker.policy(), SCHED_OTHER, "it does not lead any more");
        assert!(!is_held(&watchdog));
        worker.end();
    }

    #[test]
    fn the_watchdog_restores_a_worker_that_takes_nothing() {
        let Some(priorities) = priorities() else {
            return;
        };
        let watchdog = Arc::new(Watchdog::default());
        let worker = Puppet::start(&priorities);
        worker.takes(&priorities, &watchdog, true, UNBROKEN + 1);
        assert!(
            !priorities.restore_starved(NO_THREAD, false),
            "it has taken something"
        );
        assert_eq!(worker.policy(), libc::SCHED_IDLE);
        assert!(priorities.restore_starved(NO_THREAD, false));
        assert_eq!(worker.policy(), SCHED_OTHER);
        assert!(is_held(&watchdog), "the worker does not know yet");

        worker.takes(&priorities, &watchdog, true, 1);
        assert!(!is_held(&watchdog));
        assert!(
            !priorities.restore_starved(NO_THREAD, false),
            "nothing is left to do"
        );
        worker.end();
    }

    #[test]
    fn no_leader_lowers_its_priority_where_no_cpu_is_idle() {
        let Some(priorities) = priorities() else {
            return;
        };
        let watchdog = Arc::new(Watchdog::default());
        let worker = Puppet::start(&priorities);
        worker.takes(&priorities, &watchdog, true, UNBROKEN + 1);
        assert!(
            !priorities.restore_starved(NO_THREAD, true),
            "it was not stuck"
        );
        assert_eq!(worker.policy(), SCHED_OTHER);
        worker.takes(&priorities, &watchdog, true, 3 * UNBROKEN);
        assert_eq!(worker.policy(), SCHED_OTHER);
        assert!(!is_held(&watchdog));

        priorities.restore_starved(NO_THREAD, false);
        worker.takes(&priorities, &watchdog, true, 1);
        assert_eq!(worker.policy(), libc::SCHED_IDLE);
        worker.end();
    }

    #[test]
    fn a_worker_that_ends_is_left_alone() {
        let Some(priorities) = priorities() else {
            return;
        };
        let watchdog = Arc::new(Watchdog::default());
        let worker = Puppet::start(&priorities);
        worker.takes(&priorities, &watchdog, true, UNBROKEN + 1);
        let (own, left) = (Arc::clone(&priorities), Arc::clone(&watchdog));
        worker.order(move || own.leave(0, &left));
        assert_eq!(worker.policy(), SCHED_OTHER);
        assert!(!is_held(&watchdog));
        priorities.restore_starved(NO_THREAD, false);
        assert!(!priorities.restore_starved(NO_THREAD, false));
        worker.end();
    }

    #[test]
    fn a_thread_that_may_not_raise_its_priority_never_lowers_it() {
        if !may_return() || getrlimit(Resource::Nice).current != Some(0) {
            mobifs_skip::skip("needs root, without RLIMIT_NICE");
            return;
        }
        let nobody = rustix::process::Uid::from_raw(65_534);
        let alone = std::thread::spawn(move || {
            // Of this thread only, and of those that it starts.
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            assert!(!may_return());
            Priorities::new(2).workers.len()
        });
        assert_eq!(alone.join().unwrap(), 0);
    }
}
