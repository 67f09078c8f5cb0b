//! The FUSE kernel adapter of MobiFS: requests in, errno out.
//!
//! [`Session::mount`] mounts a [`mobifs_volume::Volume`], [`Session::run`] serves it.
//! [`Session::resume`] goes on with the mount of a process that has died.
//! [`Session::mount_file`] does the same for a single file, the front of a block device.
//! The protocol layer is this crate's own and thin: it keeps no state for open files,
//! and the [transport](transport) can be replaced (io_uring) and taken over by another
//! process without the rest noticing.

mod adapter;
mod alarm;
mod cpu;
mod errno;
#[doc(hidden)]
pub mod fuzzing;
mod lead;
mod mount;
mod negotiation;
mod observer;
mod one_file;
mod options;
mod pause;
mod pressure;
mod priority;
mod protocol;
mod record;
mod reply;
mod request;
mod session;
mod slots;
mod transport;
mod workers;

#[cfg(test)]
mod tests;

pub use mount::{
    LoopDevice, MountError, UnmountError, abort, check_permitted, is_mounted, unmount,
};
pub use observer::{OperationObserver, observation_clock};
pub use one_file::{Answer, Clear, FileServer, Incarnation};
pub use options::{AccessTimes, MountOptions, OptionError, SyncFsMode, WorkerPlacement};
pub use record::{TakeoverError, begin_takeover, postpone_takeover};
pub use session::{Session, SessionError, SessionHandle};
