//! What SQLite writes to its log, in the form that costs least.
//!
//! SQLite writes a frame in two pieces: a header of a few bytes, then the page. Each write is
//! an operation of the engine with a copy of every page of the log that it touches, so the
//! header waits for its page, and both are one write.
//!
//! Nobody can see the difference. Only the connection that has the right to write makes frames,
//! and until it publishes them through the shared memory nobody else reads, or depends on,
//! what is there; and a power cut or kill between the two writes has always been possible.
//! All the same, whoever does anything but read the database itself writes a header that
//! waits first ([`crate::database::Database::settle_log`]).

use std::sync::atomic::{AtomicBool, Ordering};

use mobifs_types::ObjectId;
use parking_lot::Mutex;

use crate::failure::Failure;

/// Bytes before the first frame of a log.
const LOG_HEADER_BYTES: usize = 32;
/// Bytes before the page of a frame.
const FRAME_HEADER_BYTES: usize = 24;

/// A frame's header without its page.
#[derive(Clone, Copy, Debug)]
struct Header {
    log: ObjectId,
    at: u64,
    bytes: [u8; FRAME_HEADER_BYTES],
}

/// The header that waits in a database, if one does: there is one log, and one writer.
#[derive(Debug, Default)]
pub(crate) struct WaitingHeader {
    is_there: AtomicBool,
    header: Mutex<Option<Header>>,
}

impl WaitingHeader {
    /// Writes it, if there is one. If that fails it waits on.
    pub(crate) fn settle(
        &self,
        write: impl FnOnce(ObjectId, u64, &[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if !self.is_there.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut header = self.header.lock();
        if let Some(waiting) = *header {
            write(waiting.log, waiting.at, &waiting.bytes)?;
            *header = None;
            self.is_there.store(false, Ordering::Release);
        }
        Ok(())
    }

    fn put_off(&self, waiting: Header) {
        *self.header.lock() = Some(waiting);
        self.is_there.store(true, Ordering::Release);
    }

    /// The header of the page that is written to `at` now; it waits no longer.
    fn take_before(&self, log: ObjectId, at: u64) -> Option<Header> {
        if !self.is_there.load(Ordering::Acquire) {
            return None;
        }
        let mut header = self.header.lock();
        let is_its =
            |waiting: &Header| waiting.log == log && waiting.at + FRAME_HEADER_BYTES as u64 == at;
        let found = header.filter(is_its)?;
        *header = None;
        self.is_there.store(false, Ordering::Release);
        Some(found)
    }
}

/// What a write to the log becomes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step<'a> {
    /// It waits for what follows.
    Nothing,
    /// These bytes are written there.
    Write {
        /// Offset in the log.
        at: u64,
        /// What is written.
        data: &'a [u8],
    },
    /// The log begins anew. What it held is in the database, and is nothing any more: what
    /// follows need not be told from it, nor be written over it.
    Restart {
        /// What is written at its beginning.
        data: &'a [u8],
    },
}

/// Writes of one connection to the log.
#[derive(Debug, Default)]
pub(crate) struct LogWriter {
    /// Where its last write ended: a header is put off only there. Headers that SQLite corrects
    /// later lie elsewhere, and no page follows them.
    end: Option<u64>,
    /// A frame; kept for the next one.
    frame: Vec<u8>,
}

impl LogWriter {
    /// What to do for a write of `data` to `at`. A header that is not this write's must have
    /// been settled if this returns an error or not [`Step::Nothing`]; see `settle`.
    pub(crate) fn step<'a>(
        &'a mut self,
        waiting: &WaitingHeader,
        log: ObjectId,
        at: u64,
        data: &'a [u8],
        settle: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<Step<'a>, Failure> {
        let before = self.end.take();
        if let Some(header) = waiting.take_before(log, at) {
            self.frame.clear();
            self.frame.extend_from_slice(&header.bytes);
            self.frame.extend_from_slice(data);
            self.end = Some(at + data.len() as u64);
            return Ok(Step::Write {
                at: header.at,
                data: &self.frame,
            });
        }
        settle()?;
        self.end = Some(at + data.len() as u64);
        if before == Some(at)
            && let Ok(bytes) = data.try_into()
        {
            waiting.put_off(Header { log, at, bytes });
            return Ok(Step::Nothing);
        }
        if at == 0 && data.len() == LOG_HEADER_BYTES {
            return Ok(Step::Restart { data });
        }
        Ok(Step::Write { at, data })
    }

