//! When the watchdog of the workers is awake.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// The bit of the state that says: the watchdog is awake, or will be at once.
const AWAKE: u32 = 1;
/// What each hold adds to the state.
const HOLD: u32 = 2;

/// The workers' side of the watchdog. They wake it for nearly every request, so that costs one
/// load.
///
/// A *hold* keeps it awake. Waking it while it is held takes no lock: a holder may be a thread
/// that gets no CPU for a while, and the watchdog must not wait for what such a thread has
/// locked.
#[derive(Default)]
pub(crate) struct Watchdog {
    /// [`AWAKE`] and the number of holds, which is 0 unless it is awake.
    state: AtomicU32,
    stopped: Mutex<bool>,
    wake_up: Condvar,
}

impl Watchdog {
    /// Wakes the watchdog if it sleeps.
    pub(crate) fn wake(&self) {
        if self.state.load(Ordering::SeqCst) & AWAKE != 0 {
            return;
        }
        let stopped = self.stopped.lock();
        self.state.fetch_or(AWAKE, Ordering::SeqCst);
        drop(stopped);
        self.wake_up.notify_one();
    }

    /// Wakes the watchdog and keeps it awake until [`Watchdog::release`].
    pub(crate) fn hold(&self) {
        loop {
            self.wake();
            let held = self
                .state
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |state| {
                    (state & AWAKE != 0).then_some(state + HOLD)
                });
            if held.is_ok() {
                return;
            }
        }
    }

    /// Ends one hold.
    pub(crate) fn release(&self) {
        let before = self.state.fetch_sub(HOLD, Ordering::SeqCst);
        assert!(
            before >= AWAKE + HOLD,
            "a hold that there is not is released"
        );
    }

    /// The watchdog has nothing more to do.
    pub(crate) fn stop(&self) {
        *self.stopped.lock() = true;
        self.wake_up.notify_one();
    }

    /// Makes the calling thread the watchdog's.
    pub(crate) fn attend(&self) -> Attendance<'_> {
        Attendance {
            watchdog: self,
            stopped: self.stopped.lock(),
        }
    }
}

/// The watchdog's own side.
pub(crate) struct Attendance<'a> {
    watchdog: &'a Watchdog,
    stopped: MutexGuard<'a, bool>,
}

impl Attendance<'_> {
    /// Sleeps until a worker wakes it; false if there is nothing more to do.
    pub(crate) fn sleep(&mut self) -> bool {
        while self.watchdog.state.load(Ordering::SeqCst) == 0 && !*self.stopped {
            self.watchdog.wake_up.wait(&mut self.stopped);
        }
        !*self.stopped
    }

    /// Sleeps for a while; false if there is nothing more to do.
    pub(crate) fn tick(&mut self, length: Duration) -> bool {
        if !*self.stopped {
            self.watchdog.wake_up.wait_for(&mut self.stopped, length);
        }
        !*self.stopped
    }

    /// Goes to sleep unless it is held; true if so. A worker that found it awake until now has
    /// not woken it again.
    pub(crate) fn stand_down(&self) -> bool {
        self.watchdog
            .state
            .compare_exchange(AWAKE, 0, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// Whether there is a hold.
    pub(crate) fn is_held(&self) -> bool {
        self.watchdog.state.load(Ordering::SeqCst) >= HOLD
    }

    /// As [`Watchdog::wake`], by the watchdog itself.
    pub(crate) fn stay_awake(&self) {
        self.watchdog.state.fetch_or(AWAKE, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;

    use super::*;

    /// A test that hangs is to fail.
    const HANGS_AFTER: Duration = Duration::from_secs(60);

    #[test]
    fn a_held_watchdog_does_not_stand_down() {
        let watchdog = Watchdog::default();
        watchdog.wake();
        watchdog.hold();
        let mut attendance = watchdog.attend();
        assert!(attendance.sleep() && attendance.is_held() && !attendance.stand_down());
        watchdog.release();
        assert!(!attendance.is_held() && attendance.stand_down());
    }

    #[test]
    fn a_held_watchdog_is_woken_and_held_again_without_its_lock() {
        let watchdog = Arc::new(Watchdog::default());
        watchdog.hold();
        // As long as this lives, the lock is taken.
        let attendance = watchdog.attend();
        let (finished, has_finished) = channel();
        let worker = {
            let watchdog = Arc::clone(&watchdog);
            std::thread::spawn(move || {
                watchdog.wake();
                watchdog.hold();
                finished.send(()).unwrap();
            })
        };
        let waited = has_finished.recv_timeout(HANGS_AFTER);
        assert_eq!(waited, Ok(()), "a worker waits for the watchdog's lock");
        worker.join().unwrap();
        assert_eq!(watchdog.state.load(Ordering::SeqCst), AWAKE + 2 * HOLD);
        watchdog.release();
        assert!(attendance.is_held() && !attendance.stand_down());
        watchdog.release();
        assert!(attendance.stand_down());
    }

    #[test]
    #[should_panic(expected = "released")]
    fn a_hold_is_released_once() {
        let watchdog = Watchdog::default();
        watchdog.hold();
        watchdog.release();
        watchdog.release();
    }

    #[test]
    fn stopping_wakes_the_thread() {
        let watchdog = Arc::new(Watchdog::default());
        let thread = {
            let watchdog = Arc::clone(&watchdog);
            std::thread::spawn(move || watchdog.attend().sleep())
        };
        watchdog.stop();
        assert!(!thread.join().unwrap());
        assert!(!watchdog.attend().tick(Duration::from_secs(3600)));
    }
}
