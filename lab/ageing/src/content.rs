//! Content that follows from a seed and the place within a file, so that any part of it can be
//! written again by itself.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use mobifs_numerics::Random;

/// Bytes that one random sequence fills.
const BLOCK_BYTES: u64 = 64 << 10;

/// A seed made of two, neither of which can be seen in it.
#[must_use]
pub fn mix(seed: u64, more: u64) -> u64 {
    Random::new(seed ^ Random::new(more).next_u64()).next_u64()
}

/// A seed made of a seed and a name.
#[must_use]
pub fn mix_name(seed: u64, name: &str) -> u64 {
    name.bytes()
        .fold(mix(seed, name.len() as u64), |seed, byte| {
            (seed ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        })
}

/// Writes the content of `seed` from `from` to `to`.
pub(crate) fn write_content(file: &File, seed: u64, from: u64, to: u64) -> io::Result<()> {
    let mut buffer = vec![0; BLOCK_BYTES as usize];
    let mut at = from;
    while at < to {
        let block = at / BLOCK_BYTES;
        Random::new(mix(seed, block)).fill(&mut buffer);
        let first = at - block * BLOCK_BYTES;
        let last = BLOCK_BYTES.min(to - block * BLOCK_BYTES);
        file.write_all_at(&buffer[first as usize..last as usize], at)?;
        at = block * BLOCK_BYTES + last;
    }
    Ok(())
}

/// Whether the file has the content of `seed`, of `bytes`, and nothing else.
pub(crate) fn has_content(file: &File, seed: u64, bytes: u64) -> io::Result<bool> {
    if file.metadata()?.len() != bytes {
        return Ok(false);
    }
    let (mut wanted, mut found) = (vec![0; BLOCK_BYTES as usize], vec![0; BLOCK_BYTES as usize]);
    for block in 0..bytes.div_ceil(BLOCK_BYTES) {
        let at = block * BLOCK_BYTES;
        let length = BLOCK_BYTES.min(bytes - at) as usize;
        Random::new(mix(seed, block)).fill(&mut wanted);
        file.read_exact_at(&mut found[..length], at)?;
        if wanted[..length] != found[..length] {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_written_in_any_order_are_the_whole() {
        let whole = tempfile::tempfile().unwrap();
        write_content(&whole, 7, 0, 200_000).unwrap();
        let parts = tempfile::tempfile().unwrap();
        for (from, to) in [(70_001, 200_000), (0, 3), (3, 70_001)] {
            write_content(&parts, 7, from, to).unwrap();
        }
        for file in [&whole, &parts] {
            assert!(has_content(file, 7, 200_000).unwrap());
            assert!(!has_content(file, 7, 199_999).unwrap());
            assert!(!has_content(file, 8, 200_000).unwrap());
        }
        let mut byte = [0];
        whole.read_exact_at(&mut byte, 199_999).unwrap();
        parts.write_all_at(&[byte[0] ^ 1], 199_999).unwrap();
        assert!(!has_content(&parts, 7, 200_000).unwrap());
    }

    #[test]
    fn seeds_of_names_differ() {
        assert_ne!(mix_name(1, "a"), mix_name(1, "b"));
        assert_ne!(mix_name(1, "a"), mix_name(2, "a"));
        assert_ne!(mix(1, 2), mix(2, 1));
    }
}
