//! Which workers poll for requests.
//!
//! A round trip costs the least when the worker that answers runs on its sender's CPU:
//! the sender falls asleep, the worker, still awake from the request before, goes on,
//! and no thread has to be woken on another CPU. The kernel does not wake the right worker
//! by itself, so while all requests come from one thread, only one worker polls
//! for them, the *leader*, and the others are parked here, where no request disturbs them.
//! A leader that keeps finding its sender on another CPU hands over to the worker that
//! is bound to that one.
//!
//! As soon as a second thread sends requests, all workers poll again. They also do when the
//! leader is stuck in a request, which the watchdog finds out, or when other programs want its
//! CPU: then the worker that gets a CPU first should answer.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::backoff::Backoff;
use super::cpu;

/// In place of a worker's number: all of them poll.
const ALL_WORKERS: usize = usize::MAX;
/// The number of workers that never lead.
pub(crate) const SPARE: usize = usize::MAX - 1;
/// How many requests in a row from one thread make a leader.
const STREAK: u32 = 32;
/// How many requests in a row that seem to come from another CPU make a leader ask where
/// its sender is. A poll without a request doubles it up to the maximum, because asking costs as
/// much as a request.
const PATIENCE_MIN: u32 = 16;
const PATIENCE_MAX: u32 = 1024;
/// After a worker had to wait for its CPU, no worker leads for so long; twice as long each
/// time it happens again soon.
const SUSPENSION_MIN: Duration = Duration::from_millis(5);
const SUSPENSION_MAX: Duration = Duration::from_secs(1);

/// What a worker knows of how a request reached it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The request was there already, or came while another thread had this CPU: its sender.
    Local,
    /// The request came while the worker spun or slept.
    Remote,
}

/// Which workers poll for requests; shared by all of them.
pub(crate) struct Leadership {
    /// The CPU that each worker is bound to; empty if leading makes no sense.
    cpus: Vec<usize>,
    /// The leader's number, or [`ALL_WORKERS`].
    leader: AtomicUsize,
    /// The sender of the last request, and how many in a row are from it.
    sender: AtomicU32,
    streak: AtomicU32,
    /// Remote requests in a row since the leader was made or last asked, and how
    /// many make it ask.
    remote: AtomicU32,
    patience: AtomicU32,
    /// No worker leads while it is active.
    suspension: Backoff,
    ended: AtomicBool,
    /// Held while `leader` changes in a way that parked workers wait for.
    parked: Mutex<()>,
    changed: Condvar,
}

