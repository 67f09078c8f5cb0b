//! Keeps the journal of a port.

use mobifs_base::{ByteRange, RangeSet, VirtualNs};

use crate::device::Device;
use crate::journal::{JournalError, JournalWriter, Kind, Record};

/// After a cut, what is left is recorded in pieces of at most this many bytes.
const SETTLED_BYTES_MAX: u64 = 1 << 20;

/// A journal and what it has to know for the next cut. A journal whose file fails ends
/// there: the device goes on.
pub(super) struct Keeper {
    writer: JournalWriter,
    /// What may be lost in a cut: where, and when it was done.
    uncertain: Vec<(u64, u64, VirtualNs)>,
    has_failed: bool,
}

impl Keeper {
    pub(super) fn new(writer: JournalWriter) -> Self {
        Self {
            writer,
            uncertain: Vec::new(),
            has_failed: false,
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    pub(super) fn record(
        &mut self,
        kind: Kind,
        (offset, bytes): (u64, u64),
        (at, done_at): (VirtualNs, VirtualNs),
        data: &[u8],
    ) {
        let record = Record {
            kind,
            offset,
            bytes,
            at,
            done_at,
        };
        self.write(&record, data);
        if kind == Kind::Flush {
            self.uncertain.retain(|&(_, _, done)| done > at);
            self.flush();
        } else {
            // Also of what is durable once it is done: it may be under way at the cut.
            self.uncertain.push((offset, bytes, done_at));
        }
    }

    /// Records a cut and what it left.
    pub(super) fn record_cut(&mut self, at: VirtualNs, device: &dyn Device) {
        let cut = Record {
            kind: Kind::Cut,
            offset: 0,
            bytes: 0,
            at,
            done_at: at,
        };
        self.write(&cut, &[]);
        let mut ranges = RangeSet::default();
        for (offset, bytes, _) in self.uncertain.drain(..) {
            ranges.insert(ByteRange::new(offset, offset + bytes));
        }
        for range in ranges.iter() {
            let mut offset = range.start;
            while offset < range.end {
                let bytes = (range.end - offset).min(SETTLED_BYTES_MAX);
                let mut data = vec![0; bytes as usize];
                if device.peek(offset, &mut data).is_err() {
                    self.has_failed = true;
                    return;
                }
                let after_cut = Record {
                    kind: Kind::AfterCut,
                    offset,
                    bytes,
                    ..cut
                };
                self.write(&after_cut, &data);
                offset += bytes;
            }
        }
        self.flush();
    }

    pub(super) fn flush(&mut self) {
        if !self.has_failed {
            let flushed = self.writer.flush();
            self.note(flushed);
        }
    }

    fn write(&mut self, record: &Record, data: &[u8]) {
        if !self.has_failed {
            let written = self.writer.record(record, data);
            self.note(written);
        }
    }

    fn note(&mut self, result: Result<(), JournalError>) {
        if let Err(error) = result {
            tracing::error!(%error, "the journal ends here; the device goes on without it");
            self.has_failed = true;
        }
    }
}
