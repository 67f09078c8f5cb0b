//! A FUSE server library: mounts a [`Filesystem`] and answers the kernel's requests with it.
//!
//! [`Session::mount`] mounts, [`Session::run`] serves; [`Session::resume`] goes on with the
//! mount of a process that has died. [`Session::mount_file`] mounts a single file, the front of
//! a block device. Nothing here knows what a filesystem keeps or where.
//!
//! | layer | modules |
//! | --- | --- |
//! | the kernel's structures and numbers | [`protocol`], parsed by [`request`](Request::parse) |
//! | the connection | [`transport`], `negotiation`, `mount` |
//! | serving | `session`, `workers` (which worker polls, the watchdog, priorities) |
//! | one request | `dispatcher`, [`Call`], [`Reply`] |
//! | what a filesystem adds | [`Filesystem`], [`RequestLedger`], [`RequestObserver`] |
//!
//! The library keeps no state for open files: OPEN, CREATE and OPENDIR are answered with
//! `ENOSYS`, after which the kernel opens files without asking. The [transport](transport) can be
//! replaced (io_uring) and taken over by another process without the rest noticing.

mod call;
mod connection;
mod delivery;
mod dispatcher;
mod error;
mod filesystem;
mod in_flight;
mod link;
mod message;
mod mount;
mod negotiation;
mod observer;
mod one_file;
mod options;
#[expect(
    missing_docs,
    reason = "named after the structures and constants of <linux/fuse.h>, which documents them"
)]
pub mod protocol;
mod reply;
mod request;
mod session;
mod shared;
pub mod transport;
mod waiting;
mod workers;

#[cfg(test)]
mod tests;

pub use call::Call;
pub use connection::{Connection, DeferredReply};
pub use delivery::Delivery;
pub use dispatcher::Dispatcher;
pub use error::SessionError;
pub use filesystem::{Filesystem, SCRATCH_BYTES};
pub use in_flight::{RequestLedger, RequestSlot};
pub use mount::{
    LoopDevice, MountError, UnmountError, abort, check_permitted, is_mounted, unmount,
};
pub use negotiation::{DirectIo, Negotiated};
pub use observer::{Completion, RequestObserver, monotonic_ns};
pub use one_file::{Answer, Clear, FileServer, Incarnation};
pub use options::{AccessTimes, MountOptions, OptionError, SyncFsMode, WorkerPlacement};
pub use reply::Reply;
pub use request::{InitRequest, Malformed, Operation, Request, forget_entries};
pub use session::{EstablishedConnection, Session, SessionHandle, SessionHooks};
pub use waiting::WaitingWorker;
