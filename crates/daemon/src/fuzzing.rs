//! What fuzz targets and tests need: the adapter over a volume, without a kernel.

use std::io::IoSlice;
use std::sync::Arc;

use mobifs_fuse::transport::Transport;
use mobifs_fuse::{Dispatcher, Request, SCRATCH_BYTES};
use mobifs_volume::Volume;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::OperationObserver;
use crate::adapter::{Adapter, OperationTranslator};
pub use crate::bus::fuzzing::{bus_message_seeds, read_bus_message};

/// Serves a volume to a caller that passes requests as bytes and gets replies as bytes.
pub struct Exchange {
    dispatcher: Dispatcher,
    scratch: Vec<u8>,
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exchange").finish_non_exhaustive()
    }
}

/// What a request was answered with, header and all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Replies.
    pub replies: Vec<Vec<u8>>,
    /// Notifications.
    pub notifications: Vec<Vec<u8>>,
}

impl Exchange {
    /// Serves this volume.
    pub fn new(volume: Arc<Volume>) -> Self {
        Self {
            dispatcher: Dispatcher::new(Adapter::new(volume, false), None),
            scratch: vec![0; SCRATCH_BYTES],
        }
    }

    /// Serves this volume, with an observer.
    pub fn observed(volume: Arc<Volume>, observer: Arc<dyn OperationObserver>) -> Self {
        let translator = Arc::new(OperationTranslator(observer));
        Self {
            dispatcher: Dispatcher::new(Adapter::new(volume, true), Some(translator)),
            scratch: vec![0; SCRATCH_BYTES],
        }
    }

    /// Handles one request; malformed bytes are not answered here.
    pub fn send(&mut self, bytes: &[u8]) -> Sent {
        let recorder = Recorder::default();
        if let Ok(request) = Request::parse(bytes, true) {
            self.dispatcher
                .handle(&recorder, None, &request, &mut self.scratch);
        }
        recorder.0.into_inner()
    }
}

/// Keeps what the kernel would get.
#[derive(Default)]
struct Recorder(Mutex<Sent>);

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
