//! Bytes without a meaning, and changes without a purpose.

use mobifs_testkit::random::Random;

/// `length` bytes that are the same for the same seed.
pub(crate) fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..length).map(|_| random.below(256) as u8).collect()
}

/// Several lengths of noise: seeds for targets that build something from any bytes.
pub(crate) fn noises() -> Vec<Vec<u8>> {
    let lengths = [0, 16, 64, 256, 600, 1200];
    (1..=4)
        .flat_map(|seed| lengths.map(|length| noise(seed, length)))
        .collect()
}

/// The input with a few changes, as a fuzzer without coverage would make them.
pub fn mutated(input: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        match random.below(5) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, random.below(256) as u8),
            2 => {
                let extra = bytes[at..].iter().take(16).copied().collect::<Vec<_>>();
                bytes.extend(extra);
            }
            3 if at < bytes.len() => bytes[at] = *random.pick(&[0, 1, 0x7f, 0x80, 0xff]),
            _ if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            _ => {}
        }
    }
    bytes
}
