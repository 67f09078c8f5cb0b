//! The library that `mobifs run` loads into programs (`LD_PRELOAD`).
//!
//! It stands before the C library's calls for durability. On steered filesystems they return at once;
//! on others, and for whatever is unclear, the C library's own function is called. The functions
//! allocate nothing and take no lock: programs may call them in signal handlers and after `vfork`.
//! What does not come by here, as static programs and direct system calls, the supervisor sees.

pub mod descriptors;
mod next;
pub mod opens;
mod state;
