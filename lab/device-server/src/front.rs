//! The device as a file in a FUSE mount: the front that a loop device is put over.

use std::sync::Arc;

use mobifs_fuse::{Answer, Clear, FileServer, Incarnation};
use rustix::io::Errno;

use crate::block::{Block, PowerCycle, Refusal, Request, SECTOR_BYTES};

/// Name of the file.
pub(crate) const FILE_NAME: &str = "device";

/// Serves a device as a file. Each power cycle has a file of its own, so that nothing that the
/// kernel cached before a cut, or has not written yet, reaches the device after it.
pub(crate) struct FileFront {
    device: Arc<dyn Block>,
}

impl FileFront {
    pub(crate) fn new(device: Arc<dyn Block>) -> Self {
        Self { device }
    }

    fn submit(&self, file: Incarnation, request: Request<'_>, answer: Answer) {
        let completion = move |result: Result<Vec<u8>, Refusal>| match result {
            Ok(_) => answer.done(),
            Err(refusal) => answer.fail(errno(refusal)),
        };
        self.device
            .submit(PowerCycle(file.0), request, Box::new(completion));
    }
}

fn errno(refusal: Refusal) -> Errno {
    match refusal {
        Refusal::NoPower | Refusal::Stale | Refusal::Medium => Errno::IO,
        Refusal::Misplaced => Errno::INVAL,
    }
}

fn is_whole(offset: u64, bytes: u64) -> bool {
    offset.is_multiple_of(SECTOR_BYTES) && bytes.is_multiple_of(SECTOR_BYTES)
}

impl FileServer for FileFront {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn incarnation(&self) -> Incarnation {
        Incarnation(self.device.power_cycle().0)
    }

    fn read(&self, file: Incarnation, offset: u64, bytes: usize, answer: Answer) {
        if bytes == 0 {
            return answer.data(&[]);
        }
        // The kernel asks for whole pages; a program that opens the file with `O_DIRECT` may ask
        // for less than a sector.
        let start = offset - offset % SECTOR_BYTES;
        let skip = (offset - start) as usize;
        let whole = (skip + bytes).next_multiple_of(SECTOR_BYTES as usize);
        let completion = move |result: Result<Vec<u8>, Refusal>| match result {
            Ok(data) => answer.data(&data[skip..skip + bytes]),
            Err(refusal) => answer.fail(errno(refusal)),
        };
        let request = Request::Read {
            offset: start,
            bytes: whole,
        };
        self.device
            .submit(PowerCycle(file.0), request, Box::new(completion));
    }

    fn write(&self, file: Incarnation, offset: u64, data: &[u8], answer: Answer) {
        if !is_whole(offset, data.len() as u64) || data.is_empty() {
            return answer.fail(errno(Refusal::Misplaced));
        }
        let request = Request::Write {
            offset,
            data,
            durable: false,
        };
        self.submit(file, request, answer);
    }

    fn sync(&self, file: Incarnation, answer: Answer) {
        self.submit(file, Request::Flush, answer);
    }

    fn clear(&self, file: Incarnation, how: Clear, offset: u64, bytes: u64, answer: Answer) {
        if bytes == 0 {
            return answer.done();
        }
        if !is_whole(offset, bytes) {
            return answer.fail(errno(Refusal::Misplaced));
        }
        let durable = false;
        let request = match how {
            Clear::Discard => Request::Discard {
                offset,
                bytes,
                durable,
            },
            Clear::Zero => Request::Zero {
                offset,
                bytes,
                durable,
            },
        };
        self.submit(file, request, answer);
    }
}
