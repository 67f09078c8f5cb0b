//! Numbers, lists and names as bytes.

use alloc::sync::Arc;
use alloc::vec::Vec;

use mobifs_base::{
    AppId, Attributes, ByteRange, DeviceNumber, FileKind, Name, ObjectId, PAGE_BYTES_U64,
    PageIndex, Timestamp, TransactionId,
};

use super::RestartImageError;

/// Appends values to a record. Integers are little-endian.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn flag(&mut self, value: bool) {
        self.bytes.push(u8::from(value));
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, value: &[u8]) {
        // Nothing in an engine comes near 4 GiB.
        self.u32(value.len() as u32);
        self.bytes.extend_from_slice(value);
    }

    pub(crate) fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
    }

    pub(crate) fn list<T>(
        &mut self,
        values: impl ExactSizeIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) {
        self.u32(values.len() as u32);
        values.for_each(|value| write(self, value));
    }

    pub(crate) fn range(&mut self, range: ByteRange) {
        self.u64(range.start);
        self.u64(range.end);
    }

    pub(crate) fn time(&mut self, time: Timestamp) {
        self.u64(time.seconds as u64);
        self.u32(time.nanoseconds);
    }

    pub(crate) fn kind(&mut self, kind: FileKind) {
        self.u8((kind.mode_bits() >> 12) as u8);
    }

    pub(crate) fn attributes(&mut self, attributes: &Attributes) {
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

/// The number, if it can be counted on from.
pub(crate) fn within_bounds(count: u64) -> Result<u64, RestartImageError> {
    if count > COUNT_MAX {
        return Err(BEYOND);
    }
    Ok(count)
}

/// The index, if a file can have such a page.
pub(crate) fn page_index(index: u64) -> Result<PageIndex, RestartImageError> {
    if index > COUNT_MAX / PAGE_BYTES_U64 {
        return Err(BEYOND);
    }
    Ok(PageIndex(index))
}

/// Takes values from a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

const SHORT: RestartImageError = RestartImageError("a record is too short");
/// A file can be so long, and no engine counts further; two such numbers can be added.
pub(crate) const COUNT_MAX: u64 = i64::MAX as u64;
pub(crate) const BEYOND: RestartImageError =
    RestartImageError("a number is beyond what can be counted");

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], RestartImageError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(SHORT)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], RestartImageError> {
        self.take(N)?.try_into().map_err(|_| SHORT)
    }

    pub(crate) fn flag(&mut self) -> Result<bool, RestartImageError> {
        Ok(self.u8()? != 0)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, RestartImageError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, RestartImageError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, RestartImageError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A number that is counted on from, or added to others.
    pub(crate) fn count(&mut self) -> Result<u64, RestartImageError> {
        self.u64().and_then(within_bounds)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], RestartImageError> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    pub(crate) fn shared(&mut self) -> Result<Arc<[u8]>, RestartImageError> {
        Ok(Arc::from(self.bytes()?))
    }

    pub(crate) fn option<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, RestartImageError>,
    ) -> Result<Option<T>, RestartImageError> {
        if self.flag()? {
            read(self).map(Some)
        } else {
            Ok(None)
        }
    }

    pub(crate) fn list<T>(
        &mut self,
        mut read: impl FnMut(&mut Self) -> Result<T, RestartImageError>,
    ) -> Result<Vec<T>, RestartImageError> {
        let count = self.u32()? as usize;
        // Every element has at least a byte.
        let mut list = Vec::with_capacity(count.min(self.rest.len()));
        for _ in 0..count {
            list.push(read(self)?);
        }
        Ok(list)
    }

    pub(crate) fn id(&mut self) -> Result<ObjectId, RestartImageError> {
        self.u64().map(ObjectId)
    }

    pub(crate) fn app(&mut self) -> Result<AppId, RestartImageError> {
        self.u32().map(AppId)
    }

    pub(crate) fn transaction(&mut self) -> Result<TransactionId, RestartImageError> {
        self.u64().map(TransactionId)
    }

    pub(crate) fn index(&mut self) -> Result<PageIndex, RestartImageError> {
        page_index(self.u64()?)
    }

    pub(crate) fn name(&mut self) -> Result<Name, RestartImageError> {
        Name::new(self.bytes()?).map_err(|_| RestartImageError("a name is none"))
    }

    pub(crate) fn range(&mut self) -> Result<ByteRange, RestartImageError> {
        Ok(ByteRange {
            start: self.u64()?,
            end: self.u64()?,
        })
    }

    pub(crate) fn time(&mut self) -> Result<Timestamp, RestartImageError> {
        Ok(Timestamp {
            seconds: self.u64()? as i64,
            nanoseconds: self.u32()?,
        })
    }

    pub(crate) fn kind(&mut self) -> Result<FileKind, RestartImageError> {
        FileKind::from_mode(u32::from(self.u8()?) << 12).ok_or(RestartImageError("a kind is none"))
    }

    pub(crate) fn attributes(&mut self) -> Result<Attributes, RestartImageError> {
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
