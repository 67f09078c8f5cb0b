//! Identifiers, units and the change records that the MobiFS crates exchange.
//!
//! Everything here is plain data: no clock, no file, no thread. The engine
//! (`mobifs-engine`) produces [`Entry`] values and the stores (`mobifs-store`)
//! persist them, so neither needs to know the other.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod attributes;
pub mod codec;
mod content;
mod entry;
mod id;
mod name;
mod operation;
mod page;
mod range;
pub mod room;
mod time;
mod transaction;
mod worded;

pub use attributes::{Attributes, DeviceNumber, FileKind, MODE_MASK, S_ISGID, S_ISUID, S_ISVTX};
pub use content::{ContentLayer, ContentSearch, Whence, search_layer, seek_content};
pub use entry::{DirectoryEntry, Entry, ObjectInfo, ObjectState, SpaceInfo, Xattr, XattrChange};
pub use id::{AppId, ObjectId, PageIndex, TransactionId};
pub use name::{InvalidName, NAME_BYTES_MAX, Name, SYMLINK_BYTES_MAX};
pub use operation::{
    AttributeGroup, DeviceState, FoundObject, ObservedOperation, Operation, UserOperation,
};
pub use page::{PAGE_BYTES, PAGE_BYTES_U64, Page, PageContent};
pub use range::{ByteRange, RangeSet};
pub use room::{FullDisk, Room, dentry_room_bytes, xattr_room_bytes};
pub use time::{MonotonicNs, Timestamp, VirtualNs};
pub use transaction::Transaction;
