//! The FUSE protocol as the kernel speaks it: numbers, flags and structures, nothing
//! that acts on them.

mod flags;
mod incoming;
mod opcode;
mod outgoing;

pub use flags::*;
pub use incoming::*;
pub use opcode::Opcode;
pub use outgoing::*;

/// Protocol version that this crate speaks.
pub const MAJOR: u32 = 7;
/// Newest minor whose additions this crate knows (Linux 6.18).
pub const MINOR: u32 = 45;
/// Oldest minor that offers what this crate relies on: opens and directory opens
/// without a message (7.29) and correct handling of large requests (7.31, Linux 5.4).
pub const MINOR_MIN: u32 = 31;

/// Node number of the mount's root.
pub const ROOT_NODE: u64 = 1;

/// Largest payload of one WRITE or READ.
pub const PAYLOAD_BYTES_MAX: usize = 1 << 20;
/// Room for the structures in front of a payload.
const HEADER_ROOM_BYTES: usize = 4096;
/// A request buffer of this size takes every request.
pub const REQUEST_BUFFER_BYTES: usize = PAYLOAD_BYTES_MAX + HEADER_ROOM_BYTES;
