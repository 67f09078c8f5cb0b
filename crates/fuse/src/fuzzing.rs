//! What fuzz targets need of the adapter: the parser of requests, and a volume behind it
//! with a kernel that is not there.

use std::io::IoSlice;
use std::sync::Arc;

use mobifs_volume::Volume;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::adapter::{Adapter, SCRATCH_BYTES};
use crate::observer::OperationObserver;
use crate::request::{Malformed, Request};
use crate::session::Handler as _;
use crate::transport::Transport;

/// What bytes are as a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// Too short for a header.
    NoHeader,
    /// Something else behind the header than the opcode requires.
    Malformed {
        /// Number of the request.
        unique: u64,
        /// Whether the kernel waits for an answer.
        expects_reply: bool,
    },
    /// A request.
    Whole {
        /// Number of the request.
        unique: u64,
        /// Whether the kernel waits for an answer.
        expects_reply: bool,
    },
}

/// Parses bytes as a worker does.
pub fn parse(bytes: &[u8], set_xattr_extended: bool) -> Parsed {
    match Request::parse(bytes, set_xattr_extended) {
        Err(Malformed::Header) => Parsed::NoHeader,
        Err(Malformed::Arguments {
            unique,
            expects_reply,
        }) => Parsed::Malformed {
            unique,
            expects_reply,
        },
        Ok(request) => Parsed::Whole {
            unique: request.header.unique,
            expects_reply: request.expects_reply(),
        },
    }
}

/// Serves a volume to a kernel that hands in bytes and gets bytes back.
pub struct Exchange {
    adapter: Adapter,
    scratch: Vec<u8>,
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange").finish_non_exhaustive()
    }
}

/// What a request was answered with, header and all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Replies.
    pub replies: Vec<Vec<u8>>,
    /// What the kernel was told without having asked.
    pub notifications: Vec<Vec<u8>>,
}

impl Exchange {
    /// Serves this volume.
    pub fn new(volume: Arc<Volume>) -> Self {
        Self {
            adapter: Adapter::new(volume),
            scratch: vec![0; SCRATCH_BYTES],
        }
    }

    /// The same, watched.
    pub fn observed(volume: Arc<Volume>, observer: Arc<dyn OperationObserver>) -> Self {
        Self {
            adapter: Adapter::new(volume).observed(Some(observer)),
            scratch: vec![0; SCRATCH_BYTES],
        }
    }

    /// Hands one request in; bytes that are none are not answered here.
    pub fn send(&mut self, bytes: &[u8]) -> Heard {
        let recorder = Recorder::default();
        if let Ok(request) = Request::parse(bytes, true) {
            self.adapter.handle(&recorder, &request, &mut self.scratch);
        }
        recorder.0.into_inner()
    }
}

/// Keeps what the kernel would get.
#[derive(Default)]
struct Recorder(Mutex<Heard>);

impl Transport for Recorder {
    fn try_receive(&self, _: &mut [u8]) -> Result<Option<usize>, Errno> {
        Err(Errno::NODEV)
    }

    fn sleep(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn reply(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        self.0.lock().replies.push(joined(parts));
        Ok(())
    }

    fn notify(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        self.0.lock().notifications.push(joined(parts));
        Ok(())
    }
}

fn joined(parts: &[IoSlice<'_>]) -> Vec<u8> {
    parts.iter().flat_map(|part| part.iter().copied()).collect()
}
