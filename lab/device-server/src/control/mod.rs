//! The control socket of a served device: how commands find it and what they say.

mod client;
mod counts;
mod place;
mod protocol;
mod server;

pub use client::{ControlError, ask, rest};
pub use counts::DeviceCounts;
pub(crate) use place::{
    detach_dead_mounts, is_served, private_mountpoint, private_mounts, socket_path,
};
pub use protocol::{ErrorKind, RemapPair, Reply, Request};
pub(crate) use server::Control;
