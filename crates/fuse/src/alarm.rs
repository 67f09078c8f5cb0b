//! What wakes the pool's guard, and keeps it awake.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// The bit of the state that says: the guard is awake, or will be at once.
const RAISED: u32 = 1;
/// What each hold adds to the state.
const HOLD: u32 = 2;

/// Wakes the guard. It is raised for nearly every request, so that costs one load.
///
/// Whoever *holds* it keeps the guard awake. Raising it while it is held takes no lock:
/// a holder may be a thread that nobody runs for a while, and the guard must not have to
/// wait for what such a thread has locked.
#[derive(Default)]
pub(crate) struct Alarm {
    /// [`RAISED`] and the number of holds. There are none unless it is raised.
    state: AtomicU32,
    finished: Mutex<bool>,
    wake: Condvar,
}

impl Alarm {
    /// Wakes the guard if it sleeps.
    pub(crate) fn raise(&self) {
        if self.state.load(Ordering::SeqCst) & RAISED != 0 {
            return;
        }
        let finished = self.finished.lock();
        self.state.fetch_or(RAISED, Ordering::SeqCst);
        drop(finished);
        self.wake.notify_one();
    }

    /// Raises it and keeps the guard awake until [`Alarm::release`].
    pub(crate) fn hold(&self) {
        loop {
            self.raise();
            let held = self
                .state
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |state| {
                    (state & RAISED != 0).then_some(state + HOLD)
                });
            if held.is_ok() {
                return;
            }
        }
    }

    /// Ends one hold.
    pub(crate) fn release(&self) {
        self.state.fetch_sub(HOLD, Ordering::SeqCst);
    }

    /// The guard has nothing more to do.
    pub(crate) fn finish(&self) {
        *self.finished.lock() = true;
        self.wake.notify_one();
    }

    /// The guard's view of it.
    pub(crate) fn watch(&self) -> Watch<'_> {
        Watch {
            alarm: self,
            finished: self.finished.lock(),
        }
    }
}

/// What the guard does with the alarm.
pub(crate) struct Watch<'a> {
    alarm: &'a Alarm,
    finished: MutexGuard<'a, bool>,
}

impl Watch<'_> {
    /// Sleeps until the alarm is raised; false if there is nothing more to do.
    pub(crate) fn sleep(&mut self) -> bool {
        while self.alarm.state.load(Ordering::SeqCst) == 0 && !*self.finished {
            self.alarm.wake.wait(&mut self.finished);
        }
        !*self.finished
    }

    /// Sleeps for a while; false if there is nothing more to do.
    pub(crate) fn tick(&mut self, length: Duration) -> bool {
        if !*self.finished {
            self.alarm.wake.wait_for(&mut self.finished, length);
        }
        !*self.finished
    }

    /// Takes the alarm back if nobody holds it; true if so. Who found it raised until
    /// now has not raised it again.
    pub(crate) fn take_back(&self) -> bool {
        self.alarm
            .state
            .compare_exchange(RAISED, 0, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// Whether anybody holds it.
    pub(crate) fn is_held(&self) -> bool {
        self.alarm.state.load(Ordering::SeqCst) >= HOLD
    }

    /// As [`Alarm::raise`], by the guard itself.
    pub(crate) fn raise(&self) {
        self.alarm.state.fetch_or(RAISED, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_alarm_is_not_taken_back() {
        let alarm = Alarm::default();
        alarm.raise();
        alarm.hold();
        let mut watch = alarm.watch();
        assert!(watch.sleep() && watch.is_held() && !watch.take_back());
        alarm.release();
        assert!(!watch.is_held() && watch.take_back());
    }

    #[test]
    fn a_held_alarm_is_raised_without_a_lock() {
        let alarm = Alarm::default();
        alarm.hold();
        let _watch = alarm.watch();
        alarm.raise();
        alarm.hold();
    }

    #[test]
    fn the_end_wakes_the_guard() {
        let alarm = std::sync::Arc::new(Alarm::default());
        let guard = {
            let alarm = std::sync::Arc::clone(&alarm);
            std::thread::spawn(move || alarm.watch().sleep())
        };
        alarm.finish();
        assert!(!guard.join().unwrap());
        assert!(!alarm.watch().tick(Duration::from_secs(3600)));
    }
}
