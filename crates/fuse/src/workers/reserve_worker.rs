//! Workers that take requests while others wait for a commit.
//!
//! A durable `fsync` blocks its worker for as long as the device takes to flush. With as many
//! workers as CPUs, two programs that call it block them all, and a third program's request waits
//! for the end of a commit in which it could have taken part. The filesystem says when a worker
//! waits ([`Connection::waiting`](crate::Connection::waiting)). If then none is idle, a *reserve*
//! worker is armed: it sleeps on a watch of its own, which wakes one of them when a request comes,
//! and not before. So a program that is alone pays two calls of `epoll_ctl(2)` for each `fsync`
//! and wakes no other thread.
//!
//! A reserve worker that has taken a request polls for a moment, and sleeps again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::io::Errno;

use super::Workers;
use super::reserve::State;
use super::worker::Seat;
use crate::error::SessionError;
use crate::waiting::Waits;

/// A reserve worker that was not needed for so long ends.
const RETIRES_AFTER: Duration = Duration::from_secs(2);

impl Waits for Workers {
    fn begin_wait(self: Arc<Self>) {
        let mut state = self.reserve.state.lock();
        state.waiting += 1;
        if self.idle.load(Ordering::SeqCst) == 0 {
            self.arm(&mut state);
        }
    }

    fn end_wait(&self) {
        let mut state = self.reserve.state.lock();
        assert!(state.waiting > 0, "more workers go on than have waited");
        state.waiting -= 1;
        if std::mem::take(&mut state.is_armed) {
            self.report(self.shared.link.transport.disarm_reserve());
        }
    }
}

impl Workers {
    /// Has the next request wake a reserve worker.
    fn arm(self: &Arc<Self>, state: &mut State) {
        match self.shared.link.transport.arm_reserve() {
            Ok(()) => state.is_armed = true,
            Err(errno) => return self.report(Err(errno)),
        }
        if self.reserve.asleep.load(Ordering::SeqCst) == 0 {
            self.add_spare(Self::be_in_reserve);
        }
    }

    /// Whether the next request wakes a reserve worker.
    pub(super) fn is_reserve_armed(&self) -> bool {
        self.reserve.asleep.load(Ordering::SeqCst) > 0 && self.reserve.state.lock().is_armed
    }

    /// Without reserve workers the watchdog's take the requests, later.
    fn report(&self, result: Result<(), Errno>) {
        if let Err(error) = result {
            tracing::warn!(%error, "cannot watch for requests while workers wait");
        }
    }

    /// A reserve worker: sleeps until a request comes while others wait, and so on.
    fn be_in_reserve(self: &Arc<Self>) -> Result<(), SessionError> {
        let Some(mut seat) = Seat::take(self) else {
            return Ok(());
        };
        loop {
            self.reserve.asleep.fetch_add(1, Ordering::SeqCst);
            let woken = self.shared.link.transport.sleep_reserve(RETIRES_AFTER);
            self.reserve.asleep.fetch_sub(1, Ordering::SeqCst);
            if !woken.map_err(SessionError::Receive)? {
                return Ok(());
            }
            self.reserve.state.lock().is_armed = false;
            if !seat.answer_woken(self)? {
                return Ok(());
            }
            // Another worker may have been faster, and wait by now as well.
            let mut state = self.reserve.state.lock();
            if state.waiting > 0 && self.idle.load(Ordering::SeqCst) == 0 {
                self.arm(&mut state);
            }
        }
    }
}
