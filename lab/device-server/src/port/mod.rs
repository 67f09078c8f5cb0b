//! The device as its users see it: requests come in from several fronts, the model says
//! how long each takes, and each is answered when that time has passed.
//!
//! A request takes effect in the model when it arrives, under one lock, and is answered
//! later without it. So requests wait side by side, however many there are.
//!
//! A cut stops time for the answers first: what is not due at that moment is refused and
//! counts as under way for the model; what was due is answered well.

mod keeper;
mod remaps;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use mobifs_base::VirtualNs;
use parking_lot::Mutex;
use serde_json::Value;
use thiserror::Error;

use crate::block::{Block, Completion, PowerCycle, Refusal, Request};
use crate::clock::Clock;
use crate::control::RemapPair;
use crate::device::Device;
use crate::image::PAGE_BYTES;
use crate::journal::{JournalWriter, Kind};
use crate::keep::Keep;
use crate::pacer::Pacer;
use keeper::Keeper;
pub(crate) use remaps::RemapError;
use remaps::Remaps;

/// Zeros are written in pieces of this many bytes.
const ZEROS_BYTES: usize = 1 << 20;

/// Why the power could not be switched.
#[derive(Debug, Error)]
pub enum PowerError {
    /// The device is off already.
    #[error("the device has no power already; `mobifs flash power-on` gives it back")]
    AlreadyOff,
    /// The device is on already.
    #[error("the device has power already")]
    AlreadyOn,
    /// The image failed.
    #[error("the image file failed; see the log of the server")]
    Medium,
    /// The device is on, but cannot be reached.
    #[error("the device has power, but no loop device could be set up: {0}")]
    Loop(std::io::Error),
}

/// A device that is served.
pub(crate) struct Port {
    state: Mutex<State>,
    clock: Clock,
    pacer: Pacer,
    /// Number of the current or next power cycle.
    cycle: AtomicU64,
    size_bytes: u64,
}

struct State {
    device: Box<dyn Device>,
    keeper: Option<Keeper>,
    remaps: Remaps,
    is_powered: bool,
}

/// What was done, when it is done, and what a read found.
type Carried = Result<(VirtualNs, Vec<u8>), Refusal>;

impl Port {
    /// Serves `device`, which has power, from the model's time that `clock` shows on.
    ///
    /// # Errors
    /// If threads cannot be started.
    pub(crate) fn start(
        device: Box<dyn Device>,
        size_bytes: u64,
        clock: Clock,
        cycle: PowerCycle,
        journal: Option<JournalWriter>,
    ) -> std::io::Result<Self> {
        Ok(Self {
            state: Mutex::new(State {
                device,
                keeper: journal.map(Keeper::new),
                remaps: Remaps::default(),
                is_powered: true,
            }),
            clock,
            pacer: Pacer::start()?,
            cycle: AtomicU64::new(cycle.0),
            size_bytes,
        })
    }

    /// Cuts the power now.
    ///
    /// # Errors
    /// [`PowerError`].
    pub(crate) fn cut(&self, keep: Keep) -> Result<Value, PowerError> {
        let mut state = self.state.lock();
        if !state.is_powered {
            return Err(PowerError::AlreadyOff);
        }
        let (at, unanswered) = self.pacer.interrupt(|| self.clock.now());
        state.is_powered = false;
        self.cycle.fetch_add(1, Ordering::SeqCst);
        state.remaps.forget();
        let report = state.device.cut(at, keep);
        state.record_cut(at);
        drop(state);
        for answer in unanswered {
            answer(Err(Refusal::NoPower));
        }
        report.map_err(|_| PowerError::Medium)
    }

    /// Switches the power on. Returns when the device is ready.
    ///
    /// # Errors
    /// [`PowerError`].
    pub(crate) fn power_on(&self) -> Result<Value, PowerError> {
        let mut state = self.state.lock();
        if state.is_powered {
            return Err(PowerError::AlreadyOn);
        }
        let (ready_at, report) = state.device.power_on(self.clock.now());
        // Still locked: no request is served before the device is ready.
        if let Some(due) = self.clock.wait_until(ready_at) {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        state.is_powered = true;
        Ok(report)
    }

    /// What the clock of the model shows.
    pub(crate) fn now(&self) -> VirtualNs {
        self.clock.now()
    }

    /// Announces copies that the device may do by sharing content.
    ///
    /// # Errors
    /// [`RemapError`]; nothing is announced then.
    pub(crate) fn expect_copies(&self, pairs: &[RemapPair]) -> Result<(), RemapError> {
        self.state.lock().remaps.expect(pairs, self.size_bytes)
    }

    /// Forgets announced copies that have not arrived; says how many pages that were.
    pub(crate) fn forget_copies(&self) -> u64 {
        self.state.lock().remaps.forget()
    }

    /// What became of announced copies.
    pub(crate) fn copies(&self) -> Value {
        self.state.lock().remaps.figures()
    }

    /// Whether the device has power.
    pub(crate) fn is_powered(&self) -> bool {
        self.state.lock().is_powered
    }

    /// What the device has counted until now.
    ///
    /// # Errors
    /// [`PowerError::Medium`] if what became durable meanwhile cannot be written.
    pub(crate) fn stats(&self) -> Result<Value, PowerError> {
        let mut state = self.state.lock();
        let stats = state.device.stats(self.clock.now());
        stats.map_err(|_| PowerError::Medium)
    }

    /// The journal stopped because its file failed.
    pub(crate) fn journal_failed(&self) -> bool {
        let state = self.state.lock();
        state.keeper.as_ref().is_some_and(Keeper::has_failed)
    }

    /// Requests that wait for their time.
    pub(crate) fn under_way(&self) -> usize {
        self.pacer.len()
    }

    /// Ends: everything that was answered becomes durable, if the device has power, and
    /// what comes later is refused. Returns the state to save.
    ///
    /// # Errors
    /// [`PowerError::Medium`] if the image failed.
    pub(crate) fn finish(&self) -> Result<Vec<u8>, PowerError> {
        let mut state = self.state.lock();
        if state.is_powered {
            let flushed = state.flush(self.clock.now());
            flushed.map_err(|_| PowerError::Medium)?;
            state.is_powered = false;
        }
        if let Some(keeper) = &mut state.keeper {
            keeper.flush();
        }
        state.device.save().map_err(|_| PowerError::Medium)
    }
}

impl Block for Port {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn power_cycle(&self) -> PowerCycle {
        PowerCycle(self.cycle.load(Ordering::SeqCst))
    }

