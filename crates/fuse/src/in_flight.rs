//! Where requests are while they are answered.
//!
//! Without more, a request lies in memory of the process, and dies with it: its sender gets an
//! error when the connection ends. A session with a [`RequestLedger`] reads requests straight
//! into memory that outlives the process, a *slot*, where each stays until it is answered. So a
//! successor finds every request that was read and not answered, and need not ask the kernel to
//! send it again (`FUSE_NOTIFY_RESEND`), which kernels before 6.9 cannot do, and which none does
//! for FORGET.
//!
//! The kernel copies a request within one call of `read(2)`. A process that is killed meanwhile
//! finishes the call first, so a request is in its slot whole, or still with the kernel.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::protocol::REQUEST_BUFFER_BYTES;

/// Slots for requests in memory that outlives the process.
///
/// The session takes each slot at most once at a time and asks for [`RequestLedger::in_flight`]
/// once, before it takes any.
pub trait RequestLedger: Send + Sync {
    /// How many slots there are. At least as many as workers: 96 never limit a session.
    fn slot_count(&self) -> usize;

    /// The slots that hold a request which a predecessor read and did not answer.
    fn in_flight(&self) -> Vec<usize>;

    /// Takes a slot, numbered from 0; none while it is taken. Dropping it gives it back.
    fn take(&self, slot: usize) -> Option<Box<dyn RequestSlot>>;
}

/// One slot, owned by the worker that answers the request in it.
///
/// The three states are: *empty* (no request), *in flight* (a request, whose first word is its
/// length as in every FUSE request), and *refused* (a request and the error that it ends with).
/// Each change between them is atomic for a successor.
pub trait RequestSlot: Send + Sync {
    /// Its number in the ledger.
    fn number(&self) -> usize;

    /// Where the kernel puts the next request: at least [`REQUEST_BUFFER_BYTES`], all of it
    /// resident, because a page fault in a dying process would fail the copy and end the
    /// request with `EIO`.
    fn buffer(&mut self) -> &mut [u8];

    /// The memory of the slot, to read the request.
    fn bytes(&self) -> &[u8];

    /// Length of the request in the slot; none if it is empty.
    fn in_flight_bytes(&self) -> Option<usize>;

    /// The error, a negative errno, that the request ends with, if it was recorded.
    fn recorded_error(&self) -> Option<i32>;

    /// Records the error, a negative errno, that the request in the slot ends with. Called
    /// before the kernel learns of it.
    fn record_error(&self, error: i32);

    /// Makes the slot empty: its request has been answered.
    fn clear(&mut self);
}

/// The memory that one worker reads requests into.
pub(crate) enum RequestBuffer {
    /// Gone with the process.
    Process(Vec<u8>),
    /// Found by a successor.
    Slot(Box<dyn RequestSlot>),
}

impl RequestBuffer {
    /// Where the next request goes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Process(bytes) => bytes,
            Self::Slot(slot) => {
                debug_assert!(
                    slot.in_flight_bytes().is_none() && slot.recorded_error().is_none(),
                    "a request is read over one that is in flight"
                );
                slot.buffer()
            }
        }
    }

    /// The request in the buffer, and its slot.
    pub(crate) fn request(&self, length: usize) -> (&[u8], Option<&dyn RequestSlot>) {
        match self {
            Self::Process(bytes) => (&bytes[..length], None),
            Self::Slot(slot) => (&slot.bytes()[..length], Some(&**slot)),
        }
    }

    /// The request is answered.
    pub(crate) fn clear(&mut self) {
        if let Self::Slot(slot) = self {
            slot.clear();
            debug_assert!(slot.in_flight_bytes().is_none() && slot.recorded_error().is_none());
        }
    }
}

/// The request buffers of a session.
pub(crate) struct RequestBuffers {
    /// None: buffers are memory of this process.
    ledger: Option<Arc<dyn RequestLedger>>,
    /// Slots with a request of a predecessor that no worker has taken yet.
    in_flight: Mutex<Vec<usize>>,
}

impl RequestBuffers {
    /// Slots of `ledger`, or memory of this process.
    pub(crate) fn new(ledger: Option<Arc<dyn RequestLedger>>) -> Self {
        let in_flight = ledger.as_ref().map(|ledger| ledger.in_flight());
        Self {
            ledger,
            in_flight: Mutex::new(in_flight.unwrap_or_default()),
        }
    }

    /// Whether a successor finds what is in the buffers.
    pub(crate) const fn outlive_process(&self) -> bool {
        self.ledger.is_some()
    }

    /// How many buffers hold a request of a predecessor and have not been taken.
    pub(crate) fn in_flight_count(&self) -> usize {
        self.in_flight.lock().len()
    }

    /// A slot with a request that a predecessor left.
    pub(crate) fn take_in_flight(&self) -> Option<Box<dyn RequestSlot>> {
        let ledger = self.ledger.as_ref()?;
        let mut in_flight = self.in_flight.lock();
        let slot = ledger.take(in_flight.pop()?);
        debug_assert!(slot.is_some(), "a slot of a predecessor is in use");
        slot
    }

    /// An empty buffer; none if all are in use. Dropping it gives it back.
    pub(crate) fn take(&self) -> Option<RequestBuffer> {
        let Some(ledger) = &self.ledger else {
            return Some(RequestBuffer::Process(vec![0; REQUEST_BUFFER_BYTES]));
        };
        // The first ones have been used most, so their memory is there already.
        let in_flight = self.in_flight.lock();
        let mut free = (0..ledger.slot_count()).filter(|slot| !in_flight.contains(slot));
        let slot = free.find_map(|slot| ledger.take(slot))?;
        debug_assert!(
            slot.bytes().len() >= REQUEST_BUFFER_BYTES,
            "a slot is too small"
        );
        Some(RequestBuffer::Slot(slot))
    }
}

#[cfg(test)]
#[path = "in_flight_tests.rs"]
pub(crate) mod tests;
