//! Numbers and byte strings as records hold them.

/// Longest encoding of a [`put_varint`] number.
const VARINT_BYTES_MAX: usize = 10;

/// Why bytes are not what this program writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Where an encoder puts its bytes. Encoding first into a [`Counter`] and then into a [`Filler`]
/// writes directly into the journal's buffer, without a copy.
pub(super) trait Sink {
    /// Takes the next bytes.
    fn put(&mut self, bytes: &[u8]);
}

/// Counts bytes only.
#[derive(Default)]
pub(super) struct Counter {
    /// Bytes so far.
    pub(super) bytes: u64,
}

impl Sink for Counter {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
    }
}

/// Fills a slice from its start.
pub(super) struct Filler<'a> {
    rest: &'a mut [u8],
}

impl<'a> Filler<'a> {
    pub(super) fn new(out: &'a mut [u8]) -> Self {
        Self { rest: out }
    }

    /// Bytes that were not filled.
    pub(super) fn rest_bytes(&self) -> usize {
        self.rest.len()
    }
}

impl Sink for Filler<'_> {
    /// The slice must have the size that a [`Counter`] counted for the same records.
    fn put(&mut self, bytes: &[u8]) {
        let (head, rest) = core::mem::take(&mut self.rest).split_at_mut(bytes.len());
        head.copy_from_slice(bytes);
        self.rest = rest;
    }
}

pub(super) fn put_u8(sink: &mut impl Sink, value: u8) {
    sink.put(&[value]);
}

/// Seven bits a byte, lowest first; the top bit says that more follow.
pub(super) fn put_varint(sink: &mut impl Sink, mut value: u64) {
    let mut bytes = [0; VARINT_BYTES_MAX];
    let mut used = 0;
    loop {
        let low = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 {
            bytes[used] = low;
            sink.put(&bytes[..=used]);
            return;
        }
        bytes[used] = low | 0x80;
        used += 1;
    }
}

/// Small magnitudes of either sign become small numbers.
pub(super) fn put_signed(sink: &mut impl Sink, value: i64) {
    put_varint(sink, ((value << 1) ^ (value >> 63)).cast_unsigned());
}

/// Length, then the bytes.
pub(super) fn put_bytes(sink: &mut impl Sink, bytes: &[u8]) {
    put_varint(sink, bytes.len() as u64);
    sink.put(bytes);
}

/// Reads the output of the functions above. Never panics, never reads beyond its input; results
/// borrow from the input.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn take(&mut self, bytes: u64) -> Result<&'a [u8], Malformed> {
        let end = usize::try_from(bytes)
            .ok()
            .filter(|&end| end <= self.rest.len())
            .ok_or(Malformed("a record ends early"))?;
        let (head, rest) = self.rest.split_at(end);
        self.rest = rest;
        Ok(head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0_u64;
        for position in 0..VARINT_BYTES_MAX {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            let shifted = bits << (7 * position);
            if shifted >> (7 * position) != bits {
                break;
            }
            value |= shifted;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed("a number is larger than 64 bits"))
    }

    pub(super) fn varint_as<T: TryFrom<u64>>(&mut self) -> Result<T, Malformed> {
        T::try_from(self.varint()?).map_err(|_| Malformed("a number is larger than its field"))
    }

    pub(super) fn signed(&mut self) -> Result<i64, Malformed> {
        let folded = self.varint()?;
        Ok((folded >> 1).cast_signed() ^ -((folded & 1).cast_signed()))
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.varint()?;
        self.take(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(put: impl Fn(&mut Filler<'_>)) -> Vec<u8> {
        let mut bytes = [0; 32];
        let mut filler = Filler::new(&mut bytes);
        put(&mut filler);
        let used = 32 - filler.rest_bytes();
        bytes[..used].to_vec()
    }

    #[test]
    fn numbers_survive_at_every_length() {
        for shift in 0..64 {
            for value in [1_u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let bytes = encoded(|sink| put_varint(sink, value));
                assert_eq!(Cursor::new(&bytes).varint(), Ok(value));
                for value in [value.cast_signed(), value.cast_signed().wrapping_neg()] {
                    let bytes = encoded(|sink| put_signed(sink, value));
                    assert_eq!(Cursor::new(&bytes).signed(), Ok(value));
                }
            }
        }
        assert_eq!(encoded(|sink| put_signed(sink, -1)), [1]);
    }

    #[test]
    fn a_number_beyond_64_bits_is_refused() {
        let mut bytes = [0xff; 11];
        assert!(Cursor::new(&bytes).varint().is_err());
        bytes[9] = 2;
        assert!(Cursor::new(&bytes).varint().is_err());
        bytes[9] = 1;
        assert_eq!(Cursor::new(&bytes).varint(), Ok(u64::MAX));
    }
}
