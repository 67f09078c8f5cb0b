//! What MobiFS programs share on one machine, independent of stores: the directory
//! for sockets and logs of a user's daemons, requests and replies as lines over a local socket,
//! the kernel's table of mounts, and ways through trees of any depth.
#![forbid(unsafe_code)]

mod descent;
mod line_server;
mod mount_table;
mod runtime_directory;

pub use descent::Descent;
pub use line_server::{LineHandler, LineServer, exchange_line};
pub use mount_table::{
    MountEntry, absolute_without_touching, mount_around, mount_at, mounts, mounts_of,
    other_mounts_of, read_mount_table,
};
pub use runtime_directory::{DirectoryLock, runtime_directories_of, runtime_directory};
