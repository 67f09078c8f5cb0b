//! The form of a journal: a file header, then records, each with its data. All numbers are
//! little-endian; everything is covered by a CRC32C.

use mobifs_base::VirtualNs;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::block::SECTOR_BYTES;

pub(super) const FILE_MAGIC: [u8; 8] = *b"MOBIFLJ\n";
pub(super) const VERSION: u32 = 1;
pub(super) const RECORD_MAGIC: u32 = 0x4a4c_464d;

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct FileHeader {
    pub(super) magic: [u8; 8],
    pub(super) version: U32,
    pub(super) crc: U32,
    pub(super) device_bytes: U64,
}

impl FileHeader {
    pub(super) fn new(device_bytes: u64) -> Self {
        let mut header = Self {
            magic: FILE_MAGIC,
            version: VERSION.into(),
            crc: 0.into(),
            device_bytes: device_bytes.into(),
        };
        header.crc = header.expected_crc().into();
        header
    }

    pub(super) fn expected_crc(&self) -> u32 {
        let blank = Self {
            crc: 0.into(),
            ..*self
        };
        crc32c::crc32c(blank.as_bytes())
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Data was written to the cache of the device.
    Write,
    /// Data was written and is durable when done.
    DurableWrite,
    /// Whole pages were given up: they read as zeros, durably when it is done.
    Discard,
    /// What was done before its start is durable when it is done.
    Flush,
    /// The power failed at its start.
    Cut,
    /// The durable content of a range after the preceding cut.
    AfterCut,
}

impl Kind {
    const fn number(self) -> u32 {
        match self {
            Self::Write => 1,
            Self::DurableWrite => 2,
            Self::Discard => 3,
            Self::Flush => 4,
            Self::Cut => 5,
            Self::AfterCut => 6,
        }
    }

    const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Write,
            2 => Self::DurableWrite,
            3 => Self::Discard,
            4 => Self::Flush,
            5 => Self::Cut,
            6 => Self::AfterCut,
            _ => return None,
        })
    }

    /// Whether data follows the record.
    pub(crate) const fn has_data(self) -> bool {
        matches!(self, Self::Write | Self::DurableWrite | Self::AfterCut)
    }

    /// Whether it survives every cut once it is done.
    pub(crate) const fn is_durable(self) -> bool {
        matches!(self, Self::DurableWrite | Self::Discard | Self::AfterCut)
    }
}

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RecordHeader {
    magic: U32,
    kind: U32,
    offset: U64,
    bytes: U64,
    at: U64,
    done_at: U64,
    data_crc: U32,
    header_crc: U32,
}

/// One thing that happened to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: Kind,
    /// In bytes; whole sectors.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// When it was asked for.
    pub(crate) at: VirtualNs,
    /// When the device was done with it.
    pub(crate) done_at: VirtualNs,
}

impl Record {
    /// Bytes of data after the header.
    pub(super) const fn data_bytes(&self) -> u64 {
        if self.kind.has_data() { self.bytes } else { 0 }
    }

    pub(super) fn encode(&self, data: &[u8]) -> RecordHeader {
        let mut header = RecordHeader {
            magic: RECORD_MAGIC.into(),
            kind: self.kind.number().into(),
            offset: self.offset.into(),
            bytes: self.bytes.into(),
            at: self.at.0.into(),
            done_at: self.done_at.0.into(),
            data_crc: crc32c::crc32c(data).into(),
            header_crc: 0.into(),
        };
        header.header_crc = crc32c::crc32c(header.as_bytes()).into();
        header
    }

    /// The record and the checksum of its data; none if the header is damaged or does not
    /// fit a device of `device_bytes`.
    pub(super) fn decode(header: &RecordHeader, device_bytes: u64) -> Option<(Self, u32)> {
        let blank = RecordHeader {
            header_crc: 0.into(),
            ..*header
        };
        if header.magic.get() != RECORD_MAGIC
            || header.header_crc.get() != crc32c::crc32c(blank.as_bytes())
        {
            return None;
        }
        let record = Self {
            kind: Kind::from_number(header.kind.get())?,
            offset: header.offset.get(),
            bytes: header.bytes.get(),
            at: VirtualNs(header.at.get()),
            done_at: VirtualNs(header.done_at.get()),
        };
        let end = record.offset.checked_add(record.bytes)?;
        let whole =
            record.offset.is_multiple_of(SECTOR_BYTES) && record.bytes.is_multiple_of(SECTOR_BYTES);
        (end <= device_bytes && whole).then_some((record, header.data_crc.get()))
    }
}
