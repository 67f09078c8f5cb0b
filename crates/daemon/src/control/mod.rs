//! The control socket: how commands reach a mount's daemon.

mod client;
mod protocol;
mod server;
mod socket_path;
mod stale;
mod unseen;

pub(crate) use client::maker_of_socket;
pub use client::{AnswerPatience, ControlClient, ControlError, find_mount, own_mounts};
pub use protocol::{ErrorKind, Reply, Request};
pub use server::{ControlHandler, ControlServer, check_readers};
pub use stale::{remove_stale_socket, remove_stale_sockets};
pub use unseen::unseen_mounts;
