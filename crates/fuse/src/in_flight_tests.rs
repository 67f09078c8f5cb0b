//! Slots in memory of the test, and which of them a session takes.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use super::*;

const SLOTS: usize = 4;

/// A ledger as a process leaves it to its successor.
#[derive(Default)]
pub(crate) struct TestLedger {
    taken: [Arc<AtomicBool>; SLOTS],
    in_flight: Vec<usize>,
}

struct TestSlot {
    number: usize,
    bytes: Vec<u8>,
    error: AtomicI32,
    taken: Arc<AtomicBool>,
}

impl RequestLedger for TestLedger {
    fn slot_count(&self) -> usize {
        SLOTS
    }

    fn in_flight(&self) -> Vec<usize> {
        self.in_flight.clone()
    }

    fn take(&self, slot: usize) -> Option<Box<dyn RequestSlot>> {
        let taken = self.taken.get(slot)?;
        if taken.swap(true, Ordering::SeqCst) {
            return None;
        }
        let mut bytes = vec![0; REQUEST_BUFFER_BYTES];
        if self.in_flight.contains(&slot) {
            bytes[..4].copy_from_slice(&40_u32.to_ne_bytes());
        }
        Some(Box::new(TestSlot {
            number: slot,
            bytes,
            error: AtomicI32::new(0),
            taken: Arc::clone(taken),
        }))
    }
}

impl RequestSlot for TestSlot {
    fn number(&self) -> usize {
        self.number
    }

    fn buffer(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn in_flight_bytes(&self) -> Option<usize> {
        let length = u32::from_ne_bytes([0, 1, 2, 3].map(|at| self.bytes[at]));
        (length > 0).then_some(length as usize)
    }

    fn recorded_error(&self) -> Option<i32> {
        let error = self.error.load(Ordering::SeqCst);
        (error != 0).then_some(error)
    }

    fn record_error(&self, error: i32) {
        self.error.store(error, Ordering::SeqCst);
    }

    fn clear(&mut self) {
        self.bytes[..4].fill(0);
        self.error.store(0, Ordering::SeqCst);
    }
}

impl Drop for TestSlot {
    fn drop(&mut self) {
        self.taken.store(false, Ordering::SeqCst);
    }
}

fn take_all(buffers: &RequestBuffers) -> Vec<RequestBuffer> {
    std::iter::from_fn(|| buffers.take()).collect()
}

#[test]
fn a_slot_with_a_predecessors_request_is_not_read_into() {
    let ledger = TestLedger {
        in_flight: vec![1],
        ..TestLedger::default()
    };
    let buffers = RequestBuffers::new(Some(Arc::new(ledger)));
    assert_eq!(buffers.in_flight_count(), 1);
    let others = take_all(&buffers);
    assert_eq!(others.len(), SLOTS - 1);
    for other in &others {
        let slot = other.request(0).1.unwrap();
        assert!(slot.number() != 1 && slot.in_flight_bytes().is_none());
    }
    let slot = buffers.take_in_flight().unwrap();
    assert_eq!((slot.number(), slot.in_flight_bytes()), (1, Some(40)));
    assert_eq!(buffers.in_flight_count(), 0);
    assert!(buffers.take_in_flight().is_none() && buffers.take().is_none());
    drop(slot);
    assert!(buffers.take().is_some());
}

#[test]
fn there_are_no_more_buffers_than_slots() {
    let buffers = RequestBuffers::new(Some(Arc::new(TestLedger::default())));
    let mut taken = take_all(&buffers);
    assert_eq!(taken.len(), SLOTS);
    drop(taken.pop());
    assert!(buffers.take().is_some());
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "in flight")]
fn a_request_is_never_read_over_one_that_is_in_flight() {
    let ledger = TestLedger {
        in_flight: vec![0],
        ..TestLedger::default()
    };
    RequestBuffer::Slot(ledger.take(0).unwrap()).bytes_mut();
}
