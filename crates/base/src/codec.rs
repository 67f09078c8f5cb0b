//! Numbers, byte strings and base types as bytes: the one codec of what MobiFS encodes itself.
//!
//! Integers are little-endian, of a fixed length or, where most are small, as varints: LEB128, seven
//! bits a byte, lowest first, with the top bit set on all but the last byte. A [`Reader`] checks every
//! length against the remaining bytes, so that no input makes it allocate more than it has or read
//! past its end.
//!
//! What is called for each number is `#[inline]`: these are calls from other crates, some hundreds
//! for each transaction.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use crate::{
    AppId, Attributes, ByteRange, DeviceNumber, FileKind, Name, ObjectId, PAGE_BYTES_U64,
    PageIndex, Timestamp, TransactionId,
};

/// The largest file size and counter; two such numbers can be added without overflow.
pub const COUNT_MAX: u64 = i64::MAX as u64;

/// Why bytes are not what a [`Reader`] was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodecError {
    /// There are fewer bytes.
    Short,
    /// A number above [`COUNT_MAX`], or a page that no file can have.
    Beyond,
    /// The bytes are no [`Name`].
    NotAName,
    /// The number stands for no [`FileKind`].
    NotAKind,
    /// A varint of more than 64 bits.
    LongVarint,
    /// A varint is larger than its field.
    LargeVarint,
}

impl CodecError {
    /// What is wrong, for messages.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Short => "a record is too short",
            Self::Beyond => "a number is beyond what can be counted",
            Self::NotAName => "a name is none",
            Self::NotAKind => "a kind is none",
            Self::LongVarint => "a number is larger than 64 bits",
            Self::LargeVarint => "a number is larger than its field",
        }
    }
}

impl fmt::Display for CodecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl core::error::Error for CodecError {}

/// Longest varint.
const VARINT_BYTES_MAX: usize = 10;

/// Where encoded bytes go. A caller that needs their number first implements it by counting.
pub trait Sink {
    /// Takes the next bytes as they are.
    fn put(&mut self, bytes: &[u8]);

    /// A varint.
    #[inline]
    fn varint(&mut self, mut value: u64) {
        let mut bytes = [0; VARINT_BYTES_MAX];
        let mut used = 0;
        while value >= 0x80 {
            bytes[used] = value as u8 | 0x80;
            value >>= 7;
            used += 1;
        }
        bytes[used] = value as u8;
        self.put(&bytes[..=used]);
    }

    /// A varint in which small magnitudes of either sign are small numbers.
    #[inline]
    fn signed_varint(&mut self, value: i64) {
        self.varint(((value << 1) ^ (value >> 63)).cast_unsigned());
    }

    /// Bytes after their length as a varint.
    fn varint_bytes(&mut self, bytes: &[u8]) {
        self.varint(bytes.len() as u64);
        self.put(bytes);
    }
}

impl Sink for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Appends values.
#[derive(Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

