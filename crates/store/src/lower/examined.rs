//! The lower filesystem of a store that is not open.

use crate::locks::Order;
use crate::lower::gate::Gate;
use crate::lower::kept_handles::KeptHandles;
use crate::lower::posix::PosixLower;

/// The lower filesystem as an open store has it, for a look at a store that is not open.
pub type ExaminedLower = KeptHandles<Gate<PosixLower>>;

/// The lower filesystem of a store that is to be examined or salvaged.
///
/// Any [`Lower`](crate::lower::Lower) would do, but all code that reads a store is compiled once for each type: a
/// program that also opens stores has it once only if it examines them through the same type.
#[must_use]
pub fn examined(lower: PosixLower) -> ExaminedLower {
    KeptHandles::new(Order::new(), Gate::new(lower))
}
