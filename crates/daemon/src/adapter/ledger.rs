//! Requests lie in the arena while they are answered, where a successor finds them.

use mobifs_fuse::{RequestLedger, RequestSlot};
use mobifs_volume::Arena;

/// The request slots of an arena.
pub(super) struct ArenaLedger(pub(super) Arena);

struct ArenaSlot(mobifs_volume::RequestSlot);

impl RequestLedger for ArenaLedger {
    fn slot_count(&self) -> usize {
        Arena::REQUEST_SLOTS
    }

    fn in_flight(&self) -> Vec<usize> {
        self.0.in_flight_slots()
    }

    fn take(&self, slot: usize) -> Option<Box<dyn RequestSlot>> {
        let slot = self.0.request_slot(slot)?;
        Some(Box::new(ArenaSlot(slot)))
    }
}

impl RequestSlot for ArenaSlot {
    fn number(&self) -> usize {
        self.0.number()
    }

    fn buffer(&mut self) -> &mut [u8] {
        self.0.buffer()
    }

    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    fn in_flight_bytes(&self) -> Option<usize> {
        self.0.in_flight_bytes()
    }

    fn recorded_error(&self) -> Option<i32> {
        self.0.recorded_error()
    }

    fn record_error(&self, error: i32) {
        self.0.record_error(error);
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_finds_a_request_and_the_error_that_it_ends_with() {
        let arena = Arena::create().unwrap();
        let ledger = ArenaLedger(arena.clone());
        assert!(ledger.in_flight().is_empty());
        let mut slot = ledger.take(5).unwrap();
        assert!(slot.bytes().len() >= mobifs_fuse::protocol::REQUEST_BUFFER_BYTES);
        assert!(ledger.take(5).is_none() && ledger.take(Arena::REQUEST_SLOTS).is_none());
        slot.buffer()[..4].copy_from_slice(&40_u32.to_ne_bytes());
        slot.record_error(-2);
        drop(slot);
        let descriptor = arena.descriptor().try_clone_to_owned().unwrap();
        let successor = ArenaLedger(Arena::attach(descriptor).unwrap());
        assert_eq!(successor.in_flight(), [5]);
        let mut slot = successor.take(5).unwrap();
        let found = (slot.number(), slot.in_flight_bytes(), slot.recorded_error());
        assert_eq!(found, (5, Some(40), Some(-2)));
        slot.clear();
        assert_eq!(
            (slot.in_flight_bytes(), slot.recorded_error()),
            (None, None)
        );
        assert!(successor.in_flight().is_empty());
    }
}
