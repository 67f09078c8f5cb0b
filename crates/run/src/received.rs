//! A system call of another process, as the kernel hands it out.

use zerocopy::FromZeros;

/// `struct seccomp_notif`.
#[derive(Clone, Copy, Debug, Default, FromZeros)]
#[repr(C)]
pub(crate) struct Received {
    /// The kernel's number of the notification.
    pub(crate) id: u64,
    /// The thread; 0 if this process cannot see it.
    pub(crate) thread: u32,
    flags: u32,
    pub(crate) number: u32,
    pub(crate) architecture: u32,
    instruction: u64,
    pub(crate) arguments: [u64; 6],
}
