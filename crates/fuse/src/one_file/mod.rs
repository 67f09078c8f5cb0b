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

use std::path::Path;
use std::sync::Arc;

pub use answer::Answer;
use handler::OneFile;

use crate::mount::MountError;
use crate::options::MountOptions;
use crate::session::{Session, SessionHooks};

/// Which file of those that had the name one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// What becomes of a range that is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clear {
    /// Its space is not needed any more; it reads as zeros (`FALLOC_FL_PUNCH_HOLE`).
    Discard,
    /// Zeros are written (`FALLOC_FL_ZERO_RANGE`).
    Zero,
}

/// Content of the one file. Any number of threads call it at the same time; a call
/// should not block, but keep the [`Answer`] and return.
///
/// Offsets and lengths lie within the file. An answer that is dropped fails with `EIO`.
pub trait FileServer: Send + Sync + 'static {
    /// Size of the file, in bytes; constant.
    fn size_bytes(&self) -> u64;

    /// The file that its name leads to now.
    fn incarnation(&self) -> Incarnation;

    /// Reads; to be answered with [`Answer::data`].
    fn read(&self, file: Incarnation, offset: u64, bytes: usize, answer: Answer);

    /// Writes; to be answered with [`Answer::done`], as all requests that follow.
    fn write(&self, file: Incarnation, offset: u64, data: &[u8], answer: Answer);

    /// Makes everything durable that was written and answered before (`fsync(2)`).
    fn sync(&self, file: Incarnation, answer: Answer);

    /// Gives up a range.
    fn clear(&self, file: Incarnation, how: Clear, offset: u64, bytes: u64, answer: Answer);
}

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
