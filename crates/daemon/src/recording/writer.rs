//! The thread that appends to the log.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mobifs_recording::LogPart;

use super::shared::Shared;

/// What comes within this time is written together; a kill loses no more than that.
const GATHER: Duration = Duration::from_millis(20);
/// Programs come before it.
const NICE: i32 = 10;

pub(super) struct Writer {
    shared: Arc<Shared>,
    log: File,
    /// Size of the log, which ends with a whole frame.
    log_bytes: u64,
}

impl Writer {
    /// For a log that is positioned at its end.
    pub(super) fn new(shared: Arc<Shared>, mut log: File) -> io::Result<Self> {
        let log_bytes = log.stream_position()?;
        Ok(Self {
            shared,
            log,
            log_bytes,
        })
    }

    pub(super) fn run(mut self) {
        // Of this thread alone.
        if let Err(errno) = rustix::process::setpriority_process(None, NICE) {
            tracing::debug!(
                %errno,
                "cannot lower the priority of the thread that writes the recording"
            );
        }
        let mut spare = LogPart::default();
        loop {
            let is_last = self.shared.has_ended.load(Ordering::SeqCst);
            if let Err(error) = self.write_all(&mut spare) {
                self.give_up(&error);
                return;
            }
            if is_last {
                return;
            }
            if !self.shared.buffer.has_some() {
                std::thread::park();
            }
            if !self.shared.has_ended.load(Ordering::SeqCst) {
                std::thread::park_timeout(GATHER);
            }
        }
    }

    /// Appends what there is. It counts as written when all of it is: threads have frames of
    /// their own, and a log that ends with those of some would have holes.
    fn write_all(&mut self, spare: &mut LogPart) -> io::Result<()> {
        let (mut log_bytes, mut events) = (self.log_bytes, 0);
        let frames = std::mem::take(&mut *self.shared.frames.lock());
        for frame in frames {
            self.log.write_all(&frame)?;
            log_bytes += frame.len() as u64;
        }
        let (log, shared) = (&mut self.log, &self.shared);
        shared.buffer.take(spare, |part, lost| -> io::Result<()> {
            events += part.len();
            let frame = part.frame(lost);
            log.write_all(frame)?;
            log_bytes += frame.len() as u64;
            if lost > 0 && shared.lost.fetch_add(lost, Ordering::Relaxed) == 0 {
                tracing::warn!(
                    lost,
                    "the disk is too slow for the recording: observations are lost"
                );
            }
            Ok(())
        })?;
        // Without a name the recording would be lost at its end, while the status reports it.
        if rustix::fs::fstat(&*log)?.st_nlink == 0 {
            return Err(io::Error::other("its file was removed"));
        }
        self.log_bytes = log_bytes;
        shared.events.fetch_add(events, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the recording; the log is cut off after the last whole frame.
    fn give_up(&mut self, error: &io::Error) {
        self.shared
            .stop(format!("the recording cannot be written: {error}"));
        self.shared.buffer.discard();
        let end = self.log_bytes;
        let cut = self.log.set_len(end);
        let cut = cut.and_then(|()| self.log.seek(SeekFrom::Start(end)));
        if let Err(error) = cut {
            tracing::debug!(%error, "cannot cut off the incomplete end of the recording");
        }
    }
}
