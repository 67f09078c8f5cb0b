//! How long writes to the journal take that are durable by themselves, and those that are followed
//! by a flush.
//!
//! A durable write is one FUA command on devices that have it and costs little for
//! small writes; some devices (and filesystems that emulate it) are faster with a
//! plain write and a flush of everything, so it is measured where it will be used.

use std::io;
use std::time::Instant;

use crate::calibration::{LARGEST_BYTES, WriteTimes};
use crate::log::superblock::LOG_START;
use crate::lower::{JOURNAL_BLOCK_BYTES, JournalBuffer, Lower};

/// Writes of each kind and size. Odd, so that there is a median.
const ROUNDS: usize = 7;

/// Times of both kinds of writes, by size. Writes zeros to the start of the log, which has no
/// transaction.
pub(super) fn measure<L: Lower>(
    lower: &L,
    journal: &L::Handle,
    journal_bytes: u64,
) -> io::Result<Vec<WriteTimes>> {
    let mut measured = Vec::new();
    let mut bytes = JOURNAL_BLOCK_BYTES;
    while bytes as u64 <= LARGEST_BYTES && LOG_START + bytes as u64 <= journal_bytes {
        let blocks = JournalBuffer::zeroed(bytes);
        let mut durable_ns = [0; ROUNDS];
        let mut flushed_ns = [0; ROUNDS];
        // Alternately, so that variations of the device affect both.
        for round in 0..ROUNDS {
            let start = Instant::now();
            lower.journal_write(journal, &blocks, LOG_START, true)?;
            durable_ns[round] = ns_since(start);
            let start = Instant::now();
            lower.journal_write(journal, &blocks, LOG_START, false)?;
            lower.journal_flush(journal)?;
            flushed_ns[round] = ns_since(start);
        }
        measured.push(WriteTimes {
            bytes: bytes as u64,
            durable_ns: median(durable_ns),
            flushed_ns: median(flushed_ns),
        });
        bytes *= 2;
    }
    Ok(measured)
}

fn ns_since(start: Instant) -> u64 {
    u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn median(mut times: [u64; ROUNDS]) -> u64 {
    times.sort_unstable();
    times[ROUNDS / 2]
}
