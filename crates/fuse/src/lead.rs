//! Which workers look for requests.
//!
//! A round trip costs the least when the worker that answers runs on its sender's CPU:
//! the sender falls asleep, the worker, still awake from the request before, goes on,
//! and nobody has to be woken on another CPU. The kernel does not wake the right worker
//! by itself, so while all requests come from one thread, only one worker looks for
//! them, the *leader*, and the others are parked here, where no request disturbs them.
//! A leader that keeps finding its sender on another CPU hands over to the worker that
//! is bound to that one.
//!
//! As soon as a second thread sends requests, everybody looks again; so it is when the
//! leader is stuck in a request, which the pool's guard finds out, or when its CPU is
//! wanted by others: then the worker that gets a CPU first should answer.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::cpu;
use crate::pause::Pause;

/// In place of a worker's number: everybody looks for requests.
const EVERYBODY: usize = usize::MAX;
/// The number of workers that never lead.
pub(crate) const SPARE: usize = usize::MAX - 1;
/// So many requests in a row from one thread make a leader.
const STREAK: u32 = 32;
/// So many requests in a row that seem to come from another CPU make a leader ask where
/// its sender is. Asking in vain doubles it up to the maximum, because asking costs as
/// much as a request.
const PATIENCE_MIN: u32 = 16;
const PATIENCE_MAX: u32 = 1024;
/// After a worker had to wait for its CPU, nobody leads for so long; twice as long each
/// time it happens again soon.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What a worker knows of how a request reached it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It was there already, or came while somebody else had this CPU: its sender.
    Here,
    /// It came while the worker looked out or slept.
    Elsewhere,
}

/// Which workers look for requests; shared by all of them.
pub(crate) struct Lead {
    /// The CPU that each worker is bound to; empty if leading makes no sense.
    cpus: Vec<usize>,
    /// The leader's number, or [`EVERYBODY`].
    leader: AtomicUsize,
    /// The sender of the last request, and how many in a row are from it.
    sender: AtomicU32,
    streak: AtomicU32,
    /// Requests from elsewhere in a row since the leader was made or last asked, and how
    /// many make it ask.
    elsewhere: AtomicU32,
    patience: AtomicU32,
    /// Nobody leads now.
    pause: Pause,
    ended: AtomicBool,
    /// Held while `leader` changes in a way that parked workers wait for.
    parked: Mutex<()>,
    changed: Condvar,
}

impl Lead {
    /// For workers that are bound to these CPUs, in order; for one worker, or workers
    /// that are not bound, pass none.
    pub(crate) fn new(cpus: Vec<usize>) -> Self {
        Self {
            cpus: if cpus.len() > 1 { cpus } else { Vec::new() },
            leader: AtomicUsize::new(EVERYBODY),
            sender: AtomicU32::new(0),
            streak: AtomicU32::new(0),
            elsewhere: AtomicU32::new(0),
            patience: AtomicU32::new(PATIENCE_MIN),
            pause: Pause::new(PAUSE_MIN, PAUSE_MAX),
            ended: AtomicBool::new(false),
            parked: Mutex::new(()),
            changed: Condvar::new(),
        }
    }

    /// How many workers may lead: the first ones.
    pub(crate) fn candidates(&self) -> usize {
        self.cpus.len()
    }

    /// Whether `worker` may look for requests now.
    pub(crate) fn looks(&self, worker: usize) -> bool {
        let leader = self.leader.load(Ordering::Acquire);
        leader == EVERYBODY || leader == worker || self.ended.load(Ordering::Acquire)
    }

    /// The thread that sent the last request.
    pub(crate) fn sender(&self) -> u32 {
        self.sender.load(Ordering::Relaxed)
    }

    /// Whether `worker` is the leader.
    pub(crate) fn is_led_by(&self, worker: usize) -> bool {
        self.leader.load(Ordering::Acquire) == worker
    }

    /// Sleeps until `worker` may look for requests.
    pub(crate) fn park(&self, worker: usize) {
        let mut parked = self.parked.lock();
        while !self.looks(worker) {
            self.changed.wait(&mut parked);
        }
    }

