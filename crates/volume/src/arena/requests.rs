//! Buffers for requests, which the kernel fills.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::Mutex;

use super::layout::{
    REFUSED_AT, REQUEST_BUFFER_AT, REQUEST_BUFFER_BYTES, REQUEST_SLOTS, REQUEST_STRIDE_BYTES,
    REQUESTS_AT,
};
use super::region::Region;

/// The first slots keep their memory while nothing uses them: workers come and go. Each has more than a mebibyte.
const RESIDENT_SLOTS: usize = 8;

/// Request slots in use.
#[derive(Debug, Default)]
pub(super) struct Taken(Mutex<BTreeSet<usize>>);

impl Taken {
    pub(super) fn take(&self, number: usize) -> bool {
        number < REQUEST_SLOTS && self.0.lock().insert(number)
    }

    pub(super) fn give_back(&self, number: usize) {
        self.0.lock().remove(&number);
    }
}

/// A buffer for requests that outlives the process, with a record of the error that the request
/// in it ends with. Owned by one thread at a time.
#[derive(Debug)]
pub struct RequestSlot {
    region: Arc<Region>,
    taken: Arc<Taken>,
    number: usize,
}

impl RequestSlot {
    pub(super) fn new(region: Arc<Region>, taken: Arc<Taken>, number: usize) -> Self {
        let slot = Self {
            region,
            taken,
            number,
        };
        // A copy by the kernel that faults in a dying process would end the request with
        // an error.
        slot.region
            .populate(slot.offset(), REQUEST_BUFFER_AT + REQUEST_BUFFER_BYTES);
        slot
    }

    const fn offset(&self) -> usize {
        offset_of(self.number)
    }

    /// Which slot it is.
    pub const fn number(&self) -> usize {
        self.number
    }

    /// Where the kernel puts a request.
    pub fn buffer(&mut self) -> &mut [u8] {
        let offset = self.offset() + REQUEST_BUFFER_AT;
        // SAFETY: a slot is handed out once at a time, and `self` is borrowed mutably.
        unsafe { self.region.bytes_mut(offset, REQUEST_BUFFER_BYTES) }
    }

    /// The memory of the slot, to read the request.
    pub fn bytes(&self) -> &[u8] {
        let offset = self.offset() + REQUEST_BUFFER_AT;
        // SAFETY: a slot is handed out once at a time, and `buffer` borrows `self` mutably, so
        // nothing writes while this borrow lives.
        unsafe { self.region.bytes(offset, REQUEST_BUFFER_BYTES) }
    }

    /// Length of the request that lies in the slot; none if it is empty. Every FUSE
    /// request begins with its length as a `u32`.
    pub fn in_flight_bytes(&self) -> Option<usize> {
        in_flight_bytes(&self.region, self.number)
    }

    /// Records the error (a negative errno) that the request in the slot ends with, before the
    /// kernel learns of it.
    pub fn record_error(&self, error: i32) {
        debug_assert!(error < 0, "{error} is no negative errno");
        let offset = self.offset() + REFUSED_AT;
        self.region.store(offset, u64::from(error.cast_unsigned()));
    }

    /// The error that was recorded.
    pub fn recorded_error(&self) -> Option<i32> {
        let word = self.region.load(self.offset() + REFUSED_AT);
        (word != 0).then_some((word as u32).cast_signed())
    }

    /// Makes the slot empty: its request has been answered.
    pub fn clear(&mut self) {
        // In this order: a request without its error would be executed.
        self.region.store(self.offset() + REQUEST_BUFFER_AT, 0);
        self.region.store(self.offset() + REFUSED_AT, 0);
    }
}

const fn offset_of(number: usize) -> usize {
    REQUESTS_AT + number * REQUEST_STRIDE_BYTES
}

/// Length of the request that lies in a slot; none if there is none.
pub(super) fn in_flight_bytes(region: &Region, number: usize) -> Option<usize> {
    let word = region.load(offset_of(number) + REQUEST_BUFFER_AT);
    let length = (word & u64::from(u32::MAX)) as usize;
    (1..=REQUEST_BUFFER_BYTES)
        .contains(&length)
        .then_some(length)
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        let is_empty = self.in_flight_bytes().is_none() && self.recorded_error().is_none();
        if is_empty && self.number >= RESIDENT_SLOTS {
            let discarded = self.region.discard(self.offset(), REQUEST_STRIDE_BYTES);
            if let Err(error) = discarded {
                tracing::debug!(%error, "a request slot keeps its memory");
            }
        }
        // Not before: whoever takes it next makes its memory resident.
        self.taken.give_back(self.number);
    }
}