/// Numbers and byte strings.
impl Writer {
    /// What was written.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// As [`Writer::as_bytes`], of a writer that is not needed any more.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Clears it; the memory is reused.
    #[inline]
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// One byte, 0 or 1.
    #[inline]
    pub fn flag(&mut self, value: bool) {
        self.bytes.push(u8::from(value));
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// Four bytes.
    #[inline]
    pub fn u32(&mut self, value: u32) {
        self.raw(&value.to_le_bytes());
    }

    /// Eight bytes.
    #[inline]
    pub fn u64(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    /// Bytes as they are; their length must be known to the reader.
    #[inline]
    pub fn raw(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
    }

    /// Bytes after their length in four bytes.
    #[inline]
    pub fn bytes(&mut self, value: &[u8]) {
        // No single buffer in memory comes near 4 GiB.
        debug_assert!(u32::try_from(value.len()).is_ok(), "a string below 4 GiB");
        self.u32(value.len() as u32);
        self.raw(value);
    }

    /// Bytes after their length in eight bytes.
    pub fn long_bytes(&mut self, value: &[u8]) {
        self.u64(value.len() as u64);
        self.raw(value);
    }

    /// A flag, and the value if there is one.
    pub fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    /// Values after their number in four bytes.
    pub fn list<T>(
        &mut self,
        values: impl ExactSizeIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) {
        debug_assert!(u32::try_from(values.len()).is_ok(), "a list below 2^32");
        self.u32(values.len() as u32);
        values.for_each(|value| write(self, value));
    }
}

/// Base types.
impl Writer {
    /// A range, by its ends.
    #[inline]
    pub fn range(&mut self, range: ByteRange) {
        self.u64(range.start);
        self.u64(range.end);
    }

    /// A time.
    #[inline]
    pub fn time(&mut self, time: Timestamp) {
        self.u64(time.seconds as u64);
        self.u32(time.nanoseconds);
    }

    /// A kind, in one byte.
    #[inline]
    pub fn kind(&mut self, kind: FileKind) {
        self.u8((kind.mode_bits() >> 12) as u8);
    }

    /// Attributes, always of the same length.
    pub fn attributes(&mut self, attributes: &Attributes) {
        self.kind(attributes.kind);
        self.u32(attributes.mode.into());
        self.u32(attributes.uid);
        self.u32(attributes.gid);
        self.u32(attributes.rdev.0);
        self.u64(attributes.size);
        self.u32(attributes.nlink);
        self.time(attributes.atime);
        self.time(attributes.mtime);
        self.time(attributes.ctime);
    }
}

/// The number, if it can be incremented.
///
/// # Errors
/// [`CodecError::Beyond`].
pub const fn within_bounds(count: u64) -> Result<u64, CodecError> {
    if count > COUNT_MAX {
        return Err(CodecError::Beyond);
    }
    Ok(count)
}

/// The index, if a file can have such a page.
///
/// # Errors
/// [`CodecError::Beyond`].
pub const fn page_index(index: u64) -> Result<PageIndex, CodecError> {
    if index > COUNT_MAX / PAGE_BYTES_U64 {
        return Err(CodecError::Beyond);
    }
    Ok(PageIndex(index))
}

/// Takes values from bytes. A method that fails has consumed an unknown part of them.
///
/// Each method fails with [`CodecError::Short`] where there are fewer bytes than it needs.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

/// Numbers and byte strings.
#[expect(clippy::missing_errors_doc, reason = "said once, for all of them")]
impl<'a> Reader<'a> {
    /// From the beginning of these.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What is left.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The next `length` bytes.
    #[inline]
    pub const fn raw(&mut self, length: usize) -> Result<&'a [u8], CodecError> {
        match self.rest.split_at_checked(length) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(CodecError::Short),
        }
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], CodecError> {
        self.raw(N)?.try_into().map_err(|_| CodecError::Short)
    }

    /// One byte that is not 0.
    #[inline]
    pub fn flag(&mut self) -> Result<bool, CodecError> {
        Ok(self.u8()? != 0)
    }