    /// Notes a request of `sender` that `worker` has taken, and with it who should look
    /// for the next one.
    pub(crate) fn taken(&self, worker: usize, sender: u32, arrival: Arrival) {
        // The kernel's own requests (memory to give back, objects to forget) tell
        // nothing about who waits for an answer.
        if self.cpus.is_empty() || sender == 0 {
            return;
        }
        let leader = self.leader.load(Ordering::Relaxed);
        if self.sender.swap(sender, Ordering::Relaxed) != sender {
            self.streak.store(0, Ordering::Relaxed);
            if leader != EVERYBODY {
                self.dissolve();
            }
            return;
        }
        if leader == EVERYBODY {
            let streak = self.streak.fetch_add(1, Ordering::Relaxed);
            if streak >= STREAK && worker < self.cpus.len() && !self.is_paused() {
                self.elsewhere.store(0, Ordering::Relaxed);
                self.patience.store(PATIENCE_MIN, Ordering::Relaxed);
                self.leader.store(worker, Ordering::Release);
            }
        } else if leader == worker {
            match arrival {
                Arrival::Here => {
                    self.elsewhere.store(0, Ordering::Relaxed);
                    self.patience.store(PATIENCE_MIN, Ordering::Relaxed);
                }
                Arrival::Elsewhere => {
                    let elsewhere = self.elsewhere.fetch_add(1, Ordering::Relaxed) + 1;
                    if elsewhere >= self.patience.load(Ordering::Relaxed) {
                        self.follow(worker, sender);
                    }
                }
            }
        }
    }

    /// Makes the worker on the sender's CPU the leader.
    fn follow(&self, worker: usize, sender: u32) {
        self.elsewhere.store(0, Ordering::Relaxed);
        let there =
            cpu::of_thread(sender).and_then(|cpu| self.cpus.iter().position(|&bound| bound == cpu));
        match there {
            Some(leader) if leader != worker => {
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
    pub(crate) fn contended(&self) {
        self.pause.begin();
        self.dissolve();
    }

    /// Whether CPUs are short, so that looking out would take them from others.
    pub(crate) fn is_paused(&self) -> bool {
        self.pause.is_on()
    }

    /// Everybody looks for requests; true if that is news.
    pub(crate) fn dissolve(&self) -> bool {
        let parked = self.parked.lock();
        let news = self.leader.swap(EVERYBODY, Ordering::AcqRel) != EVERYBODY;
        drop(parked);
        if news {
            self.changed.notify_all();
        }
        news
    }

    /// A worker stops: nobody is parked from now on.
    pub(crate) fn end(&self) {
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

    fn lead_of(worker: usize) -> Lead {
        let lead = Lead::new(vec![0, 1]);
        for _ in 0..=STREAK + 1 {
            lead.taken(worker, SENDER, Arrival::Here);
        }
        lead
    }

    #[test]
    fn one_sender_makes_a_leader_and_a_second_ends_it() {
        let lead = lead_of(1);
        assert!(lead.looks(1) && !lead.looks(0));
        lead.taken(1, 0, Arrival::Elsewhere);
        assert!(
            !lead.looks(0),
            "the kernel itself is nobody's second sender"
        );
        lead.taken(1, 7, Arrival::Here);
        assert!(lead.looks(1) && lead.looks(0));
    }

    #[test]
    fn a_single_worker_leads_nobody() {
        let lead = Lead::new(vec![3]);
        for _ in 0..1000 {
            lead.taken(0, SENDER, Arrival::Elsewhere);
        }
        assert!(lead.looks(0) && lead.looks(5));
    }

    #[test]
    fn a_spare_worker_does_not_lead() {
        let lead = lead_of(2);
        assert!(lead.looks(0) && lead.looks(1) && lead.looks(2));
    }

    #[test]
    fn the_lead_goes_to_the_worker_on_the_senders_cpu() {
        let me = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        let all = cpu::usable();
        cpu::pin_to(all[0]);
        let lead = Lead::new(vec![all[0] + 1, all[0]]);
        for _ in 0..=STREAK + 1 {
            lead.taken(0, me, Arrival::Here);
        }
        assert!(lead.looks(0) && !lead.looks(1));
        for _ in 0..PATIENCE_MIN {
            lead.taken(0, me, Arrival::Elsewhere);
        }
        assert!(lead.looks(1) && !lead.looks(0));
    }

    #[test]
    fn contention_ends_a_lead_for_a_while() {
        let lead = lead_of(0);
        lead.contended();
        assert!(lead.is_paused() && lead.looks(1));
        for _ in 0..100 {
            lead.taken(0, SENDER, Arrival::Here);
        }
        assert!(lead.looks(1));
    }

    #[test]
    fn the_end_frees_the_parked() {
        let lead = std::sync::Arc::new(lead_of(0));
        let parked = {
            let lead = std::sync::Arc::clone(&lead);
            std::thread::spawn(move || lead.park(1))
        };
        lead.end();
        parked.join().unwrap();
    }
}
