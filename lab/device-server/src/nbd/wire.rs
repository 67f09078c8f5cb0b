//! Numbers and structures of the NBD protocol, as its `proto.md` names them. Everything
//! on the wire is big-endian.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// "NBDMAGIC", in front of the handshake.
pub(super) const INITIAL_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// "IHAVEOPT", after it, and in front of every option.
pub(super) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(super) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(super) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(super) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake flags; the client's have the same bits.
pub(super) mod handshake {
    pub(in super::super) const FIXED_NEWSTYLE: u16 = 1 << 0;
    pub(in super::super) const NO_ZEROES: u16 = 1 << 1;
}

pub(super) mod option {
    pub(in super::super) const EXPORT_NAME: u32 = 1;
    pub(in super::super) const ABORT: u32 = 2;
    pub(in super::super) const LIST: u32 = 3;
    pub(in super::super) const INFO: u32 = 6;
    pub(in super::super) const GO: u32 = 7;
    pub(in super::super) const STRUCTURED_REPLY: u32 = 8;
}

pub(super) mod option_reply {
    pub(in super::super) const ACK: u32 = 1;
    pub(in super::super) const SERVER: u32 = 2;
    pub(in super::super) const INFO: u32 = 3;
    pub(in super::super) const ERROR_UNSUPPORTED: u32 = (1 << 31) + 1;
    pub(in super::super) const ERROR_INVALID: u32 = (1 << 31) + 3;
    pub(in super::super) const ERROR_UNKNOWN: u32 = (1 << 31) + 6;
}

pub(super) mod info {
    pub(in super::super) const EXPORT: u16 = 0;
    pub(in super::super) const NAME: u16 = 1;
    pub(in super::super) const DESCRIPTION: u16 = 2;
    pub(in super::super) const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: what the export can do.
pub(super) mod export {
    pub(in super::super) const HAS_FLAGS: u16 = 1 << 0;
    pub(in super::super) const SEND_FLUSH: u16 = 1 << 2;
    pub(in super::super) const SEND_FUA: u16 = 1 << 3;
    pub(in super::super) const SEND_TRIM: u16 = 1 << 5;
    pub(in super::super) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(in super::super) const SEND_DF: u16 = 1 << 7;
    pub(in super::super) const CAN_MULTI_CONN: u16 = 1 << 8;
}

pub(super) mod command {
    pub(in super::super) const READ: u16 = 0;
    pub(in super::super) const WRITE: u16 = 1;
    pub(in super::super) const DISCONNECT: u16 = 2;
    pub(in super::super) const FLUSH: u16 = 3;
    pub(in super::super) const TRIM: u16 = 4;
    pub(in super::super) const WRITE_ZEROES: u16 = 6;
}

pub(super) mod command_flag {
    pub(in super::super) const FUA: u16 = 1 << 0;
    pub(in super::super) const NO_HOLE: u16 = 1 << 1;
    pub(in super::super) const DF: u16 = 1 << 2;
}

/// Structured replies.
pub(super) mod chunk {
    pub(in super::super) const FLAG_DONE: u16 = 1 << 0;
    pub(in super::super) const NONE: u16 = 0;
    pub(in super::super) const OFFSET_DATA: u16 = 1;
    pub(in super::super) const ERROR: u16 = (1 << 15) + 1;
}

/// The error numbers that may go over the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum WireError {
    Io = 5,
    Invalid = 22,
    NoSpace = 28,
    NotSupported = 95,
    Shutdown = 108,
}

macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        pub(super) struct $name { $(pub(super) $field: $kind),* }
    )*};
}

wire! {
    /// What the server says first.
    Greeting { magic: U64, option_magic: U64, flags: U16 }
    /// In front of an option's data.
    OptionHeader { magic: U64, option: U32, length: U32 }
    /// In front of the data of an option's reply.
    OptionReplyHeader { magic: U64, option: U32, kind: U32, length: U32 }
    /// The answer to EXPORT_NAME, before the zeroes that old clients want.
    ExportReply { size: U64, flags: U16 }
    /// INFO_EXPORT.
    ExportInfo { kind: U16, size: U64, flags: U16 }
    /// INFO_BLOCK_SIZE, in bytes.
    BlockSizeInfo { kind: U16, smallest: U32, preferred: U32, largest: U32 }
    /// A request, before the data of a write.
    RequestHeader { magic: U32, flags: U16, command: U16, cookie: U64, offset: U64, length: U32 }
    /// A simple reply, before the data of a read.
    SimpleReply { magic: U32, error: U32, cookie: U64 }
    /// A chunk of a structured reply, before its payload.
    ChunkHeader { magic: U32, flags: U16, kind: U16, cookie: U64, length: U32 }
    /// Payload of an error chunk, before its message.
    ErrorChunk { error: U32, message_bytes: U16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_protocol() {
        let sizes = [
            (size_of::<Greeting>(), 18),
            (size_of::<OptionHeader>(), 16),
            (size_of::<OptionReplyHeader>(), 20),
            (size_of::<ExportReply>(), 10),
            (size_of::<ExportInfo>(), 12),
            (size_of::<BlockSizeInfo>(), 14),
            (size_of::<RequestHeader>(), 28),
            (size_of::<SimpleReply>(), 16),
            (size_of::<ChunkHeader>(), 20),
            (size_of::<ErrorChunk>(), 6),
        ];
        for (index, (ours, theirs)) in sizes.into_iter().enumerate() {
            assert_eq!(ours, theirs, "structure number {index}");
        }
    }
}
