//! A small random number generator whose sequence never changes with a dependency: the seed in
//! a report gives the same device, cut or history on every machine and for ever.

/// `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014): 64 bits of state, every seed is good.
///
/// Not for secrets. Numbers below a bound are taken modulo the bound; for the bounds of tests
/// and models, which are far below 2⁶⁴, the bias is beyond measuring.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Starts the sequence of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The seed with which the sequence goes on from here.
    #[must_use]
    pub const fn state(&self) -> u64 {
        self.0
    }

    /// The next number.
    pub const fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number less than `bound`, which is not 0.
    pub const fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "no number is below 0");
        self.next_u64() % bound
    }

    /// True in `percent` of 100 cases.
    pub const fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// True in `permille` of 1000 cases.
    pub const fn permille(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// One of the choices, of which there is at least one.
    pub const fn pick<'c, T>(&mut self, choices: &'c [T]) -> &'c T {
        &choices[self.below(choices.len() as u64) as usize]
    }

    /// Index of one of the weights, each as likely as it is heavy; their sum is not 0.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let mut at = self.below(weights.iter().map(|&weight| u64::from(weight)).sum());
        for (index, &weight) in weights.iter().enumerate() {
            match at.checked_sub(u64::from(weight)) {
                Some(rest) => at = rest,
                None => return index,
            }
        }
        unreachable!("a number below the sum of the weights belongs to one of them")
    }

    /// Fills `out` with bytes that do not compress.
    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds in reports, saved devices and published tables depend on these numbers.
    #[test]
    fn the_sequence_is_that_of_splitmix64() {
        let mut random = Random::new(1_234_567);
        let numbers: [u64; 3] = std::array::from_fn(|_| random.next_u64());
        // The reference implementation's test vector.
        assert_eq!(
            numbers,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423,
            ]
        );
    }

    #[test]
    fn the_state_goes_on_with_the_sequence() {
        let mut random = Random::new(7);
        random.next_u64();
        let mut resumed = Random::new(random.state());
        assert_eq!(random.next_u64(), resumed.next_u64());
    }

    #[test]
    fn a_weight_of_zero_is_never_drawn() {
        let mut random = Random::new(1);
        let mut drawn = [0_u32; 3];
        for _ in 0..1_000 {
            drawn[random.weighted(&[1, 0, 3])] += 1;
        }
        assert_eq!(drawn[1], 0);
        assert!(drawn[0] > 100 && drawn[2] > 2 * drawn[0], "{drawn:?}");
    }

    #[test]
    fn filling_takes_the_bytes_of_the_numbers_in_order() {
        let mut bytes = [0; 11];
        Random::new(5).fill(&mut bytes);
        let mut random = Random::new(5);
        assert_eq!(bytes[..8], random.next_u64().to_le_bytes());
        assert_eq!(bytes[8..], random.next_u64().to_le_bytes()[..3]);
    }
}
