//! A filesystem of one file, for a server of a block device and not of a tree.
//!
//! The file has a fixed size. Requests for its content go to a [`FileServer`], which may
//! answer each of them later and from any thread: an [`Answer`] stands for the waiting
//! caller. So any number of requests can be under way while few threads serve them.
//!
//! A server may replace the file by a new one (a device that was taken out and put in
//! again): its [`Incarnation`] then changes. The name leads to the newest; a program
//! that holds an older one gets errors, and nothing that the kernel has cached of it is used again.

mod answer;
mod handler;
mod listing;
mod server;

use std::path::Path;
use std::sync::Arc;

pub use answer::Answer;
use handler::OneFile;
pub use server::{Clear, FileServer, Incarnation};

use crate::mount::MountError;
use crate::options::MountOptions;
use crate::session::{Session, SessionHooks};

impl Session {
    /// Mounts a directory at `mountpoint` with one file `name` in it. As with
    /// [`Session::mount`], requests are answered from [`Session::run`] on.
    ///
    /// # Errors
    /// [`MountError`]; nothing stays mounted.
    pub fn mount_file(
        server: Arc<dyn FileServer>,
        name: &str,
        mountpoint: &Path,
        options: &MountOptions,
    ) -> Result<Self, MountError> {
        let filesystem = OneFile::new(server, name);
        Self::mount(filesystem, mountpoint, options, SessionHooks::default())
    }
}
