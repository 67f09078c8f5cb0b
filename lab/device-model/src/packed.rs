//! An array of small numbers without unused bits between them.
//!
//! The two maps of an FTL (logical to physical and back) are nearly all of the model's
//! memory; 32 bits an entry would put both above eight bytes a logical page.

/// Numbers of a fixed width in bits, at most 57 so that one unaligned 64-bit load
/// reaches any of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PackedArray {
    bytes: Vec<u8>,
    width_bits: u32,
    len: usize,
}

impl PackedArray {
    /// `len` zeros, each wide enough for `max`.
    pub(crate) fn new(len: usize, max: u64) -> Self {
        let width_bits = (u64::BITS - max.leading_zeros()).max(1);
        assert!(width_bits <= 57, "a number must lie within one load");
        let bytes = (len * width_bits as usize).div_ceil(8) + size_of::<u64>();
        Self {
            bytes: vec![0; bytes],
            width_bits,
            len,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.bytes.len()
    }

    fn load(&self, byte: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(&self.bytes[byte..byte + 8]);
        u64::from_le_bytes(word)
    }

    fn mask(&self) -> u64 {
        (1 << self.width_bits) - 1
    }

    /// The number at `index`.
    pub(crate) fn get(&self, index: usize) -> u32 {
        debug_assert!(index < self.len);
        let bit = index * self.width_bits as usize;
        ((self.load(bit / 8) >> (bit % 8)) & self.mask()) as u32
    }

    /// Puts `value` at `index`.
    pub(crate) fn set(&mut self, index: usize, value: u32) {
        debug_assert!(index < self.len && u64::from(value) <= self.mask());
        let bit = index * self.width_bits as usize;
        let (byte, shift) = (bit / 8, bit % 8);
        let word = self.load(byte) & !(self.mask() << shift) | u64::from(value) << shift;
        self.bytes[byte..byte + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// The raw bytes, for saving.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Takes back what [`Self::as_bytes`] gave; false if the size is another.
    pub(crate) fn restore(&mut self, bytes: &[u8]) -> bool {
        let fits = bytes.len() == self.bytes.len();
        if fits {
            self.bytes.copy_from_slice(bytes);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_plain_array_at_every_width() {
        for width in 1..=32_u32 {
            let max = (1_u64 << width) - 1;
            let mut packed = PackedArray::new(67, max);
            let mut plain = vec![0_u32; 67];
            for step in 0..1000_usize {
                let index = step * 31 % 67;
                let value = (step as u64 * 0x9e37_79b9 % (max + 1)) as u32;
                packed.set(index, value);
                plain[index] = value;
            }
            let unpacked: Vec<u32> = (0..67).map(|i| packed.get(i)).collect();
            assert_eq!(unpacked, plain);
        }
    }
}