    /// One byte.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, CodecError> {
        Ok(self.array::<1>()?[0])
    }

    /// Four bytes.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, CodecError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, CodecError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// What [`Sink::varint`] wrote.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, CodecError> {
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
        Err(CodecError::LongVarint)
    }

    /// A varint that fits into a smaller number.
    pub fn varint_as<T: TryFrom<u64>>(&mut self) -> Result<T, CodecError> {
        T::try_from(self.varint()?).map_err(|_| CodecError::LargeVarint)
    }

    /// What [`Sink::signed_varint`] wrote.
    #[inline]
    pub fn signed_varint(&mut self) -> Result<i64, CodecError> {
        let folded = self.varint()?;
        Ok((folded >> 1).cast_signed() ^ -((folded & 1).cast_signed()))
    }

    /// What [`Sink::varint_bytes`] wrote.
    pub fn varint_bytes(&mut self) -> Result<&'a [u8], CodecError> {
        let length = self.varint()?;
        self.raw(usize::try_from(length).map_err(|_| CodecError::Short)?)
    }

    /// A number that is incremented, or added to others: at most [`COUNT_MAX`].
    pub fn count(&mut self) -> Result<u64, CodecError> {
        self.u64().and_then(within_bounds)
    }

    /// What [`Writer::bytes`] wrote.
    #[inline]
    pub fn bytes(&mut self) -> Result<&'a [u8], CodecError> {
        let length = self.u32()?;
        self.raw(usize::try_from(length).map_err(|_| CodecError::Short)?)
    }

    /// What [`Writer::long_bytes`] wrote.
    pub fn long_bytes(&mut self) -> Result<&'a [u8], CodecError> {
        let length = self.u64()?;
        self.raw(usize::try_from(length).map_err(|_| CodecError::Short)?)
    }

    /// As [`Reader::bytes`], copied.
    pub fn shared(&mut self) -> Result<Arc<[u8]>, CodecError> {
        Ok(Arc::from(self.bytes()?))
    }

    /// What [`Writer::option`] wrote.
    pub fn option<T, E: From<CodecError>>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        if self.flag()? {
            read(self).map(Some)
        } else {
            Ok(None)
        }
    }

    /// What [`Writer::list`] wrote.
    pub fn list<T, E: From<CodecError>>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, E>,
    ) -> Result<Vec<T>, E> {
        let count = self.u32()? as usize;
        // Every element has at least a byte.
        let mut list = Vec::with_capacity(count.min(self.rest.len()));
        for _ in 0..count {
            list.push(read(self)?);
        }
        Ok(list)
    }
}

