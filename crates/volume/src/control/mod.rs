//! The control socket: how commands reach a mount's daemon.

mod client;
mod place;
mod protocol;
mod server;
mod socket;
mod stale;

pub(crate) use client::maker_of_socket;
pub use client::{AnswerPatience, ControlClient, ControlError, find_mount};
pub use place::runtime_directory;
pub use protocol::{ErrorKind, Reply, Request};
pub use server::{ControlHandler, ControlServer};
pub use socket::{LineHandler, LineServer, exchange_line};
pub use stale::{DirectoryLock, remove_stale_sockets};
