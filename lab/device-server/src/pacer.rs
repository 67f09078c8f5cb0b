//! Answers requests at the time at which the modelled device would.
//!
//! Requests that wait are in one queue, ordered by time. Of the pacer's few threads one
//! sleeps until the first is due; when it goes to answer, another takes its place. So any
//! number of requests wait, and one that takes long to answer (a large read is copied to
//! the kernel) does not hold up the next.
//!
//! Sleeping is exact to the timer (the slack of the threads is 1 ns), but waking up takes a while.
//! So the thread wakes a little earlier and spins for the rest.

use std::collections::BinaryHeap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use mobifs_base::VirtualNs;
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::block::Refusal;

/// Threads that answer.
const THREADS: usize = 2;
/// How much earlier than due a thread wakes up.
const AWAKE_EARLY: Duration = Duration::from_micros(30);

/// How often a thread that is awake looks whether something is due earlier.
const GLANCE: Duration = Duration::from_micros(5);

/// Answers a request: well, or with the reason why not.
pub(crate) type Answer = Box<dyn FnOnce(Result<(), Refusal>) + Send>;

struct Waiting {
    due: Instant,
    /// Keeps those that are due together in order.
    number: u64,
    done_at: VirtualNs,
    answer: Answer,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        (self.due, self.number) == (other.due, other.number)
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    /// The greatest is the one that is due first.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.due, other.number).cmp(&(self.due, self.number))
    }
}

#[derive(Default)]
struct Queue {
    waiting: BinaryHeap<Waiting>,
    next_number: u64,
    /// Some thread sleeps until the first is due.
    is_watched: bool,
    ends: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// There is another first one, or no thread watches.
    changed: Condvar,
}

/// The queue and its threads. Dropping refuses what still waits.
pub(crate) struct Pacer {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pacer {
    /// Starts the threads.
    ///
    /// # Errors
    /// If none can be started.
    pub(crate) fn start() -> std::io::Result<Self> {
        let mut pacer = Self {
            shared: Arc::default(),
            threads: Vec::new(),
        };
        for number in 0..THREADS {
            let shared = Arc::clone(&pacer.shared);
            let thread = std::thread::Builder::new()
                .name(format!("pacer-{number}"))
                .spawn(move || shared.work())?;
            pacer.threads.push(thread);
        }
        Ok(pacer)
    }

    /// Has a request answered at `due`, when the model's time is `done_at`.
    pub(crate) fn answer_at(&self, due: Instant, done_at: VirtualNs, answer: Answer) {
        let mut queue = self.shared.queue.lock();
        let number = queue.next_number;
        queue.next_number += 1;
        let is_first = queue.waiting.peek().is_none_or(|first| due < first.due);
        queue.waiting.push(Waiting {
            due,
            number,
            done_at,
            answer,
        });
        drop(queue);
        if is_first {
            self.shared.changed.notify_all();
        }
    }

    /// Stops time: takes out of the queue what is not done at the time that `now` returns while
    /// nothing is being taken out for an answer. Returns that moment and the answers, which the
    /// caller gives.
    pub(crate) fn interrupt(&self, now: impl FnOnce() -> VirtualNs) -> (VirtualNs, Vec<Answer>) {
        let mut queue = self.shared.queue.lock();
        let now = now();
        let (late, done): (Vec<_>, Vec<_>) = std::mem::take(&mut queue.waiting)
            .into_iter()
            .partition(|waiting| waiting.done_at > now);
        queue.waiting = done.into();
        (
            now,
            late.into_iter().map(|waiting| waiting.answer).collect(),
        )
    }

    /// How many requests wait.
    pub(crate) fn len(&self) -> usize {
        self.shared.queue.lock().waiting.len()
    }
}

impl Drop for Pacer {
    fn drop(&mut self) {
        let rest = {
            let mut queue = self.shared.queue.lock();
            queue.ends = true;
            std::mem::take(&mut queue.waiting)
        };
        self.shared.changed.notify_all();
        for waiting in rest {
            (waiting.answer)(Err(Refusal::NoPower));
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that answers requests panicked");
            }
        }
    }
}

