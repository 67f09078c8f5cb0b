//! What MobiFS programs share on one machine, independent of stores: the directory
//! for sockets and logs of a user's daemons, requests and replies as lines over a local socket,
//! the kernel's table of mounts, how ext4 moves and keeps content, ways through trees of any depth,
//! names as terminals may get them, groups by name, and how much is logged.
#![deny(unsafe_code)]

mod daemon_processes;
mod descent;
mod ext4;
mod find_below;
mod group;
mod killed;
mod line_server;
mod log_level;
mod mount_table;
mod overlay_mounts;
mod peer;
mod printable;
mod runtime_directory;
mod shell;

pub use daemon_processes::{DaemonProcess, daemon_here, daemon_processes};
pub use descent::Descent;
pub use ext4::{PartlyMoved, is_ext4_ordered, move_extents};
pub use find_below::find_below;
pub use group::{GroupError, group_id};
pub use killed::is_being_killed;
pub use line_server::{Client, LineHandler, LineServer, connect_at_once, displaced, exchange_line};
pub use log_level::{LOG_VARIABLE, LogLevelError, log_directives};
pub use mount_table::{
    MountEntry, absolute_without_touching, mount_around, mount_at, mounts, mounts_of,
    other_mounts_of, read_mount_table, unescaped_path,
};
pub use overlay_mounts::{OverlayMount, overlay_mounts};
pub use peer::Peer;
pub use printable::{printable, printable_lines, printable_path};
pub use runtime_directory::{DirectoryLock, runtime_directories_of, runtime_directory};
pub use shell::{shell_path, shell_word};
