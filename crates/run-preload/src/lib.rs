//! The library that `mobifs run` loads into programs (`LD_PRELOAD`).
//!
//! It stands before the C library's calls for durability. On steered filesystems they return at once;
//! on others, and for whatever is unclear, the C library's own function is called. The functions
//! allocate nothing and take no lock: programs may call them in signal handlers and after `vfork`.
//!
//! Opening with `O_SYNC` is left to the supervisor. A library can only open the file a second time and
//! close the first descriptor, and with that the kernel releases the locks (`fcntl`) that the program
//! has on the file.
//! What does not come by here, as static programs and direct system calls, the supervisor sees.

mod call;
mod decisions;
pub mod descriptors;
mod load;
pub mod mappings;
mod next;
