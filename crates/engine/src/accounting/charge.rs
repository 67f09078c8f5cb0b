//! What is charged: amounts of memory and room, and the charge of one transaction.

use mobifs_base::Room;

/// An amount to charge or to refund.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charge {
    /// Memory.
    pub(crate) memory_bytes: u64,
    /// Room in the lower filesystem.
    pub(crate) room: Room,
}

impl Charge {
    /// A charge of memory and room.
    pub(crate) const fn of(memory_bytes: u64, room: Room) -> Self {
        Self { memory_bytes, room }
    }

    /// A charge of memory alone.
    pub(crate) const fn memory(memory_bytes: u64) -> Self {
        Self::of(memory_bytes, Room::NONE)
    }

    /// A charge of room alone.
    pub(crate) const fn room(room: Room) -> Self {
        Self::of(0, room)
    }
}

/// The charge of one transaction. Only [`Accounting`](super::Accounting) changes it, with the sums
/// over all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Charged(pub(super) Charge);

impl Charged {
    /// The charge in a restart image.
    pub(crate) const fn restored(charge: Charge) -> Self {
        Self(charge)
    }

    /// Memory of its pages and entries.
    pub(crate) const fn memory_bytes(&self) -> u64 {
        self.0.memory_bytes
    }

    /// Room it will need in the lower filesystem at most.
    pub(crate) const fn room(&self) -> Room {
        self.0.room
    }

    /// Adds the charge of a transaction that joins this one; the sum over all is unchanged.
    pub(crate) fn absorb(&mut self, other: Self) {
        add(&mut self.0.memory_bytes, other.0.memory_bytes);
        self.0.room.charge(other.0.room);
    }
}

/// Adds to a count of bytes in memory.
pub(super) fn add(sum: &mut u64, more: u64) {
    debug_assert!(sum.checked_add(more).is_some(), "{sum} + {more} overflows");
    *sum = sum.saturating_add(more);
}

/// Subtracts from a count what was added to it before.
pub(super) fn take(sum: &mut u64, less: u64) {
    debug_assert!(*sum >= less, "{less} is refunded of {sum}");
    *sum = sum.saturating_sub(less);
}