impl Leadership {
    /// For workers that are bound to these CPUs, in order; for one worker, or workers
    /// that are not bound, pass none.
    pub(crate) fn new(cpus: Vec<usize>) -> Self {
        Self {
            cpus: if cpus.len() > 1 { cpus } else { Vec::new() },
            leader: AtomicUsize::new(ALL_WORKERS),
            sender: AtomicU32::new(0),
            streak: AtomicU32::new(0),
            remote: AtomicU32::new(0),
            patience: AtomicU32::new(PATIENCE_MIN),
            suspension: Backoff::new(SUSPENSION_MIN, SUSPENSION_MAX),
            ended: AtomicBool::new(false),
            parked: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    /// How many workers may lead: the first ones.
    pub(crate) fn candidates(&self) -> usize {
        self.cpus.len()
    }

    /// Whether `worker` may poll now.
    pub(crate) fn may_poll(&self, worker: usize) -> bool {
        let leader = self.leader.load(Ordering::Acquire);
        leader == ALL_WORKERS || leader == worker || self.ended.load(Ordering::Acquire)
    }

    /// The thread that sent the last request.
    pub(crate) fn sender(&self) -> u32 {
        self.sender.load(Ordering::Relaxed)
    }

    /// Whether `worker` is the leader.
    pub(crate) fn is_leader(&self, worker: usize) -> bool {
        self.leader.load(Ordering::Acquire) == worker
    }

    /// Sleeps until `worker` may poll.
    pub(crate) fn park(&self, worker: usize) {
        let mut parked = self.parked.lock();
        while !self.may_poll(worker) {
            self.changed.wait(&mut parked);
        }
    }

    /// Records a request of `sender` that `worker` has taken, and with it which workers poll
    /// for the next one.
    pub(crate) fn request_taken(&self, worker: usize, sender: u32, arrival: Arrival) {
        // The kernel's own requests (memory to give back, objects to forget) say
        // nothing of the threads that wait for answers.
        if self.cpus.is_empty() || sender == 0 {
            return;
        }
        let leader = self.leader.load(Ordering::Relaxed);
        if self.sender.swap(sender, Ordering::Relaxed) != sender {
            self.streak.store(0, Ordering::Relaxed);
            if leader != ALL_WORKERS {
                self.dissolve();
            }
            return;
        }
        if leader == ALL_WORKERS {
            let streak = self.streak.fetch_add(1, Ordering::Relaxed);
            if streak >= STREAK && worker < self.cpus.len() && !self.is_suspended() {
                self.remote.store(0, Ordering::Relaxed);
                self.patience.store(PATIENCE_MIN, Ordering::Relaxed);
                self.leader.store(worker, Ordering::Release);
            }
        } else if leader == worker {
            match arrival {
                Arrival::Local => {
                    self.remote.store(0, Ordering::Relaxed);
                    self.patience.store(PATIENCE_MIN, Ordering::Relaxed);
                }
                Arrival::Remote => {
                    let remote = self.remote.fetch_add(1, Ordering::Relaxed) + 1;
                    if remote >= self.patience.load(Ordering::Relaxed) {
                        self.move_to_sender(worker, sender);
                    }
                }
            }
        }
    }

    /// Makes the worker on the sender's CPU the leader.
    fn move_to_sender(&self, worker: usize, sender: u32) {
        self.remote.store(0, Ordering::Relaxed);
        let there =
            cpu::of_thread(sender).and_then(|cpu| self.cpus.iter().position(|&bound| bound == cpu));
        match there {
            Some(leader) if leader != worker => {
                debug_assert!(leader < self.cpus.len(), "a spare worker leads");
                let parked = self.parked.lock();
                self.leader.store(leader, Ordering::Release);
                drop(parked);
                self.changed.notify_all();
            }
            _ => {
                let patience = self.patience.load(Ordering::Relaxed) * 2;
                self.patience
                    .store(patience.min(PATIENCE_MAX), Ordering::Relaxed);
            }
        }
    }

    /// A worker had to wait for its CPU.
    pub(crate) fn suspend(&self) {
        self.suspension.begin();
        self.dissolve();
    }

    /// Whether CPUs are short, so that spinning would take them from other programs.
    pub(crate) fn is_suspended(&self) -> bool {
        self.suspension.is_active()
    }

    /// All workers poll from now on; true if one led until now.
    pub(crate) fn dissolve(&self) -> bool {
        let parked = self.parked.lock();
        let had_leader = self.leader.swap(ALL_WORKERS, Ordering::AcqRel) != ALL_WORKERS;
        drop(parked);
        if had_leader {
            self.changed.notify_all();
        }
        had_leader
    }

    /// A worker stops: none is parked from now on.
    pub(crate) fn shut_down(&self) {
        self.ended.store(true, Ordering::Release);
        self.dissolve();
        drop(self.parked.lock());
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENDER: u32 = 4_000_000_000;

    fn led_by(worker: usize) -> Leadership {
        let leadership = Leadership::new(vec![0, 1]);
        for _ in 0..=STREAK + 1 {
            leadership.request_taken(worker, SENDER, Arrival::Local);
        }
        leadership
    }

    #[test]
    fn one_sender_makes_a_leader_and_a_second_ends_it() {
        let leadership = led_by(1);
        assert!(leadership.may_poll(1) && !leadership.may_poll(0));
        leadership.request_taken(1, 0, Arrival::Remote);
        assert!(
            !leadership.may_poll(0),
            "the kernel itself does not count as a sender"
        );
        leadership.request_taken(1, 7, Arrival::Local);
        assert!(leadership.may_poll(1) && leadership.may_poll(0));
    }

    #[test]
    fn a_single_worker_does_not_lead() {
        let leadership = Leadership::new(vec![3]);
        for _ in 0..1000 {
            leadership.request_taken(0, SENDER, Arrival::Remote);
        }
        assert!(leadership.may_poll(0) && leadership.may_poll(5));
    }

    #[test]
    fn a_spare_worker_does_not_lead() {
        let leadership = led_by(2);
        assert!(leadership.may_poll(0) && leadership.may_poll(1) && leadership.may_poll(2));
    }

    #[test]
    fn the_lead_goes_to_the_worker_on_the_senders_cpu() {
        let me = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        let all = cpu::usable();
        cpu::pin_to(all[0]);
        let leadership = Leadership::new(vec![all[0] + 1, all[0]]);
        for _ in 0..=STREAK + 1 {
            leadership.request_taken(0, me, Arrival::Local);
        }
        assert!(leadership.may_poll(0) && !leadership.may_poll(1));
        for _ in 0..PATIENCE_MIN {
            leadership.request_taken(0, me, Arrival::Remote);
        }
        assert!(leadership.may_poll(1) && !leadership.may_poll(0));
    }

    #[test]
    fn contention_ends_a_lead_for_a_while() {
        let leadership = led_by(0);
        leadership.suspend();
        assert!(leadership.is_suspended() && leadership.may_poll(1));
        for _ in 0..100 {
            leadership.request_taken(0, SENDER, Arrival::Local);
        }
        assert!(leadership.may_poll(1));
    }

    #[test]
    fn shut_down_wakes_parked_workers() {
        let leadership = std::sync::Arc::new(led_by(0));
        let parked = {
            let leadership = std::sync::Arc::clone(&leadership);
            std::thread::spawn(move || leadership.park(1))
        };
        leadership.shut_down();
        parked.join().unwrap();
    }
}
