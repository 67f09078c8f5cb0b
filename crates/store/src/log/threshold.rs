//! From which size on a write followed by a flush beats one durable write.
//!
//! A durable write is one FUA command on devices that have it and costs little for
//! small writes; some devices (and filesystems that emulate it) are faster with a
//! plain write and a flush of everything, so it is measured where it will be used.

use std::io;
use std::time::{Duration, Instant};

use crate::log::superblock::LOG_START;
use crate::lower::{JOURNAL_BLOCK_BYTES, JournalBuffer, Lower};

/// Largest size measured; larger transactions are always written with a flush.
const LARGEST_BYTES: usize = 256 * 1024;
/// Writes of each kind and size. Odd, so that there is a median.
const ROUNDS: usize = 7;

/// The size up to which durable writes are to be used: the one with which writes of all the sizes
/// measured together cost the least, relative to what each costs at best. So a single outlier does
/// not decide. Writes zeros to the start of the (new) log.
pub(super) fn measure<L: Lower>(
    lower: &L,
    journal: &L::Handle,
    journal_bytes: u64,
) -> io::Result<u64> {
    let mut measured = Vec::new();
    let mut bytes = JOURNAL_BLOCK_BYTES;
    while bytes <= LARGEST_BYTES && LOG_START + bytes as u64 <= journal_bytes {
        let blocks = JournalBuffer::zeroed(bytes);
        let mut durable = [Duration::ZERO; ROUNDS];
        let mut flushed = [Duration::ZERO; ROUNDS];
        // Alternately, so that variations of the device affect both.
        for round in 0..ROUNDS {
            let start = Instant::now();
            lower.journal_write(journal, &blocks, LOG_START, true)?;
            durable[round] = start.elapsed();
            let start = Instant::now();
            lower.journal_write(journal, &blocks, LOG_START, false)?;
            lower.journal_flush(journal)?;
            flushed[round] = start.elapsed();
        }
        measured.push((bytes as u64, median(durable), median(flushed)));
        bytes *= 2;
    }
    Ok(choose(&measured))
}

/// From sizes with the times of a durable write and of a write with a flush.
fn choose(measured: &[(u64, Duration, Duration)]) -> u64 {
    let mut best_bytes = 0;
    let (mut gain, mut best_gain) = (0.0, 0.0);
    for &(bytes, durable, flushed) in measured {
        let (durable, flushed) = (durable.as_secs_f64(), flushed.as_secs_f64());
        gain += (flushed - durable) / flushed.min(durable).max(f64::MIN_POSITIVE);
        // Of equal sizes the larger: it saves a command.
        if gain >= best_gain {
            (best_bytes, best_gain) = (bytes, gain);
        }
    }
    best_bytes
}

fn median(mut durations: [Duration; ROUNDS]) -> Duration {
    durations.sort_unstable();
    durations[ROUNDS / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(pairs: &[(u64, u64)]) -> Vec<(u64, Duration, Duration)> {
        let size = |index: usize| 4096_u64 << index;
        pairs
            .iter()
            .enumerate()
            .map(|(index, &(durable, flushed))| {
                let us = Duration::from_micros;
                (size(index), us(durable), us(flushed))
            })
            .collect()
    }

    #[test]
    fn the_crossover_is_found() {
        assert_eq!(choose(&measured(&[(3, 5), (4, 5), (7, 6), (9, 7)])), 8192);
        assert_eq!(choose(&measured(&[(6, 5), (7, 6), (9, 7)])), 0);
        assert_eq!(choose(&measured(&[(5, 6), (5, 6), (5, 6)])), 16_384);
        assert_eq!(choose(&[]), 0);
    }

    #[test]
    fn one_disturbed_size_does_not_decide() {
        assert_eq!(choose(&measured(&[(9, 8), (3, 5), (4, 6), (9, 7)])), 16_384);
    }

    #[test]
    fn of_equals_the_durable_write_is_taken() {
        assert_eq!(choose(&measured(&[(5, 5), (6, 6)])), 8192);
    }
}