    /// The last write failed, so nothing is known of where it ended.
    pub(crate) fn failed(&mut self) {
        self.end = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: ObjectId = ObjectId(7);

    /// What is written, in order.
    fn written(writes: &[(u64, usize)]) -> Vec<(u64, usize)> {
        let waiting = WaitingHeader::default();
        let mut writer = LogWriter::default();
        let done = std::cell::RefCell::new(Vec::new());
        let settle = || {
            waiting.settle(|_, at, data| {
                done.borrow_mut().push((at, data.len()));
                Ok(())
            })
        };
        for &(at, length) in writes {
            let data = vec![at as u8; length];
            let step = writer.step(&waiting, LOG, at, &data, settle).unwrap();
            match step {
                Step::Nothing => {}
                Step::Write { at, data } => done.borrow_mut().push((at, data.len())),
                Step::Restart { data } => done.borrow_mut().push((0, data.len())),
            }
        }
        settle().unwrap();
        done.into_inner()
    }

    #[test]
    fn frames_that_follow_each_other_are_one_write_each() {
        let writes = [(0, 32), (32, 24), (56, 512), (568, 24), (592, 512)];
        assert_eq!(written(&writes), [(0, 32), (32, 536), (568, 536)]);
    }

    #[test]
    fn headers_without_their_page_behind_them_are_written_as_they_come() {
        // Corrected ones, in a connection that has written nothing before, and somewhere else.
        assert_eq!(written(&[(32, 24), (568, 24)]), [(32, 24), (568, 24)]);
        let corrected = [(0, 32), (32, 24), (56, 512), (32, 24), (568, 24)];
        assert_eq!(
            written(&corrected),
            [(0, 32), (32, 536), (32, 24), (568, 24)]
        );
        // A page that is not the header's.
        let other = [(0, 32), (32, 24), (600, 512)];
        assert_eq!(written(&other), [(0, 32), (32, 24), (600, 512)]);
    }

    #[test]
    fn a_frame_has_the_bytes_of_both_writes() {
        let waiting = WaitingHeader::default();
        let mut writer = LogWriter::default();
        let settle = || Ok(());
        let begun = writer.step(&waiting, LOG, 0, &[1; 32], settle).unwrap();
        assert_eq!(begun, Step::Restart { data: &[1; 32] });
        let put_off = writer.step(&waiting, LOG, 32, &[2; 24], settle).unwrap();
        assert_eq!(put_off, Step::Nothing);
        let frame = writer.step(&waiting, LOG, 56, &[3; 512], settle).unwrap();
        let whole = [vec![2; 24], vec![3; 512]].concat();
        assert_eq!(
            frame,
            Step::Write {
                at: 32,
                data: &whole
            }
        );
    }

    #[test]
    fn a_header_that_cannot_be_written_waits_on() {
        let waiting = WaitingHeader::default();
        let bytes = [1; FRAME_HEADER_BYTES];
        waiting.put_off(Header {
            log: LOG,
            at: 32,
            bytes,
        });
        let refused = waiting.settle(|_, _, _| Err(Failure::Misuse("no")));
        refused.unwrap_err();
        let mut found = None;
        let settled = waiting.settle(|log, at, data| {
            found = Some((log, at, data.to_vec()));
            Ok(())
        });
        settled.unwrap();
        assert_eq!(found, Some((LOG, 32, bytes.to_vec())));
        waiting
            .settle(|_, _, _| panic!("it was written before"))
            .unwrap();
    }
}
