//! The control socket: how commands reach a mount's daemon.

mod client;
mod detached_mounts;
mod protocol;
mod server;
mod socket_path;
mod stale;

pub(crate) use client::maker_of_socket;
pub use client::{
    AnswerPatience, ControlClient, ControlError, covered_mounts, find_mount, own_mounts,
};
pub use detached_mounts::detached_mounts;
pub use protocol::{ErrorKind, Reply, Request};
pub use server::{ControlHandler, ControlServer, check_readers};
pub use stale::{remove_stale_socket, remove_stale_sockets};
