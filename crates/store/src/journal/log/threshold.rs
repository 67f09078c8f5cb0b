//! From which size on a write followed by a flush beats one durable write.
//!
//! A durable write is one FUA command on devices that have it and costs little for
//! small writes; some devices (and filesystems that emulate it) are faster with a
//! plain write and a flush of everything, so it is measured where it will be used.

use std::io;
use std::time::{Duration, Instant};

use crate::journal::superblock::LOG_START;
use crate::lower::{JOURNAL_BLOCK_BYTES, JournalBuffer, Lower};

/// Largest size measured; larger transactions are always written and flushed.
const LARGEST_BYTES: usize = 256 * 1024;
/// Writes of each kind and size. Odd, so that there is a median.
const ROUNDS: usize = 5;

/// The largest size up to which durable writes are at least as fast at every size
/// measured; 0 if they never are. Writes zeros to the start of the (new) log.
pub(super) fn measure<L: Lower>(
    lower: &L,
    journal: &L::Handle,
    journal_bytes: u64,
) -> io::Result<u64> {
    let mut best_bytes = 0;
    let mut bytes = JOURNAL_BLOCK_BYTES;
    while bytes <= LARGEST_BYTES && LOG_START + bytes as u64 <= journal_bytes {
        let blocks = JournalBuffer::zeroed(bytes);
        let mut durable = [Duration::ZERO; ROUNDS];
        let mut flushed = [Duration::ZERO; ROUNDS];
        // In turn, so that both meet the same moods of the device.
        for round in 0..ROUNDS {
            let start = Instant::now();
            lower.journal_write(journal, &blocks, LOG_START, true)?;
            durable[round] = start.elapsed();
            let start = Instant::now();
            lower.journal_write(journal, &blocks, LOG_START, false)?;
            lower.journal_flush(journal)?;
            flushed[round] = start.elapsed();
        }
        if median(durable) > median(flushed) {
            break;
        }
        best_bytes = bytes as u64;
        bytes *= 2;
    }
    Ok(best_bytes)
}

fn median(mut durations: [Duration; ROUNDS]) -> Duration {
    durations.sort_unstable();
    durations[ROUNDS / 2]
}