    fn submit(&self, cycle: PowerCycle, request: Request<'_>, completion: Completion) {
        let mut state = self.state.lock();
        let carried = if !state.is_powered {
            Err(Refusal::NoPower)
        } else if cycle != self.power_cycle() {
            Err(Refusal::Stale)
        } else {
            state.carry_out(self.clock.now(), &request)
        };
        let (done_at, data) = match carried {
            Ok(carried) => carried,
            Err(refusal) => {
                drop(state);
                return completion(Err(refusal));
            }
        };
        match self.clock.wait_until(done_at) {
            Some(due) if due > Instant::now() => {
                // With the lock held, so that a cut finds it.
                let answer = move |result: Result<(), Refusal>| completion(result.map(|()| data));
                self.pacer.answer_at(due, done_at, Box::new(answer));
            }
            _ => {
                drop(state);
                completion(Ok(data));
            }
        }
    }
}

impl State {
    fn carry_out(&mut self, at: VirtualNs, request: &Request<'_>) -> Carried {
        let mut found = Vec::new();
        let done_at = match *request {
            Request::Read { offset, bytes } => {
                found = vec![0; bytes];
                self.device.read(at, offset, &mut found)?
            }
            Request::Write {
                offset,
                data,
                durable,
            } => self.write(at, offset, data, durable)?,
            Request::Flush => self.flush(at)?,
            Request::Discard {
                offset,
                bytes,
                durable,
            } => self.discard(at, offset, bytes, durable)?,
            Request::Zero {
                offset,
                bytes,
                durable,
            } => self.write_zeros(at, offset, bytes, durable)?,
        };
        Ok((done_at, found))
    }

    fn write(
        &mut self,
        at: VirtualNs,
        offset: u64,
        data: &[u8],
        durable: bool,
    ) -> Result<VirtualNs, Refusal> {
        let done_at = if durable || self.remaps.is_empty() {
            self.device.write(at, offset, data, durable)?
        } else {
            let device = self.device.as_mut();
            self.remaps.write(device, at, offset, data)?
        };
        let kind = if durable {
            Kind::DurableWrite
        } else {
            Kind::Write
        };
        self.record(kind, (offset, data.len() as u64), (at, done_at), data);
        Ok(done_at)
    }

    fn write_zeros(
        &mut self,
        at: VirtualNs,
        offset: u64,
        bytes: u64,
        durable: bool,
    ) -> Result<VirtualNs, Refusal> {
        let zeros = vec![0; bytes.min(ZEROS_BYTES as u64) as usize];
        let mut done_at = at;
        let mut written = 0;
        while written < bytes {
            let piece = &zeros[..(bytes - written).min(ZEROS_BYTES as u64) as usize];
            let end = self.write(at, offset + written, piece, durable)?;
            done_at = done_at.max(end);
            written += piece.len() as u64;
        }
        Ok(done_at)
    }

    /// Gives up the whole pages of a range and writes zeros to what is left of others: a
    /// device gives up pages only.
    fn discard(
        &mut self,
        at: VirtualNs,
        offset: u64,
        bytes: u64,
        durable: bool,
    ) -> Result<VirtualNs, Refusal> {
        let end = offset + bytes;
        let first = offset.next_multiple_of(PAGE_BYTES);
        let last = end - end % PAGE_BYTES;
        if first >= last {
            return self.write_zeros(at, offset, bytes, durable);
        }
        let mut done_at = self.device.discard(at, first, last - first)?;
        self.record(Kind::Discard, (first, last - first), (at, done_at), &[]);
        for (start, end) in [(offset, first), (last, end)] {
            if start < end {
                let written = self.write_zeros(at, start, end - start, durable)?;
                done_at = done_at.max(written);
            }
        }
        Ok(done_at)
    }

    fn flush(&mut self, at: VirtualNs) -> Result<VirtualNs, Refusal> {
        let done_at = self.device.flush(at)?;
        self.record(Kind::Flush, (0, 0), (at, done_at), &[]);
        Ok(done_at)
    }

    fn record(
        &mut self,
        kind: Kind,
        range: (u64, u64),
        times: (VirtualNs, VirtualNs),
        data: &[u8],
    ) {
        if let Some(keeper) = &mut self.keeper {
            keeper.record(kind, range, times, data);
        }
    }

    fn record_cut(&mut self, at: VirtualNs) {
        if let Some(keeper) = &mut self.keeper {
            keeper.record_cut(at, self.device.as_ref());
        }
    }
}
