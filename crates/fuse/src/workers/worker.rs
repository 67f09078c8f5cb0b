//! What one worker does: take a request, answer it, and so on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::leader::{Arrival, SPARE};
use super::{Role, Workers, cpu, slice};
use crate::dispatcher::Dispatcher;
use crate::error::SessionError;
use crate::filesystem::SCRATCH_BYTES;
use crate::in_flight::{RequestBuffer, RequestSlot};
use crate::message;
use crate::request::{Malformed, Request};
use crate::transport::{RecordedTransport, Transport};

/// A worker spins for this long before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
/// If another thread had the CPU for longer than this while the worker yielded, it was at least
/// as much as a sender does between two requests.
const SENDER_TURN_MIN: Duration = Duration::from_micros(3);
/// If another thread had the CPU for longer than this, CPUs are short.
const CONTENTION_MIN: Duration = Duration::from_micros(500);

/// What a worker needs to answer requests.
pub(super) struct Seat {
    buffer: RequestBuffer,
    scratch: Vec<u8>,
}

impl Seat {
    /// None if all slots are taken.
    pub(super) fn take(workers: &Workers) -> Option<Self> {
        Self::with_scratch(workers, vec![0; SCRATCH_BYTES])
    }

    fn with_scratch(workers: &Workers, scratch: Vec<u8>) -> Option<Self> {
        let mut buffer = workers.shared.buffers.take()?;
        // A predecessor may have died while it cleared the slot.
        buffer.clear();
        Some(Self { buffer, scratch })
    }