impl Shared {
    fn work(&self) {
        // The default slack of 50 µs is as much as a flash device takes to answer.
        if let Err(errno) = rustix::thread::set_current_timer_slack(NonZeroU64::new(1)) {
            tracing::warn!(%errno, "cannot make timers exact; answers may come late");
        }
        let mut queue = self.queue.lock();
        while !queue.ends {
            if queue.is_watched {
                self.changed.wait(&mut queue);
                continue;
            }
            queue.is_watched = true;
            let first = self.wait_for_first(&mut queue);
            queue.is_watched = false;
            let Some(first) = first else { return };
            let more_wait = !queue.waiting.is_empty();
            drop(queue);
            if more_wait {
                // Another thread watches while this one is answered.
                self.changed.notify_all();
            }
            (first.answer)(Ok(()));
            queue = self.queue.lock();
        }
    }

    /// The first request, once it is due; none at the end.
    fn wait_for_first(&self, queue: &mut MutexGuard<'_, Queue>) -> Option<Waiting> {
        loop {
            if queue.ends {
                return None;
            }
            let Some(due) = queue.waiting.peek().map(|first| first.due) else {
                self.changed.wait(queue);
                continue;
            };
            let now = Instant::now();
            if due <= now {
                return queue.waiting.pop();
            }
            if due - now > AWAKE_EARLY {
                let _timed_out = self.changed.wait_until(queue, due - AWAKE_EARLY);
            } else {
                MutexGuard::unlocked(queue, || spin_until(due.min(now + GLANCE)));
            }
        }
    }
}

fn spin_until(instant: Instant) {
    while Instant::now() < instant {
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn answers_come_in_the_order_in_which_they_are_due() {
        let pacer = Pacer::start().unwrap();
        let (sender, receiver) = channel();
        let start = Instant::now();
        for number in [30_u64, 10, 20] {
            let sender = sender.clone();
            let due = start + Duration::from_millis(number);
            let answer: Answer = Box::new(move |result| {
                sender
                    .send((number, result, Instant::now() >= due))
                    .unwrap();
            });
            pacer.answer_at(due, VirtualNs(number), answer);
        }
        for number in [10, 20, 30] {
            // Order and "not before" can be checked on any machine; "not much later" cannot.
            assert_eq!(receiver.recv().unwrap(), (number, Ok(()), true));
        }
    }

    #[test]
    fn an_interruption_takes_out_what_is_not_done() {
        let pacer = Pacer::start().unwrap();
        let (sender, receiver) = channel();
        let far = Instant::now() + Duration::from_secs(3_600);
        for number in [5_u64, 15, 25] {
            let sender = sender.clone();
            let answer: Answer = Box::new(move |result| sender.send((number, result)).unwrap());
            pacer.answer_at(far, VirtualNs(number), answer);
        }
        let (now, answers) = pacer.interrupt(|| VirtualNs(15));
        assert_eq!((now, answers.len(), pacer.len()), (VirtualNs(15), 1, 2));
        for answer in answers {
            answer(Err(Refusal::NoPower));
        }
        assert_eq!(receiver.recv().unwrap(), (25, Err(Refusal::NoPower)));
        drop(pacer);
        assert!(receiver.iter().take(2).all(|(_, result)| result.is_err()));
    }

    #[test]
    fn a_slow_answer_delays_no_other() {
        let pacer = Pacer::start().unwrap();
        let (release, released) = channel::<()>();
        let (sender, receiver) = channel();
        let now = Instant::now();
        let slow: Answer = Box::new(move |_| released.recv().unwrap());
        pacer.answer_at(now, VirtualNs(1), slow);
        let quick: Answer = Box::new(move |_| sender.send(()).unwrap());
        pacer.answer_at(now, VirtualNs(2), quick);
        receiver.recv().unwrap();
        release.send(()).unwrap();
    }
}