/// Base types.
#[expect(clippy::missing_errors_doc, reason = "said once, for all of them")]
impl Reader<'_> {
    /// An object's id.
    #[inline]
    pub fn id(&mut self) -> Result<ObjectId, CodecError> {
        self.u64().map(ObjectId)
    }

    /// An app's number.
    pub fn app(&mut self) -> Result<AppId, CodecError> {
        self.u32().map(AppId)
    }

    /// A transaction's number.
    pub fn transaction(&mut self) -> Result<TransactionId, CodecError> {
        self.u64().map(TransactionId)
    }

    /// A page that a file can have.
    #[inline]
    pub fn index(&mut self) -> Result<PageIndex, CodecError> {
        page_index(self.u64()?)
    }

    /// A name.
    pub fn name(&mut self) -> Result<Name, CodecError> {
        Name::new(self.bytes()?).map_err(|_| CodecError::NotAName)
    }

    /// A range.
    #[inline]
    pub fn range(&mut self) -> Result<ByteRange, CodecError> {
        Ok(ByteRange {
            start: self.u64()?,
            end: self.u64()?,
        })
    }

    /// A time.
    #[inline]
    pub fn time(&mut self) -> Result<Timestamp, CodecError> {
        Ok(Timestamp {
            seconds: self.u64()? as i64,
            nanoseconds: self.u32()?,
        })
    }

    /// A kind.
    #[inline]
    pub fn kind(&mut self) -> Result<FileKind, CodecError> {
        FileKind::from_mode(u32::from(self.u8()?) << 12).ok_or(CodecError::NotAKind)
    }

    /// Attributes.
    pub fn attributes(&mut self) -> Result<Attributes, CodecError> {
        Ok(Attributes {
            kind: self.kind()?,
            mode: self.u32()? as u16,
            uid: self.u32()?,
            gid: self.u32()?,
            rdev: DeviceNumber(self.u32()?),
            size: self.u64()?,
            nlink: self.u32()?,
            atime: self.time()?,
            mtime: self.time()?,
            ctime: self.time()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_shorter() {
        let mut out = Writer::default();
        out.flag(true);
        out.u8(7);
        out.u32(70_000);
        out.u64(u64::MAX);
        out.bytes(b"short");
        out.long_bytes(b"long");
        out.option(Some(3_u64), Writer::u64);
        out.option(None::<u64>, Writer::u64);
        out.list([1_u32, 2].into_iter(), Writer::u32);
        out.time(Timestamp {
            seconds: -1,
            nanoseconds: 5,
        });
        let bytes = out.into_bytes();
        let read = |bytes: &[u8]| -> Result<(), CodecError> {
            let mut from = Reader::new(bytes);
            assert_eq!((from.flag()?, from.u8()?), (true, 7));
            assert_eq!((from.u32()?, from.u64()?), (70_000, u64::MAX));
            assert_eq!(
                (from.bytes()?, from.long_bytes()?),
                (&b"short"[..], &b"long"[..])
            );
            assert_eq!(from.option(Reader::u64)?, Some(3));
            assert_eq!(from.option(Reader::u64)?, None);
            assert_eq!(from.list(Reader::u32)?, [1, 2]);
            assert_eq!(from.time()?.seconds, -1);
            assert!(from.rest().is_empty());
            Ok(())
        };
        assert_eq!(read(&bytes), Ok(()));
        for length in 0..bytes.len() {
            assert_eq!(read(&bytes[..length]), Err(CodecError::Short), "{length}");
        }
    }

    /// Images and logs of earlier builds must stay readable.
    #[test]
    fn values_keep_their_bytes() {
        let mut out = Writer::default();
        out.flag(true);
        out.u8(7);
        out.u32(0x0403_0201);
        out.u64(0x0807_0605_0403_0201);
        out.bytes(b"ab");
        out.long_bytes(b"c");
        let fixed = [
            &[1, 7, 1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8, 2, 0, 0, 0][..],
            b"ab",
            &[1, 0, 0, 0, 0, 0, 0, 0],
            b"c",
        ];
        assert_eq!(out.as_bytes(), fixed.concat());
        let mut out = Vec::new();
        out.varint(0x7f);
        out.varint(300);
        out.varint(u64::MAX);
        out.signed_varint(-1);
        out.signed_varint(64);
        out.varint_bytes(b"de");
        let varints = [
            &[0x7f, 0xac, 0x02][..],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
            &[1, 0x80, 1, 2],
            b"de",
        ];
        assert_eq!(out, varints.concat());
    }

    #[test]
    fn varints_survive_at_every_length() {
        for shift in 0..64 {
            for value in [1_u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut bytes = Vec::new();
                bytes.varint(value);
                assert_eq!(Reader::new(&bytes).varint(), Ok(value));
                for value in [value.cast_signed(), value.cast_signed().wrapping_neg()] {
                    let mut bytes = Vec::new();
                    bytes.signed_varint(value);
                    assert_eq!(Reader::new(&bytes).signed_varint(), Ok(value));
                }
            }
        }
    }

    #[test]
    fn a_varint_beyond_64_bits_or_its_field_is_refused() {
        let mut bytes = [0xff; 11];
        let read = |bytes: &[u8]| Reader::new(bytes).varint();
        assert_eq!(read(&bytes), Err(CodecError::LongVarint));
        bytes[9] = 2;
        assert_eq!(read(&bytes), Err(CodecError::LongVarint));
        bytes[9] = 1;
        assert_eq!(read(&bytes), Ok(u64::MAX));
        let narrow = Reader::new(&bytes).varint_as::<u32>();
        assert_eq!(narrow, Err(CodecError::LargeVarint));
    }

    #[test]
    fn lengths_beyond_the_input_allocate_nothing_and_fail() {
        let mut out = Writer::default();
        out.u32(u32::MAX);
        out.u32(u32::MAX);
        let mut from = Reader::new(out.as_bytes());
        assert_eq!(from.bytes(), Err(CodecError::Short));
        let list = Reader::new(out.as_bytes()).list(Reader::u64);
        assert_eq!(list, Err(CodecError::Short));
        assert_eq!(
            Reader::new(out.as_bytes()).long_bytes(),
            Err(CodecError::Short)
        );
        assert_eq!(
            Reader::new(out.as_bytes()).varint_bytes(),
            Err(CodecError::Short)
        );
        assert_eq!(Reader::new(out.as_bytes()).count(), Err(CodecError::Beyond));
    }
}