    /// A reserve worker was woken: it answers what is there, and what comes as long as it spins and no
    /// other worker is idle; false if the mount has ended.
    pub(super) fn answer_woken(&mut self, workers: &Workers) -> Result<bool, SessionError> {
        let transport = &workers.shared.link.transport;
        let mut received = transport.try_receive(self.buffer.bytes_mut());
        loop {
            let length = match received {
                Ok(Some(length)) => length,
                Ok(None) => return Ok(true),
                Err(Errno::NODEV) => return Ok(false),
                Err(errno) => return Err(SessionError::Receive(errno)),
            };
            workers.answer_received(SPARE, self, length, Arrival::Remote)?;
            if workers.is_another_idle() {
                return Ok(true);
            }
            workers.idle.fetch_add(1, Ordering::SeqCst);
            received = workers.spin(self.buffer.bytes_mut(), &mut Arrival::Remote);
            workers.idle.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Workers {
    /// A worker's thread.
    pub(super) fn work(
        &self,
        number: usize,
        role: Role,
        body: impl FnOnce() -> Result<(), SessionError>,
    ) {
        if let Role::Pinned { cpu } = role {
            cpu::pin_to(cpu);
        }
        slice::shorten();
        self.priorities.enter(number);
        let answered = body();
        self.priorities.leave(number, &self.watchdog);
        if let Err(error) = answered {
            self.fail(error);
        }
        if role != Role::Spare {
            self.leadership.shut_down();
        }
    }

    /// Answers requests until the mount ends, or until a spare worker is not needed any more.
    pub(super) fn answer_all(&self, number: usize, role: Role) -> Result<(), SessionError> {
        let mut scratch = vec![0; SCRATCH_BYTES];
        let finished = self.finish_in_flight(&mut scratch)?;
        if role == Role::Spare && finished > 0 && self.is_another_idle() {
            return Ok(());
        }
        let Some(mut seat) = Seat::with_scratch(self, scratch) else {
            // Only a spare worker can find no free buffer.
            debug_assert!(role == Role::Spare, "a permanent worker has no slot");
            return Ok(());
        };
        self.answer_from(number, role, &mut seat)
    }

    /// The same with what it needs.
    fn answer_from(&self, number: usize, role: Role, seat: &mut Seat) -> Result<(), SessionError> {
        loop {
            let (length, arrival) = match self.next(number, seat.buffer.bytes_mut()) {
                Ok(received) => received,
                Err(Errno::NODEV) => return Ok(()),
                Err(errno) => return Err(SessionError::Receive(errno)),
            };
            self.answer_received(number, seat, length, arrival)?;
            if role == Role::Spare && self.is_another_idle() {
                return Ok(());
            }
        }
    }

    /// Answers what was received.
    fn answer_received(
        &self,
        number: usize,
        seat: &mut Seat,
        length: usize,
        arrival: Arrival,
    ) -> Result<(), SessionError> {
        self.count_taken();
        if !self.answer(number, &seat.buffer, length, arrival, &mut seat.scratch) {
            return Err(SessionError::Panicked);
        }
        seat.buffer.clear();
        Ok(())
    }

    /// Whether a spare worker is not needed any more.
    fn is_another_idle(&self) -> bool {
        self.idle.load(Ordering::SeqCst) > 0
    }

    /// A request has been taken.
    fn count_taken(&self) {
        self.taken.fetch_add(1, Ordering::SeqCst);
        if self.idle.load(Ordering::SeqCst) == 0 {
            self.watchdog.wake();
        }
    }

    /// Finishes what a predecessor had read and not answered, as long as there is any;
    /// returns how many requests that were.
    fn finish_in_flight(&self, scratch: &mut [u8]) -> Result<usize, SessionError> {
        let mut finished = 0;
        while let Some(mut slot) = self.shared.buffers.take_in_flight() {
            self.count_taken();
            if !self.finish_one(&*slot, scratch) {
                return Err(SessionError::Panicked);
            }
            slot.clear();
            finished += 1;
            let before = self.in_flight.fetch_sub(1, Ordering::SeqCst);
            debug_assert!(before > 0, "more requests finished than were in flight");
            if before == 1 {
                self.report_caught_up();
            }
        }
        Ok(finished)
    }

    /// Waits for the next request and reads it.
    fn next(&self, number: usize, buffer: &mut [u8]) -> Result<(usize, Arrival), Errno> {
        let transport = &self.shared.link.transport;
        let mut arrival = Arrival::Local;
        loop {
            if !self.leadership.may_poll(number) {
                self.priorities.before_sleep(number, &self.watchdog);
                self.leadership.park(number);
            }
            self.idle.fetch_add(1, Ordering::SeqCst);
            let found = self.spin(buffer, &mut arrival).transpose();
            let slept = found.is_none().then(|| {
                self.priorities.before_sleep(number, &self.watchdog);
                transport.sleep()
            });
            self.idle.fetch_sub(1, Ordering::SeqCst);
            if let Some(length) = found {
                return Ok((length?, arrival));
            }
            slept.transpose()?;
            arrival = Arrival::Remote;
            // A worker that was woken also polls, whichever leads now.
            if let Some(length) = transport.try_receive(buffer)? {
                return Ok((length, arrival));
            }
        }
    }

    /// Polls for a while, yielding to every other thread that wants this CPU.
    fn spin(&self, buffer: &mut [u8], arrival: &mut Arrival) -> Result<Option<usize>, Errno> {
        let since = Instant::now();
        let mut now = since;
        loop {
            if let Some(length) = self.shared.link.transport.try_receive(buffer)? {
                return Ok(Some(length));
            }
            if now - since >= SPIN || self.leadership.is_suspended() {
                return Ok(None);
            }
            std::thread::yield_now();
            let before = std::mem::replace(&mut now, Instant::now());
            let away = now - before;
            *arrival = if away >= SENDER_TURN_MIN {
                Arrival::Local
            } else {
                Arrival::Remote
            };
            if away >= CONTENTION_MIN {
                self.leadership.suspend();
            }
        }
    }

    /// Answers one request; false if that panicked.
    fn answer(
        &self,
        number: usize,
        buffer: &RequestBuffer,
        length: usize,
        arrival: Arrival,
        scratch: &mut [u8],
    ) -> bool {
        let transport = &self.shared.link.transport;
        let (bytes, slot) = buffer.request(length);
        let Some(request) = self.parse(bytes, slot) else {
            return true;
        };
        let sender = request.header.pid;
        self.leadership.request_taken(number, sender, arrival);
        let leads = self.leadership.is_leader(number);
        self.priorities.request_taken(number, leads, &self.watchdog);
        if self.shared.aborted.load(Ordering::SeqCst) {
            Dispatcher::refuse(transport, slot, &request, Errno::IO);
            return true;
        }
        self.survives(|| {
            self.shared
                .dispatcher
                .handle(transport, slot, &request, scratch);
        })
    }

    /// Answers the request that a predecessor left in this slot; false if that panicked.
    fn finish_one(&self, slot: &dyn RequestSlot, scratch: &mut [u8]) -> bool {
        let transport = &self.shared.link.transport;
        let Some(length) = slot.in_flight_bytes() else {
            return true;
        };
        let bytes = slot.bytes();
        let Some(request) = self.parse(&bytes[..length.min(bytes.len())], Some(slot)) else {
            return true;
        };
        let (unique, opcode) = (request.header.unique, request.header.opcode);
        let error = slot.recorded_error();
        tracing::debug!(slot = slot.number(), unique, opcode, ?error, "in flight");
        if let Some(error) = error {
            // The request ended with this error. If the sender has the reply already, the kernel
            // refuses this one, and that is fine.
            let errno = Errno::from_raw_os_error(-error);
            Dispatcher::refuse(transport, Some(slot), &request, errno);
            return true;
        }
        self.survives(|| {
            self.shared
                .dispatcher
                .finish_in_flight(transport, slot, &request, scratch);
        })
    }

    /// The request in these bytes; a malformed one is answered here.
    fn parse<'a>(&self, bytes: &'a [u8], slot: Option<&dyn RequestSlot>) -> Option<Request<'a>> {
        let error = match Request::parse(bytes, self.shared.link.negotiated.set_xattr_extended()) {
            Ok(request) => return Some(request),
            Err(error) => error,
        };
        match error {
            Malformed::Arguments {
                unique,
                expects_reply,
            } => {
                tracing::error!(unique, "the kernel sent a malformed request");
                if expects_reply {
                    self.refuse_malformed(unique, slot);
                }
            }
            Malformed::Header => {
                tracing::error!("the kernel sent a request without a header");
            }
        }
        None
    }

    fn refuse_malformed(&self, unique: u64, slot: Option<&dyn RequestSlot>) {
        let device = &self.shared.link.transport;
        let errno = -Errno::INVAL.raw_os_error();
        match slot {
            None => message::send(device, unique, errno, &[]),
            Some(slot) => message::send(&RecordedTransport::new(device, slot), unique, errno, &[]),
        };
    }

    /// Runs a handler; false if it panicked.
    ///
    /// A panic leaves a request unanswered and its sender waiting for ever, and the filesystem's
    /// state inconsistent. Where a successor can take over, this process ends at once: the
    /// successor starts from the state before the request. Elsewhere the mount ends, and the
    /// filesystem's state is not used again.
    fn survives(&self, handle: impl FnOnce()) -> bool {
        let survived = catch_unwind(AssertUnwindSafe(handle)).is_ok();
        if !survived && self.shared.buffers.outlive_process() {
            tracing::error!("a worker panicked; a new process has to take over");
            std::process::abort();
        }
        survived
    }
}
