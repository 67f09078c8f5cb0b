//! Where workers read requests into.
//!
//! In a session that a successor may take over, a request is read straight into memory
//! that outlives the process, a *slot* of the arena, and stays there until it is
//! answered. So the successor finds every request that was read and not answered; the
//! kernel need not be asked to send anything again, which old kernels cannot, and which
//! none does for FORGETs.
//!
//! The kernel copies a request into a slot within one call of `read(2)`. A process that
//! is killed meanwhile finishes the call first; the arena sees to it that the copy does
//! not meet a page that is not in memory, because then the call would fail and the kernel
//! end the request with `EIO`.

use mobifs_volume::{Arena, Refusal, RequestSlot};
use parking_lot::Mutex;

use crate::protocol::REQUEST_BUFFER_BYTES;

/// The memory that one worker reads requests into.
pub(crate) enum RequestBuffer {
    /// Gone with the process.
    Own(Vec<u8>),
    /// Found by a successor.
    Slot(RequestSlot),
}

impl RequestBuffer {
    /// Where the next request goes.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Slot(slot) => slot.buffer(),
        }
    }

    /// The request in the buffer, and where to note that it is refused; the latter for
    /// slots only.
    pub(crate) fn request(&mut self, length: usize) -> (&[u8], Option<(usize, Refusal<'_>)>) {
        match self {
            Self::Own(bytes) => (&bytes[..length], None),
            Self::Slot(slot) => {
                let number = slot.number();
                let (bytes, refusal) = slot.parts();
                (&bytes[..length], Some((number, refusal)))
            }
        }
    }

    /// Length of the request that a predecessor left here, in bytes.
    pub(crate) fn left_bytes(&self) -> Option<usize> {
        match self {
            Self::Own(_) => None,
            Self::Slot(slot) => slot.left_bytes(),
        }
    }

    /// The error (negative errno) that the predecessor was about to answer that request
    /// with.
    pub(crate) fn refused(&self) -> Option<i32> {
        match self {
            Self::Own(_) => None,
            Self::Slot(slot) => slot.refused(),
        }
    }

    /// Nothing is under way here.
    pub(crate) fn clear(&mut self) {
        if let Self::Slot(slot) = self {
            slot.clear();
        }
    }
}

/// The buffers of a session.
pub(crate) struct Slots {
    /// None: buffers are memory of this process.
    arena: Option<Arena>,
    /// Slots with a request that a predecessor read and did not answer.
    left: Mutex<Vec<usize>>,
}

impl Slots {
    /// Memory of this process.
    pub(crate) fn of_process() -> Self {
        Self {
            arena: None,
            left: Mutex::default(),
        }
    }

    /// The slots of an arena.
    pub(crate) fn of_arena(arena: &Arena) -> Self {
        Self {
            arena: Some(arena.clone()),
            left: Mutex::new(arena.left_slots()),
        }
    }

    /// Whether a successor finds what is in the buffers.
    pub(crate) const fn outlive_process(&self) -> bool {
        self.arena.is_some()
    }

    /// How many buffers hold a request of a predecessor and have not been taken.
    pub(crate) fn left_count(&self) -> usize {
        self.left.lock().len()
    }

    /// A buffer with a request that a predecessor left.
    pub(crate) fn take_left(&self) -> Option<RequestBuffer> {
        let arena = self.arena.as_ref()?;
        let mut left = self.left.lock();
        let slot = arena.request_slot(left.pop()?)?;
        Some(RequestBuffer::Slot(slot))
    }

    /// An empty buffer; none if all are in use. Dropping it gives it back.
    pub(crate) fn take(&self) -> Option<RequestBuffer> {
        let Some(arena) = &self.arena else {
            return Some(RequestBuffer::Own(vec![0; REQUEST_BUFFER_BYTES]));
        };
        // The first ones have been used most, so their memory is there already.
        let left = self.left.lock();
        let mut free = (0..Arena::REQUEST_SLOTS).filter(|number| !left.contains(number));
        free.find_map(|number| arena.request_slot(number))
            .map(RequestBuffer::Slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_with_a_predecessors_request_are_told_from_empty_ones() {
        let arena = Arena::create().unwrap();
        let mut slot = arena.request_slot(5).unwrap();
        slot.buffer()[..4].copy_from_slice(&40_u32.to_ne_bytes());
        drop(slot);
        let descriptor = arena.descriptor().try_clone_to_owned().unwrap();
        let slots = Slots::of_arena(&Arena::attach(descriptor).unwrap());
        assert_eq!(slots.left_count(), 1);
        let others: Vec<_> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(others.len(), Arena::REQUEST_SLOTS - 1);
        assert!(others.iter().all(|other| other.left_bytes().is_none()));
        let left = slots.take_left().unwrap();
        assert_eq!((left.left_bytes(), slots.left_count()), (Some(40), 0));
        assert!(slots.take_left().is_none());
        assert!(slots.take().is_none());
        drop(left);
        assert!(slots.take().is_some());
    }

    #[test]
    fn there_are_no_more_buffers_than_slots() {
        let arena = Arena::create().unwrap();
        let slots = Slots::of_arena(&arena);
        let mut taken: Vec<_> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(taken.len(), Arena::REQUEST_SLOTS);
        assert!(slots.take().is_none());
        drop(taken.pop());
        assert!(slots.take().is_some());
    }
}
