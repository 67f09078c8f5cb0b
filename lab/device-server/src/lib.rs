//! Serves the flash device model as a real block device.
//!
//! [`Served::start`] opens an [image](ServeOptions::image), the durable content of a device as a
//! plain file, and gives it fronts: a file in a mount, with a loop device over it, and an NBD
//! export. Their users get the latencies of the modelled device. [`ask`] reaches a served device
//! from another process: what it counted, a power cut, power on. A journal of all that reached the
//! device is turned into the image of any crash state by [`materialise`].
#![forbid(unsafe_code)]

mod block;
mod clock;
mod control;
mod device;
mod front;
#[doc(hidden)]
pub mod fuzzing;
mod guard;
mod image;
mod journal;
mod keep;
mod model;
mod nbd;
mod pacer;
mod port;
mod serve;

pub use clock::Scale;
pub use control::{ControlError, DeviceCounts, ErrorKind, RemapPair, Reply, Request, ask, rest};
pub use guard::guard;
pub use image::ImageError;
pub use journal::{
    BoundaryKind, Command, CommandKind, CrashState, CrashStates, Interval, Journal, JournalError,
    Materialised, Survival, materialise,
};
pub use keep::Keep;
pub use port::PowerError;
pub use serve::{EndHandle, Ready, SUBTYPE, ServeError, ServeOptions, Served};
